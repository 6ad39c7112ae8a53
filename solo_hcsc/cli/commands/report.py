"""`solo-hcsc report FOLDER`: one page that shows a comparison of methods."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add_wandb_flags
from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.report import page, to_wandb
from solo_hcsc.report.text import comparison_table
from solo_hcsc.settings import take
from solo_hcsc.study import record
from solo_hcsc.study.findings import outcome
from solo_hcsc.training.settings import Wandb, check_wandb


def run(argv: Sequence[str]) -> None:
    """Write the page and print what it found."""
    parser = Parser(
        "report",
        "One page, report.html, that shows a comparison or an ablation with all its runs, and opens in a browser "
        "without anything else; its numbers also as report.json.",
    )
    parser.add_argument("folder", type=Path, help="what solo-hcsc compare or solo-hcsc ablate wrote")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="the page; FOLDER/report.html if not given")
    parser.add_argument("--title", metavar="TEXT", help="the page's title; the comparison's own if not given")
    add_wandb_flags(parser)
    flags = parser.parse(argv)
    wandb = take(Wandb, flags)
    if wandb.offline and not wandb.wandb:
        raise UserError("--offline goes with --wandb; add that or leave it out")
    check_wandb(wandb)

    file = page.make(flags.folder, flags.out, flags.title)
    comparison = record.read(flags.folder)
    if wandb.wandb:
        print(f"wandb: {to_wandb.log_comparison(comparison, wandb, file.parent)}")
    print(comparison_table(comparison))
    for sentence in outcome(comparison):
        print(sentence)
    print(f"report: {file}")
