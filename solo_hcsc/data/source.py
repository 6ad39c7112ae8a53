"""Which images a command reads, as a value: the data set, its folders, the size and the colours they are read in."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from solo_hcsc.data.digits import lay_out_digits
from solo_hcsc.data.shards import TAR, Shards, find_shards, holds_shards
from solo_hcsc.data.tables import PARQUET, check_columns, columns_of, find_tables, holds_tables, label_column
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.extras import require
from solo_hcsc.files import check_folder_to_write, check_readable
from solo_hcsc.progress import say
from solo_hcsc.settings import Settings, take

DATASETS = ("cifar10", "cifar100", "stl10", "imagenet", "imagenet100", "custom", "digits", "shards", "hf")

STORED = ("shards", "hf")  # whose images are no files of their own
FOLDERS = ("imagenet", "imagenet100", "custom", "digits")
FILES = (*FOLDERS, "places205")  # whose files have names that DALI reads
_OWN_SIZES = {"cifar10": 32, "cifar100": 32, "stl10": 96}  # of the images themselves, in pixels
_LARGEST = 65_535  # pixels, of a JPEG
_LEAST_STD = 1e-30  # less is 0 in float32, by which nothing can be divided
_NAMED_FOLDERS = ("custom", "imagenet", "imagenet100", *STORED)  # whose folders a user may name
# What solo-learn normalises by: the deviation of red is its own, 0.228.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.228, 0.224, 0.225)
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
# Mean and deviation that solo-learn normalises these data sets by, whatever the settings say.
_OWN_COLOURS = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "stl10": ((0.4914, 0.4823, 0.4466), (0.247, 0.243, 0.261)),
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "imagenet100": (IMAGENET_MEAN, IMAGENET_STD),
}
# Settings of an `ImageSource` that a run or a command fills in.
DEFAULTS: dict[str, Any] = {
    "dataset": None,
    "data_dir": Path("datasets"),
    "train_dir": None,
    "val_dir": None,
    "crop_size": [224],
    "mean": [*IMAGENET_MEAN],
    "std": [*IMAGENET_STD],
    "no_labels": False,
    "class_level": None,
    "image_column": None,
    "label_column": None,
    "train_list": None,
}
ClassLevel = int | str | None  # which folder is an image's class: from 1, or "leaf"; the first one for None


@dataclass(frozen=True)
class ImageSource:
    """A data set on this disk."""

    dataset: str
    data_dir: Path
    train_dir: Path | None
    val_dir: Path | None
    crop_size: tuple[int, ...]  # the first one is that of evaluations
    mean: tuple[float, ...]
    std: tuple[float, ...]
    no_labels: bool = False
    class_level: ClassLevel = None
    image_backend: str = "pil"  # what decodes and transforms images: Pillow, or `data.fast_views`
    image_column: str | None = None  # of a table
    label_column: str | None = None
    train_list: Path | None = None  # a file that names the training images to take, of all in their folder
    whole: bool = False  # look at the whole of each image, as the run did that these are seen by

    @classmethod
    def of_flags(cls, flags: Settings, **others: Any) -> "ImageSource":
        """Take the settings; images of CIFAR and STL-10 have their own size where no `crop_size` is typed."""
        dataset = others.get("dataset", flags.dataset)
        if "crop_size" not in flags.typed and dataset in _OWN_SIZES:
            others = {"crop_size": [_OWN_SIZES[dataset]], **others}
        _check_image_backend(flags)
        if dataset == "places205":  # whose list has all images with their classes
            others = {"train_list": None, **others}
        return take(cls, flags, **others)

    @classmethod
    def of_run(cls, flags: Settings, trained: Mapping[str, Any], tell: bool = True) -> "ImageSource":
        """Return the images of an evaluation: what was not typed is as in the run with the flags `trained`.

        Another data set than the run's has folders of its own, and is seen as the run's was: at its size, in its
        colours. `say`: print what was taken from the run.
        """
        dataset = flags.dataset or trained.get("dataset")
        if dataset is None:
            raise UserError("`dataset` is missing, and no args.json beside the checkpoint has it; give the data set")
        names = ["crop_size", "mean", "std"]
        if dataset == trained.get("dataset"):
            names += ["data_dir", "class_level", "image_column", "label_column"]
            names += ["train_dir", "val_dir"] if dataset in _NAMED_FOLDERS else []
        untyped = [name for name in names if name not in flags.typed and trained.get(name) is not None]
        source = cls.of_flags(flags, dataset=recorded("dataset", dataset))
        taken = cls.of_flags(flags, dataset=dataset, **{name: recorded(name, trained[name]) for name in untyped})
        said = [] if flags.dataset else [f"`dataset` {dataset}"]
        for name in names:
            if getattr(taken, name) != getattr(source, name):
                value = getattr(taken, name)
                shown = value[:1] if name == "crop_size" else value if isinstance(value, tuple) else (value,)
                said.append(f"`{name}` {' '.join(map(str, shown))}")
        if said and tell:
            say(f"as in pretraining: {' '.join(said)}")
        return taken

    @classmethod
    def of_folder(cls, flags: Settings, trained: Mapping[str, Any], tell: bool = True) -> "ImageSource":
        """Return the images of a folder, `data_dir` itself, seen as the run with the flags `trained` saw its own."""
        stored = stored_kind(flags.data_dir)
        if stored is None:
            check_folder("data_dir", flags.data_dir)
        is_cifar = str(trained.get("dataset")).startswith("cifar")
        colours = {name: [*values] for name, values in zip(("mean", "std"), _CIFAR, strict=True)} if is_cifar else {}
        seen = {name: trained[name] for name in ("crop_size", "mean", "std") if name in trained}
        given: dict[str, Any] = {"dataset": "custom", "train_dir": Path()} if stored is None else {"dataset": stored}
        if stored == "hf":
            columns = columns_of(flags.data_dir / parts_in(flags.data_dir, stored)[0])
            untyped = {name: trained.get(name) for name in ("image_column", "label_column") if name not in flags.typed}
            given |= {name: column for name, column in untyped.items() if column in columns}
        found = cls.of_run(flags.but(**given), seen | colours, tell)
        return replace(found, whole=was_seen_whole(trained))

    @property
    def in_folders(self) -> bool:
        """Return whether the images are in folders, one for each class, rather than read by torchvision's own class."""
        return self.dataset in FOLDERS or (self.dataset == "cifar10" and self._has_pictures(self.train_dir))

    @property
    def is_stored(self) -> bool:
        """Return whether the images are in shards or in a table."""
        return self.dataset in STORED

    @property
    def seen_whole(self) -> bool:
        """Return whether evaluations look at the whole of an image rather than at a centre crop."""
        return self.whole or self.dataset in _OWN_SIZES

    @property
    def has_own_colours(self) -> bool:
        """Return whether solo-learn normalises the data set by figures of its own, whatever `mean` and `std` say."""
        return self.dataset in _OWN_COLOURS

    @property
    def colours(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and deviation of each colour by which these images are normalised."""
        return _OWN_COLOURS.get(self.dataset, (self.mean, self.std))

    @property
    def is_fast(self) -> bool:
        return self.image_backend == "fast"

    @property
    def framework_name(self) -> str:
        return framework_name(self.dataset)

    def folder(self, split: str) -> Path:
        """Return the folder of the `train` or `val` images."""
        below = self.train_dir if split == "train" else self.val_dir
        assert below is not None, "asked for before `located`"
        return self.data_dir / below

    def located(self, needs_val: bool) -> "ImageSource":
        """Fill in the folders and refuse missing ones; digits are written if they are not there."""
        if self.class_level is not None and not self.in_folders and self.dataset != "cifar10":
            raise UserError(f"`class_level`: `dataset` {self.dataset} is not in folders; leave it out")
        if self.train_list is not None and not (self.in_folders or self.is_stored):
            raise UserError(f"`train_list`: `dataset` {self.dataset} is not in folders; leave it out")
        if self.train_list is not None:
            check_readable(self.train_list, f"`train_list` {self.train_list}", "give a list as `curate` writes it")
        train_dir, val_dir = self._default_folders(needs_val)
        source = replace(self, train_dir=train_dir, val_dir=val_dir)
        if source.in_folders:
            for split, folder in (("train", train_dir), ("val", val_dir)):
                if folder is not None:
                    check_folder(f"{split}_dir", source.folder(split))
        if source.is_stored:
            for split, folder in (("train", train_dir), ("val", val_dir)):
                if folder is not None:
                    source.find_stored(split)
        return source

    def find_stored(self, split: str) -> Shards | None:
        """Find the shards of a split; refuse what is missing or not whole. Of a table, only its columns are checked."""
        named = getattr(self, f"{split}_dir") != Path()
        if self.dataset == "shards":
            return find_shards(self.folder(split), f"{split}_dir" if named else "data_dir")
        find_tables(self.folder(split), f"{split}_dir" if named else "data_dir")
        check_columns(self.folder(split), image_column=self.image_column, label_column=self.label_column)
        return None

    def has_labels(self, split: str) -> bool:
        """Return whether the stored images of a split have labels."""
        found = self.find_stored(split)
        if found is None:
            return label_column(self.folder(split), self.label_column) is not None
        return found.classes is not None

    def labelled(self) -> "ImageSource":
        """Return the same; refuse images that have no labels."""
        if self.is_stored and not self.no_labels:
            for split, folder in (("train", self.train_dir), ("val", self.val_dir)):
                if folder is not None and not self.has_labels(split):
                    raise UserError(f"{self.folder(split)}: its images have no labels; add `no_labels`")
        if self.in_folders and not self.no_labels:
            for split, folder in (("train", self.train_dir), ("val", self.val_dir)):
                if folder is not None:
                    check_classes(self.folder(split))
        return self

    def with_split(self, split: str) -> "ImageSource":
        """Locate the images for a command that reads the `train` or the `val` ones; the others need not be there."""
        if split == "train":
            return replace(self, val_dir=None).located(needs_val=False)
        return replace(self, train_dir=self.val_dir or self.train_dir).located(needs_val=True)

    def _has_pictures(self, below: Path | None) -> bool:
        """Return whether a folder of CIFAR-10 is one of pictures, rather than the one that torchvision downloads to."""
        return below is not None and not (self.data_dir / below / "cifar-10-batches-py").exists()

    def _default_folders(self, needs_val: bool) -> tuple[Path | None, Path | None]:
        if self.dataset == "digits":
            if self.train_dir or self.val_dir:
                raise UserError("`dataset` digits brings its own folders; leave out `train_dir` and `val_dir`")
            try:
                lay_out_digits(self.data_dir)
            except OSError as error:
                raise UserError(f"`data_dir` {self.data_dir}: cannot write digits there: {error.strerror}") from error
            return Path("digits/train"), Path("digits/val")
        if self.is_stored:
            train, val = parts_in(self.data_dir, self.dataset)
            train_dir, val_dir = self.train_dir or train, self.val_dir or (None if self.train_dir else val)
            if val_dir is None and needs_val:
                raise UserError(f"`dataset` {self.dataset} needs `val_dir` here, below `data_dir`")
            return train_dir, val_dir
        made = Path("cifar10/train"), Path("cifar10/test")  # by scripts/data/cifar10.sh
        named = self.train_dir or self.val_dir
        if (
            self.dataset == "cifar10"
            and not named
            and self._has_pictures(made[0])
            and (self.data_dir / made[0]).is_dir()
        ):
            return made
        if not self.in_folders:
            return self.train_dir, self.val_dir
        if self.dataset == "custom" and self.train_dir is None:
            raise UserError("`dataset` custom needs `train_dir`, a folder below `data_dir`")
        if self.dataset == "custom" and self.val_dir is None and needs_val:
            raise UserError("`dataset` custom needs `val_dir` here, a folder below `data_dir`")
        val_dir = Path(self.dataset, "val") if self.val_dir is None and needs_val else self.val_dir
        return self.train_dir or Path(self.dataset, "train"), val_dir


def _check_image_backend(flags: Settings) -> None:
    """Refuse the fast way where it cannot be gone."""
    asked = vars(flags)
    if asked.get("image_backend") != "fast":
        return
    if asked.get("dali"):
        raise ArgumentError("`image_backend` fast: `dali` decodes by itself; leave out one of them")
    require("fast", "`image_backend` fast")


def class_folders(root: str | Path) -> list[str]:
    """Return the names of the folders in `root`, sorted; hidden ones, such as .ipynb_checkpoints, are no classes."""
    try:
        return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        unlistable(error)


def unlistable(error: OSError) -> NoReturn:
    """Refuse a folder that cannot be listed."""
    raise UserError(f"{on_one_line(error.filename)}: this folder cannot be read ({error.strerror})")


def check_classes(folder: str | Path) -> list[str]:
    """Return the names of the class folders; refuse a folder without any."""
    found = class_folders(folder)
    if not found:
        raise UserError(
            f"{folder}: one folder per class is expected there; add `no_labels` to pretrain on images without "
            "classes, or to analyse them"
        )
    return found


_SPLITS = ("train", "val", "test")


def splits_in(folder: Path) -> tuple[Path, Path | None]:
    """Return the folders of training and validation images below a folder: `train` and `val`, or the folder itself.

    A folder `train` beside others, such as `bus` and `car`, is a class of that name.
    """
    below = {*class_folders(folder)}
    if "train" not in below or not below <= {*_SPLITS}:
        return Path(), None
    return Path("train"), Path("val") if "val" in below else None


def stored_kind(where: Path) -> str | None:
    """Return `shards` or `hf` for a folder or a pattern that is one of these; None for others."""
    if where.suffix == TAR or (where.is_dir() and holds_shards(where)):
        return "shards"
    return "hf" if where.suffix == PARQUET or (where.is_dir() and holds_tables(where)) else None


def parts_in(where: Path, dataset: str) -> tuple[Path, Path | None]:
    """Return where the training and validation images of shards or of a table are, below their folder."""
    found = []
    for names in (("train",), ("val", "validation")):
        folders = [Path(name) for name in names if (where / name).is_dir()]
        files = [
            Path(f"{name}*{PARQUET}") for name in names if dataset == "hf" and any(where.glob(f"{name}*{PARQUET}"))
        ]
        found.append(next(iter((*folders, *files)), None))
    return found[0] or Path(), found[1] if found[0] else None


def was_seen_whole(trained: Mapping[str, Any]) -> bool:
    """Return whether a run saw the whole of its images; an exported file says how it resizes them."""
    return str(trained.get("dataset")) in _OWN_SIZES or isinstance(trained.get("resize"), list)


def recorded(name: str, value: Any) -> Any:
    """Return a value of args.json as its flag would have given it; refuse one that no run writes."""
    numbers = [*value] if isinstance(value, list) else []
    valid = {
        "dataset": value in (*DATASETS, "voc07", "places205", "cub"),
        "crop_size": bool(numbers) and all(isinstance(side, int) and 0 < side <= _LARGEST for side in numbers),
        "class_level": value == "leaf" or (isinstance(value, int) and value > 0),
        "image_column": isinstance(value, str),
        "label_column": isinstance(value, str),
    }
    least = _LEAST_STD if name == "std" else -math.inf
    colours = len(numbers) == 3 and all(isinstance(one, int | float) and least < one < math.inf for one in numbers)
    if not valid.get(name, isinstance(value, str) if name.endswith("_dir") else colours):
        raise UserError(
            f"args.json beside the checkpoint, or its metadata: {name} is {value!r}, which no run writes; give `{name}`"
        )
    return Path(value) if name.endswith("_dir") else value


def framework_name(dataset: str) -> str:
    """Return solo-learn's name of a data set: digits is a folder of images like any other."""
    return "custom" if dataset in ("digits", *STORED) else dataset


def check_folder(name: str, path: Path) -> None:
    """Refuse a folder that is not there, cannot be read or is empty.

    `name`: the argument that gives it; empty for one that has no name.
    """
    named = f"`{name}`: " if name else ""
    if not path.exists():
        below = "`data_dir` and " if name.endswith("_dir") and name != "data_dir" else ""
        raise UserError(f"{named}{path} does not exist; " + (f"check {below}`{name}`" if name else "give a folder"))
    if not path.is_dir():
        raise UserError(f"{named}{path} is a file; give a folder of images")
    try:
        empty = not any(path.iterdir())
    except OSError as error:
        raise UserError(f"{named}{path} cannot be read ({error.strerror}); give a folder of images") from error
    if empty:
        raise UserError(f"{named}{path} is empty; give a folder of images")


def check_packing(settings: Settings) -> None:
    """Refuse folders that cannot be read or written."""
    check_folder("", settings.folder)
    check_folder_to_write(settings.out)
    if settings.out.resolve().is_relative_to(settings.folder.resolve()):
        raise ArgumentError(f"`out` {settings.out}: is among the images; give a folder outside of {settings.folder}")
    if settings.no_labels and settings.class_level is not None:
        raise ArgumentError("`no_labels`: `class_level` says which folders are the classes; leave one of the two out")
