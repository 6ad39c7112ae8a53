"""`python -m solo_hcsc.knn`: weighted KNN on a frozen encoder's features, without training."""

import math
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from solo_hcsc.cli.errors import UserError, command
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.quiet import quiet

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from solo_hcsc.evaluation.features import Features

# The paper's appendix A.
PROTOCOL = {"k": [10, 20, 100, 200], "temperature": 0.07, "distance_function": "cosine", "features": "backbone"}


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.framework.registry import load_methods

    load_methods()
    from solo_hcsc.data import folders as data

    args = parse(argv)
    data.resolve_folders(args, needs_val=True)
    evaluate(args, "knn", lambda transform: data.evaluation_sets(args, transform, transform))


def evaluate(args: Namespace, evaluation: str, sets: "Callable[[Callable], tuple[Dataset, Dataset]]") -> None:
    """The accuracy of every --k in the second of two data sets, with the first one as the bank."""
    from solo_hcsc.data import folders as data
    from solo_hcsc.evaluation.features import Frozen
    from solo_hcsc.evaluation.results import describe_data, result_file, table, write_result

    started = time.monotonic()
    frozen = Frozen(args)
    _, transform = data.evaluation_transforms(args)
    train_set, val_set = sets(transform)
    images = len(train_set)  # type: ignore[arg-type]
    if max(args.k) > images:
        raise UserError(f"--k {max(args.k)}: there are only {images} training images")
    checkpoint = frozen.encoder.checkpoint
    variant = "-projector" if args.features == "projector" else ""
    result = result_file(checkpoint, evaluation + variant, args)
    print(frozen.encoder.taken)
    print(
        f"{evaluation} of {checkpoint} ({frozen.encoder.name}, {args.features} features) on {args.dataset}: "
        f"{images} images in the bank, {frozen.device}",
        flush=True,
    )
    bank, queries = frozen.of(train_set, args, "bank"), frozen.of(val_set, args, "queries")
    rows = accuracies(bank, queries, args.k, args.temperature, args.distance_function)
    best = max(rows, key=lambda row: row[1])
    settings = {
        "k": best[0],
        "temperature": args.temperature,
        "distance": args.distance_function,
        "features": args.features,
        "all": [{"k": k, "acc1": acc1, "acc5": acc5} for k, acc1, acc5 in rows],
        "deviations": [name for name, value in PROTOCOL.items() if getattr(args, name) != value],
    }
    write_result(
        result,
        evaluation,
        args,
        frozen.encoder,
        describe_data(args, train_set, val_set),
        {"acc1": best[1], "acc5": best[2]},
        settings,
        time.monotonic() - started,
    )
    print(table(("k", "top-1 %", "top-5 %"), rows))
    print(f"best: {best[1]:.2f} % with k={best[0]}; result in {result}")


def accuracies(
    bank: "Features", queries: "Features", ks: Sequence[int], temperature: float, distance: str
) -> list[tuple[int, float, float]]:
    """K, top-1 and top-5 accuracy of the framework's weighted KNN classifier, in percent."""
    from solo.utils.knn import WeightedKNNClassifier

    knn = WeightedKNNClassifier(T=temperature, distance_fx=distance)
    knn.update(train_features=bank.x, train_targets=bank.y, test_features=queries.x, test_targets=queries.y)
    return [(k, *found) for k, found in knn.accuracies(ks).items()]


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.data.folders import DATASETS

    parser = build_parser("knn", "Weighted KNN accuracy of the frozen encoder of a checkpoint; trains nothing.")
    parser.choose("dataset", DATASETS)
    return check(parser.parse(argv))


def check(args: Namespace) -> Namespace:
    from solo_hcsc.evaluation import features

    features.check(args)
    if min(args.k) < 1:
        raise UserError(f"--k {min(args.k)}: must be at least 1")
    if not 0 < args.temperature < math.inf:
        raise UserError(f"--temperature {args.temperature}: must be greater than 0 and finite")
    return args


def build_parser(module: str, description: str) -> Parser:
    from pathlib import Path

    from solo_hcsc.evaluation.features import add_data_flags, add_feature_flags

    parser = Parser(
        prog=f"solo_hcsc.{module}",
        usage="%(prog)s --pretrained_feature_extractor PATH --dataset NAME [flags]",
        description=description,
    )
    add_feature_flags(parser)
    add_data_flags(parser)
    group = parser.add_argument_group("KNN")
    group.add_argument(
        "--k", type=int, nargs="+", default=PROTOCOL["k"], help="neighbours to try; the best is reported"
    )
    group.add_argument("--temperature", type=float, default=0.07, help="of the votes' weights (cosine)")
    group.add_argument(
        "--distance_function", choices=["cosine", "euclidean"], default="cosine", help="between features"
    )
    parser.explain({"data_dir": Path("datasets")})
    parser.hide("dali", "dali_device", "no_labels")
    return parser


if __name__ == "__main__":
    main()
