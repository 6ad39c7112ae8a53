"""Train a linear classifier for PASCAL VOC 2007's classes on a frozen encoder."""

import math
from dataclasses import replace
from os import PathLike
from typing import Any

from solo_hcsc.data.pascal import find_folder, read_split
from solo_hcsc.data.source import ImageSource, check_folder
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.models import MultiLabel
from solo_hcsc.evaluation.probe import Evaluated, Probe
from solo_hcsc.evaluation.protocols import VOC, VOC_SETTINGS, check_voc, settled
from solo_hcsc.evaluation.released_voc import SIDE, ReleasedMultiLabel, test_transform, training_transform
from solo_hcsc.quiet import hushed
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation, Result
from solo_hcsc.settings import Settings
from solo_hcsc.typed import typed

_COLUMNS = {"class": "class", "AP11": "11-point AP %", "AP": "all-point AP %"}


@typed
def voc(weights: Any, data_dir: str | PathLike[str], **settings: Any) -> Result:
    """Train a linear classifier for PASCAL VOC 2007 on a frozen encoder, by the paper's protocol.

    Args:
        weights: a `Run`, an `Encoder` from a file, or the path of a run or of weights.
        data_dir: the folder VOC2007, or the VOCdevkit folder that it is in.
        **settings: any setting of `solo-hcsc voc`, such as `config="official"` or `cache_features=True`.

    Returns:
        Mean average precision, `mAP11` by 11 points and `mAP` by all; `rows` has a row for each class, and
        `origin["run"]` the folder of the classifier.

    Example:
        >>> voc("trained_models/hcsc", "VOCdevkit").metrics  # doctest: +SKIP
        {'mAP11': 81.2, 'mAP': 84.9}
    """
    asked = settled(VOC_SETTINGS, weights, {"data_dir": data_dir, **settings})
    check_voc(asked)
    check_folder("data_dir", asked.data_dir)
    with hushed():
        return train_voc(asked, evaluated_images(asked)).result


def train_voc(settings: Settings, source: ImageSource, command: Invocation | None = None) -> Evaluated:
    """Train the classifier on trainval, test it on test, and write a run's folder.

    Args:
        settings: all that `solo-hcsc voc` has, by name.
        source: its `data_dir` is the folder VOC2007, or the one that this is in.
        command: as it was typed, for the record.
    """
    source = replace(source, data_dir=find_folder(source.data_dir))
    probe = Probe("voc", settings, source, VOC, "data_dir", command)
    if probe.devices.processes > 1:
        raise UserError("average precision needs all scores in one process; use `devices` 1")
    released = settings.config == "official"
    transforms = (training_transform(), test_transform()) if released else probe.transforms
    train_set = read_split(source.data_dir, "train" if released else "trainval", transforms[0])
    test_set = read_split(source.data_dir, "test", transforms[1], train_set.classes)
    classes = train_set.classes  # for the model, and for args.json, which says what its outputs mean
    model = ReleasedMultiLabel if released else MultiLabel
    changes: dict[str, Any] = {"classes": classes} | ({"crop_size": [SIDE]} if released else {})
    trained = probe.fit(model, len(classes), train_set, test_set, changes)
    logged = trained.logged
    if "val_map" not in logged:
        return probe.result(trained, {}, {}, [], _COLUMNS)
    metrics = {"mAP11": logged["val_map11"], "mAP": logged["val_map"]}
    own: dict[str, Any] = {}
    if released:
        metrics["image_AP"] = logged["val_image_ap"]
        own["config"] = settings.config
    own["per_class"] = {
        name: None if math.isnan(precision) else {"AP11": logged[f"val_ap11_{name}"], "AP": precision}
        for name in classes
        for precision in [logged[f"val_ap_{name}"]]
    }
    rows = [{"class": name, **(pair or {})} for name, pair in own["per_class"].items()]
    mean = "mean (cached)" if settings.cache_features else "mean"
    rows.append({"class": mean, "AP11": metrics["mAP11"], "AP": metrics["mAP"]})
    return probe.result(trained, metrics, own, rows, _COLUMNS)
