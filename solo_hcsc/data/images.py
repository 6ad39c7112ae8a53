"""Image files: which ones a folder has, reading any of them as 8-bit RGB, and what becomes of an unreadable one."""

import os
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import Dataset

from solo_hcsc.data.source import unlistable
from solo_hcsc.errors import UserError, on_one_line

# What Pillow's decoders raise on broken files, as far as its releases and files with flipped bytes show.
DECODING_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    ArithmeticError,
    struct.error,
    Image.DecompressionBombError,
)
# Formats that Pillow recognises and cannot decode by itself: without a plug-in, another program or Windows.
_NOT_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
BACKGROUND = (255, 255, 255)  # what shows through transparent pixels
_MOST_STRETCHED = 500  # longer over shorter side: resized by its shorter side, such an image takes 100 MB and more
_ORIENTATION = 0x0112  # of EXIF
_SCALED = ("JPEG", "MPO")  # formats that can be decoded to a smaller size
_JPEG_SCALES = (2, 4, 8)
_LONGEST_GAP = 100  # unreadable images in a row; more mean that the data set is not what it should be


class UnreadableImage(UserError):
    """An image file that cannot be decoded."""

    in_one_process = True  # only the process whose share the image is in comes across it

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@cache
def image_endings() -> frozenset[str]:
    """Return how the names of image files end, in lower case: those of every format that Pillow decodes."""
    known = Image.registered_extensions()
    return frozenset(ending for ending, kind in known.items() if kind in Image.OPEN and kind not in _NOT_DECODED)


@dataclass(frozen=True)
class Listing:
    """The images below a folder, sorted by path, and how many other files it has, by their ending."""

    images: list[str]
    others: Counter[str]

    def left_out(self) -> str:
        """Return `13 files are not images and left out: .svg 12, .txt 1`; nothing where all files are images."""
        count = self.others.total()
        kinds = ", ".join(f"{ending or 'without an ending'} {number}" for ending, number in self.others.most_common(5))
        more = ", ..." * (len(self.others) > 5)
        is_no_image = "files are not images and" if count > 1 else "file is not an image and is"
        return f"{count} {is_no_image} left out: {on_one_line(kinds)}{more}" if count else ""


def list_images(root: str | Path, below: bool = True) -> Listing:
    """List the images in `root` and, unless `below` is false, in its folders; leave out hidden files.

    Links are followed, but each folder is looked at once, by the path without a link if there is one.
    """
    found, others, seen = [], Counter[str](), set()
    endings = image_endings()
    folders = [os.fspath(root)]
    links: list[str] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop()
        try:
            status, entries = os.stat(folder), list(os.scandir(folder))
        except OSError as error:
            unlistable(error)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):  # the first one is popped first
            if entry.name.startswith("."):
                continue
            if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
                if below and not _leads_back(Path(entry.path)):
                    (links if entry.is_symlink() else folders).append(entry.path)
                continue
            ending = os.path.splitext(entry.name)[1].lower()
            if ending not in endings:
                others[ending] += 1
                continue
            if not entry.is_file(follow_symlinks=False):  # known without another look at the disk
                _refuse_pipe(entry.path)
            found.append(entry.path)
    return Listing(sorted(found), others)


def _refuse_pipe(path: str) -> None:
    """Refuse a pipe or a device, which may keep a reader waiting for ever, whatever its name ends with."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UnreadableImage(f"{on_one_line(path)}: not a file but a pipe or a device; remove it", path)


def _leads_back(folder: Path) -> bool:
    """Return whether this is a link to a folder that it lies in: following it would never end."""
    if not folder.is_symlink():
        return False
    target = folder.resolve()
    return any(parent.resolve().is_relative_to(target) for parent in folder.parents)


class ReadsFiles(ABC):
    """A transform that decodes an image file itself, no larger than it needs."""

    @abstractmethod
    def of_file(self, image: "ImageFile") -> Any:
        """Return what the transform makes of the image."""


@dataclass(frozen=True)
class Encoded:
    """An image file that is in memory."""

    name: str  # for messages
    content: bytes


ImageFile = str | Encoded  # its path, or itself


def show(image: ImageFile, transform: Callable) -> Any:
    """Return what a transform makes of an image file."""
    return transform.of_file(image) if isinstance(transform, ReadsFiles) else transform(read_image(image))


def read_image(image: ImageFile) -> Image.Image:
    """Return the image in 8-bit RGB: upright as its camera says, transparent pixels on white, 16-bit grey scaled.

    Of an animation it is the first frame.
    """
    with opened(image) as file:
        return decode(file)


@contextmanager
def opened(source: ImageFile) -> Iterator[Image.Image]:
    """Open an image file without decoding it; errors of its decoder become an `UnreadableImage`."""
    name = source if isinstance(source, str) else source.name
    if isinstance(source, str):
        _refuse_pipe(source)
    try:
        with open(source, "rb") if isinstance(source, str) else BytesIO(source.content) as file:
            image = Image.open(file)
            short, long = sorted(image.size)
            if long > _MOST_STRETCHED * short:
                raise ValueError(f"its sides are {image.width} x {image.height}; cut it")
            yield image
    except DECODING_ERRORS as error:
        raise UnreadableImage(
            f"{on_one_line(name)}: cannot be read as an image ({_reason(source, error)}); remove or replace it, "
            "or add `skip_unreadable`",
            name,
        ) from error


def decode(file: Image.Image, shrink: float = 1) -> Image.Image:
    """Return the image of an opened file as `read_image` does; a JPEG 2, 4 or 8 times smaller, `shrink` at most."""
    scale = max(scale for scale in (1, *_JPEG_SCALES) if scale <= max(1, shrink))
    if scale > 1:
        file.draft(None, (file.width // scale, file.height // scale))
    file.load()
    return as_rgb(file)


def upright_size(file: Image.Image) -> tuple[int, int]:
    """Return the height and width that the image of an opened file has once it is decoded in full."""
    if file.format not in _SCALED:
        file.load()  # an icon's size, and the orientation of some PNG, are known only then
    return (file.width, file.height) if _orientation(file) >= 5 else (file.height, file.width)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 where there is none, or none that can be read."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except DECODING_ERRORS:
        return 1
    return orientation if orientation in range(2, 9) else 1


def _upright(image: Image.Image) -> Image.Image:
    return ImageOps.exif_transpose(image) if _orientation(image) > 1 else image


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to 8-bit RGB as `read_image` does; `ValueError` where its pixels have no known range."""
    image = _upright(image)
    if image.mode == "F":
        raise ValueError("its pixels are floating point numbers of unknown range; save it with 8 or 16 bits")
    if image.mode == "I" or image.mode.startswith("I;16"):
        pixels = np.asarray(image)
        low, high = int(pixels.min()), int(pixels.max())
        if low < 0 or high > 65535:  # 32 bits
            raise ValueError(f"its pixels go from {low} to {high}; save it with 8 or 16 bits")
        deep = high > 255 or image.mode != "I"  # 32-bit files may hold 8-bit values
        grey = (pixels >> 8 if deep else pixels).astype(np.uint8)
        grey[pixels == image.info.get("transparency")] = BACKGROUND[0]
        image = Image.fromarray(grey)
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, BACKGROUND), image.convert("RGBA"))
    return image.convert("RGB")


def _reason(source: ImageFile, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        size = os.path.getsize(source) if isinstance(source, str) else len(source.content)
        return "not an image of a known format" if size else "the file is empty"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return on_one_line(str(error) or type(error).__name__)


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read: its place in its data set, and its path."""

    index: int
    path: str


class OrSkipped(Dataset):
    """The images of a data set, with a `Skipped` for each that cannot be read."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except UnreadableImage as error:
            return Skipped(index, error.path)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


class UnreadableFiles:
    """The images that could not be read, named in a file, one in each line; loaders' processes add to it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def file(self) -> Path:
        return self._file

    def write_to(self, file: Path) -> None:
        """Go on in another file: processes agree on the run's folder only once they know of each other."""
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)  # on a machine that does not share the disk

    def add(self, path: str) -> None:
        """Append a path unless it is there; loaders' processes forget, so that the file alone knows."""
        name = on_one_line(path)
        if name not in self.read():
            with self._file.open("a", encoding="utf-8") as file:
                file.write(name + "\n")

    def read(self) -> set[str]:
        # A set, because two processes may come across the same file at the same time.
        return set(self._file.read_text(encoding="utf-8").splitlines()) if self._file.exists() else set()


class SkipUnreadable(Dataset):
    """A data set in which the next image, with its own index and label, stands for one that cannot be read."""

    def __init__(self, dataset: Dataset, unreadable: UnreadableFiles) -> None:
        self.dataset = dataset
        self.unreadable = unreadable

    def __getitem__(self, index: int) -> Any:
        for step in range(min(_LONGEST_GAP + 1, len(self))):
            try:
                return self.dataset[(index + step) % len(self)]
            except UnreadableImage as error:
                self.unreadable.add(error.path)
                last = error
        raise UnreadableImage(
            f"`skip_unreadable`: more than {step} images in a row cannot be read; the last: {last}", last.path
        )

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]
