"""Pictures as SVG: without a background and in the colour of the text around them, and the same bytes every time.

matplotlib is heavy: here and in the modules that draw it is imported by the functions that need it.
"""

import base64
import colorsys
import contextlib
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from solo_hcsc.errors import on_one_line
from solo_hcsc.extras import require
from solo_hcsc.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE = "#0072b2"  # too dark on a dark page, whose style sheet says --blue
# Okabe and Ito's colours, told apart by colour-blind readers too, and further ones.
COLOURS = (
    *(BLUE, "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#8f7ee7", "#7f7f7f", "#b8a500", "#a6611a", "#c2304f", "#5a8f00"),
)
PAPER = "#fffefd"  # stands for the page's background while matplotlib draws
_INK = "#010203"  # for its text's colour
_THEMED = {BLUE: ("--blue", BLUE), PAPER: ("--paper", "white")}  # variables of style.css, and what is there without
_EMBEDDED = re.compile(r'data:image/png;base64,\s*([^"]+)"')


@dataclass(frozen=True)
class Picture:
    """A picture and what a page says of it."""

    name: str  # of its file, without the ending
    title: str
    caption: str
    draw: Callable[[], "Figure"]


def to_svg(name: str, draw: Callable[[], "Figure"]) -> str:
    """Return the picture that `draw` makes as an element for a page; its names start from `name`, unique on a page."""
    out = io.StringIO()
    with _drawn(draw, name, _INK) as figure:
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # nothing refers to these, and every picture has the same
    return _with_theme(_EMBEDDED.sub(_smaller, text).replace(_INK, "currentColor"))


def to_png(draw: Callable[[], "Figure"]) -> bytes:
    """Return the same picture in black on white, in pixels."""
    out = io.BytesIO()
    with _drawn(draw, "png", "black") as figure:
        figure.savefig(out, format="png", bbox_inches="tight", facecolor="white", metadata={"Software": None})
    return out.getvalue()


def plain(text: object) -> str:
    """Escape text from the data, which matplotlib must not read as mathematics."""
    return str(text).replace("$", r"\$")


def short(text: object, width: int = 20) -> str:
    """Cut text from the data to one line of a width in Latin letters; a Chinese one counts as two."""
    whole, used = on_one_line(text), 0
    for place, letter in enumerate(whole):
        used += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if used > width:
            return plain(whole[: max(place - 1, 1)] + "…")
    return plain(whole)


def ink() -> str:
    """Return the text's colour, for lines that `draw` adds."""
    import matplotlib

    return matplotlib.rcParams["text.color"]


def paint(number: int, of: int) -> str:
    """Return one of `of` colours for `draw`; the fewer there are, the further apart."""
    if of <= len(COLOURS):
        return COLOURS[number]
    red, green, blue = colorsys.hls_to_rgb(number / of, (0.42, 0.56)[number % 2], 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def colour(number: int, of: int) -> str:
    """Return the same colour for a page, where the style sheet may have a lighter one in the dark."""
    painted = paint(number, of)
    return "var({}, {})".format(*_THEMED[painted]) if painted in _THEMED else painted


def write_svg(file: Path, picture: str) -> None:
    """Write a picture as a file that opens by itself."""
    write_whole(file, '<?xml version="1.0" encoding="utf-8"?>\n' + picture)


@contextlib.contextmanager
def _drawn(draw: Callable[[], "Figure"], name: str, ink: str) -> Iterator["Figure"]:
    require("report", "a picture")
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context(_style(name, ink)), warnings.catch_warnings():
        # A reader's browser has the letters that this machine's fonts lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = draw()
        yield figure
        pyplot.close(figure)


def _with_theme(picture: str) -> str:
    """Return colours that a page's style sheet may change; programs without variables take the plain ones."""
    for painted, (variable, shown) in _THEMED.items():
        picture = re.sub(rf"(fill|stroke): {painted}", rf"\1: {shown}; \1: var({variable}, {shown})", picture)
    return picture


def _smaller(match: re.Match[str]) -> str:
    """Recode an embedded image to a third of its bytes: as JPEG, or in 256 colours where it is transparent."""
    image = Image.open(io.BytesIO(base64.b64decode(match[1])))
    out = io.BytesIO()
    kind = "png" if np.asarray(image.convert("RGBA"))[..., 3].min() < 255 else "jpeg"
    if kind == "png":
        image.quantize(256, method=Image.Quantize.FASTOCTREE).save(out, format=kind, optimize=True)
    else:
        image.convert("RGB").save(out, format=kind, quality=80, optimize=True)
    return f'data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"'


def _style(name: str, ink: str) -> Any:
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        "backend": "svg",
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "savefig.dpi": 150,  # of what is drawn in pixels
        "font.family": "sans-serif",
        "font.size": 10,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "image.interpolation": "none",  # pixels go into the file as they are
        "image.composite_image": False,  # each image by itself, too
        **dict.fromkeys(inked, ink),
    }
