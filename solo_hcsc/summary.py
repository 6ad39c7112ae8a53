"""`python -m solo_hcsc.summary FOLDER`: every evaluation result below a folder, in one table."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.errors import UserError, command
from solo_hcsc.flags import Parser
from solo_hcsc.results import read_results, table


@command
def main(argv: Sequence[str]) -> None:
    parser = Parser(prog="solo_hcsc.summary", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to look for results")
    folder = parser.parse(argv).folder
    results = read_results(folder)
    if not results:
        raise UserError(f"{folder}: no evaluation results below it; run solo_hcsc.knn or solo_hcsc.linear")
    rows = [
        (
            result["evaluation"],
            result["method"] or "?",
            result["dataset"],
            float(result["metrics"]["acc1"]),
            float(result["metrics"]["acc5"]),
            float(result["seconds"]),
            result["checkpoint"],
        )
        for result in results
    ]
    print(table(("evaluation", "method", "data", "top-1 %", "top-5 %", "seconds", "checkpoint"), rows))


if __name__ == "__main__":
    main()
