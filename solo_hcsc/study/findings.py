"""Say what a comparison found."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import t

from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.study.record import MEASURES, Comparison, MeasureKind, Row, Search, Trial


class Sentence(NamedTuple):
    """A sentence and the name that it starts with, which a page may stress."""

    subject: str  # may be empty
    rest: str

    def __str__(self) -> str:
        return f"{self.subject}{self.rest}"


class Lead(NamedTuple):
    """The lead of one row over another in a measure, with its uncertainty."""

    gap: float
    uncertainty: float | None  # half of the gap's 95 % interval; None where nothing tells it
    basis: str  # what the interval is of

    @property
    def is_clear(self) -> bool:
        """Return whether the gap is larger than its uncertainty."""
        return self.uncertainty is not None and self.gap > self.uncertainty


class Effect(NamedTuple):
    """The effect of a row of an ablation on a measure, against the reference: paired over seeds."""

    row: str
    measure: str
    difference: Lead

    @property
    def verdict(self) -> str:
        """Return `helped`, `harmed` or `no clear difference`."""
        gap, uncertainty, _ = self.difference
        if uncertainty is None or abs(gap) <= uncertainty:
            return "no clear difference"
        return "helped" if gap > 0 else "harmed"

    @property
    def interval(self) -> str:
        """Return the difference and its 95 % interval."""
        gap, uncertainty, _ = self.difference
        kind = MEASURES[self.measure]
        shown = f"{gap:+.{kind.digits}f}"
        if uncertainty is None:
            return shown
        ends = (f"{gap + side * uncertainty:+.{kind.digits}f}" for side in (-1, 1))
        return f"{shown} [{', '.join(ends)}]"


def effects(comparison: Comparison) -> list[Effect]:
    """Return the effect of each row of an ablation on each measure, against the reference; empty without one."""
    if not comparison.ablates or comparison.reference is None:
        return []
    against = comparison.reference_row
    return [
        Effect(row.name, measure, lead(row, against, measure))
        for row in comparison.rows
        if row is not against
        for measure in MEASURES
        if measure in row.measures and measure in against.measures
    ]


def _in_words(found: Sequence[Effect], against: str) -> list[Sentence]:
    """Return the effects of each row as one sentence."""
    sentences = []
    for name in dict.fromkeys(effect.row for effect in found):
        of_row = [effect for effect in found if effect.row == name]
        parts = []
        for verdict, told in (
            ("helped", "helped"),
            ("harmed", "harmed"),
            ("no clear difference", "no clear difference in"),
        ):
            measures = [f"{MEASURES[one.measure].long} ({one.interval})" for one in of_row if one.verdict == verdict]
            parts += [f"{told} {_listed(measures)}"] if measures else []
        basis = next((effect.difference.basis for effect in of_row if effect.difference.basis), "")
        paired = f"; differences with their 95 % intervals, {basis}" if basis else ""
        sentences.append(Sentence(_quoted(name), f", against {_quoted(against)}: {'; '.join(parts)}{paired}."))
    return sentences


MOST_IN_WORDS = 3  # rows of an ablation whose effects are told in sentences; the report's table has all


def outcome(comparison: Comparison) -> list[Sentence]:
    """Say which row is best in each accuracy, if one clearly is; rows with warnings; whether equal time matters."""
    found = [Sentence(_quoted(row.name), f": {_warned(row)}") for row in comparison.rows if row.warnings]
    if comparison.ablates and 1 < len(comparison.rows) <= MOST_IN_WORDS and (pairs := effects(comparison)):
        return found + _in_words(pairs, comparison.reference_row.name)
    said = {measure: sentence for measure in ("knn", "linear") if (sentence := _leader(comparison, measure))}
    found += said.values()
    leaders = {best_row(comparison, measure) for measure in said}
    leader = leaders.pop() if len(leaders) == 1 else None
    if leader and not comparison.ablates:
        ranked = sorted(comparison.rows, key=lambda row: row.name != leader)
        time = _at_equal_time(ranked)
        found += [Sentence("", time)] if time else []
    return found


def best_row(comparison: Comparison, measure: str) -> str | None:
    """Return the row that leads all others in a measure by more than the uncertainty; None if there is none."""
    ranked = _ranked(comparison, measure)
    if len(ranked) < 2 or not all(lead(ranked[0], row, measure).is_clear for row in ranked[1:]):
        return None
    return ranked[0].name


def lead(best: Row, other: Row, measure: str) -> Lead:
    """Return the lead of a row over another one.

    With several seeds in common, gap and interval are those of the differences seed by seed (Student's t). Where one
    has a single seed, the interval is that of two shares of the same number of images (binomial), which accuracies
    alone have.
    """
    gap = best.measures[measure].mean - other.measures[measure].mean
    ours, theirs = (
        {run.seed: run.measures[measure] for run in row.runs if measure in run.measures} for row in (best, other)
    )
    differences = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
    count, images = len(differences), best.measures[measure].images
    if count > 1:
        error = statistics.stdev(differences) / math.sqrt(count)
        gap = statistics.fmean(differences)
        counted = images is not None and MEASURES[measure].unit == " %"  # AMI is no share of images
        one_image = 100 / images if images and counted else 0.0  # equal differences of few seeds do not make it exact
        return Lead(gap, max(float(t.ppf(0.975, count - 1)) * error, one_image), f"over {count} seeds")
    if images is None or MEASURES[measure].unit != " %" or min(len(ours), len(theirs)) > 1:
        return Lead(gap, None, "")
    uncertainty = binomial_half_width(best.measures[measure].mean, other.measures[measure].mean, images)
    return Lead(gap, uncertainty, f"for {images} images and one seed")


def binomial_half_width(first: float, second: float, images: int) -> float:
    """Return half of the 95 % interval of the difference between two percentages of so many images (binomial).

    Example:
        >>> round(binomial_half_width(25.0, 28.0, images=296), 1)
        7.1
    """
    variance = sum(share / 100 * (1 - share / 100) / images for share in (first, second))
    return 100 * 1.96 * math.sqrt(variance)


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
    leads = {row.name: lead(best, row, measure) for row in others}
    clear = [_ahead(kind, name, one) for name, one in leads.items() if one.is_clear]
    open_ = [_ahead(kind, name, one) for name, one in leads.items() if not one.is_clear]
    basis = " or ".join(dict.fromkeys(one.basis for one in leads.values() if one.basis))
    interval = f" (95 % intervals {basis})" if basis else " (no interval available)"
    what = "variants" if comparison.ablates else "methods"
    among = f" of the {len(ranked)} {what} that have one" if len(ranked) < len(comparison.rows) else ""
    if not open_:
        told = f" has the best {kind.long}{among}, {reached}: ahead of {_listed(clear)}{interval}."
        return Sentence(_quoted(best.name), told)
    told = f"No clear winner in {kind.long}{among}: {_quoted(best.name)} has {reached}, "
    told += f"which is not clearly more than {_listed(open_)}"
    told += f", but is more than {_listed(clear)}" if clear else ""
    return Sentence("", f"{told}{interval}.")


def _ahead(kind: MeasureKind, name: str, one: Lead) -> str:
    sure = "" if one.uncertainty is None else f" ± {kind.show(one.uncertainty)}"
    return f"{_quoted(name)} (by {kind.show(one.gap)}{sure} points)"


def _warned(row: Row) -> str:
    count = len({run.seed for run in row.runs if run.warnings})
    which = "its run" if len(row.runs) == 1 else f"{count} of its {len(row.runs)} runs"
    return f"{which} ended with a warning: {'; '.join(row.warnings)}."


def _ranked(comparison: Comparison, measure: str) -> list[Row]:
    """Return the rows that have a measure, the best first."""
    having = [row for row in comparison.rows if measure in row.measures]
    return sorted(having, key=lambda row: -row.measures[measure].mean)


def _at_equal_time(ranked: Sequence[Row]) -> str | None:
    """Say whether those behind had less time than the best, by the epochs that `budget` seconds would give them."""
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
        told = _listed([f"{_quoted(name)} would do {count} epochs" for name, count in more.items()])
        advice = "" if any(len(timed[name]) > 1 for name in more) else "; a budget in seconds adds such a row"
        return f"In the time of {_quoted(best.name)}'s {epochs:g} epochs, {told}{advice}."
    return "No other method would do more epochs in that time, so this holds at equal time too."


def _quoted(name: str) -> str:
    """Quote a name within a sentence where it needs that."""
    return name if name.replace("_", "").replace("-", "").isalnum() else f"“{name}”"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ---- what a search found ----


def winner(search: Search, method: str) -> Trial:
    """Return the trial of a method with the highest accuracy; refuse a method that has none."""
    finished = [trial for trial in search.of_methods[method] if trial.value is not None]
    if not finished:
        reasons = "; ".join(dict.fromkeys(trial.why or "" for trial in search.of_methods[method]))
        raise UserError(f"`search`: no trial of {method} was finished ({on_one_line(reasons)})")
    return max(finished, key=lambda trial: trial.value or 0.0)


def choice(search: Search, method: str) -> str:
    """Say which trial of a method was chosen, and how many others held-out images do not distinguish from it."""
    best = winner(search, method)
    first, *others = sorted((one.value for one in search.of_methods[method] if one.value is not None), reverse=True)
    chosen = f"{method}: trial {best.number} is the best ({first:.2f} %)"
    if search.images is None or not others:
        return chosen
    tied = [other for other in others if first - other <= binomial_half_width(first, other, search.images)]
    compared = f"{len(tied)} of the {len(others)} others that finished"
    return f"{chosen}; {search.images} held-out images do not tell it from {compared}"
