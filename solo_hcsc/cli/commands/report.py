"""`solo-hcsc report FOLDER`: one page that shows a comparison of methods."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add_wandb_flags
from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.report.page import make_report
from solo_hcsc.report.to_wandb import log_comparison
from solo_hcsc.settings import take
from solo_hcsc.training.settings import Wandb, check_wandb


def run(argv: Sequence[str]) -> None:
    """Write the page and print what it found."""
    parser = Parser(
        "report",
        "One page, report.html, that shows a comparison or an ablation with all its runs, and opens in a browser "
        "without anything else; its numbers also as report.json, from which the page can be made again.",
    )
    told = "what solo-hcsc compare or solo-hcsc ablate wrote; or report.json, for a page without pictures of analyses"
    parser.add_argument("folder", type=Path, metavar="FOLDER_OR_JSON", help=told)
    told = "the page; FOLDER/report.html if not given, or beside the JSON under its name"
    parser.add_argument("--out", type=Path, metavar="FILE.html", help=told)
    parser.add_argument("--title", metavar="TEXT", help="the page's title; the comparison's own if not given")
    add_wandb_flags(parser)
    flags = parser.parse(argv)
    wandb = take(Wandb, flags)
    if wandb.offline and not wandb.wandb:
        raise UserError("--offline goes with --wandb; add that or leave it out")
    check_wandb(wandb)

    report = make_report(flags.folder, flags.title)
    file = report.save(flags.out)
    if wandb.wandb:
        print(f"wandb: {log_comparison(report.comparison, wandb, file.parent)}")
    print(report.table())
    print(f"report: {file}")
