"""`solo-hcsc knn`: weighted KNN on a frozen encoder's features, without training."""

import math
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from solo_hcsc.cli.console import table
from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.flags import add_feature_flags, check_features
from solo_hcsc.cli.parser import Bound, Invocation, Parser, at_least, take

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from solo_hcsc.data.source import ImageSource

# The paper's appendix A.
PROTOCOL = {"k": [10, 20, 100, 200], "temperature": 0.07, "distance_function": "cosine", "features": "backbone"}


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)

    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.framework.datasets import evaluation_sets

    source = take(ImageSource, flags).located(needs_val=True)
    evaluate(flags, Invocation("knn", tuple(argv)), source, lambda crop: evaluation_sets(source, crop, crop))


def evaluate(
    flags: Namespace,
    invocation: Invocation,
    source: "ImageSource",
    sets: "Callable[[Callable], tuple[Dataset, Dataset]]",
) -> None:
    """The accuracy of every --k in the second of two data sets, with the first one as the bank."""
    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.features import FeatureSettings, Frozen
    from solo_hcsc.evaluation.knn import accuracies
    from solo_hcsc.evaluation.results import Result, describe_data, result_file
    from solo_hcsc.framework.datasets import evaluation_transforms

    started, loading, evaluation = time.monotonic(), take(Loading, flags), invocation.command
    frozen = Frozen(take(FeatureSettings, flags), source.crop_size[0])
    _, transform = evaluation_transforms(source)
    train_set, val_set = sets(transform)
    images, queries = len(train_set), len(val_set)  # type: ignore[arg-type]
    if max(flags.k) > images:
        raise UserError(f"--k {max(flags.k)}: there are only {images} training images")
    checkpoint = frozen.encoder.checkpoint
    variant = "-projector" if flags.features == "projector" else ""
    file = result_file(checkpoint, evaluation + variant, source)
    print(frozen.encoder.taken)
    print(
        f"{evaluation} of {checkpoint} ({frozen.encoder.name}, {flags.features} features) on {source.dataset}: "
        f"{images} images in the bank, {frozen.device}",
        flush=True,
    )
    bank, asked = frozen.of(train_set, loading, "bank"), frozen.of(val_set, loading, "queries")
    rows = accuracies(bank, asked, flags.k, flags.temperature, flags.distance_function)
    best = max(rows, key=lambda row: row[1])
    settings = {
        "k": best[0],
        "temperature": flags.temperature,
        "distance": flags.distance_function,
        "features": flags.features,
        "all": [{"k": k, "acc1": acc1, "acc5": acc5} for k, acc1, acc5 in rows],
        "deviations": [name for name, value in PROTOCOL.items() if getattr(flags, name) != value],
    }
    metrics = {"acc1": best[1], "acc5": best[2]}
    data = describe_data(source, images, queries)
    result = Result(evaluation, flags.method, data, metrics, settings, time.monotonic() - started)
    result.write(file, frozen.encoder, invocation)
    print(table(("k", "top-1 %", "top-5 %"), rows))
    print(f"best: {best[1]:.2f} % with k={best[0]}; result in {file}")


def parse(argv: Sequence[str]) -> Namespace:
    parser = build_parser("knn", "Weighted KNN accuracy of the frozen encoder of a checkpoint; trains nothing.")
    flags = parser.parse(argv)
    check_features(flags)
    return flags


def build_parser(command: str, description: str) -> Parser:
    parser = Parser(command, description, "--pretrained_feature_extractor PATH --dataset NAME [flags]")
    add_feature_flags(parser)
    group = parser.add_argument_group("KNN")
    group.add_argument(
        "--k",
        type=int,
        nargs="+",
        default=PROTOCOL["k"],
        bound=at_least(1),
        help="neighbours to try; the best is reported",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=0.07,
        bound=Bound(lambda value: 0 < value < math.inf, "must be greater than 0 and finite"),
        help="of the votes' weights (cosine)",
    )
    group.add_argument(
        "--distance_function", choices=["cosine", "euclidean"], default="cosine", help="between features"
    )
    return parser
