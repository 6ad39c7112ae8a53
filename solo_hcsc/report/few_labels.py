"""`fewlabels` of a run with its picture: accuracy by the number of labels."""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import RunFiles
from solo_hcsc.evaluation.budgets import CHOICES, CLASSIFIERS, Score
from solo_hcsc.evaluation.frozen_settings import FEWLABELS, check_fewlabels, settled
from solo_hcsc.evaluation.judged import Judged
from solo_hcsc.evaluation.of_runs import fewlabels_of_run
from solo_hcsc.files import written_together
from solo_hcsc.report import figures
from solo_hcsc.runs.images import find_images
from solo_hcsc.runs.results import Invocation, Result
from solo_hcsc.settings import Settings
from solo_hcsc.study.job import invocation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("fewlabels.json", "fewlabels.svg")
NAMES = {"linear": "linear classifier", "knn": "KNN", "spread": "spread"}


def measure_and_save(
    settings: Settings, files: RunFiles, source: ImageSource, command: Invocation | None = None
) -> Judged:
    """Measure what few labels are worth, on a run's features; write the result and its picture together."""

    def save(result: Result) -> Mapping[Path, Result]:
        with written_together(settings.out, FILES) as (text, picture):
            result.save(text)
            figures.write_svg(picture, figures.to_svg("fewlabels", lambda: draw_scores(result)))
        return {settings.out / FILES[0]: result}

    found = fewlabels_of_run(settings, files, source, save, command)
    return replace(found, lines=[*found.lines, f"{', '.join(FILES)} in {settings.out}"])


def settle(_: str, given: Mapping[str, Any]) -> Settings:
    """Return all settings; refuse wrong ones."""
    settings = settled(FEWLABELS, given)
    check_fewlabels(settings)
    return settings


def call(function: str, given: Mapping[str, Any]) -> None:
    """Measure and write, as a job."""
    settings = settle(function, given)
    measure_and_save(settings, *find_images(settings, "train", "val"), invocation(function, given)).tell()


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
