"""`solo-hcsc places`: trains a linear classifier for Places205 on a frozen encoder."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import (
    add_cache_flag,
    check_labelled_checkpoint,
    probe_parser,
    refuse_folders,
    without_folders,
)
from solo_hcsc.cli.parser import Parser
from solo_hcsc.files import check_readable
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings

# The paper's appendix, with momentum 0.9.
PROTOCOL = {
    "lr": 3.0,
    "scheduler": "cosine",
    "weight_decay": 0.0,
    "batch_size": 256,
    "max_epochs": 100,
}
LISTS = {"train_list": "train_places205.csv", "val_list": "val_places205.csv"}


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    source = evaluated_images(flags)
    lists = {name: getattr(flags, name) or source.data_dir / usual for name, usual in LISTS.items()}
    for file in lists.values():
        check_readable(file, file, "give the list of images")

    from solo_hcsc.data.lists import check_labels, read_list
    from solo_hcsc.evaluation.probe import Probe
    from solo_hcsc.runs.results import column, shown_accuracies
    from solo_hcsc.solo102 import LinearModel

    probe = Probe(flags, Invocation("places", tuple(argv)), source, PROTOCOL, images_flag="--train_list")
    train_set, val_set = (
        read_list(file, source.data_dir, transform)
        for file, transform in zip(lists.values(), probe.transforms, strict=True)
    )
    check_labels(train_set, val_set)
    trained = probe.fit(LinearModel, len(train_set.classes), train_set, val_set, lists)
    tops = shown_accuracies(len(train_set.classes))
    metrics = {f"acc{k}": trained.logged[f"val_acc{k}"] for k in tops if f"val_acc{k}" in trained.logged}
    title = "places (cached)" if flags.cache_features else "places"
    header = ("evaluation", *map(column, tops))
    said = {name: str(file) for name, file in lists.items()}
    probe.report(trained, metrics, {}, header, [(title, *metrics.values())], **said)


def parse(argv: Sequence[str]) -> Settings:
    flags = build_parser().parse(argv)
    refuse_folders(flags, "use --train_list and --val_list")
    check_labelled_checkpoint(flags)
    return flags


def build_parser() -> Parser:
    parser = probe_parser(
        "places",
        "Trains a linear classifier for Places205 on the frozen encoder of a checkpoint.",
        PROTOCOL,
        images="--data_dir FOLDER ",
    )
    folder = "the folder that the paths in the lists start from"
    without_folders(parser, "places205", Path("datasets/places205"), folder)
    group = parser.add_argument_group("data")
    for name, usual in LISTS.items():
        group.add_argument(
            f"--{name}",
            type=Path,
            help="a path below --data_dir and a class number in each line, with a comma or a space between; "
            f"if not given, {usual} in --data_dir",
        )
    add_cache_flag(parser)
    return parser
