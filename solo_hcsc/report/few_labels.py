"""The picture of `solo-hcsc fewlabels`: accuracy by the number of labels."""

import statistics
from typing import TYPE_CHECKING

from solo_hcsc.evaluation.budgets import CHOICES, CLASSIFIERS, Score
from solo_hcsc.report import figures
from solo_hcsc.runs.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"linear": "linear classifier", "knn": "KNN", "spread": "spread"}


def draw_scores(result: Result) -> "Figure":
    """Draw a panel for each classifier, a line for each choice of images; bars are standard deviations over draws."""
    from matplotlib.figure import Figure

    scores = [Score(**one) for one in result.settings["scores"]]
    figure = Figure(figsize=(9, 3.2))
    panels = figure.subplots(1, len(CLASSIFIERS), sharey=True)
    for axes, classifier in zip(panels, CLASSIFIERS, strict=True):
        for number, choice in enumerate(CHOICES):
            own = [one for one in scores if (one.classifier, one.choice) == (classifier, choice)]
            axes.errorbar(
                [one.budget for one in own],
                [statistics.mean(one.accuracies) for one in own],
                [statistics.pstdev(one.accuracies) for one in own],
                color=figures.paint(number, len(CHOICES)),
                label=choice,
                marker="o",
                markersize=3,
                linewidth=1.5,
                capsize=2,
            )
        axes.set_xscale("log")
        budgets = sorted({one.budget for one in scores})
        axes.set_xticks(budgets, [str(budget) for budget in budgets])
        axes.minorticks_off()
        axes.set_title(NAMES[classifier], fontsize=10)
        axes.set_xlabel("labels")
        axes.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel("accuracy, %")
    panels[0].legend(fontsize=9)
    figure.tight_layout()
    return figure
