"""What a comparison found, in words."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from solo_hcsc.study.record import MEASURES, Comparison, Row


class Sentence(NamedTuple):
    """A sentence and the name that it starts with, which a page may stress."""

    subject: str  # may be empty
    rest: str

    def __str__(self) -> str:
        return f"{self.subject}{self.rest}"


def outcome(comparison: Comparison) -> list[Sentence]:
    """The best row in each accuracy and its lead over the others; whether it leads at equal time too."""
    found = [sentence for measure in ("knn", "linear") if (sentence := _leader(comparison, measure))]
    same = len(found) == 2 and found[0].subject == found[1].subject
    if same:
        found[1] = Sentence("", f"It also{found[1].rest}")
    if same and not comparison.ablates:
        time = _at_equal_time(_ranked(comparison, "knn"))
        found += [Sentence("", time)] if time else []
    return found


def best_in(rows: Iterable[Row], measure: str) -> float | None:
    """The largest mean of a measure; None if no row has it."""
    return max((row.measures[measure].mean for row in rows if measure in row.measures), default=None)


def _leader(comparison: Comparison, measure: str) -> Sentence | None:
    kind = MEASURES[measure]
    ranked = _ranked(comparison, measure)
    if not ranked:
        return None
    best, *others = ranked
    top = best.measures[measure]
    reached = f"{kind.show(top.mean)}{kind.unit}"
    if not others:
        return Sentence(_quoted(best.name), f" has a {kind.long} of {reached}; there is none to compare it with.")
    groups: dict[str, list[str]] = {"clear": [], "close": [], "unknown": [], "level": []}
    for row in others:
        other = row.measures[measure]
        gap = top.mean - other.mean
        apart = f"{_quoted(row.name)} (by {kind.show(gap)} points)"
        if gap == 0:
            groups["level"].append(_quoted(row.name))
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
    parts = [said[name].format(_listed(names)) for name, names in groups.items() if names]
    what = "variants" if comparison.ablates else "methods"
    among = f" of the {len(ranked)} {what} that have one" if len(ranked) < len(comparison.rows) else ""
    return Sentence(_quoted(best.name), f" has the best {kind.long}{among}, {reached}: {'; '.join(parts)}.")


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
            timed.setdefault(row.base, []).append((row.cost.epochs, row.cost.epoch_seconds))
    if not pace or not epochs or not timed:
        return None
    counts = {name: round(epochs * pace / min(seconds for _, seconds in rows)) for name, rows in timed.items()}
    more = {name: count for name, count in counts.items() if count > max(had for had, _ in timed[name])}
    if more:
        told = _listed([f"{count} of {_quoted(name)}" for name, count in more.items()])
        advice = "" if any(len(timed[name]) > 1 for name in more) else "; --budget seconds adds those"
        return f"In the time of its {epochs:g} epochs there are {told}{advice}."
    return "None gets more epochs in the same time than here, so it leads at equal time too."


def _quoted(name: str) -> str:
    """A name within a sentence."""
    return name if name.replace("_", "").replace("-", "").isalnum() else f"“{name}”"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
