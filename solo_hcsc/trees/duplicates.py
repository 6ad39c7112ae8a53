"""Exact and near duplicates among image files: candidates by a perceptual hash and by features, verified by pixels.

Shapes: `N` images, `D` features, `P` pairs.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import fft, ndimage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.trees.stored import stored
from solo_hcsc.typed import typed

Reader = Callable[[str], Image.Image]

SIDE = 64  # of the copies that are compared, their longer side in pixels
BITS = 64
NEAR_BITS = 12  # of the hash may differ; the pixels decide
NEAR_COSINE = 0.8  # of features, likewise
NEIGHBOURS = 2  # of each image by features that are looked at
CROPS = np.linspace(1, 0.7, 13)  # a copy's sides as shares of the original's
ALIKE = 0.85  # least correlation of details
ROUGHLY = 0.6  # the same of copies of half the size, which spare most pairs the comparison
COLOUR = 20.0  # of 255, by which the mean colours of the same part may differ
FLAT = 1.0  # standard deviation of details, of 255, below which an image has none


@dataclass(frozen=True)
class Group:
    """Images that show the same.

    Args:
        keep: the number of the one to keep, the largest in pixels, of these the first.
        others: the numbers of the others, rising.
        exact: whether the files are the same byte for byte.
    """

    keep: int
    others: tuple[int, ...]
    exact: bool


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of duplicates among N images, by the number of their first image.

    Args:
        groups: each of at least two images; no image is in two.
        paths: of all images.
    """

    groups: tuple[Group, ...]
    paths: tuple[str, ...]

    @cached_property
    def extra(self) -> np.ndarray:
        """Return the numbers of images that can go, rising."""
        return np.array(sorted(image for group in self.groups for image in group.others), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Look:
    """What is kept of an image to compare it."""

    pixels: np.ndarray  # (h, w, 3) float32, the longer side SIDE at most
    bits: np.ndarray  # (BITS / 8,) bytes
    area: int  # in pixels of the file


def open_image(path: str) -> Image.Image:
    """Return an image in RGB, with transparent pixels on white."""
    with Image.open(path) as opened:
        opened.draft(None, (4 * SIDE, 4 * SIDE))  # a JPEG is decoded no larger than is needed
        if not opened.has_transparency_data:
            return opened.convert("RGB")
        image = opened.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


@typed
def find_duplicates(
    paths: Sequence[str | os.PathLike[str]],
    vectors: Any = None,
    read: Reader = open_image,
    progress: Callable[[int, int], None] | None = None,
) -> Duplicates:
    """Group images that are the same file, or the same picture: encoded anew, resized, or cropped by up to 30 % a side.

    Pairs whose hash or features are close are verified: one is laid over the other at every scale and place, and its
    details must correlate with what is below it.

    Args:
        paths: N image files.
        vectors: (N, D) features of the same images, which find cropped copies; without them only the hash is used.
        read: opens a path as RGB.
        progress: called with the number of images read and N.

    Returns:
        The groups, each with the image to keep.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pixels = np.random.default_rng(0).integers(256, size=(2, 8, 8, 3), dtype=np.uint8)
        ...     for number, name in enumerate(("a.png", "b.png", "c.bmp")):
        ...         Image.fromarray(pixels[number % 2]).resize((32, 32)).save(f"{folder}/{name}")
        ...     found = find_duplicates([f"{folder}/{name}" for name in ("a.png", "b.png", "c.bmp")])
        >>> found.groups
        (Group(keep=0, others=(2,), exact=False),)
    """
    files = tuple(os.fspath(path) for path in paths)
    features = None if vectors is None else as_unit_vectors(stored(vectors, "vectors"), "vectors")
    if features is not None and len(features) != len(files):
        raise ArgumentError(f"`vectors` has {len(features)} rows and `paths` {len(files)}: give one of each image")
    if not files:
        return Duplicates((), files)
    first = _same_files(files)
    looked_at = np.unique(first)  # of equal files the first
    looks: dict[int, _Look] = {}
    for done, number in enumerate(looked_at.tolist(), 1):
        looks[number] = _look(read(files[number]), _area(files[number]))
        if progress:
            progress(done, len(looked_at))
    pairs = _near_hashes(looks)
    if features is not None:
        pairs |= {(int(looked_at[a]), int(looked_at[b])) for a, b in _near_features(features[looked_at])}
    alike = [pair for pair in sorted(pairs) if overlap(looks[pair[0]].pixels, looks[pair[1]].pixels)]
    links = np.array([*alike, *enumerate(first.tolist())]).T
    joined = coo_array((np.ones(links.shape[1]), links), shape=(len(files), len(files)))
    members = defaultdict(list)
    for number, group in enumerate(connected_components(joined, directed=False)[1].tolist()):
        members[group].append(number)
    groups = []
    for images in (images for images in members.values() if len(images) > 1):
        keep = max(images, key=lambda image: (looks[int(first[image])].area, -image))
        others = tuple(image for image in images if image != keep)
        groups.append(Group(keep, others, exact=len({int(first[image]) for image in images}) == 1))
    return Duplicates(tuple(groups), files)


def _same_files(files: Sequence[str]) -> np.ndarray:
    """Return, for each file, the number of the first one with the same bytes; files of the same size alone are read."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for number, file in enumerate(files):
        by_size[os.path.getsize(file)].append(number)
    first = np.arange(len(files))
    for numbers in (numbers for numbers in by_size.values() if len(numbers) > 1):
        seen: dict[bytes, int] = {}
        for number in numbers:
            digest = hashlib.sha256(Path(files[number]).read_bytes()).digest()
            first[number] = seen.setdefault(digest, number)
    return first


def _area(file: str) -> int:
    with Image.open(file) as opened:
        return opened.width * opened.height


def _look(image: Image.Image, area: int) -> _Look:
    width, height = image.size
    small = image.reduce(max(1, min(width, height) // (4 * SIDE)))  # fast, and as good before the last step
    scale = min(1.0, SIDE / max(width, height))
    size = max(4, round(width * scale)), max(4, round(height * scale))
    pixels = np.asarray(small.resize(size, Image.Resampling.BOX), dtype=np.float32)
    return _Look(pixels, perceptual_hash(small), area)


def perceptual_hash(image: Image.Image) -> np.ndarray:
    """Return 64 bits as 8 bytes: which of an image's 64 lowest frequencies, but the mean, are above their median."""
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX), dtype=np.float64)
    low = fft.dctn(grey)[:9, :9].ravel()[1 : BITS + 1]
    return np.packbits(low > np.median(low))


def _near_hashes(looks: dict[int, _Look]) -> set[tuple[int, int]]:
    faiss = import_faiss("duplicates are found")
    numbers = list(looks)
    bits = np.stack([looks[number].bits for number in numbers])
    index = faiss.IndexBinaryFlat(BITS)
    index.add(bits)
    limits, _, found = index.range_search(bits, NEAR_BITS + 1)
    rows = np.repeat(np.arange(len(numbers)), np.diff(limits.astype(np.int64)))
    return {(numbers[a], numbers[b]) for a, b in zip(rows.tolist(), found.tolist(), strict=True) if a < b}


def _near_features(features: np.ndarray) -> list[tuple[int, int]]:
    faiss = import_faiss("duplicates are found")
    index = faiss.IndexFlatIP(features.shape[1])
    index.add(features)
    cosines, found = index.search(features, min(NEIGHBOURS + 1, len(features)))
    rows, columns = np.nonzero(cosines >= NEAR_COSINE)
    ends = np.sort(np.stack([rows, found[rows, columns]], axis=1), axis=1)
    return [(a, b) for a, b in np.unique(ends, axis=0).tolist() if a != b]


# ---- verifying ----


def overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether one image (h, w, 3) shows the other or a part of it, down to 70 % of its sides."""
    side = min(max(one.shape[:2]), max(other.shape[:2]))  # a small copy has lost details
    pair, rough = ([_reduced(image, size) for image in (one, other)] for size in (side, side // 2))
    ways = ((0, 1), (1, 0))
    return any(
        (side < SIDE or _shows(rough[a], rough[b], ROUGHLY, SIDE / 32)) and _shows(pair[a], pair[b]) for a, b in ways
    )


def _shows(whole: np.ndarray, part: np.ndarray, alike_from: float = ALIKE, radius: float = SIDE / 16) -> bool:
    """Return whether `part` is somewhere in `whole`, at any of the scales; `radius` is of details."""
    height, width = whole.shape[:2]
    details = _details(whole, radius)
    shape = (height, width)
    spectra = fft.rfft2(details, shape, axes=(0, 1))
    energy = np.pad((details**2).sum(axis=2, dtype=np.float64).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    seen = set()
    for share in CROPS:
        # The longest side that fits: a part has its own shape.
        scale = share * min(width / part.shape[1], height / part.shape[0])
        size = round(part.shape[1] * scale), round(part.shape[0] * scale)
        if size in seen or min(size) < 0.6 * min(width, height) or size[0] * size[1] < 0.45 * width * height:
            continue
        seen.add(size)
        resized = _resized(part, size)
        template = _details(resized, radius)
        own = float((template**2).sum())
        products = fft.irfft2((spectra * np.conj(fft.rfft2(template, shape, axes=(0, 1)))).sum(axis=2), shape)
        rows, columns = height - size[1] + 1, width - size[0] + 1
        below = (
            energy[size[1] :, size[0] :][:rows, :columns]
            - energy[:rows, size[0] :][:, :columns]
            - energy[size[1] :, :columns][:rows]
            + energy[:rows, :columns]
        )
        flat = FLAT**2 * template.size
        if own < flat:
            if size == (width, height) and below[0, 0] < flat:
                return bool(np.abs(resized - whole).mean() < FLAT * 4)
            continue
        alike = products[:rows, :columns] / np.sqrt(np.maximum(below, flat) * own)
        row, column = np.unravel_index(alike.argmax(), alike.shape)
        if alike[row, column] >= alike_from:
            there = whole[row : row + size[1], column : column + size[0]]
            if np.abs(there.mean(axis=(0, 1)) - resized.mean(axis=(0, 1))).max() <= COLOUR:
                return True
    return False


def _details(pixels: np.ndarray, radius: float) -> np.ndarray:
    """Subtract the surroundings of pixels (h, w, 3)."""
    return pixels - ndimage.gaussian_filter(pixels, (radius, radius, 0), mode="nearest")


def _reduced(pixels: np.ndarray, side: int) -> np.ndarray:
    scale = side / max(pixels.shape[:2])
    return _resized(pixels, (max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale))))


def _resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if size == (pixels.shape[1], pixels.shape[0]):
        return pixels
    image = Image.fromarray(pixels.round().astype(np.uint8))
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
