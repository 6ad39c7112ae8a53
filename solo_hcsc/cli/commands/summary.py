"""`solo-hcsc summary FOLDER`: every evaluation result below a folder, in one table."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.files import write_whole
from solo_hcsc.report import sheets, summary
from solo_hcsc.runs.results import read_results
from solo_hcsc.tables import columns, narrowed, table


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
    folder = flags.folder
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    results = read_results(folder)
    if not results:
        raise UserError(f"{folder}: no evaluation results below it; run solo-hcsc knn or solo-hcsc linear first")

    rows = summary.summarise(results, folder)
    write_whole(folder / "summary.md", summary.markdown(rows))
    pictures = sheets.of_results(one for one in results if one["evaluation"] == "detect")
    write_whole(folder / "summary.html", summary.html(rows, pictures))
    header, cells = list(summary.HEADER), [list(row) for row in rows]
    if not flags.wide:
        header, cells = narrowed(header, cells, columns(), summary.DISPENSABLE, whole=["value"])
    print(table(header, cells))
    missing = [name for name in summary.HEADER if name not in header]
    if missing:
        print(f"--wide also shows {', '.join(missing)}")
    print(f"{'all columns are in' if missing else 'also as'} {folder / 'summary.md'} and {folder / 'summary.html'}")
