"""Settings of a detector's training and test, with the paper's protocols, and which of them exclude each other.

Needs no torch, so that a wrong setting is refused before that is imported.
"""

from pathlib import Path
from typing import Any

from solo_hcsc.data.settings import SKIP_UNREADABLE, WORKERS, check_colours
from solo_hcsc.devices import DEVICES
from solo_hcsc.encoders.settings import FOREIGN
from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation.protocols import CHECKPOINT
from solo_hcsc.settings import HIDDEN, NOT_NEGATIVE, POSITIVE, SHARE, Setting, Settings, at_least, changed, yes_or_no
from solo_hcsc.training import settings as training

# MoCo's configurations R50-C4, which the paper follows; `voc` is for data of one's own in that layout.
_SHARED: dict[str, Any] = {
    "batch_size": 16,
    "lr": 0.02,
    "warmup_steps": 100,
    "warmup_factor": 0.001,
    "weight_decay": 0.0001,
    "weight_decay_norm": 0.0,
    "min_size_test": 800,
    "max_size": 1333,
    "head": "c4",
    "anchor_sizes": None,
    "rois_per_image": 512,
    "pool_size": 14,
    "precise_bn": 200,
    "horizontal_flip_prob": 0.5,
    "keep_empty": False,
    "random_weights": False,
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
}
_VOC = {
    **_SHARED,
    "train_split": "trainval",
    "test_split": "test",
    "max_steps": 24000,
    "lr_steps": (18000, 22000),
    "min_size_train": tuple(range(480, 801, 32)),
    "masks": False,
}
_COCO = {
    **_SHARED,
    "train_split": "train2017",
    "test_split": "val2017",
    "max_steps": 180000,
    "lr_steps": (120000, 160000),
    "min_size_train": tuple(range(640, 801, 32)),
    "masks": True,
}
PROTOCOLS = {"voc0712": _VOC, "coco": _COCO, "voc": _VOC}
POOLS = {"c4": 14, "fpn": 7}
# A detector is trained by iterations and tested at its end: these would be about epochs and validation on the way.
NOT_TAKEN = (
    "max_epochs min_epochs min_steps limit_train_batches limit_val_batches overfit_batches check_val_every_n_epoch"
    " val_check_interval num_sanity_val_steps fast_dev_run keep_best"
).split()

_DATASET = "voc0712; coco, also for data of your own in its layout; voc, for your own in a folder like VOC2007"
_FOLDER = "VOCdevkit with VOC2007 and VOC2012; or COCO's, with annotations, train2017 and val2017"
_LIST = "the list, or COCO's file and folder, of the {} images"
_SIZES = "shorter sides that training images are resized to, at random; 480 to 800 by 32, for coco 640 to 800"
_HEAD = "c4: layer4 judges each region (ResNets), the paper's; fpn: a feature pyramid, any encoder with feature maps"
_PRECISE = "training batches on which batch norm's averages are computed anew before the test (PreciseBN); 0: none"
_STEPS = "iterations at which it falls to a tenth; 18000 22000, for coco 120000 160000, or in proportion to `max_steps`"
_CHANGES: dict[str, dict[str, Any]] = {name: {"help": HIDDEN} for name in NOT_TAKEN} | {
    "max_epochs": {"default": 1, "help": HIDDEN},
    "max_steps": {"default": None, "help": "iterations to train; 24000, for coco 180000"},
    "sync_batchnorm": {"help": "batch statistics over all GPUs; on if there are several"},
}


_ENCODER = (
    *FOREIGN,
    Setting("random_weights", bool, False, None, "the same encoder untrained, to compare with"),
    Setting("mean", float, [0.485, 0.456, 0.406], None, "channel means; the run's"),
    Setting("std", float, [0.229, 0.224, 0.225], POSITIVE, "channel deviations; the run's"),
    Setting(
        "channel_order", ("rgb", "bgr"), "rgb", None, "in which the encoder takes colours: rgb, but for some of Caffe's"
    ),
)
_DATA = (
    Setting("dataset", tuple(PROTOCOLS), "voc0712", None, _DATASET),
    Setting("data_dir", Path, None, None, _FOLDER),
    Setting("train_split", str, None, None, f"{_LIST.format('training')}; trainval, for coco train2017"),
    Setting("test_split", str, None, None, f"{_LIST.format('test')}; test, for coco val2017"),
    Setting("keep_empty", bool, False, None, "train also on images that show no object"),
    WORKERS,
    Setting("skip_unreadable", bool, False, None, SKIP_UNREADABLE),
    Setting("min_size_train", int, None, at_least(16), _SIZES, several=True),
    Setting("min_size_test", int, 800, at_least(16), "the same of test images"),
    Setting("horizontal_flip_prob", float, 0.5, SHARE, "probability of a flip in training"),
    Setting("max_size", int, 1333, at_least(16), "the longer side at most"),
)
_DETECTOR = (
    Setting("head", tuple(POOLS), "c4", None, _HEAD),
    Setting("masks", yes_or_no, None, None, "masks too: Mask R-CNN, for coco; true there if not given"),
    Setting(
        "anchor_sizes", int, None, at_least(1), "sides of the anchors in pixels; 32 to 512, for fpn one per level", True
    ),
    Setting("rois_per_image", int, 512, at_least(4), "regions of an image that the head is trained on"),
    Setting("pool_size", int, None, at_least(2), "side of what is pooled of a region, in cells; 14, for fpn 7"),
    Setting("precise_bn", int, 200, NOT_NEGATIVE, _PRECISE),
    Setting("pictures", int, 12, NOT_NEGATIVE, "test images on the sheet of pictures; 0: no sheet"),
)
_SCHEDULE = (
    Setting("batch_size", int, 16, at_least(1), "images per iteration, of all processes together"),
    Setting("lr", float, 0.02, POSITIVE, "learning rate"),
    Setting("lr_steps", int, None, at_least(1), _STEPS, several=True),
    Setting("warmup_steps", int, 100, NOT_NEGATIVE, "iterations of linear warm-up"),
    Setting("warmup_factor", float, 0.001, SHARE, "share of the learning rate that the warm-up starts with"),
    Setting("weight_decay", float, 0.0001, NOT_NEGATIVE, "weight decay"),
    Setting("weight_decay_norm", float, 0.0, NOT_NEGATIVE, "weight decay of norms' weights"),
)


SETTINGS = changed(  # beside the run, by the titles of their groups
    {
        "encoder": (CHECKPOINT[1], *_ENCODER),
        "data": _DATA,
        "detector": _DETECTOR,
        "schedule": _SCHEDULE,
        "devices (Lightning)": DEVICES,
        "training loop (Lightning)": training.LOOP,
        "records": training.records(()),
        "logging": training.logging(),
    },
    _CHANGES,
)


def complete(settings: Settings) -> Settings:
    """Fill in the protocol's values where none are given, and refuse settings that do not go together."""
    given = [name for name in NOT_TAKEN if name in settings.typed]
    if given:
        raise ArgumentError(f"`{given[0]}`: detect counts iterations, `max_steps`, and tests at the end; leave it out")
    protocol = PROTOCOLS[settings.dataset]
    chosen = {name: value for name, value in protocol.items() if getattr(settings, name) is None}
    chosen |= {} if settings.pool_size else {"pool_size": POOLS[settings.head]}
    if settings.max_steps is not None and settings.lr_steps is None:  # at the same shares of another length
        whole = protocol["max_steps"]
        chosen["lr_steps"] = tuple(round(step * settings.max_steps / whole) for step in protocol["lr_steps"])
    for name in ("lr_steps", "min_size_train", "anchor_sizes"):
        if getattr(settings, name) is not None:
            chosen[name] = tuple(getattr(settings, name))
    settings = Settings(settings.given, settings.typed, **(vars(settings) | chosen))
    if settings.max_steps < 1:
        raise ArgumentError(f"`max_steps` {settings.max_steps}: detect needs an end; give the number of iterations")
    if list(settings.lr_steps) != sorted(settings.lr_steps):
        raise ArgumentError(f"`lr_steps` {' '.join(map(str, settings.lr_steps))}: give them in rising order")
    if settings.masks and settings.dataset != "coco":
        raise ArgumentError(f"`masks` true: `dataset` {settings.dataset} has no masks; leave it out")
    if max(*settings.min_size_train, settings.min_size_test) > settings.max_size:
        raise ArgumentError(
            f"`max_size` {settings.max_size}: is below a shorter side that images are resized to; raise it"
        )
    check_colours(settings)
    training.check_name(settings)
    return settings
