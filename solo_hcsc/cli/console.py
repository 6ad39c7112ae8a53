"""Text for the terminal: aligned tables and times."""

from collections.abc import Iterable, Sequence
from typing import Any

from solo_hcsc.cli.errors import is_main_process


def announce(line: str) -> None:
    """Prints a line, in one of several processes only."""
    if is_main_process():
        print(line, flush=True)


def clock(seconds: float) -> str:
    """`1:02:03`, or `2:03` under an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns: text to the left, numbers to the right."""
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


def score(value: float, digits: int = 3) -> str:
    """An agreement such as AMI; adding makes 0 of -0, which its chance correction leaves."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()
