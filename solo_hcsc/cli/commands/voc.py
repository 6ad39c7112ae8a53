"""`solo-hcsc voc`: trains a linear classifier for PASCAL VOC 2007's classes on a frozen encoder."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from solo_hcsc.cli.flags import (
    add_cache_flag,
    check_labelled_checkpoint,
    probe_parser,
    refuse_folders,
    without_folders,
)
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import check_folder
from solo_hcsc.errors import UserError
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings

# The paper's appendix, with momentum 0.9.
PROTOCOL = {
    "lr": 0.05,
    "scheduler": "cosine",
    "weight_decay": 0.0,
    "batch_size": 16,
    "max_epochs": 100,
}


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    images = evaluated_images(flags)
    check_folder("data_dir", flags.data_dir)

    from solo_hcsc.data.pascal import find_folder, read_split
    from solo_hcsc.evaluation.models import MultiLabel
    from solo_hcsc.evaluation.probe import Probe
    from solo_hcsc.evaluation.released_voc import SIDE, ReleasedMultiLabel, test_transform, training_transform

    source = replace(images, data_dir=find_folder(flags.data_dir))
    probe = Probe(flags, Invocation("voc", tuple(argv)), source, PROTOCOL, images_flag="--data_dir")
    if probe.devices.processes > 1:
        raise UserError("average precision needs all scores in one process; use --devices 1")
    released = flags.config == "official"
    transforms = (training_transform(), test_transform()) if released else probe.transforms
    train_set = read_split(source.data_dir, "train" if released else "trainval", transforms[0])
    test_set = read_split(source.data_dir, "test", transforms[1], train_set.classes)
    classes = train_set.classes  # for the model, and for args.json, which says what its outputs mean
    model = ReleasedMultiLabel if released else MultiLabel
    changes: dict[str, Any] = {"classes": classes} | ({"crop_size": [SIDE]} if released else {})
    trained = probe.fit(model, len(classes), train_set, test_set, changes)
    logged = trained.logged
    if "val_map" not in logged:
        return probe.report(trained, {}, {}, (), [])
    precisions = {name: (logged[f"val_ap11_{name}"], logged[f"val_ap_{name}"]) for name in classes}
    metrics = {"mAP11": logged["val_map11"], "mAP": logged["val_map"]}
    without = [name for name, (value, _) in precisions.items() if math.isnan(value)]
    settings: dict[str, Any] = {"config": flags.config} if released else {}
    if released:
        metrics["image_AP"] = logged["val_image_ap"]
    settings |= {
        "per_class": {
            name: None if name in without else {"AP11": ap11, "AP": ap} for name, (ap11, ap) in precisions.items()
        }
    }
    rows: list[tuple[Any, ...]] = [
        (name, "-", "-") if name in without else (name, *pair) for name, pair in precisions.items()
    ]
    rows.append(("mean (cached)" if flags.cache_features else "mean", metrics["mAP11"], metrics["mAP"]))
    remark = f"left out of the mean, since no test image shows it: {', '.join(without)}" if without else ""
    if released:
        told = f"average precision of each image's classes, which the paper reports: {metrics['image_AP']:.2f} %"
        remark = "; ".join(filter(None, [told, remark]))
    probe.report(trained, metrics, settings, ("class", "11-point AP %", "all-point AP %"), rows, remark)


def parse(argv: Sequence[str]) -> Settings:
    flags = build_parser().parse(argv)
    refuse_folders(flags, "--data_dir is enough")
    if flags.config and flags.cache_features:
        raise UserError(
            "--cache_features: --config official augments the images anew in every epoch; leave out one of them"
        )
    check_labelled_checkpoint(flags)
    return flags


def build_parser() -> Parser:
    parser = probe_parser(
        "voc",
        "Trains a linear classifier for PASCAL VOC 2007 on the frozen encoder of a checkpoint.",
        PROTOCOL,
        best="val_map",
        images="--data_dir FOLDER ",
    )
    folder = "the VOC2007 folder, or the VOCdevkit folder that it is in"
    without_folders(parser, "voc07", Path("datasets/VOCdevkit/VOC2007"), folder)
    add_cache_flag(parser)
    parser.add_argument_group("linear").add_argument(
        "--config",
        choices=["official"],
        help="as the authors' released code: train images only, 300 px, a summed loss, five crops; see "
        "docs/evaluation.md",
    )
    parser.hide("dali", "dali_device")
    return parser
