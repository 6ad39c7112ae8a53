"""`python -m solo_hcsc.summary FOLDER`: every evaluation result below a folder, in one table."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from solo_hcsc.evaluation import paper
from solo_hcsc.cli.errors import UserError, command, on_one_line
from solo_hcsc.cli.flags import Parser
from solo_hcsc.evaluation.results import read_results, table, write_whole

HEADER = ("evaluation", "setting", "method", "data", "measure", "value", "paper", "seconds", "checkpoint")
_NAMES = {
    "acc1": "top-1",
    "acc5": "top-5",
    "mAP11": "mAP 11-point",
    "mAP": "mAP all-point",
    "nmi": "NMI",
    "ami": "AMI",
}


@command
def main(argv: Sequence[str]) -> None:
    args = parse(argv)
    results = read_results(args.folder)
    if not results:
        raise UserError(f"{args.folder}: no evaluation results below it; run solo_hcsc.knn or solo_hcsc.linear first")
    rows = [row for result in results for row in rows_of(result, args.folder)]
    order = list(paper.MEASURES)
    rows.sort(key=lambda row: (row[3], order.index(row[0]) if row[0] in order else len(order)))
    files = args.folder / "summary.md", args.folder / "summary.html"
    for file, render in zip(files, (markdown, html), strict=True):
        write_whole(file, render(rows))
    print(table(HEADER, rows))
    print(f"also as {files[0]} and {files[1]}")


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        prog="solo_hcsc.summary",
        description="Every evaluation result below a folder in one table, with the paper's figures for models like "
        "these beside them; written to summary.md and summary.html there.",
    )
    parser.add_argument("folder", type=Path, help="where to look for results")
    args = parser.parse(argv)
    if not args.folder.is_dir():
        raise UserError(f"{args.folder}: there is no such folder")
    return args


def rows_of(result: dict[str, Any], folder: Path) -> list[tuple[str, ...]]:
    """A result's rows: one, or one for each way of clustering."""
    try:
        return [tuple(map(on_one_line, row)) for row in _rows_of(result, folder)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{result['file']}: not what an evaluation writes ({type(error).__name__}: {error}); remove or repeat it"
        ) from error


def _rows_of(result: dict[str, Any], folder: Path) -> Iterator[tuple[str, ...]]:
    evaluation, settings = result["evaluation"], result["settings"]
    checkpoint = Path(result["checkpoint"])
    checkpoint = checkpoint.relative_to(folder) if checkpoint.is_relative_to(folder) else checkpoint
    parts = [(setting_of(evaluation, settings), protocol_of(evaluation, settings), result["metrics"])]
    if evaluation == "clustering":
        parts = [_of_clustering(row, result) for row in settings["all"]]
    for setting, protocol, metrics in parts:
        named = {_NAMES.get(name, name): metrics[name] for name in paper.MEASURES[evaluation] if name in metrics}
        for count, value in zip(settings.get("label_groups", []), metrics.get("ami_levels", []), strict=False):
            named[f"AMI, {count} groups"] = value
        found = None
        if protocol is not None:
            model = result["method"], result.get("pretraining", {})
            found = paper.find(evaluation, result["dataset"], protocol, *model)
        yield (
            evaluation,
            setting,
            _method(result),
            result["dataset"],
            " / ".join(named),
            " / ".join(_figure(evaluation, value) for value in named.values()),
            "" if found is None else _published(found),
            f"{result['seconds']:.0f}",
            str(checkpoint),
        )


def setting_of(evaluation: str, settings: dict[str, Any]) -> str:
    """What tells results of one evaluation apart."""
    said = []
    if evaluation in ("knn", "zeroshot"):
        said = [f"k={settings['k']}", *(["projector"] if settings.get("features") == "projector" else [])]
    elif evaluation == "semisup":
        said = [_share(settings)]
    elif "config" in settings:
        said = [settings["config"]]
    other = [name for name in settings.get("deviations", []) if name != "features"]
    if other:
        said.append(f"other {', '.join(other)}")
    if "chosen" in settings:
        said.append(f"lr {settings['lr']:g}, {settings['chosen']}")
    if str(settings.get("features", "")).startswith("cached"):
        said.append("cached features")
    return ", ".join(said)


def protocol_of(evaluation: str, settings: dict[str, Any]) -> str | None:
    """The name that solo_hcsc.paper has for how this was done; None if the paper did not do so."""
    plain = settings.get("features", "backbone") == "backbone" and "chosen" not in settings
    if not plain or settings.get("deviations", ["unknown"]):
        return None
    if evaluation == "semisup":
        return _share(settings)
    return settings.get("config") if evaluation == "linear" else ""


def _of_clustering(row: dict[str, Any], result: dict[str, Any]) -> tuple[str, str | None, dict[str, Any]]:
    """Setting, protocol and figures of one way of clustering."""
    settings = result["settings"]
    protocol = row["name"]
    if row["kind"] == "hierarchy":
        # Clusters that were too small are gone from a level: the paper names it by what was asked for.
        asked = "-".join(map(str, result.get("pretraining", {}).get("num_prototypes", [])))
        protocol = f"hierarchy level {row['level']} of {asked}"
    said = [row["name"]]
    if settings.get("features") == "projector" and row["kind"] == "k-means":
        said.append("projector")
    if settings.get("split", "train") != "train":
        said.append("validation images")
        protocol = None
    return ", ".join(said), protocol, row


def _published(found: paper.Published) -> str:
    values = found.values if found.values[1] is not None else found.values[:1]
    return " / ".join("-" if value is None else _figure(found.evaluation, value) for value in values)


def _share(settings: dict[str, Any]) -> str:
    percent = 100 * settings["label_fraction"]
    return f"{round(percent) if abs(percent - round(percent)) < 0.1 else round(percent, 2)} % of labels"


def _method(result: dict[str, Any]) -> str:
    method, pretraining = result["method"], result.get("pretraining", {})
    epochs = f", {pretraining['max_epochs']} epochs" if "max_epochs" in pretraining else ""
    return f"{method or '?'}{' multi-crop' if pretraining.get('multi_crop') else ''}{epochs}"


def _figure(evaluation: str, value: float) -> str:
    return f"{value:.3f}" if evaluation == "clustering" else f"{value:.2f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "---|" * len(HEADER)
    return "\n".join([line(HEADER), rule, *map(line, rows), "", footnote(rows), ""])


def html(rows: Sequence[Sequence[str]]) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(value)}</{tag}>" for value in values) + "</tr>"

    body = "\n".join(cells("td", row) for row in rows)
    return _PAGE.format(head=cells("th", HEADER), body=body, footnote=escape(footnote(rows)))


def footnote(rows: Sequence[Sequence[str]]) -> str:
    return _FOOTNOTE + (_FOOTNOTE_VOC if any(row[0] == "voc" for row in rows) else "")


_FOOTNOTE = (
    "Accuracies and mAP in percent. The column paper has what the paper reports for the same method with a ResNet-50, "
    "the same pretraining epochs and crops, protocol and data, and is empty where there is none; beside mocov2plus it "
    "is MoCo v2's. KNN takes the best K on the validation images, as the paper does."
)
_FOOTNOTE_VOC = (
    " On VOC07 the authors' released code averages precision over the classes of each image, ours over the images of "
    "each class, as the benchmark does: these figures of the paper's own models do not compare."
)
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Evaluation results</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; --soft: #8881; }}
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .4rem .7rem; text-align: left; white-space: nowrap; }}
:is(th, td):is(:nth-child(6), :nth-child(7), :nth-child(8)) {{ font-variant-numeric: tabular-nums; text-align: right; }}
td:nth-child(2) {{ white-space: normal; min-width: 14rem; }}
td:last-child {{ font-family: ui-monospace, monospace; font-size: 12px; }}
tbody tr:hover {{ background: var(--soft); }}
p {{ max-width: 60rem; }}
</style>
<h1>Evaluation results</h1>
<div class="scroll">
<table>
<thead>
{head}
</thead>
<tbody>
{body}
</tbody>
</table>
</div>
<p>{footnote}</p>
</html>
"""


if __name__ == "__main__":
    main()
