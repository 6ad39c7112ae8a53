"""`python -m solo_hcsc.places`: trains a linear classifier for Places205 on a frozen encoder."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.errors import command
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.quiet import quiet

# The paper's appendix, with momentum 0.9.
PROTOCOL = {
    "lr": 3.0,
    "scheduler": "cosine",
    "weight_decay": 0.0,
    "batch_size": 256,
    "max_epochs": 100,
}
DEFAULTS = PROTOCOL | {"dataset": "places205", "data_dir": Path("datasets/places205")}
LISTS = {"train_list": "train_places205.csv", "val_list": "val_places205.csv"}


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.framework.registry import load_methods

    methods = load_methods()
    args = parse(argv)

    from solo_hcsc.data.lists import check_labels, read_list
    from solo_hcsc.evaluation.probe import Probe

    probe = Probe(args, "places", PROTOCOL, images_flag="--train_list")
    train_transform, val_transform = probe.transforms
    train_set = read_list(args.train_list, args.data_dir, train_transform)
    val_set = read_list(args.val_list, args.data_dir, val_transform)
    check_labels(train_set, val_set)
    logged = probe.fit(methods["linear"], len(train_set.classes), train_set, val_set)
    metrics = {f"acc{k}": logged[f"val_acc{k}"] for k in (1, 5) if f"val_acc{k}" in logged}
    title = "places (cached)" if args.cache_features else "places"
    probe.report(metrics, {}, ("evaluation", "top-1 %", "top-5 %"), [(title, *metrics.values())])


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.evaluation.probe import check, refuse_folders

    args = build_parser().parse(argv)
    refuse_folders(args, "use --train_list and --val_list")
    for flag, name in LISTS.items():
        if getattr(args, flag) is None:
            setattr(args, flag, args.data_dir / name)
    return check(args, "places")


def build_parser() -> Parser:
    from solo_hcsc.evaluation import probe as probing

    parser = probing.build_parser(
        "places", "Trains a linear classifier for Places205 on the frozen encoder of a checkpoint.", DEFAULTS
    )
    probing.without_folders(parser, "places205", "the folder that the paths in the lists start from")
    group = parser.add_argument_group("data")
    for flag, name in LISTS.items():
        group.add_argument(
            f"--{flag}",
            type=Path,
            help="a path below --data_dir and a class number in each line, with a comma or a space between; "
            f"if not given, {name} in --data_dir",
        )
    probing.add_cache_flag(parser)
    return parser


if __name__ == "__main__":
    main()
