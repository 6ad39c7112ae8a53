"""`solo-hcsc summary FOLDER`: every evaluation result below a folder, in one table."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.parser import Parser
from solo_hcsc.report.summary import HEADER, summarise
from solo_hcsc.tables import columns


def run(argv: Sequence[str]) -> None:
    """Print the table and write it as summary.md and summary.html."""
    parser = Parser(
        "summary",
        "Every evaluation result below a folder in one table, with the paper's figures for models like these beside "
        "them; written to summary.md and summary.html there.",
    )
    parser.add_argument("folder", type=Path, help="where to look for results")
    parser.add_argument("--wide", action="store_true", help="print all columns, however narrow the terminal is")
    flags = parser.parse(argv)
    found = summarise(flags.folder)
    files = " and ".join(map(str, found.save(flags.folder)))
    shown = found.table(None if flags.wide else columns())
    print(shown)
    if "warnings" not in shown.splitlines()[0].split():
        for text in dict.fromkeys(row.warnings for row in found.rows if row.warnings):
            print(f"warning: {text}")
    missing = [name for name in HEADER if name not in shown.splitlines()[0].split()]
    print(f"--wide also shows {', '.join(missing)}\nall columns are in {files}" if missing else f"also as {files}")
