"""What a comparison of methods found: `comparison.json`, read and checked, and its outcome in words."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from solo_hcsc.cli.errors import UserError, on_one_line


class Kind(NamedTuple):
    """Where a measure comes from and how it is shown."""

    evaluation: str
    metric: str  # its name in the evaluation's result
    title: str
    long: str
    digits: int
    unit: str

    def show(self, value: float) -> str:
        return f"{value:.{self.digits}f}"


MEASURES = {
    "knn": Kind("knn", "acc1", "KNN", "KNN accuracy", 2, " %"),
    "linear": Kind("linear", "acc1", "Linear", "linear accuracy", 2, " %"),
    "ami": Kind("clustering", "ami", "AMI", "AMI", 3, ""),
    "nmi": Kind("clustering", "nmi", "NMI", "NMI", 3, ""),
}


@dataclass(frozen=True)
class Measure:
    mean: float
    spread: float | None  # sample standard deviation over seeds; None with one
    values: list[float]  # one for each seed


@dataclass(frozen=True)
class Cost:
    """Of pretraining; None where it is not known."""

    epochs: float | None
    epoch_seconds: float | None
    seconds: float | None
    peak_memory: float | None  # bytes


@dataclass(frozen=True)
class Run:
    seed: int
    folder: str  # below the comparison's
    command: str
    evaluation_commands: list[str]
    measures: dict[str, float]
    cost: Cost
    checkpoint: str  # its SHA-256
    curves: dict[str, list[tuple[int, float]]]  # (epoch from 0, value), without gaps


@dataclass(frozen=True)
class Row:
    name: str
    flags: str
    measures: dict[str, Measure]
    cost: Cost
    runs: list[Run]


@dataclass(frozen=True)
class Comparison:
    title: str
    kind: str
    budget: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row]
    failed: dict[str, str]
    content: dict[str, Any]  # the file's

    @property
    def ablates(self) -> bool:
        return self.kind == "ablate"

    @property
    def reference(self) -> Row:
        """The row of an ablation that the others are seen against."""
        return next((row for row in self.rows if row.name == self.content.get("reference")), self.rows[0])


class Analysis(NamedTuple):
    """What an analysis of one run wrote: its file's content, and the folder with its pictures."""

    folder: Path
    content: dict[str, Any]


def read(folder: Path) -> Comparison:
    file = folder / "comparison.json"
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; run solo_hcsc.compare first")
    content = read_json(file)
    try:
        return _comparison(content)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(_foreign(file, "solo_hcsc.compare", error)) from error


def read_analysis(folder: Path, run: Run) -> Analysis | None:
    """A run's analysis, if there is one."""
    where = folder / run.folder / "analysis"
    file = where / "analysis.json"
    try:
        if not where.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{folder / 'comparison.json'}: the run {run.folder} is outside of its folder")
        if not file.is_file():
            return None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from error
    content = read_json(file)
    try:
        _take(content, "numbers", dict)
        for figure in _take(content, "figures", list):
            texts = [_take(figure, name, str) for name in ("file", "title", "caption")]
            if Path(texts[0]).name != texts[0]:
                raise ValueError(f"figures: {texts[0]!r} is not the name of a file beside it")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(_foreign(file, "solo_hcsc.analyse", error)) from error
    return Analysis(where, content)


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{file}: not readable as JSON ({error}); restore or remove it") from error


def outcome(comparison: Comparison) -> list[tuple[str, str]]:
    """The best row in each accuracy and its lead over the others, as the subject of a sentence and the rest of it."""
    found = [sentence for measure in ("knn", "linear") if (sentence := _outcome(comparison, measure))]
    same = len(found) == 2 and found[0][0] == found[1][0]
    if same:
        found[1] = ("", f"It also{found[1][1]}")
    if same and comparison.kind == "compare":
        time = _at_equal_time(_ranked(comparison, "knn"))
        found += [("", time)] if time else []
    return found


def _outcome(comparison: Comparison, measure: str) -> tuple[str, str] | None:
    kind = MEASURES[measure]
    ranked = _ranked(comparison, measure)
    if not ranked:
        return None
    best, *others = ranked
    top = best.measures[measure]
    reached = f"{kind.show(top.mean)}{kind.unit}"
    if not others:
        return quoted(best.name), f" has a {kind.long} of {reached}; there is none to compare it with."
    groups: dict[str, list[str]] = {"clear": [], "close": [], "unknown": [], "level": []}
    for row in others:
        other = row.measures[measure]
        gap = top.mean - other.mean
        apart = f"{quoted(row.name)} (by {kind.show(gap)} points)"
        if gap == 0:
            groups["level"].append(quoted(row.name))
        elif top.spread is None or other.spread is None:
            groups["unknown"].append(apart)
        else:
            groups["clear" if gap > top.spread + other.spread else "close"].append(apart)
    said = {
        "clear": "ahead of {} by more than the spread over seeds",
        "close": "ahead of {} only within the spread over seeds",
        "unknown": "ahead of {}, with one seed and so no spread over seeds to judge that by",
        "level": "level with {}",
    }
    parts = [said[name].format(listed(names)) for name, names in groups.items() if names]
    missing = len(comparison.rows) - len(ranked)
    what = "variants" if comparison.ablates else "methods"
    among = f" of the {len(ranked)} {what} that have one" if missing else ""
    return quoted(best.name), f" has the best {kind.long}{among}, {reached}: {'; '.join(parts)}."


def _ranked(comparison: Comparison, measure: str) -> list[Row]:
    """The rows that have a measure, the best first."""
    having = [row for row in comparison.rows if measure in row.measures]
    return sorted(having, key=lambda row: -row.measures[measure].mean)


def _at_equal_time(ranked: Sequence[Row]) -> str | None:
    """Whether those behind had less time than the best, by the epochs that `--budget seconds` would give them."""
    best, *others = ranked
    pace, epochs = best.cost.epoch_seconds, best.cost.epochs
    timed: dict[str, list[tuple[float, float]]] = {}  # of each method, also with more epochs: epochs and their seconds
    for row in others:
        if row.cost.epoch_seconds and row.cost.epochs:
            timed.setdefault(method_of(row.name), []).append((row.cost.epochs, row.cost.epoch_seconds))
    if not pace or not epochs or not timed:
        return None
    counts = {name: round(epochs * pace / min(seconds for _, seconds in rows)) for name, rows in timed.items()}
    more = {name: count for name, count in counts.items() if count > max(had for had, _ in timed[name])}
    if more:
        told = listed([f"{count} of {quoted(name)}" for name, count in more.items()])
        advice = "" if any(len(timed[name]) > 1 for name in more) else "; --budget seconds adds those"
        return f"In the time of its {epochs:g} epochs there are {told}{advice}."
    return "None gets more epochs in the same time than here, so it leads at equal time too."


def method_of(row: str) -> str:
    """The name of a row without the epochs of one that has more."""
    return re.sub(r", \d+ epochs$", "", row)


def best_in(rows: Iterable[Row], measure: str) -> float | None:
    return max((row.measures[measure].mean for row in rows if measure in row.measures), default=None)


def quoted(name: str) -> str:
    """A name within a sentence."""
    return name if name.replace("_", "").replace("-", "").isalnum() else f"“{name}”"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _comparison(content: Any) -> Comparison:
    rows = [_row(row) for row in _take(content, "rows", list)]
    if not rows:
        raise ValueError("rows: there are none")
    names = [row.name for row in rows]
    if len(set(names)) < len(names):
        raise ValueError("rows: two have the same name")
    failed = _take(content, "failed", dict)
    return Comparison(
        title=_text(content, "title"),
        kind=_one_of(content, "kind", ("compare", "ablate")),
        budget=_one_of(content, "budget", ("epochs", "seconds")),
        command=_text(content, "command"),
        machine=_take(content, "machine", dict),
        versions=_take(content, "versions", dict),
        settings=_take(content, "settings", dict),
        rows=rows,
        failed={str(name): str(reason) for name, reason in failed.items()},
        content=content,
    )


def _row(row: Any) -> Row:
    measures = {
        name: Measure(
            mean=_number(found, "mean"),
            spread=_number_or_none(found, "spread"),
            values=[_finite("values", value) for value in _take(found, "values", list)],
        )
        for name, found in _take(row, "measures", dict).items()
    }
    for name, measure in measures.items():
        if not measure.values:
            raise ValueError(f"{name}: a mean without values")
    return Row(
        _text(row, "name"),
        _text(row, "flags"),
        measures,
        _cost(_take(row, "cost", dict)),
        [_run(run) for run in _take(row, "runs", list)],
    )


def _run(run: Any) -> Run:
    return Run(
        seed=int(_number(run, "seed")),
        folder=_text(run, "folder"),
        command=_text(run, "command"),
        evaluation_commands=[str(line) for line in _take(run, "evaluation_commands", list)],
        measures={name: _finite(name, value) for name, value in _take(run, "measures", dict).items()},
        cost=_cost(run),
        checkpoint=_text(run, "checkpoint_sha256"),
        curves={name: _curve(name, points) for name, points in _take(run, "curves", dict).items()},
    )


def _curve(name: str, points: Any) -> list[tuple[int, float]]:
    if not isinstance(points, list):
        raise TypeError(f"{name}: {points!r:.40} is not a list")
    pairs = sorted((int(_finite(name, epoch)), value) for epoch, value in points)
    return [(epoch, float(value)) for epoch, value in pairs if value is not None and math.isfinite(value)]


def _cost(content: dict[str, Any]) -> Cost:
    return Cost(*(_number_or_none(content, name) for name in ("epochs", "epoch_seconds", "seconds", "peak_memory")))


def _take(content: Any, name: str, kind: type) -> Any:
    if not isinstance(content, dict):
        raise TypeError(f"{content!r:.40} where {name!r} was expected")
    value = content[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name}: {value!r:.40} is not a {kind.__name__}")
    return value


def _text(content: Any, name: str) -> str:
    return on_one_line(_take(content, name, str))


def _one_of(content: Any, name: str, known: Sequence[str]) -> str:
    value = _text(content, name)
    if value not in known:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(known)}")
    return value


def _number(content: Any, name: str) -> float:
    return _finite(name, content[name])


def _number_or_none(content: Any, name: str) -> float | None:
    return None if content.get(name) is None else _finite(name, content[name])


def _finite(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{name}: {value!r:.40} is not a number")
    return float(value)


def _foreign(file: Path, writer: str, error: Exception) -> str:
    return f"{file}: not what {writer} writes ({type(error).__name__}: {error}); repeat it"
