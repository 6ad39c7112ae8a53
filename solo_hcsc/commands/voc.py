"""`python -m solo_hcsc.voc`: trains a linear classifier for PASCAL VOC 2007's classes on a frozen encoder."""

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.cli.errors import UserError, command
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.quiet import quiet

# The paper's appendix, with momentum 0.9.
PROTOCOL = {
    "lr": 0.05,
    "scheduler": "cosine",
    "weight_decay": 0.0,
    "batch_size": 16,
    "max_epochs": 100,
}
DEFAULTS = PROTOCOL | {"dataset": "voc07", "data_dir": Path("datasets/VOCdevkit/VOC2007")}


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.framework.registry import load_methods

    load_methods()
    args = parse(argv)

    from solo_hcsc.evaluation.multi_label import MultiLabel
    from solo_hcsc.data.pascal import find_folder, read_split
    from solo_hcsc.evaluation.probe import Probe

    args.data_dir = find_folder(args.data_dir)
    probe = Probe(args, "voc", PROTOCOL, images_flag="--data_dir")
    if len(args.gpus) * args.num_nodes > 1:
        raise UserError("average precision needs all scores in one process; use --devices 1")
    train_transform, test_transform = probe.transforms
    train_set = read_split(args.data_dir, "trainval", train_transform)
    test_set = read_split(args.data_dir, "test", test_transform, train_set.classes)
    args.classes = train_set.classes  # for the model, and for args.json, which says what its outputs mean
    logged = probe.fit(MultiLabel, len(args.classes), train_set, test_set)
    if "val_map" not in logged:
        return probe.report({}, {}, (), [])
    precisions = {name: (logged[f"val_ap11_{name}"], logged[f"val_ap_{name}"]) for name in args.classes}
    metrics = {"mAP11": logged["val_map11"], "mAP": logged["val_map"]}
    without = [name for name, (value, _) in precisions.items() if math.isnan(value)]
    settings = {
        "per_class": {
            name: None if name in without else {"AP11": ap11, "AP": ap} for name, (ap11, ap) in precisions.items()
        }
    }
    rows: list[tuple[Any, ...]] = [
        (name, "-", "-") if name in without else (name, *pair) for name, pair in precisions.items()
    ]
    rows.append(("mean (cached)" if args.cache_features else "mean", *metrics.values()))
    remark = f"left out of the mean, since no test image shows it: {', '.join(without)}" if without else ""
    probe.report(metrics, settings, ("class", "11-point AP %", "all-point AP %"), rows, remark)


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.evaluation.probe import check, refuse_folders

    args = build_parser().parse(argv)
    refuse_folders(args, "--data_dir is enough")
    return check(args, "voc")


def build_parser() -> Parser:
    from solo_hcsc.evaluation import probe as probing

    parser = probing.build_parser(
        "voc", "Trains a linear classifier for PASCAL VOC 2007 on the frozen encoder of a checkpoint.", DEFAULTS
    )
    probing.without_folders(parser, "voc07", "the VOC2007 folder, or the VOCdevkit folder that it is in")
    parser.choose("keep_best", ["val_map"])
    probing.add_cache_flag(parser)
    parser.hide("dali", "dali_device")
    return parser


if __name__ == "__main__":
    main()
