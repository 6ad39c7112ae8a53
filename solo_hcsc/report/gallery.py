"""Small images, and a sheet in inches to put them on."""

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from solo_hcsc.data.folders import with_transform
from solo_hcsc.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch.utils.data import Dataset

SIDE = 0.42  # inches of an image on a sheet
GAP = 0.05  # between images
LINE = 0.17  # height of a line of text
FRAME = 1.8  # width of a frame in points
PIXELS_PER_INCH = 120  # of images: as many as a screen shows of a sheet in its column


class Thumbnails:
    """A data set's images as small squares (S, S, 3) of bytes, by index."""

    def __init__(self, dataset: "Dataset") -> None:
        self._dataset = dataset
        self.of = cache(self._of)  # one image may be in several pictures

    def _of(self, index: int, side: float = SIDE) -> np.ndarray:
        """Make a thumbnail; `side`: in inches, of its place on a sheet."""
        images: Any = with_transform(self._dataset, partial(_shrink, most=round(side * PIXELS_PER_INCH)))
        return images[index][0]


def _shrink(image: Image.Image, most: int) -> np.ndarray:
    side = min(*image.size, most)
    return np.asarray(ImageOps.fit(image, (side, side)))


def sheet(width: float, height: float) -> tuple["Figure", "Axes"]:
    """Make an empty sheet, measured in inches from its upper left corner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    return figure, axes


def place(axes: "Axes", image: np.ndarray, x: float, y: float, side: float = SIDE, frame: str | None = None) -> None:
    """Put an image on a sheet, its upper left corner at (x, y)."""
    from matplotlib.patches import Rectangle

    axes.imshow(image, extent=(x, x + side, y + side, y), aspect="auto", zorder=2)
    if frame:
        inset = FRAME / 72 / 2  # within the image, so that neighbours' frames stay apart
        corner, inner = (x + inset, y + inset), side - 2 * inset
        axes.add_patch(Rectangle(corner, inner, inner, fill=False, edgecolor=frame, linewidth=FRAME, zorder=3))


def place_row(axes: "Axes", images: Sequence[np.ndarray], x: float, y: float, side: float = SIDE) -> None:
    """Put images side by side, the upper left corner of the first at (x, y)."""
    for number, image in enumerate(images):
        place(axes, image, x + number * (side + GAP), y, side)


def place_text(axes: "Axes", text: str, x: float, y: float, size: float = 8) -> None:
    """Write one line of text whose upper end is at y."""
    axes.text(x, y, text, fontsize=size, va="top")


def line(axes: "Axes", xs: Sequence[float], ys: Sequence[float]) -> None:
    """Join points of a sheet."""
    axes.plot(xs, ys, color=figures.ink(), linewidth=0.8, alpha=0.6, zorder=1)
