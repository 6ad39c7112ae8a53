"""PASCAL VOC on disk: which images a split has, which classes each of them shows, and where."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset

from solo_hcsc.data.detection import AnnotatedImage, box_within, objects
from solo_hcsc.data.images import show
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import inside
from solo_hcsc.settings import nearest

_YEAR = "VOC2007"
CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
IGNORED = -1  # a target of an image that counts neither for nor against a class


class AnnotatedImages(Dataset):
    """Images as (image, targets), where `targets (classes,)` has 1, 0 or `IGNORED` for each class."""

    def __init__(self, files: list[Path], targets: torch.Tensor, classes: list[str], transform: Callable) -> None:
        self.files = files
        self.targets = targets
        self.classes = classes
        self.transform = transform

    def __getitem__(self, index: int) -> tuple[Any, torch.Tensor]:
        return show(str(self.files[index]), self.transform), self.targets[index]

    def __len__(self) -> int:
        return len(self.files)


def find_folder(folder: Path) -> Path:
    """Find the VOC2007 folder: this one, or the one in a VOCdevkit folder."""
    inner = folder / _YEAR
    found = inner if inner.is_dir() else folder
    if not (found / "ImageSets" / "Main").is_dir():
        raise UserError(f"`data_dir` {folder}: no {_YEAR} folder, which has ImageSets/Main, Annotations and JPEGImages")
    return found


def read_split(folder: Path, split: str, transform: Callable, classes: Sequence[str] | None = None) -> AnnotatedImages:
    """Read the images of `trainval` or another split; classes are those of its annotations, or among those given."""
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
    names = [inside(name.strip(), file) for name in names if name.strip()]
    if not names:
        raise UserError(f"{file}: empty; it names the images, one in each line")
    return names


def _read_objects(file: Path) -> dict[str, int]:
    """Read the classes of an image's objects: 1, or `IGNORED` for a class whose objects are all difficult.

    So the benchmark's own lists of each class have it.
    """
    shown: dict[str, int] = {}
    for item in _parse(file).findall("object"):
        label, difficult = _named(item, file)
        if not difficult or label not in shown:
            shown[label] = IGNORED if difficult else 1
    return shown


def _parse(file: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(file).getroot()
    except OSError as error:
        raise UserError(f"{on_one_line(file)}: this annotation cannot be read ({error.strerror})") from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the last two: of encodings
        raise UserError(f"{on_one_line(file)}: not an annotation in XML ({on_one_line(error)})") from error


def _named(item: ElementTree.Element, file: Path) -> tuple[str, bool]:
    """Return an object's class, and whether it is difficult."""
    label, difficult = " ".join((item.findtext("name") or "").split()), (item.findtext("difficult") or "0").strip()
    if not label or difficult not in ("0", "1"):
        raise UserError(f"{on_one_line(file)}: an object without a name, or whose difficult is neither 0 nor 1")
    return label, difficult == "1"


# ---- boxes ----


def read_boxes(
    folder: Path, split: str, classes: Sequence[str] | None = None
) -> tuple[list[AnnotatedImage], tuple[str, ...]]:
    """Read the images of a split with their boxes, and the classes.

    A box's corners are pixels that belong to it, counted from 1: 1 1 9 9 is 9 pixels wide, from 0 to 9 here.

    Args:
        folder: VOC2007, VOC2012 or one like them, with `ImageSets/Main`, `Annotations` and `JPEGImages`.
        split: the name of a list in `ImageSets/Main`.
        classes: those that objects may have; if not given, they are those of the annotations.
    """
    names = _read_names(folder / "ImageSets" / "Main" / f"{split}.txt")
    there = {path.name for path in (folder / "JPEGImages").iterdir()} if (folder / "JPEGImages").is_dir() else set()
    found = []
    for name in names:
        name = name.split()[0]  # the lists of each class have a number after it
        if f"{name}.jpg" not in there:
            raise UserError(f"{on_one_line(folder / 'JPEGImages' / name)}.jpg: this image of {split}.txt is not there")
        found.append((name, _parse(folder / "Annotations" / f"{name}.xml")))
    labels = {
        name: [_named(item, folder / "Annotations" / f"{name}.xml")[0] for item in root.findall("object")]
        for name, root in found
    }
    known = tuple(sorted({label for each in labels.values() for label in each}) if classes is None else classes)
    for name, shown in labels.items():
        for label in shown:
            if label not in known:
                hint = nearest(label, known) or f"known are {', '.join(known)}"
                file = folder / "Annotations" / f"{name}.xml"
                raise UserError(f"{on_one_line(file)}: unknown class {on_one_line(label)!r}; {hint}")
    images = [_annotated(folder, name, root, known) for name, root in found]
    if not any((~image.objects.ignored).any() for image in images):
        raise UserError(f"{folder}: no image of {split}.txt has an object that is not difficult")
    return images, known


def _annotated(folder: Path, name: str, root: ElementTree.Element, classes: Sequence[str]) -> AnnotatedImage:
    file, picture = folder / "Annotations" / f"{name}.xml", folder / "JPEGImages" / f"{name}.jpg"
    width, height = _size(root, file, picture)
    boxes, labels, difficult = [], [], []
    for item in root.findall("object"):
        label, hard = _named(item, file)
        try:
            corners = [float(item.findtext(f"bndbox/{corner}") or "") for corner in ("xmin", "ymin", "xmax", "ymax")]
        except ValueError as error:
            raise UserError(f"{on_one_line(file)}: an object whose bndbox is not four numbers") from error
        boxes.append(box_within([corners[0] - 1, corners[1] - 1, *corners[2:]], width, height, file))
        labels.append(classes.index(label))
        difficult.append(hard)
    return AnnotatedImage(picture, width, height, objects(boxes, labels, difficult))


def _size(root: ElementTree.Element, file: Path, picture: Path) -> tuple[int, int]:
    """Return the image's width and height, from its annotation or else from its file."""
    told = [root.findtext(f"size/{side}") for side in ("width", "height")]
    if all(text and text.strip().isdigit() and int(text) > 0 for text in told):
        return int(told[0] or 0), int(told[1] or 0)
    if any(told):
        raise UserError(f"{on_one_line(file)}: its size is not two numbers of pixels; correct or remove it")
    try:
        with Image.open(picture) as image:
            return image.size
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{on_one_line(picture)}: cannot be read as an image; remove or replace it") from error
