"""A comparison as text for the terminal."""

from collections.abc import Mapping

from solo_hcsc.study.findings import outcome
from solo_hcsc.study.record import MEASURES, Comparison, MeasureKind, Row
from solo_hcsc.tables import clock, table


def comparison_table(comparison: Comparison) -> str:
    """Return a line for each row: its measures with their spread over seeds, and its cost; then what that shows."""
    kinds = {name: kind for name, kind in MEASURES.items() if any(name in row.measures for row in comparison.rows)}
    headings = [kind.heading(comparison.rows, name) for name, kind in kinds.items()]
    first = "variant" if comparison.ablates else "method"
    rows = (_cells(row, kinds) for row in comparison.rows)
    shown = table((first, *headings, "seeds", "epochs", "[h:]mm:ss", "MB"), rows)
    return "\n".join([shown, "", *map(str, outcome(comparison))])


def _cells(row: Row, kinds: Mapping[str, MeasureKind]) -> list[str]:
    cost = row.cost
    return [
        row.name,
        *(kind.show_mean(row.measures[name]) if name in row.measures else "-" for name, kind in kinds.items()),
        str(row.seeds),
        "-" if cost.epochs is None else str(cost.epochs),
        "-" if cost.seconds is None else clock(cost.seconds),
        "-" if cost.peak_memory is None else f"{cost.peak_memory / 1e6:.0f}",
    ]
