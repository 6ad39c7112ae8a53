"""What is wrong with image files by themselves: unreadable, blank, tiny, dark, blurred, of an odd size."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image
from scipy import ndimage

from solo_hcsc.data.images import UnreadableImage, decode, opened, upright_size
from solo_hcsc.data.settings import default_workers
from solo_hcsc.progress import watch
from solo_hcsc.trees.duplicates import Duplicates, Group, find_duplicates
from solo_hcsc.typed import typed

SIDE = 256  # pixels of the longer side of the copies that are judged
BLANK = 2.0  # of 255, the deviation of grey values below which an image shows nothing
DARK = 48.0  # of 255: nearly all of a dark image is below
BRIGHTEST = 98  # percent: the part of an image that is not nearly all of it is the brightest above this
BLURRED = 0.035  # share of an image's deviation that is in its finest details
TINY = 4.0  # times smaller than most: the shorter side
LEAST = 64  # pixels of a shorter side that is never tiny
ODD = 3.0  # interquartile ranges, of the logarithms of area and shape
APART = np.log(4)  # by which an odd size differs at least from the median
UNREADABLE, NO_PICTURE = "cannot be read", ("cannot be read", "blank", "tiny")


@dataclass(frozen=True)
class Look:
    """What one file looks like.

    Args:
        width: in pixels.
        height: in pixels.
        contrast: the deviation of its grey values.
        brightness: the grey value below which nearly all of it is.
        detail: the share of the deviation that is in the finest details.
        broken: why it cannot be read; nothing where it can.
    """

    width: int = 0
    height: int = 0
    contrast: float = 0.0
    brightness: float = 0.0
    detail: float = 0.0
    broken: str = ""


def look_at(file: str | os.PathLike[str]) -> Look:
    """Decode an image file, no larger than is needed, and measure it."""
    try:
        with opened(os.fspath(file)) as image:
            height, width = upright_size(image)
            grey = decode(image, min(width, height) / SIDE).convert("L")
    except UnreadableImage as error:
        return Look(broken=str(error).partition("(")[2].rpartition(")")[0] or UNREADABLE)
    grey.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    pixels = np.asarray(grey, dtype=np.float32)
    contrast = float(pixels.std())
    fine = float((pixels - ndimage.gaussian_filter(pixels, 1.0, mode="nearest")).std())
    return Look(width, height, contrast, float(np.percentile(pixels, BRIGHTEST)), fine / max(contrast, 1e-6))


def look_at_all(files: Sequence[str | os.PathLike[str]]) -> list[Look]:
    """Look at each of some files, several at a time."""
    with ThreadPoolExecutor(default_workers()) as pool:
        found = pool.map(look_at, files)
        return [look for ((look,),) in watch((([look],) for look in found), len(files), "looking at files")]


def flaws_in(looks: Sequence[Look]) -> dict[int, tuple[str, ...]]:
    """Return what is wrong with each of some images that has anything wrong, by their numbers.

    Args:
        looks: of all images of a folder, since sizes are compared with those of the others.

    Returns:
        Words of `cannot be read`, `blank`, `tiny`, `dark`, `blurred` and `odd size`.

    Example:
        >>> good = Look(640, 480, contrast=50.0, brightness=250.0, detail=0.2)
        >>> flaws_in([good, good, good, Look(640, 480, 0.0, 255.0, 0.0), Look(broken="the file is empty")])
        {3: ('blank',), 4: ('cannot be read',)}
    """
    readable = [number for number, look in enumerate(looks) if not look.broken]
    found: dict[int, list[str]] = {number: [UNREADABLE] for number, look in enumerate(looks) if look.broken}
    if not readable:
        return {number: tuple(words) for number, words in found.items()}
    sides = np.array([(looks[number].width, looks[number].height) for number in readable], dtype=float)
    shorter = sides.min(axis=1)
    tiny = shorter < min(LEAST, float(np.median(shorter)) / TINY)
    odd = _odd(np.log(sides.prod(axis=1))) | _odd(np.log(sides[:, 0] / sides[:, 1]))
    for place, number in enumerate(readable):
        look = looks[number]
        words = ["blank"] if look.contrast < BLANK else []
        words += ["tiny"] * bool(tiny[place])
        words += ["dark"] * (not words and look.brightness < DARK)
        words += ["blurred"] * (not words and look.detail < BLURRED)
        words += ["odd size"] * bool(odd[place] and not tiny[place])
        if words:
            found[number] = words
    return {number: tuple(found[number]) for number in sorted(found)}


@typed
def find_flaws(files: Sequence[str | os.PathLike[str]]) -> dict[int, tuple[str, ...]]:
    """Find what is wrong with image files by themselves; see `flaws_in`.

    Args:
        files: N paths of one collection.

    Returns:
        The words for each image that has anything wrong, by its number.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (64, 64), "white").save(f"{folder}/a.png")
        ...     find_flaws([f"{folder}/a.png"])
        {0: ('blank',)}
    """
    return flaws_in(look_at_all(files))


def duplicates_among(files: Sequence[str], vectors: np.ndarray | None, leave: Sequence[int] = ()) -> Duplicates:
    """Find duplicates among those files that can be read.

    Args:
        files: N paths.
        vectors: (N, D) their features; None without.
        leave: the numbers of files that are not looked at.
    """
    left = np.setdiff1d(np.arange(len(files)), np.array([*leave], dtype=np.int64))
    some = [files[number] for number in left]
    found = find_duplicates(some, None if vectors is None else vectors[left])
    groups = [
        Group(int(left[group.keep]), tuple(int(left[other]) for other in group.others), group.exact)
        for group in found.groups
    ]
    return Duplicates(tuple(groups), tuple(files))


def _odd(values: np.ndarray) -> np.ndarray:
    low, middle, high = np.percentile(values, [25, 50, 75])
    fence = max(ODD * (high - low), APART)
    return (values < min(low, middle) - fence) | (values > max(high, middle) + fence)
