"""A sheet of test images with their boxes, true and found."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from solo_hcsc.data.detection import AnnotatedImage
from solo_hcsc.data.images import read_image
from solo_hcsc.evaluation.detecting import Detections
from solo_hcsc.files import written_whole
from solo_hcsc.report import figures, gallery

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "detections"  # of the sheet's files
SHOWN = 0.5  # from which score on
_SIDE, _GAP, _COLUMNS = 2.0, 0.12, 4  # inches, of the longer side of an image
_TRUE, _FOUND = "#009e73", "#d55e00"
_LETTERS = 0.08  # inches, of a label's height


def sheet(
    images: Sequence[AnnotatedImage], found: Sequence[Detections], chosen: Sequence[int], classes: Sequence[str]
) -> figures.Picture:
    """Draw the chosen images. True boxes are dashed and green, found ones orange with class and score.

    Args:
        images: the test images.
        found: what was found in each of them.
        chosen: indexes of those to show.
        classes: their names.
    """
    caption = (
        f"{len(chosen)} of {len(images)} test images. Dashed, green: true boxes, dotted if they do not count. Orange: "
        f"what was found with a score of at least {SHOWN:g}."
    )

    def draw() -> "Figure":
        rows = -(-len(chosen) // _COLUMNS)
        step = _SIDE + _GAP
        figure, axes = gallery.sheet(min(len(chosen), _COLUMNS) * step, rows * step)
        for place, index in enumerate(chosen):
            corner = place % _COLUMNS * step, place // _COLUMNS * step
            _draw_image(axes, images[index], found[index], classes, *corner)
        return figure

    return figures.Picture(NAME, "Boxes in test images", caption, draw)


def write_sheet(picture: figures.Picture, folder: Path) -> dict[str, str]:
    """Write the picture as SVG and PNG into a run's folder; return what a result says of it."""
    file = folder / f"{picture.name}.svg"
    figures.write_svg(file, figures.to_svg(picture.name, picture.draw))
    with written_whole(file.with_suffix(".png")) as part:
        part.write_bytes(figures.to_png(picture.draw))
    return {"file": file.name, "title": picture.title, "caption": picture.caption}


def _draw_image(
    axes: "Axes", image: AnnotatedImage, found: Detections, classes: Sequence[str], x: float, y: float
) -> None:
    scale = _SIDE / max(image.width, image.height)
    width, height = image.width * scale, image.height * scale
    pixels = read_image(str(image.file))
    most = round(_SIDE * gallery.PIXELS_PER_INCH)
    pixels.thumbnail((most, most), Image.Resampling.BICUBIC)
    axes.imshow(np.asarray(pixels), extent=(x, x + width, y + height, y), aspect="auto", zorder=2)
    for box, ignored in zip(image.objects.boxes, image.objects.ignored, strict=True):
        _draw_box(axes, box * scale, x, y, _TRUE, ":" if ignored else "--", 1.4)
    for box, score, label in zip(found.boxes, found.scores, found.labels, strict=True):
        if score >= SHOWN:
            _draw_box(axes, box * scale, x, y, _FOUND, "-", 0.9)
            text = f"{figures.short(classes[label], 14)} {score:.2f}"
            top = max(y + box[1] * scale, y + _LETTERS)
            style = {"facecolor": _FOUND, "edgecolor": "none", "pad": 0.6}
            axes.text(x + box[0] * scale, top, text, fontsize=5, color="white", va="bottom", zorder=5, bbox=style)


def _draw_box(axes: "Axes", box: np.ndarray, x: float, y: float, colour: str, style: str, width: float) -> None:
    from matplotlib.patches import Rectangle

    sides = box[2] - box[0], box[3] - box[1]
    corner = (x + box[0], y + box[1])
    axes.add_patch(Rectangle(corner, *sides, fill=False, edgecolor=colour, linestyle=style, linewidth=width, zorder=4))
