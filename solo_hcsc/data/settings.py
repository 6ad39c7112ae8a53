"""Settings that choose images, and refusals of those that do not go together."""

import os
from dataclasses import replace
from pathlib import Path

from solo_hcsc.data.augmentation import OWN_SIZE
from solo_hcsc.data.source import DATASETS, IMAGENET_MEAN, IMAGENET_STD
from solo_hcsc.errors import ArgumentError
from solo_hcsc.files import check_readable
from solo_hcsc.settings import NOT_NEGATIVE, ONE, POSITIVE, POSITIVE_SHARE, Bound, Setting, Settings

SKIP_UNREADABLE = (
    "leave out images that cannot be read and list them at the end, instead of stopping at the first one; in training "
    "the next image replaces each of them"
)


def class_level(text: str) -> int | str:
    """Parse `leaf`, or a number of folders from 1."""
    if text != "leaf" and not (text.isdecimal() and int(text) > 0):
        raise ArgumentError(f"{text!r} is neither a number from 1 nor leaf")
    return text if text == "leaf" else int(text)


_MOST_WORKERS = 8  # by default: each holds two batches, and several devices each have theirs


def default_workers() -> int:
    """Return how many processes load images: one for each core that this process may use, within bounds."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_WORKERS)


WORKERS = Setting(
    "num_workers",
    int,
    default_workers(),
    NOT_NEGATIVE,
    f"processes that load images; as many as there are cores, at most {_MOST_WORKERS}, if not given",
)
_BACKEND = (
    "what decodes and transforms images: pil, which gives solo-learn's pixels, or fast, the same crops with similar "
    "pixels in less time (needs the extra fast)"
)
_LEVEL = "which folder is an image's class: 1, the first below `train_dir`, 2 the second, ..., or leaf, the last"
_NORMALISING = "for normalising (all but cifar, stl10 and imagenet)"
IMAGES = (
    Setting("dataset", DATASETS, None, None, "which data set"),
    Setting(
        "data_dir", Path, Path("datasets"), None, "folder that holds the data sets; for shards and hf, the data set"
    ),
    Setting("train_dir", Path, None, None, "training images, below `data_dir`"),
    Setting("val_dir", Path, None, None, "validation images, below `data_dir`"),
    Setting("class_level", class_level, None, None, f"{_LEVEL}; 1 if not given"),
    Setting(
        "image_column", str, None, None, "column of the images in `dataset` hf; the only one of images if not given"
    ),
    Setting("label_column", str, None, None, "column of the labels in `dataset` hf; label if not given"),
    Setting("dali", bool, False, None, "decode and augment with NVIDIA DALI (folders and lists of images)"),
    Setting("dali_device", str, "gpu", None, "where DALI works: gpu or cpu"),
    Setting("image_backend", ("pil", "fast"), "pil", None, _BACKEND),
    Setting("no_labels", bool, False, None, "the training folder holds images without class folders"),
    Setting("skip_unreadable", bool, False, None, SKIP_UNREADABLE),
    Setting("mean", float, list(IMAGENET_MEAN), None, f"channel means {_NORMALISING}"),
    Setting("std", float, list(IMAGENET_STD), POSITIVE, f"channel deviations {_NORMALISING}"),
)
PACKING = (
    Setting("folder", Path, None, None, "a folder of images, in class folders or not, in train/ and val/ or not"),
    Setting("out", Path, None, None, "the folder of the shards, new or empty"),
    Setting(
        "shorter_side",
        int,
        None,
        ONE,
        "make larger images this size in pixels, as JPEG; all stay as they are if not given",
    ),
    Setting("quality", int, 95, Bound(lambda value: 1 <= value <= 100, "must be from 1 to 100"), "of JPEG, for those"),
    Setting("images_per_shard", int, None, ONE, "a 64th of the images, from 256 to 10,000, if not given"),
    Setting("shuffle", bool, False, None, "mix the images, for who reads shards from front to back"),
    Setting("class_level", class_level, None, None, f"{_LEVEL.replace('`train_dir`', 'the images')}; 1 if not given"),
    Setting("no_labels", bool, False, None, "class folders are no labels"),
    Setting("skip_unreadable", bool, False, None, "leave out images that cannot be read, and list them"),
    replace(WORKERS, help="processes that read images; as many as there are cores, at most 8, if not given"),
)
INDEXING = (
    Setting("folder", Path, None, None, "a folder of shards, or one that has them in train/ and val/"),
    Setting("label_key", str, None, None, "the key of KEY.json that has the label: label, cls or class if not given"),
    Setting("check", bool, False, None, "compare the shards with their checksums; write nothing"),
    replace(WORKERS, help="processes that read shards; as for `pack`"),
)
_LIST = (
    "a file that names the training images to take, one path in each line, as `curate` writes it; paths below the "
    "folder of training images, or below `data_dir`"
)
TRAIN_LIST = Setting("train_list", Path, None, None, _LIST)
EVALUATED_SIZE = Setting("crop_size", int, [224], ONE, f"side of the images in pixels; {OWN_SIZE}")
PRETRAINED_ON = (
    Setting("data_fraction", float, 1.0, POSITIVE_SHARE, "train on this share of the images, drawn with `seed`"),
    Setting(
        "label_hierarchy",
        Path,
        None,
        None,
        "a text file of lines `child: parent`, which `oracle_labels` of hcsc takes the upper levels from; nothing else "
        "reads labels",
    ),
)


def check_colours(settings: Settings) -> None:
    """Refuse means or deviations that are not one for each colour."""
    for name in ("mean", "std"):
        if len(getattr(settings, name)) != 3:
            raise ArgumentError(f"`{name}`: give three values, one for each colour")


def check_skipping(settings: Settings) -> None:
    """Refuse `skip_unreadable` where images are not read one by one from files."""
    if settings.skip_unreadable and settings.dali:
        raise ArgumentError("`skip_unreadable`: `dali` cannot skip images; leave out one of them")
    if settings.skip_unreadable and settings.dataset in ("cifar10", "cifar100", "stl10"):
        raise ArgumentError(
            f"`skip_unreadable` is for folders of images, not `dataset` {settings.dataset}; leave it out"
        )


def check_label_hierarchy(settings: Settings) -> None:
    """Refuse a `label_hierarchy` that cannot be read."""
    if settings.label_hierarchy is not None:
        name = f"`label_hierarchy` {settings.label_hierarchy}"
        check_readable(settings.label_hierarchy, name, "give a text file of lines `child: parent`")
