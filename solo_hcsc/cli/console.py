"""Text for the terminal: aligned tables, times and measures."""

from collections.abc import Iterable, Mapping, Sequence
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


def judged(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The measures without labels that there are, in short; dead dimensions only if there are some."""
    forms = {"rankme": ("rank", ".0f"), "alignment": ("alignment", ".2f"), "uniformity": ("uniformity", ".2f")}
    shown = {short: format(float(metrics[name]), form) for name, (short, form) in forms.items() if name in metrics}
    dead = float(metrics.get("dead_dimensions", 0))
    return shown | ({"dead": f"{dead:.1%}"} if dead > 0 else {})


def cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()
