"""torchvision's and solo-learn's transforms of an image file in a fraction of their time: same draws, similar pixels.

What chance decides is drawn first, by the generators and in the order of the transform itself, so that a seed means the
same views. Then the file is decoded once, a JPEG no larger than its largest view needs, and each view is resized once.
Resizing is torch's, whose 8-bit kernels follow Pillow's arithmetic to one level; OpenCV changes the colours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn.functional import interpolate
from torchvision import transforms
from torchvision.transforms.functional import center_crop, normalize

from solo_hcsc.data.images import ImageFile, ReadsFiles, decode, opened, upright_size

cv2.setNumThreads(1)  # a loader has its processes; OpenCV would start a thread per core in each

Pixels = np.ndarray  # (H, W, 3) in RGB, 8 bits
Change = Callable[[Pixels], Pixels]
Draw = Callable[[], list[Change]]  # decides by chance what is done to a view
Draws = Mapping[type, Callable[[Any], list[Change]]]  # the same of a transform's step, by its kind
_REST = 2.0  # that is left to the resizing which filters well, like Pillow's `reducing_gap`


@dataclass(frozen=True)
class Box:
    """A part of an image and the size that it is resized to, in pixels."""

    top: int
    left: int
    height: int
    width: int
    size: tuple[int, int]  # height and width

    @property
    def shrink(self) -> float:
        """Return how many times smaller the image may be without this part having to be enlarged."""
        return min(self.height / self.size[0], self.width / self.size[1])

    def scaled(self, vertically: float, horizontally: float) -> "Box":
        """Return the same part of a smaller image, in whole pixels."""
        top, left = round(self.top * vertically), round(self.left * horizontally)
        bottom, right = round((self.top + self.height) * vertically), round((self.left + self.width) * horizontally)
        return Box(top, left, max(1, bottom - top), max(1, right - left), self.size)


@dataclass(frozen=True)
class Pipeline:
    """How one view is made: where it is cut, what may be done to its colours, and how they become numbers."""

    cut: Any  # RandomResizedCrop or Resize
    centre: Any  # the size of a CenterCrop that follows
    draws: tuple[Draw, ...]
    levels: np.ndarray  # (3, 256): the number that stands for each level of each colour

    @classmethod
    def of(cls, transform: transforms.Compose, others: Draws) -> "Pipeline":
        """Return what a transform means; raise ValueError for one that is made of other steps."""
        cut, *steps = transform.transforms
        if not isinstance(cut, transforms.RandomResizedCrop | transforms.Resize):
            raise ValueError(f"{cut}: a fast transform begins with RandomResizedCrop or Resize")
        centre = steps.pop(0).size if steps and isinstance(steps[0], transforms.CenterCrop) else None
        numbers = torch.arange(256).div(255).expand(3, 1, 256)
        if steps and isinstance(steps[-1], transforms.Normalize):
            numbers = normalize(numbers, steps[-1].mean, steps.pop().std)
        if not steps or not isinstance(steps.pop(), transforms.ToTensor):
            raise ValueError(f"{transform}: a fast transform ends with ToTensor, and Normalize if that is wanted")
        return cls(cut, centre, tuple(_draw(step, others) for step in steps), numbers[:, 0].contiguous().numpy())

    def box(self, height: int, width: int) -> Box:
        """Draw the part of an image of this size that becomes the view."""
        cut = self.cut
        if isinstance(cut, transforms.RandomResizedCrop):
            image = torch.empty((1, height, width), device="meta")  # of which only the size is looked at
            top, left, high, wide = cut.get_params(image, list(cut.scale), list(cut.ratio))
            return Box(top, left, high, wide, tuple(cut.size))
        size = cut.size
        if isinstance(size, int):
            short = min(height, width)
            size = (size * height // short, size * width // short)
        return Box(0, 0, height, width, tuple(size))

    def draw(self) -> list[Change]:
        """Draw what is done to the view."""
        return [change for draw in self.draws for change in draw()]

    def make(self, image: Pixels, box: Box, changes: Sequence[Change]) -> torch.Tensor:
        """Return the view (3, H, W) of an image."""
        part = image[box.top : box.top + box.height, box.left : box.left + box.width]
        batch = torch.from_numpy(part).permute(2, 0, 1).unsqueeze(0)
        view = interpolate(batch, size=box.size, mode=self.cut.interpolation.value, antialias=True)[0]
        planes = (center_crop(view, self.centre) if self.centre else view).numpy()
        if changes:
            pixels = cv2.merge(list(planes))
            for change in changes:
                pixels = change(pixels)
            planes = cv2.split(pixels)
        numbers = np.empty((3, *planes[0].shape), np.float32)
        for plane, levels, into in zip(planes, self.levels, numbers, strict=True):
            cv2.LUT(plane, levels, dst=into)
        return torch.from_numpy(numbers)


class FastViews(ReadsFiles):
    """Views of an image as torchvision's transforms draw them, each a tensor (3, H, W).

    Args:
        made_by: a transform for each view: RandomResizedCrop or Resize, changes of colours, ToTensor, Normalize.
        others: for kinds of steps that are not torchvision's, a function that draws what a step does.

    Raises:
        ValueError: a step is of no kind that is known.

    Example:
        >>> crop = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
        >>> [tuple(view.shape) for view in FastViews([crop, crop])(Image.new("RGB", (40, 30)))]
        [(3, 24, 24), (3, 24, 24)]
    """

    def __init__(self, made_by: Sequence[transforms.Compose], others: Draws | None = None) -> None:
        self.made_by = list(made_by)
        self.pipelines = [Pipeline.of(transform, others or {}) for transform in made_by]

    def of_file(self, image: ImageFile) -> list[torch.Tensor]:
        with opened(image) as file:
            height, width = upright_size(file)
            drawn = self._draw(height, width)
            shrink = min(box.shrink for box, _ in drawn)
            pixels = decode(file, shrink)
            rest = int(shrink * pixels.width / width / _REST)
            pixels = pixels.reduce(rest) if rest > 1 else pixels
        return self._make(pixels, pixels.height / height, pixels.width / width, drawn)

    def __call__(self, image: Image.Image) -> list[torch.Tensor]:
        return self._make(image, 1, 1, self._draw(image.height, image.width))

    def _draw(self, height: int, width: int) -> list[tuple[Box, list[Change]]]:
        return [(pipeline.box(height, width), pipeline.draw()) for pipeline in self.pipelines]

    def _make(
        self, image: Image.Image, vertically: float, horizontally: float, drawn: list[tuple[Box, list[Change]]]
    ) -> list[torch.Tensor]:
        pixels = np.array(image)  # a copy, because torch takes no memory that cannot be written to
        return [
            pipeline.make(pixels, box.scaled(vertically, horizontally), changes)
            for pipeline, (box, changes) in zip(self.pipelines, drawn, strict=True)
        ]

    def __repr__(self) -> str:
        return "\n".join(map(str, self.made_by))


class FastView(FastViews):
    """The one view that a transform makes."""

    def __init__(self, made_by: transforms.Compose) -> None:
        super().__init__([made_by])

    def of_file(self, image: ImageFile) -> torch.Tensor:  # type: ignore[override]
        return super().of_file(image)[0]

    def __call__(self, image: Image.Image) -> torch.Tensor:  # type: ignore[override]
        return super().__call__(image)[0]


# ---- what chance decides: with torchvision's own functions, in its order ----


def _draw(step: Any, others: Draws) -> Draw:
    match step:
        case transforms.RandomApply(p=p, transforms=inner):
            return partial(_apply, p, [_draw(one, others) for one in inner])
        case transforms.ColorJitter(brightness=b, contrast=c, saturation=s, hue=h):
            return partial(_jitter, b, c, s, h)
        case transforms.RandomGrayscale(p=p):
            return partial(_perhaps, p, grey)
        case transforms.RandomHorizontalFlip(p=p):
            return partial(_perhaps, p, flip)
        case transforms.Lambda(lambd=ImageOps.equalize):
            return partial(list, [equalise])
    if type(step) not in others:
        raise ValueError(f"{step}: a step that fast transforms do not know")
    return partial(others[type(step)], step)


def _apply(p: float, draws: Sequence[Draw]) -> list[Change]:
    return [] if p < torch.rand(1) else [change for draw in draws for change in draw()]


def _perhaps(p: float, change: Change) -> list[Change]:
    return [change] if torch.rand(1) < p else []


def _jitter(*ranges: Any) -> list[Change]:
    order, *factors = transforms.ColorJitter.get_params(*ranges)
    return [partial(JITTER[kind], factor=factors[kind]) for kind in order.tolist() if factors[kind] is not None]


# ---- what is done to pixels: Pillow's arithmetic by OpenCV ----

_LEVELS = np.arange(256, dtype=np.float32)
_SOLARISED = np.minimum(_LEVELS, 255 - _LEVELS).astype(np.uint8)


def _blend(degenerate: int, factor: float) -> np.ndarray:
    """Return the level that Pillow's ImageEnhance makes of each level: it cuts off what is behind the point."""
    return (degenerate + np.float32(factor) * (_LEVELS - degenerate)).clip(0, 255).astype(np.uint8)


def _look_up(pixels: Pixels, table: np.ndarray) -> Pixels:
    """Return what a table has for each level; all colours as one, which OpenCV does in half the time."""
    return cv2.LUT(pixels.reshape(len(pixels), -1), table).reshape(pixels.shape)


def brightness(pixels: Pixels, factor: float) -> Pixels:
    return _look_up(pixels, _blend(0, factor))


def contrast(pixels: Pixels, factor: float) -> Pixels:
    mean = int(cv2.mean(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))[0] + 0.5)
    return _look_up(pixels, _blend(mean, factor))


def saturation(pixels: Pixels, factor: float) -> Pixels:
    return cv2.addWeighted(pixels, factor, grey(pixels), 1 - factor, -0.5)  # it rounds, and Pillow cuts off


def hue(pixels: Pixels, factor: float) -> Pixels:
    turned = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV_FULL)
    turned[..., 0] += np.uint8(int(factor * 255) % 256)  # 8 bits go round as the hue does
    return cv2.cvtColor(turned, cv2.COLOR_HSV2RGB_FULL)


JITTER = (brightness, contrast, saturation, hue)  # as ColorJitter numbers them


def grey(pixels: Pixels) -> Pixels:
    return cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def flip(pixels: Pixels) -> Pixels:
    return cv2.flip(pixels, 1)


def blur(pixels: Pixels, sigma: float) -> Pixels:
    return cv2.GaussianBlur(pixels, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)


def solarise(pixels: Pixels) -> Pixels:
    return _look_up(pixels, _SOLARISED)


def equalise(pixels: Pixels) -> Pixels:
    return np.asarray(ImageOps.equalize(Image.fromarray(pixels)))
