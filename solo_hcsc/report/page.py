"""The page of a comparison: one file that needs nothing but a browser, and its numbers beside it as JSON."""

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.data.source import STORED
from solo_hcsc.errors import UserError
from solo_hcsc.files import write_whole
from solo_hcsc.report import curves, figures, sheets, svg, templating
from solo_hcsc.runs.results import read_results
from solo_hcsc.study import record
from solo_hcsc.study.findings import Sentence, best_row, choice, effects, outcome, winner
from solo_hcsc.study.record import MEASURES, Analysis, Comparison, Cost, Measure, MeasureKind, Row, SeedRun
from solo_hcsc.tables import clock

if TYPE_CHECKING:
    import pandas

_NONE = "\N{EN DASH}"
_MINUS, _TIMES, _NO_BREAK = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{NO-BREAK SPACE}"
_COSTS: dict[str, tuple[Callable[[Cost], float | None], Callable[[float], str]]] = {
    "Seconds per epoch": (lambda cost: cost.epoch_seconds, lambda value: f"{value:,.1f}"),
    "Pretraining, [h:]mm:ss": (lambda cost: cost.seconds, clock),
    "Peak memory, MB": (lambda cost: cost.peak_memory, lambda value: f"{value / 1e6:,.0f}"),
}
_SECTIONS = {
    "results": "Results",
    "pairs": "Paired differences",
    "search": "Search",
    "curves": "Learning curves",
    "cost": "Cost",
    "analysis": "Analysis",
    "detection": "Detection",
    "record": "Settings and commands",
}
_INTERVALS = (
    "A mean is in colour if it leads all others by more than the uncertainty: half of the 95 % interval of the "
    "difference, by Student's t of the differences seed by seed, or with one seed by the binomial error of the images. "
    "Each dot below a mean is one seed, the stroke the mean."
)
_SPREAD = "± is the sample standard deviation over seeds."


@dataclass(frozen=True)
class Report:
    """The content of a page."""

    title: str
    comparison: Comparison
    analyses: dict[str, Analysis]  # by the run's folder
    source: Path  # the comparison's folder, with the pictures of the analyses; or the file of a record without these
    detections: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # results, by the run's folder

    @property
    def numbers(self) -> dict[str, Any]:
        """Return the page's content without its pictures."""
        return {
            "title": self.title,
            "outcome": [str(sentence) for sentence in outcome(self.comparison)],
            "comparison": self.comparison.model_dump(),
            "analyses": {folder: analysis.model_dump() for folder, analysis in self.analyses.items()},
        }

    def table(self) -> str:
        """Return a line for each row, and what the comparison found."""
        return "\n".join([self.comparison.table(), "", *map(str, outcome(self.comparison))])

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row for each run."""
        return self.comparison.to_pandas()

    def save(self, out: str | Path | None = None) -> Path:
        """Write the page, and its numbers beside it as JSON; return the page's file.

        Args:
            out: the page; if not given, report.html in the comparison's folder, or beside the record under its name.
        """
        of_folder = self.source.is_dir()
        usual = self.source / "report.html" if of_folder else self.source.with_suffix(".html")
        out = usual if out is None else Path(out)
        numbers, sources = out.with_suffix(".json"), [self.source]
        if of_folder:
            runs = [run for row in self.comparison.rows for run in row.runs if run.folder in self.analyses]
            sources = [record.analysis_folder(self.source, run) / "analysis.json" for run in runs]
            sources.append(self.source / "comparison.json")
        is_record = not of_folder and numbers.resolve() == self.source.resolve()  # which has these numbers
        _check_out(out, numbers, [] if is_record else sources)
        page = render(self)
        write_whole(out, page)
        if not is_record:
            write_whole(numbers, json.dumps(self.numbers, indent=2) + "\n")
        return out


def make_report(source: str | Path, title: str | None = None) -> Report:
    """Read a comparison or an ablation, to show it on a page.

    Args:
        source: the folder of `compare` or `ablate`; or a record, the JSON beside an earlier page, without the pictures
            of analyses.
        title: the page's title, the comparison's if not given.

    Example:
        >>> make_report("trained_models/comparison").save()  # doctest: +SKIP
        PosixPath('trained_models/comparison/report.html')
    """
    source = Path(source)
    if source.is_file():
        comparison, analyses = record.read_published(source)
        return Report(title or comparison.title, comparison, analyses, source)
    comparison = record.read(source)
    runs = [run for row in comparison.rows for run in row.runs]
    analyses = {run.folder: found for run in runs if (found := record.read_analysis(source, run)) is not None}
    results = [one for one in read_results(source) if one["evaluation"] == "detect"]
    detections = {
        run.folder: [one for one in results if one.get("checkpoint_sha256") == run.checkpoint_sha256] for run in runs
    }
    return Report(title or comparison.title, comparison, analyses, source, detections)


def _check_out(out: Path, numbers: Path, sources: Sequence[Path]) -> None:
    if out.suffix not in (".html", ".htm"):
        raise UserError(f"`out` {out}: must end with .html; its numbers go beside it, ending with .json")
    if not out.parent.is_dir():
        raise UserError(f"`out` {out}: there is no folder {out.parent}")
    for file in (out, numbers):
        if file.is_dir():
            raise UserError(f"{file}: is a folder, and the report goes there; remove it or give another `out`")
        if file.resolve() in [source.resolve() for source in sources]:
            raise UserError(f"`out` {out}: its numbers would replace {file}, which they are made of; take another name")


def render(report: Report) -> str:
    """Return the page's text."""
    comparison = report.comparison
    labels = [
        _Label(row.name, figures.colour(place, len(comparison.rows))) for place, row in enumerate(comparison.rows)
    ]
    rows = list(zip(labels, comparison.rows, strict=True))
    learning, judged = (
        [_shown(plot.picture(), plot.name) for plot in plots]
        for plots in (curves.plots(comparison), curves.judged_plots(comparison))
    )
    parts = {
        "results": _results(comparison, rows),
        "pairs": _pairs(comparison, rows),
        "search": _search(comparison),
        "curves": learning or judged,
        "cost": _cost(comparison, rows),
        "analysis": list(_analyses(report, rows)),
        "detection": list(_detections(report, rows)),
    }
    return templating.render(
        "report.html.j2",
        **parts,
        folded_curves=judged if learning else [],
        sections={name: title for name, title in _SECTIONS.items() if parts.get(name, True)},
        title=report.title,
        kicker="Ablation" if comparison.ablates else "Comparison of methods",
        outcome=[Sentence(one.subject, one.rest.replace(" %", f"{_NO_BREAK}%")) for one in outcome(comparison)],
        failed=comparison.failed,
        facts=list(_facts(comparison)),
        labels=labels,
        none_text=_NONE,
        settings=_listed(comparison.settings),
        machine=_listed(_machine(comparison)),
        versions=_listed(comparison.versions),
        row_name=_row_name(comparison),
        flags=[(label, shlex.join(row.flags) or _NONE) for label, row in rows],
        runs=_runs(rows),
        command=comparison.command,
        commands=[(label, [(run, _commands(run)) for run in row.runs]) for label, row in rows],
    )


@dataclass(frozen=True)
class _Label:
    """A row's name, and the colour that it has everywhere on the page."""

    name: str
    colour: str


_Rows = Sequence[tuple[_Label, Row]]


def _row_name(comparison: Comparison) -> str:
    return "Variant" if comparison.ablates else "Method"


def _facts(comparison: Comparison) -> Iterable[tuple[str, str]]:
    settings = comparison.settings
    for name, label in (("dataset", "data"), ("encoder", "encoder")):
        if name in settings:
            of_folder = settings[name] in ("custom", *STORED)
            value = settings.get("data_dir", settings[name]) if of_folder else settings[name]
            yield label, _value(value)
    epochs = sorted({row.cost.epochs for row in comparison.rows if row.cost.epochs is not None})
    if epochs:
        told = f"{epochs[0]:g} epochs each" if len(epochs) == 1 else f"{epochs[0]:g} to {epochs[-1]:g} epochs"
        yield "budget", f"{told}, also at equal time" if comparison.budget == "seconds" else told
    counts = sorted({row.seeds for row in comparison.rows})
    yield "seeds", str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


# ---- results ----


@dataclass(frozen=True)
class _MeasureCell:
    text: str
    best: bool
    gap: str  # to the reference; empty without one
    seeds: str
    dots: list[str]  # of the seeds, each a place from 5 to 99
    stroke: str  # of the mean


def _results(comparison: Comparison, rows: _Rows) -> dict[str, Any] | None:
    kinds = {name: kind for name, kind in MEASURES.items() if any(name in row.measures for _, row in rows)}
    if not kinds:
        return None
    reference = comparison.reference_row if comparison.ablates else None
    return {
        "head": [
            _row_name(comparison),
            *(kind.heading(comparison.rows, name) for name, kind in kinds.items()),
            "Seeds",
        ],
        "rows": [
            {
                "label": label,
                "cells": [_measure_cell(comparison, row, name, reference) for name in kinds],
                "seeds": row.seeds,
                "warnings": row.warnings,
            }
            for label, row in rows
        ],
        "notes": list(_notes(comparison, "ami" in kinds, reference)),
    }


def _measure_cell(comparison: Comparison, row: Row, name: str, reference: Row | None) -> _MeasureCell | None:
    kind, measure = MEASURES[name], row.measures.get(name)
    if measure is None:
        return None
    gap = ""
    if reference is not None and row is not reference and name in reference.measures:
        difference = measure.mean - reference.measures[name].mean
        gap = f"{difference:+.{kind.digits}f}".replace("-", _MINUS)
    values = [value for one in comparison.rows if name in one.measures for value in one.measures[name].values]
    return _MeasureCell(
        kind.show_mean(measure),
        row.name == best_row(comparison, name),
        gap,
        ", ".join(kind.show(value) for value in measure.values),
        *_places(measure, min(values), max(values)),
    )


def _pairs(comparison: Comparison, rows: _Rows) -> dict[str, Any] | None:
    """Compare each row with the reference by each measure: the same seeds, pair by pair."""
    found = effects(comparison)
    if not found:
        return None
    names = list(dict.fromkeys(effect.measure for effect in found))
    by_place = {(effect.row, effect.measure): effect for effect in found}
    return {
        "head": [_row_name(comparison), *(f"{MEASURES[name].title}{MEASURES[name].unit}" for name in names)],
        "rows": [
            {"label": label, "cells": [by_place.get((row.name, name)) for name in names]}
            for label, row in rows
            if row is not comparison.reference_row
        ],
        "note": f"The mean difference from {comparison.reference_row.name} of runs with the same seed, and so the same "
        "initial weights and crops, with its 95 % interval (Student's t). An effect is called one where the interval "
        "excludes 0. Each measure is looked at by itself.",
    }


def _search(comparison: Comparison) -> dict[str, Any] | None:
    """Return the trials that the methods' settings were chosen by."""
    search = comparison.search
    if search is None:
        return None
    return {
        "note": f"Each method had {search.trials} trials of {search.epochs} epochs, with settings drawn at random from "
        f"its ranges and judged by {search.metric} on held-out training images (seed {search.seed}); trials below the "
        "median of the earlier ones were stopped. The best trial's settings were run with all seeds.",
        "methods": [
            {
                "name": name,
                "choice": choice(search, name),
                "ranges": list(search.ranges[name].items()),
                "head": ["Trial", *search.ranges[name], "Epochs", "KNN %", "State"],
                "trials": [_trial_cells(trial, search) for trial in trials],
                "best": winner(search, name).number,
            }
            for name, trials in search.of_methods.items()
        ],
    }


def _trial_cells(trial: record.Trial, search: record.Search) -> list[str]:
    last = f"{trial.curve[-1][1]:.2f}" if trial.curve else _NONE
    return [str(trial.number), *trial.drawn.values(), f"{len(trial.curve)} of {search.epochs}", last, trial.state]


def _places(measure: Measure, low: float, high: float) -> tuple[list[str], str]:
    """Place the seeds and the mean on the scale that a column shares."""

    def at(value: float) -> str:
        share = (value - low) / (high - low) if high > low else 0.5
        return f"{5 + 94 * min(max(share, 0.0), 1.0):.1f}"

    return [at(value) for value in measure.values], at(measure.mean)


def _notes(comparison: Comparison, clustered: bool, reference: Row | None) -> Iterable[str]:
    yield _INTERVALS
    if reference is not None:
        yield f"Small figures: the difference from {reference.name}."
    evaluations = [one for row in comparison.rows for run in row.runs for one in run.evaluations.values()]
    if clustered and not any(evaluation.split == "val" for evaluation in evaluations):
        yield "AMI and NMI are of clusters of the training images."
    spread = any(measure.spread is not None for row in comparison.rows for measure in row.measures.values())
    if spread:
        yield _SPREAD


# ---- pictures ----


def _shown(picture: figures.Picture, name: str) -> svg.Shown:
    drawn = figures.to_svg(name, picture.draw)
    return svg.Shown.of(picture.title, picture.caption, svg.inline(drawn, f"{name}-", picture.title, name))


def _analyses(report: Report, rows: _Rows) -> Iterable[dict[str, Any]]:
    """Return the first analysis of each row, and the further ones folded."""
    place = 0
    for label, row in rows:
        analysed = [run for run in row.runs if run.folder in report.analyses]
        for number, run in enumerate(analysed):
            analysis = report.analyses[run.folder]
            pictures = []
            if report.source.is_dir():
                where = record.analysis_folder(report.source, run)
                pictures = [
                    svg.Shown.of(one.title, one.caption, svg.read(where / one.file, f"a{place}-{count}-", one.title))
                    for count, one in enumerate(analysis.figures)
                ]
            yield {
                "label": label,
                "seed": run.seed,
                "folded": number > 0,
                "pictures": pictures,
                "numbers": _listed(dict(_flat(analysis.numbers))),
            }
            place += 1


def _detections(report: Report, rows: _Rows) -> Iterable[dict[str, Any]]:
    """Return the sheets of the detectors that were trained on the runs' encoders, each with its figures."""
    place = 0
    for label, row in rows:
        for run in row.runs:
            pictures = sheets.of_results(report.detections.get(run.folder, []), f"d{place}-")
            if pictures:
                yield {"label": label, "seed": run.seed, "pictures": pictures}
                place += 1


def _flat(numbers: dict[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in numbers.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}, ")
        else:
            yield f"{above}{name}", f"{value:.6g}" if isinstance(value, float) else value


# ---- cost ----


@dataclass(frozen=True)
class _CostCell:
    text: str
    factor: str  # relative to what the note names
    share: str  # of the largest, in percent


def _cost(comparison: Comparison, rows: _Rows) -> dict[str, Any] | None:
    known = [title for title, (get, _) in _COSTS.items() if any(get(row.cost) is not None for _, row in rows)]
    if not known:
        return None
    against = comparison.reference_row.name if comparison.ablates else "the cheapest"
    note = (
        "Pretraining only: the median epoch of the fastest seed, since other work on the machine only adds time, and "
        f"the largest memory of all seeds. Factors are relative to {against}."
    )
    if comparison.budget == "seconds":
        note += " Rows that name their epochs had the time of the slowest method."
    return {
        "head": [_row_name(comparison), "Epochs", *known],
        "rows": [
            {
                "label": label,
                "epochs": _NONE if row.cost.epochs is None else row.cost.epochs,
                "cells": [_cost_cell(comparison, row, title) for title in known],
            }
            for label, row in rows
        ],
        "note": note,
    }


def _cost_cell(comparison: Comparison, row: Row, title: str) -> _CostCell | None:
    get, show = _COSTS[title]
    value = get(row.cost)
    if value is None:
        return None
    every = [one for other in comparison.rows if (one := get(other.cost)) is not None]
    base = get(comparison.reference_row.cost) if comparison.ablates else min(every)
    most = max(every)
    return _CostCell(
        show(value), f"{value / base:.2f}{_TIMES}" if base else "", f"{100 * value / most if most else 0:.1f}"
    )


# ---- settings and commands ----


def _machine(comparison: Comparison) -> dict[str, Any]:
    machine = dict(comparison.machine)
    if isinstance(machine.get("memory"), int | float):
        machine["memory"] = f"{machine['memory'] / 1e9:.1f} GB"
    return machine


def _runs(rows: _Rows) -> dict[str, Any]:
    found = [(label, run) for label, row in rows for run in row.runs]
    kinds = {name: kind for name, kind in MEASURES.items() if any(name in run.measures for _, run in found)}
    headings = [f"{kind.title}{kind.unit}" for kind in kinds.values()]
    return {
        "head": ["Run", "Seed", *headings, "[h:]mm:ss", "MB", "Checkpoint's SHA-256"],
        "rows": [
            {"label": label, "cells": list(_run_cells(run, kinds)), "checkpoint": run.checkpoint_sha256}
            for label, run in found
        ],
    }


def _run_cells(run: SeedRun, kinds: dict[str, MeasureKind]) -> Iterable[str]:
    yield str(run.seed)
    for name, kind in kinds.items():
        yield kind.show(run.measures[name]) if name in run.measures else _NONE
    yield _NONE if run.cost.seconds is None else clock(run.cost.seconds)
    yield _NONE if run.cost.peak_memory is None else f"{run.cost.peak_memory / 1e6:,.0f}"


def _commands(run: SeedRun) -> list[str]:
    return [run.command, *(evaluation.command for evaluation in run.evaluations.values())]


def _listed(content: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, _value(value)) for name, value in content.items()]


def _value(value: Any) -> str:
    """Write a setting as a person would."""
    if value is None or value == "":
        return _NONE
    if value == []:
        return "none"
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return " ".join(map(_value, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
