"""`solo-hcsc knn`: weighted KNN on a frozen encoder's features, without training."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import knn_parser
from solo_hcsc.evaluation.frozen_settings import check_features
from solo_hcsc.runs.images import find_labelled
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    found = find_labelled(settings)

    from solo_hcsc.evaluation.knn_of_runs import knn_of_run

    knn_of_run(settings, *found, Invocation("knn", tuple(argv))).tell()


def parse(argv: Sequence[str]) -> Settings:
    parser = knn_parser("knn", "Weighted KNN accuracy of the frozen encoder of a checkpoint; trains nothing.")
    settings = parser.parse(argv)
    check_features(settings)
    return settings
