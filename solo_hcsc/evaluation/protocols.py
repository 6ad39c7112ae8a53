"""The paper's protocols of evaluations that train a classifier, their settings, and which of these exclude each other.

Needs no torch, so that a wrong setting is refused before that is imported.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from solo_hcsc.data.settings import EVALUATED_SIZE, IMAGES, TRAIN_LIST
from solo_hcsc.data.source import stored_kind
from solo_hcsc.devices import DEVICES
from solo_hcsc.encoders.settings import FOREIGN
from solo_hcsc.errors import ArgumentError
from solo_hcsc.files import check_readable
from solo_hcsc.settings import (
    HIDDEN,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_SHARE,
    Groups,
    Setting,
    Settings,
    changed,
    settle,
)
from solo_hcsc.training import settings as training

# All with momentum 0.9. Appendix B of the paper:
LINEAR: dict[str, dict[str, Any]] = {
    name: {"lr": lr, **schedule, "weight_decay": 0.0, "batch_size": 256, "max_epochs": 100, "optimizer": "sgd"}
    for name, lr, schedule in (
        ("pcl", 5.0, {"scheduler": "step", "lr_decay_steps": [60, 80]}),
        ("adco", 10.0, {"scheduler": "cosine"}),
        ("moco", 30.0, {"scheduler": "step", "lr_decay_steps": [60, 80]}),
    )
}
SWEEP = [0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 30.0]
# Appendix A; it has one learning rate, which the classifier has too unless `head_lr` says otherwise.
SEMISUP: dict[str, Any] = {
    "lr": 0.005,
    "scheduler": "step",
    "lr_decay_steps": [30, 60],
    "weight_decay": 0.0,
    "batch_size": 256,
    "max_epochs": 70,
}
VOC = {"lr": 0.05, "scheduler": "cosine", "weight_decay": 0.0, "batch_size": 16, "max_epochs": 100}
PLACES = {"lr": 3.0, "scheduler": "cosine", "weight_decay": 0.0, "batch_size": 256, "max_epochs": 100}
LISTS = {"train_list": "train_places205.csv", "val_list": "val_places205.csv"}

CHECKPOINT = (
    Setting(
        "pretrained_feature_extractor",
        Path,
        None,
        None,
        "the checkpoint, or a folder whose newest one is taken: of any method, of MoCo or the authors' HCSC, or "
        "weights of torchvision or timm",
    ),
    Setting("method", str, None, None, "method of a checkpoint without args.json, for the tables"),
)


def classifier(own: Groups, changes: Mapping[str, Mapping[str, Any]], best: str = "val_acc1") -> Groups:
    """Return the settings of an evaluation that trains a classifier, by the titles of their groups.

    Args:
        own: those that no other has; a group of the same title gets them too.
        changes: of settings' rows, by the settings' names.
        best: the metric that `keep_best` takes.
    """
    groups: Groups = {
        "encoder": CHECKPOINT,
        "data": (*IMAGES, EVALUATED_SIZE),
        "linear": (
            *FOREIGN,
            Setting("patch_size", int, 16, None, HIDDEN),
            *training.optimiser("learning rate", ("sgd", "lars", "adam"), "reduce"),
            Setting("min_lr", float, 0.0, None, "where warmup_cosine ends"),
            Setting("warmup_start_lr", float, 0.0, None, "where warmup_cosine starts"),
            Setting("warmup_epochs", int, 10, NOT_NEGATIVE, "epochs of linear warm-up in warmup_cosine"),
            training.DECAY_STEPS,
        ),
        "devices (Lightning)": DEVICES,
        "training loop (Lightning)": training.LOOP,
        "records": training.records((best,)),
        "logging": training.logging(),
    }
    hidden = {name: {"help": HIDDEN} for name in ("no_labels", "classifier_lr")}
    told = "which data set; as in pretraining if not given, like its folders"
    changes = {"dataset": {"help": told}, **hidden, **changes}
    return changed({title: (*groups.get(title, ()), *own.get(title, ())) for title in groups | own}, changes)


def _defaults(protocol: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {"default": value} for name, value in protocol.items()}


def _one_folder(dataset: str, data_dir: Path, meaning: str) -> dict[str, dict[str, Any]]:
    """Return the changes for a data set that is not laid out in a folder for each class."""
    hidden = {name: {"help": HIDDEN} for name in ("train_dir", "val_dir", "class_level")}
    fixed = {"dataset": {"kind": (dataset,), "default": dataset, "help": "which data set"}}
    return hidden | fixed | {"data_dir": {"default": data_dir, "help": meaning}}


_NO_DALI: dict[str, dict[str, Any]] = {name: {"help": HIDDEN} for name in ("dali", "dali_device")}
_CACHE = Setting(
    "cache_features",
    bool,
    False,
    None,
    "compute each image's features once, without augmentation: quick, and marked so in the tables",
)
_SWEEP = f"trains a classifier for each learning rate at once, on the same features ({' '.join(map(str, SWEEP))})"
_CONFIG = "settings of the paper's appendix: lr 5 step, lr 10 cosine or lr 30 step; other flags override them"
_OFFICIAL = (
    "as the authors' released code: train images only, 300 px, a summed loss, five crops; see docs/evaluation.md"
)
_LIST = "a path below `data_dir` and a class number in each line, with a comma or a space between; if not given, "


def linear_settings(config: str | None = None, sweep: bool = False) -> Groups:
    """Return the settings of `linear`, with the defaults of a configuration; a sweep cannot watch one classifier."""
    own = (
        Setting("config", tuple(LINEAR), None, None, _CONFIG),
        Setting("lr_sweep", float, None, POSITIVE, _SWEEP, several=True),
        _CACHE,
    )
    defaults = {"lr": None, **LINEAR.get(config or "", {"scheduler": "cosine"} if sweep else {})}
    told = "learning rate; if neither it nor `config` is given, chosen on held-out training images"
    changes = _defaults(defaults)
    changes["lr"]["help"] = told
    return classifier({"data": (TRAIN_LIST,), "linear": own, "records": training.RESUME}, changes)


SEMISUP_SETTINGS = classifier(
    {
        "labels": (
            Setting("label_fraction", float, None, POSITIVE_SHARE, "share of each class's labels, e.g. 0.01 or 0.1"),
            Setting(
                "label_list",
                Path,
                None,
                None,
                "file that names the labelled images, one in each line, as ImageNet's 1 %% lists",
            ),
            Setting("head_lr", float, None, POSITIVE, "learning rate of the classifier; `lr` if not given"),
        )
    },
    _NO_DALI | _defaults(SEMISUP),
)
VOC_SETTINGS = classifier(
    {"linear": (_CACHE, Setting("config", ("official",), None, None, _OFFICIAL))},
    _NO_DALI
    | _defaults(VOC)
    | _one_folder(
        "voc07", Path("datasets/VOCdevkit/VOC2007"), "the VOC2007 folder, or the VOCdevkit folder that it is in"
    ),
    "val_map",
)
PLACES_SETTINGS = classifier(
    {
        "data": tuple(
            Setting(name, Path, None, None, f"{_LIST}{usual} in `data_dir`") for name, usual in LISTS.items()
        ),
        "linear": (_CACHE,),
    },
    _defaults(PLACES)
    | _one_folder("places205", Path("datasets/places205"), "the folder that the paths in the lists start from"),
)


def settled(groups: Groups, weights: Any, given: Mapping[str, Any]) -> Settings:
    """Check settings that a caller gives by name, and fill in the defaults; `weights`: a run, an encoder or a path."""
    found = {"pretrained_feature_extractor": getattr(weights, "checkpoint", weights)}
    if not isinstance(found["pretrained_feature_extractor"], str | PathLike):
        raise ArgumentError(f"`weights` is {weights!r}: give a run, an encoder of a file, or a path")
    if hasattr(weights, "module"):
        found["encoder"] = weights.name
    elif hasattr(weights, "checkpoint") and "encoder" not in weights.settings:  # foreign weights, opened as a run
        found["encoder"] = weights.encoder.name
    return settle([row for group in groups.values() for row in group], {**found, **given})


def settled_linear(given: Mapping[str, Any]) -> Settings:
    """Check settings of `linear`, and fill in the defaults; `lr_sweep` without rates has those of the paper."""
    sweep = SWEEP if given.get("lr_sweep") in (True, []) else given.get("lr_sweep")
    groups = linear_settings(given.get("config"), sweep is not None)
    settings = settle([row for group in groups.values() for row in group], {**given, "lr_sweep": sweep})
    check_linear(settings)
    return settings


def folders(train: Any, val: Any) -> dict[str, Any]:
    """Return the settings that name folders of images; none where both are None: those of the run."""
    if train is None and val is None:
        return {}
    if train is None or val is None:
        raise ArgumentError("`train` and `val`: give both, or neither for the images of the run")
    paths = [Path(one).absolute() for one in (train, val)]
    dataset = stored_kind(paths[0]) or "custom"
    return {"dataset": dataset, "data_dir": paths[0].parent, "train_dir": paths[0], "val_dir": paths[1]}


def check_linear(settings: Settings) -> None:
    """Refuse what a sweep of learning rates cannot have."""
    check_checkpoint(settings)
    check_labelled(settings)
    if settings.lr_sweep is None:
        return
    if len({f"{lr:g}" for lr in settings.lr_sweep}) < len(settings.lr_sweep):
        raise ArgumentError("`lr_sweep`: a learning rate is given twice, or two differ by less than a millionth")
    if settings.gradient_clip_val is not None:
        raise ArgumentError("`lr_sweep`: `gradient_clip_val` would clip all classifiers together; leave it out")
    if settings.scheduler == "reduce":
        raise ArgumentError("`lr_sweep`: `scheduler` reduce watches one classifier's loss; use step or cosine")


def check_semisup(settings: Settings) -> None:
    """Refuse anything but one way to say which labels are used."""
    check_checkpoint(settings)
    check_labelled(settings)
    if settings.label_list and settings.label_fraction is not None:
        raise ArgumentError("`label_list` and `label_fraction` exclude each other; give one of them")
    if not settings.label_list and settings.label_fraction is None:
        raise ArgumentError(
            "`label_fraction` is missing: the share of labels to use, such as 0.01, or `label_list` FILE"
        )
    if settings.dali:
        raise ArgumentError("`dali`: semisup reads its few images with the default loader; leave it out")
    if settings.label_list:
        name = f"`label_list` {settings.label_list}"
        check_readable(settings.label_list, name, "give a text file of images' names")


def check_voc(settings: Settings) -> None:
    """Refuse cached features with a protocol that augments images."""
    check_checkpoint(settings)
    check_labelled(settings)
    check_folders(settings, "`data_dir` is enough")
    if settings.config and settings.image_backend == "fast":
        raise ArgumentError("`image_backend` fast: `config` official has transforms of its own; leave out one of them")
    if settings.config and settings.cache_features:
        raise ArgumentError(
            "`cache_features`: `config` official augments the images anew in every epoch; leave out one of them"
        )


def check_places(settings: Settings) -> None:
    """Refuse folders: the images of Places are in lists."""
    check_checkpoint(settings)
    check_labelled(settings)
    check_folders(settings, "use `train_list` and `val_list`")


def place_lists(settings: Settings, data_dir: Path) -> dict[str, Path]:
    """Return the lists of training and validation images, which can be read."""
    lists = {name: getattr(settings, name) or data_dir / usual for name, usual in LISTS.items()}
    for file in lists.values():
        check_readable(file, file, "give the list of images")
    return lists


def check_folders(settings: Settings, instead: str) -> None:
    """Refuse folders for a data set that is not laid out in a folder for each class."""
    for name in ("train_dir", "val_dir", "class_level"):
        if getattr(settings, name) is not None:
            raise ArgumentError(f"`{name}`: `dataset` {settings.dataset} has no such folder; {instead}")


def check_checkpoint(settings: Settings) -> None:
    """Refuse an evaluation without a checkpoint."""
    if settings.pretrained_feature_extractor is None:
        raise ArgumentError("`pretrained_feature_extractor` is missing: the checkpoint to evaluate")


def check_labelled(settings: Settings) -> None:
    """Refuse an evaluation without labels."""
    if settings.no_labels:
        raise ArgumentError("`no_labels`: an evaluation needs labels; leave it out")
