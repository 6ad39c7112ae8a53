"""Images with boxes: what an image shows, and the image with its boxes as a detector is trained and tested on it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from solo_hcsc.data.images import Skipped, read_image
from solo_hcsc.data.outlines import check_outline, encoded
from solo_hcsc.errors import UserError, on_one_line

_SLACK = 1.0  # pixels by which a box may stick out of its image: rounding, and boxes of VOC that begin at 0


@dataclass(frozen=True)
class Objects:
    """What an image shows: `n` objects.

    Attributes:
        boxes: (n, 4) float32, left, top, right and bottom in pixels from the image's upper left corner. A box of one
            pixel is 1 wide.
        labels: (n,) int64, classes from 0.
        ignored: (n,) bool, objects that count neither as found nor as missed: difficult ones, and crowds.
        crowds: (n,) bool, of these the regions that hold any number of objects; nothing is trained on them.
        areas: (n,) float64 in pixels, by which COCO tells small objects from large ones.
        outlines: COCO's segmentations, polygons or run lengths, one an object; empty where there are none.
    """

    boxes: np.ndarray
    labels: np.ndarray
    ignored: np.ndarray
    crowds: np.ndarray
    areas: np.ndarray
    outlines: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: np.ndarray) -> "Objects":
        """Return the objects of a mask or of indexes."""
        places = np.arange(len(self))[chosen]
        outlines = tuple(self.outlines[place] for place in places) if self.outlines else ()
        kept = {name: getattr(self, name)[places] for name in ("boxes", "labels", "ignored", "crowds", "areas")}
        return Objects(**kept, outlines=outlines)


def objects(
    boxes: Sequence[Sequence[float]],
    labels: Sequence[int],
    ignored: Sequence[bool],
    crowds: Sequence[bool] | None = None,
    areas: Sequence[float] | None = None,
    outlines: Sequence[Any] = (),
) -> Objects:
    """Make an image's objects of plain lists; areas are the boxes' unless they are given.

    Example:
        >>> objects([[2, 3, 12, 8]], [0], [False]).areas
        array([50.])
    """
    corners = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    sides = (corners[:, 2:] - corners[:, :2]).astype(np.float64)
    return Objects(
        corners,
        np.asarray(labels, dtype=np.int64),
        np.asarray(ignored, dtype=bool),
        np.zeros(len(labels), dtype=bool) if crowds is None else np.asarray(crowds, dtype=bool),
        sides.prod(axis=1) if areas is None else np.asarray(areas, dtype=np.float64),
        tuple(outlines),
    )


@dataclass(frozen=True)
class AnnotatedImage:
    """An image's file, its size in pixels as its annotation has it, and what it shows."""

    file: Path
    width: int
    height: int
    objects: Objects


def box_within(corners: Sequence[float], width: int, height: int, where: object) -> list[float]:
    """Clip a box that rounding has put outside of the image; refuse others. `where` names it in the message."""
    left, top, right, bottom = corners
    shown = f"box {' '.join(f'{corner:g}' for corner in corners)}"
    if not all(np.isfinite(corners)) or right <= left or bottom <= top:
        raise UserError(f"{on_one_line(where)}: {shown} has no area; correct or remove it")
    if left < -_SLACK or top < -_SLACK or right > width + _SLACK or bottom > height + _SLACK:
        raise UserError(
            f"{on_one_line(where)}: {shown} is outside of its image of {width} x {height} pixels; correct or remove it"
        )
    inside = [max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))]
    if inside[2] <= inside[0] or inside[3] <= inside[1]:
        raise UserError(f"{on_one_line(where)}: {shown} is outside of its image; correct or remove it")
    return inside


@dataclass(frozen=True)
class Sizes:
    """How images are resized: the shorter side to one of `short`, unless the longer one then exceeds `longest`."""

    short: tuple[int, ...]
    longest: int

    def resized(self, width: int, height: int, short: int) -> tuple[int, int]:
        """Return width and height, rounded as detectron2 does.

        Example:
            >>> Sizes((800,), 1333).resized(500, 375, 800), Sizes((800,), 1333).resized(1000, 300, 800)
            ((1067, 800), (1333, 400))
        """
        scale = min(short / min(width, height), self.longest / max(width, height))
        return max(1, int(width * scale + 0.5)), max(1, int(height * scale + 0.5))


class DetectionImages(Dataset):
    """Images as (image, target) for a detector; `image` is (3, H, W) from 0 to 1.

    In training, images are flipped and resized at random, and `target` has `boxes (n, 4)`, `labels (n,)` from 1 and, if
    asked for, `masks (n, H, W)`. A test image's target has its `index` and its `size (2,)`, height and width, on disk.
    """

    def __init__(
        self,
        images: Sequence[AnnotatedImage],
        sizes: Sizes,
        training: bool,
        masks: bool = False,
        flip_prob: float = 0.5,
    ) -> None:
        self.images = images
        self.sizes = sizes
        self.training = training
        self.masks = masks
        self.flip_prob = flip_prob

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        item = self.images[index]
        picture = read_image(str(item.file))
        if picture.size != (item.width, item.height):
            raise WrongSize(
                f"{on_one_line(item.file)}: has {picture.width} x {picture.height} pixels, and its annotation is of "
                f"{item.width} x {item.height}; correct one of them"
            )
        if not self.training:
            resized = picture.resize(self._side(item, self.sizes.short[-1]), Image.Resampling.BILINEAR)
            size = torch.tensor([item.height, item.width])
            return _as_tensor(resized), {"index": torch.tensor(index), "size": size}
        shown = item.objects[~item.objects.crowds]
        width, height = self._side(item, random.choice(self.sizes.short))
        flipped = random.random() < self.flip_prob
        resized = picture.resize((width, height), Image.Resampling.BILINEAR)
        boxes = shown.boxes * np.array([width / item.width, height / item.height] * 2, dtype=np.float32)
        if flipped:
            resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            boxes = np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1)
        target = {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(shown.labels + 1)}
        if self.masks:
            target["masks"] = torch.from_numpy(_masks(shown, item, (width, height), flipped))
        return _as_tensor(resized), target

    def _side(self, item: AnnotatedImage, short: int) -> tuple[int, int]:
        return self.sizes.resized(item.width, item.height, short)


class WrongSize(UserError):
    """An image that is not of the size that its annotation is of."""

    in_one_process = True  # only the process whose share the image is in comes across it


def collate(batch: list[Any]) -> tuple[list[Any], list[Any]]:
    """Keep images of different sizes in a list; leave out those that could not be read."""
    there = [item for item in batch if not isinstance(item, Skipped)]
    return [image for image, _ in there], [target for _, target in there]


def with_objects(images: Sequence[AnnotatedImage]) -> list[AnnotatedImage]:
    """Keep the images that show at least one object to train on."""
    return [image for image in images if not image.objects.crowds.all()]


def check_outlines(images: Sequence[AnnotatedImage], where: object) -> None:
    """Refuse images unless every object has an outline that masks can be made of."""
    for image in images:
        if len(image.objects.outlines) != len(image.objects):
            raise UserError(
                f"{on_one_line(where)}: objects of {image.file.name} have no segmentation; use `masks` false"
            )
        for number, outline in enumerate(image.objects.outlines, 1):
            try:
                check_outline(outline, image.width, image.height)
            except ValueError as error:
                raise UserError(
                    f"{on_one_line(where)}: segmentation {number} of {on_one_line(image.file)}: "
                    f"{on_one_line(error)}; correct it, or use `masks` false"
                ) from error


def _masks(shown: Objects, item: AnnotatedImage, size: tuple[int, int], flipped: bool) -> np.ndarray:
    """Return (n, H, W) of 0 and 1, as the resized image is."""
    from pycocotools import mask

    found = np.zeros((len(shown), size[1], size[0]), dtype=np.uint8)
    for place, outline in enumerate(shown.outlines):
        whole = Image.fromarray(mask.decode(encoded(outline, item.width, item.height)))
        found[place] = np.asarray(whole.resize(size, Image.Resampling.NEAREST))
    return np.ascontiguousarray(found[:, :, ::-1]) if flipped else found


def _as_tensor(picture: Image.Image) -> torch.Tensor:
    pixels = np.asarray(picture, dtype=np.float32) / 255
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def few(images: Sequence[AnnotatedImage], count: int) -> list[int]:
    """Return indexes of so many images, evenly spread over all of them."""
    return [round(place) for place in np.linspace(0, len(images) - 1, min(count, len(images)))]
