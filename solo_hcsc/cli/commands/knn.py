"""`solo-hcsc knn`: weighted KNN on a frozen encoder's features, without training."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import check_features, knn_parser
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings, take


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    source = evaluated_images(flags).located(needs_val=True).labelled()

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.features import FeatureSettings
    from solo_hcsc.evaluation.knn import Voting, evaluate
    from solo_hcsc.solo102.datasets import evaluation_sets

    settings = (
        take(FeatureSettings, flags, features="backbone"),
        flags.features,
        take(Voting, flags),
        take(Loading, flags),
    )
    evaluate(*settings, source, lambda crop: evaluation_sets(source, crop, crop), Invocation("knn", tuple(argv)))


def parse(argv: Sequence[str]) -> Settings:
    parser = knn_parser("knn", "Weighted KNN accuracy of the frozen encoder of a checkpoint; trains nothing.")
    flags = parser.parse(argv)
    check_features(flags)
    return flags
