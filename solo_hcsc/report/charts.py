"""Charts: left-out negatives along training, and the agreement of clusters with labels."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.report import figures
from solo_hcsc.report.figures import Picture
from solo_hcsc.runs.results import read_metrics
from solo_hcsc.tables import score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# In metrics.csv a level's number follows.
PANELS = {
    "left_out_precision": "precision, %",
    "left_out_recall": "recall, %",
    "left_out_preservation": "preservation, %",
    "left_out": "left out, %",
}
_MEANINGS = {
    "left_out_precision": "Precision: the share of them with the query's class.",
    "left_out_recall": "Recall: the share of the candidates with the query's class that was left out.",
    "left_out_preservation": "Preservation: the share of the candidates of other classes that was kept.",
    "left_out": "Left out: their share of all candidates.",
}
Curves = dict[str, dict[int, dict[int, float]]]  # name in PANELS, level, epoch


def read_left_out(file: Path) -> Curves:
    """Read the columns on left-out negatives from a run's metrics.csv."""

    def is_shown(column: str) -> bool:
        name, _, level = column.rpartition("_")
        return name in PANELS and level.isdigit()

    found: Curves = {}
    for column, values in read_metrics(file, is_shown).items():
        name, _, level = column.rpartition("_")
        found.setdefault(name, {})[int(level)] = values
    return found


def draw_left_out(curves: Curves, chance: float | None = None) -> "Figure":
    """Draw a panel for each quantity, with a line for each level; in that of precision one for chance."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = [name for name in PANELS if name in curves]
    figure = Figure(figsize=(4.5, 0.6 + 1.4 * len(shown)))
    panels = figure.subplots(len(shown), sharex=True, squeeze=False)[:, 0]
    levels = sorted({level for name in shown for level in curves[name]})
    for axes, name in zip(panels, shown, strict=True):
        for level, values in sorted(curves[name].items()):
            epochs = sorted(values)
            axes.plot(
                [epoch + 1 for epoch in epochs],
                [100 * values[epoch] for epoch in epochs],
                color=figures.paint(levels.index(level), len(levels)),
                label=level_name(level, len(levels)),
                marker="o",
                markersize=3 if len(epochs) <= 30 else 0,
                linewidth=1.5,
            )
        if name == "left_out_precision" and chance is not None:
            axes.axhline(100 * chance, color=figures.ink(), linestyle="--", linewidth=1, label="chance")
        axes.set_ylabel(PANELS[name])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=4))
        axes.grid(alpha=0.25, linewidth=0.5)
    panels[-1].set_xlabel("epoch")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels(panels)
    figure.tight_layout()
    panels[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(3, len(panels[0].lines)), fontsize=9)
    return figure


def level_name(level: int, levels: int) -> str:
    """Return `level 1 (bottom)` of levels counted from 0."""
    ends = {0: " (bottom)", levels - 1: " (top)"} if levels > 1 else {}
    return f"level {level + 1}{ends.get(level, '')}"


def draw_ami(rows: Sequence[dict[str, Any]], label_levels: Sequence[str]) -> "Figure":
    """Draw a group of bars for each level of the labels, with a bar for each clustering of `solo-hcsc clustering`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 2.8))
    axes = figure.subplots()
    width = 0.8 / len(rows)
    for number, row in enumerate(rows):
        values = [row["ami"], *row["ami_levels"]]
        places = [group - 0.4 + (number + 0.5) * width for group in range(len(values))]
        plain = row["kind"] == "k-means"
        name = f"k-means, k = {row['k']}" if plain else f"level {row['level']} ({row['prototypes']} prototypes)"
        colour = figures.COLOURS[7] if plain else figures.COLOURS[number % 7]
        axes.bar(places, values, width * 0.92, color=colour, label=name)
        for x, value in zip(places, values, strict=True):
            text = re.sub("^(-?)0", r"\1", score(value, 2))
            axes.text(x, max(value, 0), text, ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(label_levels)), label_levels)
    axes.set_ylabel("AMI")
    axes.margins(y=0.15)
    axes.axhline(0, color=figures.ink(), linewidth=0.8)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", length=0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=8)
    return figure


# ---- for an analysis: numbers are added to `numbers`, pictures returned ----


def show_history(curves: Curves, chance: float | None, numbers: dict[str, Any]) -> list[Picture]:
    """Draw left-out negatives along training; nothing if the run logged none.

    `chance`: the precision of leaving out anything, if it is known for the run's classes.
    """
    if not curves:
        return []
    numbers["left_out_along_training"] = {
        name: [
            {"level": level + 1, "epochs": [epoch + 1 for epoch in of], "values": list(of.values())}
            for level, of in levels.items()
        ]
        for name, levels in curves.items()
    }
    last = {name: {level: of[max(of)] for level, of in levels.items()} for name, levels in curves.items()}
    found = [
        f"{what.partition(',')[0]} {' / '.join(f'{value:.1%}' for _, value in sorted(last[name].items()))}"
        for name, what in PANELS.items()
        if name in last
    ]
    caption = (
        "Negatives that the run left out of its instance loss, by epoch and level. "
        f"{''.join(f'{text} ' for name, text in _MEANINGS.items() if name in last)}"
    )
    if "left_out_precision" in last and chance is not None:
        caption += f"Dashed: the precision of chance, {chance:.1%}, from the class sizes of the analysed images. "
    caption += f"In the last epoch, from the bottom level to the top: {'; '.join(found)}."
    return [Picture("left_out", "Left-out negatives along training", caption, lambda: draw_left_out(curves, chance))]


def show_agreement(rows: list[dict[str, Any]], groups: list[int], numbers: dict[str, Any]) -> list[Picture]:
    """Draw how the clusterings `rows`, the last of which is k-means, agree with classes and with groups of them."""
    numbers["ami"] = rows
    levels = [row for row in rows if row["kind"] == "hierarchy"]
    caption = (
        "Adjusted mutual information (AMI) of clusters with the classes"
        f"{' and with groups of classes' if groups else ''}. It is 1 for the same partition and 0 for chance. "
    )
    if levels:
        best = max(levels, key=lambda row: row["ami"])
        caption += f"Level {best['level']} of the prototypes agrees best with the classes: {score(best['ami'])}. "
    caption += f"k-means with {rows[-1]['k']} clusters of the features has {score(rows[-1]['ami'])}."
    labels = ["classes", *(f"{count} groups" for count in groups)]
    return [Picture("ami", "Agreement of clusters with labels", caption, lambda: draw_ami(rows, labels))]
