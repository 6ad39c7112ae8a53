"""Text from values: aligned tables, times and measures."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from solo_hcsc.extras import require

if TYPE_CHECKING:
    import pandas

WIDEST = 110  # characters in a line of text; longer ones are hard to read


def width() -> int:
    """Return how many characters fit in a line: the terminal's, at most WIDEST; WIDEST where there is no terminal."""
    return min(WIDEST, columns())


def columns() -> int:
    """Return how many characters the terminal shows in a line; WIDEST where there is none and no COLUMNS."""
    return shutil.get_terminal_size((WIDEST, 24)).columns


def clock(seconds: float) -> str:
    """Return `1:02:03`, or `2:03` under an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def three_digits(value: float) -> str:
    """Return a measure with as many digits as say something: `1234`, `12.3`, `0.123`.

    Example:
        >>> three_digits(1234.5), three_digits(12.34), three_digits(0.04), three_digits(0)
        ('1234', '12.3', '0.04', '0')
    """
    if abs(value) >= 100 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def pace(images_per_second: float) -> str:
    """Return `360 images/s`; seconds for an image where it takes longer than one."""
    if 0 < images_per_second < 1:
        return f"{three_digits(1 / images_per_second)} s for an image"
    return f"{three_digits(images_per_second)} images/s"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Align columns: text to the left, numbers to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[i]) for row in cells) and bool(cells) for i in range(len(header))]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, cells)])


def narrowed(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    room: int,
    dispensable: Sequence[str],
    whole: Sequence[str] = (),
) -> tuple[list[str], list[list[str]]]:
    """Choose the columns of a table that fit in a line, and shorten the longest of them where that is not enough.

    Args:
        header: the columns' names.
        rows: the cells.
        room: characters in a line.
        dispensable: columns that may go, the first one first; those without any cell go before them.
        whole: columns that are never shortened.

    Returns:
        The header and the rows of what is left.

    Example:
        >>> narrowed(["name", "note", "value"], [["a long name", "", "1"]], 12, ["note"])
        (['name', 'value'], [['a lo…', '1']])
    """
    widths = {name: max(len(name), *(len(row[place]) for row in rows), 0) for place, name in enumerate(header)}
    empty = [name for place, name in enumerate(header) if not any(row[place] for row in rows)]

    def excess() -> int:
        return sum(widths.values()) + 2 * (len(widths) - 1) - room

    for name in (*(name for name in empty if name in dispensable), *dispensable):
        if excess() > 0:
            widths.pop(name, None)
    texts = [name for name in widths if name not in whole]
    while excess() > 0 and texts and widths[longest := max(texts, key=widths.__getitem__)] > 4:
        widths[longest] -= 1
    places = [(header.index(name), size) for name, size in widths.items()]

    def cut(row: Sequence[str]) -> list[str]:
        return [row[i] if len(row[i]) <= size else f"{row[i][: size - 1]}…" for i, size in places]

    return cut(header), list(map(cut, rows))


def data_frame(values: Any) -> "pandas.DataFrame":
    """Return rows or columns as a table of pandas, which is asked for where it is missing."""
    require("tables", "a table of pandas")
    import pandas

    return pandas.DataFrame(values)


def score(value: float, digits: int = 3) -> str:
    """Format an agreement such as AMI; adding makes 0 of -0, which its chance correction leaves."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def judged(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the measures without labels that there are, in short; dead dimensions only if there are some."""
    forms = {"rankme": ("rank", ".0f"), "alignment": ("alignment", ".2f"), "uniformity": ("uniformity", ".2f")}
    shown = {short: format(float(metrics[name]), form) for name, (short, form) in forms.items() if name in metrics}
    dead = float(metrics.get("dead_dimensions", 0))
    return shown | ({"dead": f"{dead:.1%}"} if dead > 0 else {})


def cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()
