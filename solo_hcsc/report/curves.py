"""Pictures of a comparison's learning curves. matplotlib is heavy: it is imported where a picture is drawn."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from solo_hcsc.report import figures
from solo_hcsc.study.record import Comparison, Row, SeedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CURVES = {
    "val_knn_acc1": ("KNN accuracy while training", "KNN accuracy, %"),
    "val_acc1": ("Online linear accuracy", "online linear accuracy, %"),
}
_SAMPLE = "Of the encoder's features of the epoch's last images, without labels. Mean over seeds."
_JUDGED = {
    "rankme": ("RankMe", "effective rank", f"How many directions the features fill. {_SAMPLE}"),
    "alignment": ("Alignment", "squared distance", f"How far two views of an image are apart. {_SAMPLE}"),
    "uniformity": ("Uniformity", "log potential", f"The lower, the more evenly directions are spread. {_SAMPLE}"),
    "dead_dimensions": ("Dead dimensions", "share of dimensions", f"Dimensions that do not vary. {_SAMPLE}"),
}
_LEVELS = ("-", "--", ":", "-.")
_PRECISION = "left_out_precision_"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A curve of a row."""

    points: Points
    row: int
    style: str = "-"
    bold: bool = True


@dataclass(frozen=True)
class Plot:
    """Lines over epochs or time, in the colours of their rows."""

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    lines: list[Line]
    names: list[str]  # of all rows

    def picture(self, legend: bool = False) -> figures.Picture:
        """Draw with a legend that names the rows, for where no page around it does."""
        return figures.Picture(self.name, self.title, self.caption, partial(self._draw, legend))

    def _draw(self, legend: bool) -> "Figure":
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(5.4, 3.3))
        axes = figure.add_subplot()
        named = set()
        for line in sorted(self.lines, key=lambda line: line.bold):  # the thin ones below
            x, y = zip(*line.points, strict=True)
            looks: dict[str, Any] = {"linewidth": 2.2} if line.bold else {"linewidth": 0.8, "alpha": 0.45}
            if len(x) == 1:
                looks |= {"marker": "o", "markersize": 5 if line.bold else 3}
            if legend and line.bold and line.row not in named:
                named.add(line.row)
                looks["label"] = figures.plain(self.names[line.row])
            axes.plot(x, y, line.style, color=figures.paint(line.row, len(self.names)), **looks)
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        axes.grid(color=matplotlib.rcParams["text.color"], alpha=0.13, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=self.x_label == "epoch"))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        if legend:
            axes.legend()
        return figure


def plots(comparison: Comparison) -> list[Plot]:
    """Plot each kind of curve over epochs and over time, and what selection leaves out."""
    rows = comparison.rows
    names = [row.name for row in rows]
    unit, seconds = _unit(rows)
    by_time = "The same by time. Each seed has the time of its own epochs, and the mean that of the fastest seed."
    found = []
    for curve, (title, y_label) in _CURVES.items():
        over_epochs = [line for number, row in enumerate(rows) for line in _of_row(number, row, curve, None)]
        over_time = [line for number, row in enumerate(rows) for line in _of_row(number, row, curve, seconds)]
        epochs, time = f"{title}, by epoch", f"{title}, by time"
        found += [
            Plot(f"{curve}-epochs", epochs, _caption(rows, curve), "epoch", y_label, over_epochs, names),
            Plot(f"{curve}-time", time, by_time, f"{unit} of pretraining", y_label, over_time, names),
        ]
    precision = [line for number, row in enumerate(rows) for line in _precision(number, row)]
    caption = (
        "Precision: the share of the left-out negatives that have the query's label. Mean over seeds. "
        f"Solid: level 1, the bottom of the hierarchy{_levels(precision)}."
    )
    title = "Precision of left-out negatives"
    found.append(Plot("left-out-precision", title, caption, "epoch", "precision, %", precision, names))
    return [plot for plot in found if plot.lines]


def judged_plots(comparison: Comparison) -> list[Plot]:
    """Plot each measure without labels over epochs."""
    names = [row.name for row in comparison.rows]
    found = []
    for curve, (title, y_label, caption) in _JUDGED.items():
        means = [_mean([run for run in row.runs if run.curves.get(curve)], curve) for row in comparison.rows]
        lines = [Line([(epoch + 1, value) for epoch, value in mean], row) for row, mean in enumerate(means) if mean]
        found.append(Plot(curve.replace("_", "-"), title, caption, "epoch", y_label, lines, names))
    return [plot for plot in found if plot.lines]


def _of_row(number: int, row: Row, curve: str, unit: float | None) -> Iterator[Line]:
    """Plot a thin line for each seed and a bold one for their mean; over epochs, or over time in a unit of seconds."""
    runs = [run for run in row.runs if run.curves.get(curve) and (unit is None or run.cost.epoch_seconds)]
    paces = [1.0 if unit is None else (run.cost.epoch_seconds or 0.0) / unit for run in runs]
    for run, pace in zip(runs, paces, strict=True):
        if len(runs) > 1:
            yield Line([((epoch + 1) * pace, value) for epoch, value in run.curves[curve]], number, bold=False)
    if points := _mean(runs, curve):
        pace = min(paces)  # as the table of costs has it
        yield Line([((epoch + 1) * pace, value) for epoch, value in points], number)


def _precision(number: int, row: Row) -> Iterator[Line]:
    for level, style in enumerate(_LEVELS):
        curve = f"{_PRECISION}{level}"
        if points := _mean([run for run in row.runs if run.curves.get(curve)], curve):
            yield Line([(epoch + 1, 100 * value) for epoch, value in points], number, style)


def _mean(runs: Sequence[SeedRun], curve: str) -> list[tuple[int, float]]:
    """Average over the seeds, at the epochs that all of them have."""
    values = [dict(run.curves[curve]) for run in runs]
    shared = sorted(set.intersection(*map(set, values))) if values else []
    return [(epoch, statistics.fmean(one[epoch] for one in values)) for epoch in shared]


def _unit(rows: Sequence[Row]) -> tuple[str, float]:
    """Return the unit of time for the longest run, and its seconds."""
    runs = [run for row in rows for run in row.runs]
    last = [max((epoch for points in run.curves.values() for epoch, _ in points), default=0) + 1 for run in runs]
    longest = max(((run.cost.epoch_seconds or 0) * end for run, end in zip(runs, last, strict=True)), default=0)
    if longest < 300:
        return "seconds", 1
    return ("minutes", 60) if longest < 3 * 3600 else ("hours", 3600)


def _caption(rows: Sequence[Row], curve: str) -> str:
    several = any(sum(bool(run.curves.get(curve)) for run in row.runs) > 1 for row in rows)
    measured = (
        "Weighted KNN on the validation images after each epoch."
        if curve == "val_knn_acc1"
        else "The classifier that is trained beside the encoder, on the validation images after each epoch."
    )
    return f"{measured} {'Thin: each seed; bold: their mean.' if several else 'One seed each.'}"


def _levels(lines: Sequence[Line]) -> str:
    styles = {line.style for line in lines}
    names = {"--": "dashed: level 2", ":": "dotted: level 3", "-.": "dash-dotted: level 4"}
    return "".join(f"; {name}" for style, name in names.items() if style in styles)
