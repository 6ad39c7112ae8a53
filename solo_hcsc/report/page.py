"""The page of a report: one file that needs nothing but a browser."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from solo_hcsc.report import figures
from solo_hcsc.report import svg as inlining
from solo_hcsc.study.record import MEASURES, Analysis, Comparison, Cost, Kind, Measure, Row, Run, best_in, outcome
from solo_hcsc.report.curves import Picture
from solo_hcsc.report.stylesheet import STYLE

_WIDE = 2.2  # from this width over height on, a picture has a row of its own
_NONE = "\N{EN DASH}"
_MINUS, _TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Report:
    """All that a page shows."""

    title: str
    comparison: Comparison
    pictures: list[Picture]
    analyses: dict[str, Analysis]  # by the run's folder

    @property
    def measures(self) -> dict[str, Kind]:
        rows = self.comparison.rows
        return {name: kind for name, kind in MEASURES.items() if any(name in row.measures for row in rows)}

    def colour(self, row: Row) -> str:
        from matplotlib.colors import to_hex

        rows = self.comparison.rows
        return to_hex(figures.colour(rows.index(row), len(rows)))

    def label(self, row: Row) -> str:
        return f'<span class="name" style="--own:{self.colour(row)}">{text(row.name)}</span>'


def render(report: Report) -> str:
    sections = {
        "results": ("Results", _results),
        "curves": ("Learning curves", _curves),
        "cost": ("Cost", _cost),
        "analysis": ("Analysis", _analysis),
        "record": ("Settings and commands", _record),
    }
    bodies = {name: body for name, (_, write) in sections.items() if (body := write(report))}
    links = "".join(f'<a href="#{name}">{sections[name][0]}</a>' for name in bodies)
    parts = [_header(report), f'<nav aria-label="Sections">{links}</nav>', "</header>", "<main>"]
    parts += [
        f'<section id="{name}">\n<h2>{sections[name][0]}</h2>\n{body}\n</section>' for name, body in bodies.items()
    ]
    return _PAGE.format(title=text(report.title), style=STYLE, body="\n".join(parts))


def text(value: object) -> str:
    """Text from the data: nothing in it is markup, and what is no valid Unicode is spelled out."""
    return escape(str(value).encode("utf-8", "backslashreplace").decode("utf-8"))


def duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def with_spread(measure: Measure, kind: Kind) -> str:
    spread = "" if measure.spread is None else f" ± {kind.show(measure.spread)}"
    return f"{kind.show(measure.mean)}{spread}"


def seeds_of(row: Row) -> int:
    return max([len(measure.values) for measure in row.measures.values()], default=len(row.runs))


def value_of(value: Any) -> str:
    """A setting as a person would write it."""
    if value is None or value == "":
        return _NONE
    if value == []:
        return "none"
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return " ".join(map(value_of, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _header(report: Report) -> str:
    comparison = report.comparison
    kicker = "Ablation" if comparison.ablates else "Comparison of methods"
    said = [
        f'<p class="lead">{subject and f"<strong>{text(subject)}</strong>"}{text(rest).replace(" %", "&nbsp;%")}</p>'
        for subject, rest in outcome(comparison)
    ]
    parts = ["<header>", f'<p class="kicker">{kicker}</p>', f"<h1>{text(report.title)}</h1>"]
    parts += said or ['<p class="lead">No run has an accuracy.</p>']
    if comparison.failed:
        count = len(comparison.failed)
        counted = "1 run failed and is" if count == 1 else f"{count} runs failed and are"
        items = "".join(f"<li><b>{text(name)}</b>: {text(why)}</li>" for name, why in comparison.failed.items())
        parts.append(f'<div class="failed"><strong>{counted} in none of these numbers.</strong><ul>{items}</ul></div>')
    facts = "".join(f"<li>{name} <b>{text(value)}</b></li>" for name, value in _facts(comparison))
    return "\n".join([*parts, f'<ul class="facts">{facts}</ul>'])


def _facts(comparison: Comparison) -> Iterable[tuple[str, str]]:
    settings = comparison.settings
    for name, label in (("dataset", "data"), ("encoder", "encoder")):
        if name in settings:
            value = settings.get("data_dir", "custom") if settings[name] == "custom" else settings[name]
            yield label, value_of(value)
    epochs = sorted({row.cost.epochs for row in comparison.rows if row.cost.epochs is not None})
    if epochs:
        told = f"{epochs[0]:g} epochs each" if len(epochs) == 1 else f"{epochs[0]:g} to {epochs[-1]:g} epochs"
        yield "budget", f"{told}, also at equal time" if comparison.budget == "seconds" else told
    counts = sorted({seeds_of(row) for row in comparison.rows})
    yield "seeds", str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _results(report: Report) -> str:
    comparison, measures = report.comparison, report.measures
    if not measures:
        return ""
    head = [_what(comparison), *(f"{kind.title}{kind.unit}" for kind in measures.values()), "Seeds"]
    reference = comparison.reference if comparison.ablates else None
    rows = []
    for row in comparison.rows:
        cells = [_measure_cell(report, row, name, reference) for name in measures]
        rows.append(f"<tr><th scope=row>{report.label(row)}</th>{''.join(cells)}{_number(seeds_of(row))}</tr>")
    spread = any(measure.spread is not None for row in comparison.rows for measure in row.measures.values())
    notes = ["The best mean of each column is in colour; each dot below a mean is one seed, the stroke the mean."]
    if reference is not None:
        notes.append(f"Small figures: the difference from {text(reference.name)}.")
    judged = [line for row in comparison.rows for run in row.runs for line in run.evaluation_commands]
    if "ami" in measures and not any("--split val" in line for line in judged):
        notes.append("AMI and NMI are of clusters of the training images.")
    notes.append(_SPREAD if spread else "With one seed each there is no spread: a small gap may be chance.")
    return f'{_table(head, rows)}\n<p class="note">{" ".join(notes)}</p>'


def _measure_cell(report: Report, row: Row, name: str, reference: Row | None) -> str:
    kind, measure = MEASURES[name], row.measures.get(name)
    if measure is None:
        return _number(_NONE)
    best = measure.mean == best_in(report.comparison.rows, name)
    shown = f"<b>{with_spread(measure, kind)}</b>" if best else with_spread(measure, kind)
    if reference is not None and row is not reference and name in reference.measures:
        gap = measure.mean - reference.measures[name].mean
        signed = f"{gap:+.{kind.digits}f}".replace("-", _MINUS)
        shown = f"<small>{signed}</small> &nbsp;{shown}"
    strip = _strip(report, measure, name, report.colour(row))
    return f'<td class="number{" best" if best else ""}">{shown}{strip}</td>'


def _strip(report: Report, measure: Measure, name: str, colour: str) -> str:
    """Each seed's value as a dot, on the scale that a column shares."""
    values = [value for row in report.comparison.rows if name in row.measures for value in row.measures[name].values]
    low, high = min(values), max(values)

    def at(value: float) -> str:
        share = (value - low) / (high - low) if high > low else 0.5
        return f"{5 + 94 * min(max(share, 0.0), 1.0):.1f}"

    dots = "".join(f'<circle cx="{at(value)}" cy="6" r="2.8"/>' for value in measure.values)
    seeds = ", ".join(MEASURES[name].show(value) for value in measure.values)
    return (
        f'<svg class="strip" viewBox="0 0 104 12" role="img" aria-label="Seeds: {seeds}">'
        f'<path d="M1 6H103" stroke="currentColor" stroke-opacity=".18"/>'
        f'<g fill="{colour}" fill-opacity=".75">{dots}</g>'
        f'<path d="M{at(measure.mean)} 0V12" stroke="{colour}" stroke-width="1.6"/></svg>'
    )


def _curves(report: Report) -> str:
    if not report.pictures:
        return ""
    names = "".join(f"<li>{report.label(row)}</li>" for row in report.comparison.rows)
    shown = [
        _figure(inlining.inline(picture.svg(), f"{picture.name}-", picture.title, picture.name), picture)
        for picture in report.pictures
    ]
    return f'<ul class="legend">{names}</ul>\n<div class="figures">\n{_lines(shown)}\n</div>'


def _figure(picture: str, described: Any) -> str:
    wide = inlining.proportions(picture) >= _WIDE
    return (
        f"<figure{' class=wide' if wide else ''}><figcaption><b>{text(described.title)}</b>"
        f"<span>{text(described.caption)}</span></figcaption>"
        f"{f'<div class=scroll>{picture}</div>' if wide else picture}</figure>"
    )


def _cost(report: Report) -> str:
    comparison = report.comparison
    parts: dict[str, tuple[Callable[[Cost], float | None], Callable[[float], str]]] = {
        "Seconds per epoch": (lambda cost: cost.epoch_seconds, lambda value: f"{value:,.1f}"),
        "Pretraining, h:mm:ss": (lambda cost: cost.seconds, duration),
        "Peak memory, MB": (lambda cost: cost.peak_memory, lambda value: f"{value / 1e6:,.0f}"),
    }
    known = {
        title: (get, show)
        for title, (get, show) in parts.items()
        if any(get(row.cost) is not None for row in comparison.rows)
    }
    if not known:
        return ""
    rows = []
    for row in comparison.rows:
        cells = [_number(_NONE if row.cost.epochs is None else f"{row.cost.epochs:g}")]
        for get, show in known.values():
            every = [value for one in comparison.rows if (value := get(one.cost)) is not None]
            base = get(comparison.reference.cost) if comparison.ablates else min(every)
            cells.append(_cost_cell(get(row.cost), show, base, max(every), report.colour(row)))
        rows.append(f"<tr><th scope=row>{report.label(row)}</th>{''.join(cells)}</tr>")
    against = text(comparison.reference.name) if comparison.ablates else "the cheapest"
    note = (
        "Of pretraining alone: the median epoch of the fastest seed, which other work on the machine disturbed least, "
        f"and the largest memory of all. The factor is relative to {against}."
    )
    if comparison.budget == "seconds":
        note += " Rows that name their epochs had the time of the slowest method."
    return f'{_table([_what(comparison), "Epochs", *known], rows)}\n<p class="note">{note}</p>'


def _cost_cell(value: float | None, show: Callable[[float], str], base: float | None, most: float, colour: str) -> str:
    if value is None:
        return _number(_NONE)
    factor = f" <small>{value / base:.2f}{_TIMES}</small>" if base else ""
    share = 100 * value / most if most else 0
    bar = f'<span class="bar" style="color:{colour}"><i style="width:{share:.1f}%"></i></span>'
    return f'<td class="number">{show(value)}{factor}{bar}</td>'


def _analysis(report: Report) -> str:
    """The first analysis of each row, and the further ones folded."""
    parts: list[str] = []
    for row in report.comparison.rows:
        found = [(run, report.analyses[run.folder]) for run in row.runs if run.folder in report.analyses]
        for place, (run, analysis) in enumerate(found):
            title = f"{report.label(row)}, seed {run.seed}"
            body = _analysis_of(analysis, f"a{len(parts)}-")
            parts.append(
                f"<details><summary>{title}</summary>\n{body}\n</details>" if place else f"<h3>{title}</h3>\n{body}"
            )
    return "\n".join(parts)


def _analysis_of(analysis: Analysis, prefix: str) -> str:
    shown = []
    for number, one in enumerate(analysis.content["figures"]):
        picture = inlining.read(analysis.folder / one["file"], f"{prefix}{number}-", one["title"])
        shown.append(_figure(picture, _Described(one["title"], one["caption"])))
    numbers = dict(_flat(analysis.content["numbers"]))
    folded = f"\n<details><summary>Numbers</summary>{_names(numbers)}</details>" if numbers else ""
    return f'<div class="figures">\n{_lines(shown)}\n</div>{folded}'


@dataclass(frozen=True)
class _Described:
    title: str
    caption: str


def _flat(numbers: dict[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in numbers.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}, ")
        else:
            yield f"{above}{name}", f"{value:.6g}" if isinstance(value, float) else value


def _record(report: Report) -> str:
    comparison = report.comparison
    machine = dict(comparison.machine)
    if isinstance(machine.get("memory"), int | float):
        machine["memory"] = f"{machine['memory'] / 1e9:.1f} GB"
    settings = f"<h3>Settings of all</h3>{_names(comparison.settings)}"
    around = f"<h3>Machine</h3>{_names(machine)}<h3>Versions</h3>{_names(comparison.versions)}"
    own = "".join(
        f"<tr><td>{report.label(row)}</td><td class=hash>{text(row.flags or _NONE)}</td></tr>"
        for row in comparison.rows
    )
    return "\n".join(
        [
            f'<div class="columns"><div>{settings}</div><div>{around}</div></div>',
            f"<h3>Flags of each {'variant' if comparison.ablates else 'method'}</h3>",
            f'<table class="names">{own}</table>',
            "<h3>Runs</h3>",
            _runs(report),
            "<h3>Commands</h3>",
            "<p>The last command on this folder; those of each run are below.</p>",
            f"<pre>{text(comparison.command)}</pre>",
            *(_commands(report, row) for row in comparison.rows if row.runs),
        ]
    )


def _runs(report: Report) -> str:
    measures = {
        name: kind
        for name, kind in MEASURES.items()
        if any(name in run.measures for row in report.comparison.rows for run in row.runs)
    }
    titles = (f"{kind.title}{kind.unit}" for kind in measures.values())
    head = ["Run", "Seed", *titles, "h:mm:ss", "MB", "Checkpoint's SHA-256"]
    rows = [
        f"<tr><th scope=row>{report.label(row)}</th>{''.join(_run_cells(run, measures))}</tr>"
        for row in report.comparison.rows
        for run in row.runs
    ]
    return _table(head, rows)


def _run_cells(run: Run, measures: dict[str, Kind]) -> Iterable[str]:
    yield _number(run.seed)
    for name, kind in measures.items():
        yield _number(kind.show(run.measures[name]) if name in run.measures else _NONE)
    yield _number(_NONE if run.cost.seconds is None else duration(run.cost.seconds))
    yield _number(_NONE if run.cost.peak_memory is None else f"{run.cost.peak_memory / 1e6:,.0f}")
    yield f'<td class="number hash" title="{text(run.checkpoint)}">{text(run.checkpoint[:12])}</td>'


def _commands(report: Report, row: Row) -> str:
    blocks = "".join(
        f"<p>Seed {run.seed}, in <span class=hash>{text(run.folder)}</span></p>"
        f"<pre>{text(chr(10).join([run.command, *run.evaluation_commands]))}</pre>"
        for run in row.runs
    )
    count = f"{len(row.runs)} run{'s' if len(row.runs) > 1 else ''}"
    return f"<details><summary>{report.label(row)} <small>{count}</small></summary>{blocks}</details>"


def _what(comparison: Comparison) -> str:
    return "Variant" if comparison.ablates else "Method"


def _names(content: dict[str, Any]) -> str:
    rows = (f"<tr><td>{text(name)}</td><td>{text(value_of(value))}</td></tr>" for name, value in content.items())
    return f'<table class="names">{"".join(rows)}</table>'


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    first, *others = (text(title) for title in head)
    titles = f"<th scope=col>{first}</th>" + "".join(f"<th scope=col class=number>{title}</th>" for title in others)
    body = _lines(rows)
    return (
        f'<div class="scroll"><table class="wide-table">\n<thead><tr>{titles}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _number(value: object) -> str:
    return f'<td class="number">{text(value)}</td>'


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


_SPREAD = (
    "± is the sample standard deviation over seeds. A gap counts as more than the spread over seeds if it exceeds the "
    "sum of the two spreads, so that the ranges mean ± spread stay apart; with few seeds that is a rule of thumb, no "
    "test of significance."
)
# Nothing on the page runs or is fetched, whatever a name or a picture holds.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</main>
</body>
</html>
"""
