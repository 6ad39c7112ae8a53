"""`python -m solo_hcsc.report FOLDER`: one page that shows a comparison of methods."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.study import record as comparisons
from solo_hcsc.report import curves
from solo_hcsc.report import page
from solo_hcsc.study.record import MEASURES, Comparison
from solo_hcsc.cli.errors import UserError, command, on_one_line
from solo_hcsc.cli.flags import Parser
from solo_hcsc.evaluation.results import table, write_whole
from solo_hcsc.report.wandb import add_wandb_flags


@command
def main(argv: Sequence[str]) -> None:
    args = parse(argv)
    if args.wandb:
        from solo_hcsc.cli.quiet import quiet

        quiet()
        from solo_hcsc.framework import repairs as compat

        compat.apply()
        from solo_hcsc.training.run import check_wandb

        check_wandb(args)
    file = make(args.folder, args.out, args.title)
    found = comparisons.read(args.folder)
    if args.wandb:
        print(f"wandb: {log_to_wandb(args, found, file)}")
    print(text_table(found))
    for subject, rest in comparisons.outcome(found):
        print(f"{subject}{rest}")
    print(f"report: {file}")


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        prog="solo_hcsc.report",
        description="One page, report.html, that shows a comparison or an ablation with all its runs, and opens in a "
        "browser without anything else; its numbers also as report.json.",
    )
    parser.add_argument("folder", type=Path, help="what solo_hcsc.compare or solo_hcsc.ablate wrote")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="the page; FOLDER/report.html if not given")
    parser.add_argument("--title", metavar="TEXT", help="the page's title; the comparison's own if not given")
    add_wandb_flags(parser)
    parser.explain()
    args = parser.parse(argv)
    if args.offline and not args.wandb:
        raise UserError("--offline goes with --wandb; add that or leave it out")
    return args


def make(folder: Path, out: Path | None = None, title: str | None = None) -> Path:
    """Writes the report of the comparison in `folder` and returns the page's file; its numbers go beside it."""
    out = folder / "report.html" if out is None else out
    numbers = out.with_suffix(".json")
    found = comparisons.read(folder)
    analyses = {
        run.folder: analysis
        for row in found.rows
        for run in row.runs
        if (analysis := comparisons.read_analysis(folder, run)) is not None
    }
    read = [folder / "comparison.json", *(analysis.folder / "analysis.json" for analysis in analyses.values())]
    _check_out(out, numbers, read)
    report = page.Report(title or found.title, found, curves.pictures(found), analyses)
    text = page.render(report)
    write_whole(out, text)
    write_whole(numbers, json.dumps(numbers_of(report), indent=2) + "\n")
    return out


def numbers_of(report: page.Report) -> dict[str, Any]:
    """What the page shows, without its pictures."""
    return {
        "title": report.title,
        "outcome": [f"{subject}{rest}" for subject, rest in comparisons.outcome(report.comparison)],
        "comparison": report.comparison.content,
        "analyses": {folder: analysis.content for folder, analysis in report.analyses.items()},
    }


def text_table(comparison: Comparison) -> str:
    rows = []
    for row in comparison.rows:
        measured = [
            page.with_spread(row.measures[name], kind) if name in row.measures else "-"
            for name, kind in MEASURES.items()
        ]
        cost = row.cost
        rows.append(
            (
                on_one_line(row.name),
                *measured,
                str(page.seeds_of(row)),
                "-" if cost.epochs is None else f"{cost.epochs:g}",
                "-" if cost.seconds is None else page.duration(cost.seconds),
                "-" if cost.peak_memory is None else f"{cost.peak_memory / 1e6:.0f}",
            )
        )
    titles = [f"{kind.title}{kind.unit}" for kind in MEASURES.values()]
    first = "variant" if comparison.ablates else "method"
    return table((first, *titles, "seeds", "epochs", "h:mm:ss", "MB"), rows)


def log_to_wandb(args: Namespace, comparison: Comparison, file: Path) -> str:
    """The learning curves as pictures and the table's numbers, as a run of their own; returns where it is."""
    from solo_hcsc.report.wandb import log_pictures

    numbers: dict[str, float | None] = {}
    for row in comparison.rows:
        for name, measure in row.measures.items():
            numbers[f"{row.name}/{name}"] = measure.mean
            numbers[f"{row.name}/{name}_spread"] = measure.spread
    args = Namespace(**{**vars(args), "name": args.name or comparison.title})
    return log_pictures([picture.alone() for picture in curves.pictures(comparison)], numbers, args, file.parent)


def _check_out(out: Path, numbers: Path, read: Sequence[Path]) -> None:
    if out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {out}: must end with .html; its numbers go beside it, ending with .json")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    for file in (out, numbers):
        if file.is_dir():
            raise UserError(f"{file}: is a folder, where the report is to go; remove it or give another --out")
        if file.resolve() in [one.resolve() for one in read]:
            raise UserError(f"--out {out}: its numbers would replace {file}, which they are made of; take another name")


if __name__ == "__main__":
    main()
