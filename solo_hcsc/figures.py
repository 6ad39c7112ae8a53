"""Pictures as SVG: without a background and in the colour of the text around them, and the same bytes every time."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too, on light and on dark.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f7ee7", "#7f7f7f", "#b8a500", "#a6611a")
_INK = "#010203"  # stands for the reader's text colour while matplotlib draws


def svg(name: str, draw: Callable[[], "Figure"]) -> str:
    """The picture that `draw` makes, as an element for a page. Names within it start from `name`, unique on a page."""
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context(_style(name)):
        figure = draw()
        out = io.StringIO()
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # nothing refers to these, and every picture has the same
    return text.replace(_INK, "currentColor")


def plain(text: object) -> str:
    """Text from the data, which matplotlib is not to read as mathematics."""
    return str(text).replace("$", r"\$")


def colour(number: int, of: int) -> Any:
    """One of `of` colours; further apart the fewer there are."""
    import matplotlib

    return COLOURS[number] if of <= len(COLOURS) else matplotlib.colormaps["turbo"]((number + 0.5) / of)


def write(file: Path, picture: str) -> None:
    """Writes a picture as a file that opens by itself."""
    from solo_hcsc.results import write_whole

    write_whole(file, '<?xml version="1.0" encoding="utf-8"?>\n' + picture)


def _style(name: str) -> Any:
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        "backend": "svg",
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": 10,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "image.interpolation": "none",  # pixels go into the file as they are
        **dict.fromkeys(inked, _INK),
    }
