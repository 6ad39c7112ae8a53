"""PASCAL VOC 2007 on disk: which images a split has, and which classes each of them shows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from torch.utils.data import Dataset

from solo_hcsc.cli.errors import UserError, on_one_line
from solo_hcsc.data.images import read_image

_YEAR = "VOC2007"
IGNORED = -1  # a target of an image that counts neither for nor against a class


class AnnotatedImages(Dataset):
    """Images as (image, targets), where `targets (classes,)` has 1, 0 or `IGNORED` for each class."""

    def __init__(self, files: list[Path], targets: torch.Tensor, classes: list[str], transform: Callable) -> None:
        self.files = files
        self.targets = targets
        self.classes = classes
        self.transform = transform

    def __getitem__(self, index: int) -> tuple[Any, torch.Tensor]:
        return self.transform(read_image(str(self.files[index]))), self.targets[index]

    def __len__(self) -> int:
        return len(self.files)


def find_folder(folder: Path) -> Path:
    """The VOC2007 folder: this one, or the one in a VOCdevkit folder."""
    inner = folder / _YEAR
    found = inner if inner.is_dir() else folder
    if not (found / "ImageSets" / "Main").is_dir():
        raise UserError(f"--data_dir {folder}: no {_YEAR} folder, which has ImageSets/Main, Annotations and JPEGImages")
    return found


def read_split(folder: Path, split: str, transform: Callable, classes: Sequence[str] | None = None) -> AnnotatedImages:
    """The images of `trainval` or another split; the classes are those of its annotations, or among those given."""
    names = _read_names(folder / "ImageSets" / "Main" / f"{split}.txt")
    files = [folder / "JPEGImages" / f"{name}.jpg" for name in names]
    annotations = [folder / "Annotations" / f"{name}.xml" for name in names]
    objects = [_read_objects(file) for file in annotations]
    for file in files:
        if not file.is_file():
            raise UserError(f"{on_one_line(file)}: this image of {split}.txt is not there")
    if classes is None:
        classes = sorted({label for shown in objects for label in shown})
    if not any(1 in shown.values() for shown in objects):
        raise UserError(f"{folder}: no image of {split}.txt has an object that is not difficult")
    numbers = {label: number for number, label in enumerate(classes)}
    targets = torch.zeros(len(names), len(numbers), dtype=torch.int8)
    for row, (file, shown) in enumerate(zip(annotations, objects, strict=True)):
        for label, target in shown.items():
            if label not in numbers:
                raise UserError(
                    f"{on_one_line(file)}: unknown class {on_one_line(label)!r}, which no image of trainval.txt has"
                )
            targets[row, numbers[label]] = target
    return AnnotatedImages(files, targets, list(classes), transform)


def _read_names(file: Path) -> list[str]:
    try:
        names = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); it names the images") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not a text file; it names the images, one in each line") from error
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise UserError(f"{file}: empty; it names the images, one in each line")
    return names


def _read_objects(file: Path) -> dict[str, int]:
    """The classes of an image's objects: 1, or `IGNORED` for a class whose objects are all difficult.

    So the benchmark's own lists of each class have it.
    """
    try:
        root = ElementTree.parse(file).getroot()
    except OSError as error:
        raise UserError(f"{on_one_line(file)}: this annotation cannot be read ({error.strerror})") from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the last two: of encodings
        raise UserError(f"{on_one_line(file)}: not an annotation in XML ({on_one_line(error)})") from error
    shown: dict[str, int] = {}
    for item in root.findall("object"):
        label, difficult = " ".join((item.findtext("name") or "").split()), (item.findtext("difficult") or "0").strip()
        if not label or difficult not in ("0", "1"):
            raise UserError(f"{on_one_line(file)}: an object without a name, or whose difficult is neither 0 nor 1")
        if difficult == "0" or label not in shown:
            shown[label] = IGNORED if difficult == "1" else 1
    return shown
