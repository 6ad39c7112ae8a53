"""Evaluation results in one table, with the paper's figures beside those that are comparable; as Markdown and HTML."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from solo_hcsc.data.source import STORED
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.evaluation import paper
from solo_hcsc.files import write_whole
from solo_hcsc.report import sheets, svg, templating
from solo_hcsc.runs.results import read_results
from solo_hcsc.tables import data_frame, judged, narrowed, table

if TYPE_CHECKING:
    import pandas

_METRIC_NAMES = {
    "acc1": "top-1",
    "acc5": "top-5",
    "mAP11": "mAP 11-point",
    "mAP": "mAP all-point",
    "image_AP": "AP of each image",
    "AP": "AP",
    "AP50": "AP50",
    "AP75": "AP75",
    "AP50_11": "VOC AP50 11-point",
    "AP50_all": "VOC AP50 all-point",
    "mask_AP": "mask AP",
    "picked": "picked labels",
    "random": "random labels",
    "nmi": "NMI",
    "ami": "AMI",
    "accuracy": "accuracy",
    "dendrogram_purity": "dendrogram purity",
    "leaf_purity": "leaf purity",
    "knn": "KNN",
    "labels_1": "1 label a class",
    "labels_5": "5 labels a class",
    "agreement": "neighbours that a view shares",
}
_CLASSES = {
    **dict.fromkeys(("setting", "warnings"), "setting"),
    **dict.fromkeys(("classes", "images", "crop", "value", "paper", "seconds"), "number"),
    "checkpoint": "hash",
}
_FOOTNOTE = (
    "Accuracies and mAP in percent, but for clusters. The column paper has what the paper reports for the same method "
    "with a ResNet-50, the same pretraining epochs and crops, protocol and data, and is empty where there is none; "
    "beside mocov2plus it is MoCo v2's. KNN takes the best K on the validation images, as the paper does."
)
_FOOTNOTE_VOC = (
    " On VOC07 the authors' released code averages precision over the classes of each image, ours over the images of "
    "each class, as the benchmark does: these figures of the paper's own models do not compare."
)


class SummaryRow(NamedTuple):
    """A line of the table."""

    evaluation: str
    setting: str
    method: str
    data: str
    classes: str
    images: str  # that the measure is of
    crop: str  # their side in pixels, where flags decide it
    measure: str
    value: str
    paper: str
    seconds: str
    warnings: str  # of pretraining
    judged: str  # the run's measures without labels
    checkpoint: str


HEADER = SummaryRow._fields
# Columns that a narrow terminal can do without, the first one first; the others say what was measured, and how good.
DISPENSABLE = ("checkpoint", "seconds", "judged", "crop", "images", "classes", "warnings", "paper", "setting", "data")


@dataclass(frozen=True)
class Summary:
    """The results below a folder, each beside the paper's figure that it compares with."""

    rows: list[SummaryRow]
    pictures: list[svg.Shown]  # of detectors

    def table(self, columns: int | None = None) -> str:
        """Return the table, of so many characters where it can be: without what it can do without."""
        header, cells = list(HEADER), [list(row) for row in self.rows]
        if columns is not None:
            header, cells = narrowed(header, cells, columns, DISPENSABLE, whole=["value"])
        return table(header, cells)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the table as it is."""
        return data_frame([row._asdict() for row in self.rows])

    def save(self, folder: str | Path) -> list[Path]:
        """Write summary.md and summary.html into a folder; return them."""
        files = [Path(folder) / "summary.md", Path(folder) / "summary.html"]
        for file, text in zip(files, (markdown(self.rows), html(self.rows, self.pictures)), strict=True):
            write_whole(file, text)
        return files


def summarise(folder: str | Path) -> Summary:
    """Collect every evaluation result below a folder, by data set and evaluation.

    Example:
        >>> summarise("trained_models").to_pandas()  # doctest: +SKIP
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    results = read_results(folder)
    if not results:
        raise UserError(f"{folder}: no evaluation results below it; run solo-hcsc knn or solo-hcsc linear first")
    pictures = sheets.of_results(one for one in results if one["evaluation"] == "detect")
    return Summary(rows_of(results, folder), pictures)


def rows_of(results: Iterable[Mapping[str, Any]], folder: Path) -> list[SummaryRow]:
    """Return the rows of results, by data set and evaluation; checkpoints below the folder are named from it."""
    rows = [row for result in results for row in _rows_of(result, folder)]
    order = list(paper.METRICS)
    return sorted(rows, key=lambda row: (row.data, order.index(row.evaluation)))


def markdown(rows: Sequence[SummaryRow], columns: Sequence[str] = HEADER) -> str:
    """Return the table, or some columns of it, as Markdown."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(map(as_text, cells)) + " |"

    rule = "|" + "---|" * len(columns)
    shown = (line(getattr(row, name) for name in columns) for row in rows)
    return "\n".join([line(columns), rule, *shown, "", _footnote(rows), ""])


def as_text(cell: str) -> str:
    """Escape a cell for Markdown: no HTML, no links, no emphasis, no end of the cell."""
    cell = re.sub(r"([\\`*\[\]|~])", r"\\\1", escape(cell, quote=False))
    return cell.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")


def html(rows: Sequence[SummaryRow], pictures: Sequence[svg.Shown] = ()) -> str:
    """Return the table as a page, with pictures below it."""
    return templating.render(
        "summary.html.j2",
        title="Evaluation results",
        columns=[(name, _CLASSES.get(name, "")) for name in HEADER],
        rows=rows,
        footnote=_footnote(rows),
        pictures=pictures,
    )


def _footnote(rows: Sequence[SummaryRow]) -> str:
    return _FOOTNOTE + (_FOOTNOTE_VOC if any(row.evaluation == "voc" for row in rows) else "")


def _rows_of(result: Mapping[str, Any], folder: Path) -> list[SummaryRow]:
    """Return a result's rows: one, or one for each way of clustering."""
    try:
        return [SummaryRow(*map(on_one_line, row)) for row in _read(result, folder)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{result['file']}: not what an evaluation writes ({type(error).__name__}: {error}); remove or repeat it"
        ) from error


def _read(result: Mapping[str, Any], folder: Path) -> Iterator[SummaryRow]:
    evaluation, settings = result["evaluation"], result["settings"]
    checkpoint = Path(result["checkpoint"])
    checkpoint = checkpoint.relative_to(folder) if checkpoint.is_relative_to(folder) else checkpoint
    parts = [(_setting(evaluation, settings), _protocol(evaluation, settings), result["metrics"])]
    if evaluation == "clustering":
        tree = [settings["tree"]] if settings.get("tree") else []
        parts = [_way_of_clustering(way, result) for way in [*settings["all"], *tree]]
    for setting, protocol, metrics in parts:
        named = {_METRIC_NAMES[name]: metrics[name] for name in paper.METRICS[evaluation] if name in metrics}
        for count, value in zip(settings.get("label_groups", []), metrics.get("ami_levels", []), strict=False):
            named[f"AMI, {count} groups"] = value
        found = None
        if protocol is not None:
            model = result["method"], result.get("pretraining", {})
            found = paper.find(evaluation, result["dataset"], protocol, *model)
        yield SummaryRow(
            evaluation,
            setting,
            _method(result),
            _data(result),
            _fact(result, "classes"),
            _fact(result, f"{_split(result)}_images"),
            _fact(result, "crop_size"),
            " / ".join(named),
            " / ".join(_figure(evaluation, value) for value in named.values()),
            "" if found is None else _published(found),
            f"{result['seconds']:.0f}",
            "; ".join(result.get("warnings", [])),
            ", ".join(f"{name} {value}" for name, value in judged(result.get("pretraining", {})).items()),
            str(checkpoint),
        )


def _setting(evaluation: str, settings: Mapping[str, Any]) -> str:
    """Describe what distinguishes results of one evaluation."""
    said = []
    if evaluation in ("knn", "zeroshot"):
        said = [f"k={settings['k']}", *_way_of_voting(settings)]
    elif evaluation == "semisup":
        said = [_share(settings)]
    elif evaluation == "fewlabels":
        said = [f"linear, mean over {', '.join(map(str, settings['budgets']))} labels"]
    elif evaluation == "adapt":
        said = [f"{settings['loss']}, {settings['handed_over']} features handed over"]
    elif evaluation == "detect":
        kind = "Mask" if settings["masks"] else "Faster"
        said = [f"{kind} R-CNN {settings['head'].upper()}, {settings['max_steps']} iterations"]
        said += ["random weights"] if settings["random_weights"] else []
    elif "config" in settings:
        said = [settings["config"]]
    other = [name for name in settings.get("deviations", []) if name != "features"]
    if other:
        said.append(f"not the paper's {', '.join(other)}")
    if "chosen" in settings:
        said.append(f"lr {settings['lr']:g}, {settings['chosen']}")
    if str(settings.get("features", "")).startswith("cached"):
        said.append("cached features")
    return ", ".join(said)


def _way_of_voting(settings: Mapping[str, Any]) -> list[str]:
    """Describe where KNN's settings are not the usual ones."""
    others = settings.get("deviations", [])
    said = ["projector"] if settings.get("features") == "projector" else []
    if "distance_function" in others:
        said.append(settings["distance"])
    if "temperature" in others and settings["temperature"] is not None:
        said.append(f"temperature {settings['temperature']:g}")
    return said


def _protocol(evaluation: str, settings: Mapping[str, Any]) -> str | None:
    """Return the name that the paper's figures have for this protocol; None if the paper has none."""
    plain = settings.get("features", "backbone") == "backbone" and "chosen" not in settings
    if not plain or settings.get("deviations", ["unknown"]):
        return None
    if evaluation == "semisup":
        return _share(settings)
    return settings.get("config") if evaluation == "linear" else ""


def _way_of_clustering(way: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, str | None, Mapping[str, Any]]:
    """Return setting, protocol and figures of one way of clustering."""
    settings = result["settings"]
    protocol = way["name"]
    if way["kind"] == "hierarchy":
        # Clusters that were too small are gone from a level: the paper names it by what was asked for.
        asked = "-".join(map(str, result.get("pretraining", {}).get("num_prototypes", [])))
        protocol = f"hierarchy level {way['level']} of {asked}"
    said = [way["name"]]
    if settings.get("features") == "projector" and way["kind"] == "k-means":
        said.append("projector")
    if settings.get("split", "train") != "train":
        said.append("validation images")
        protocol = None
    return ", ".join(said), protocol, way


def _published(found: paper.Published) -> str:
    """Return the paper's figures, up to the last that it has."""
    metrics = paper.METRICS[found.evaluation]
    last = max(place for place, name in enumerate(metrics) if name in found.values)
    return " / ".join(
        _figure(found.evaluation, found.values[name]) if name in found.values else "-" for name in metrics[: last + 1]
    )


def _share(settings: Mapping[str, Any]) -> str:
    percent = 100 * settings["label_fraction"]
    return f"{round(percent) if abs(percent - round(percent)) < 0.1 else round(percent, 2)} % of labels"


def _split(result: Mapping[str, Any]) -> str:
    """Return which images were measured."""
    return result["settings"].get("split", "val")


def _data(result: Mapping[str, Any]) -> str:
    """Return the data set; for folders, their name and that of the split's folder."""
    data = result.get("data", {})
    folder = data.get(f"{_split(result)}_dir")
    if result["dataset"] not in ("custom", "voc", *STORED) or folder is None:
        return result["dataset"]
    return f"{Path(data['data_dir']).name}/{folder}"


def _fact(result: Mapping[str, Any], name: str) -> str:
    """Return a fact about a result's images, if it has it."""
    return str(result.get("data", {}).get(name, ""))


def _method(result: Mapping[str, Any]) -> str:
    """Describe the method: its epochs, whether it had true labels, and the weights it started from."""
    method, pretraining = result["method"], result.get("pretraining", {})
    asked = pretraining.get("max_epochs")
    done = pretraining.get("epochs", asked)
    epochs = "" if done is None else f", {done} epochs" if asked in (None, done) else f", {done} of {asked} epochs"
    start = pretraining.get("init_weights")
    began = f" from {Path(start).name}" if start else ""
    oracle = " with true labels (oracle)" if pretraining.get("oracle_labels") else ""
    return f"{method or '?'}{oracle}{' multi-crop' if pretraining.get('multi_crop') else ''}{epochs}{began}"


def _figure(evaluation: str, value: float) -> str:
    return f"{value:.3f}" if evaluation == "clustering" else f"{value:.2f}"
