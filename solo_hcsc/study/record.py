"""The files of a study, each with one schema that writes it and reads it: comparison.json and analysis.json.

Texts are kept on one line, numbers are finite, and a file that breaks the schema is refused in one line.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import read_json, write_whole
from solo_hcsc.tables import clock, data_frame, table

if TYPE_CHECKING:
    import pandas


class MeasureKind(NamedTuple):
    """A measure: its result and how it is shown."""

    evaluation: str
    metric: str  # its name in the evaluation's result
    title: str
    long: str
    digits: int
    unit: str

    def heading(self, rows: "Sequence[Row]", name: str) -> str:
        """Return the title of the column of measure `name`, with the number of images that all rows have in common."""
        counts = {row.measures[name].images for row in rows if name in row.measures}
        images = counts.pop() if len(counts) == 1 else None
        return f"{self.title}{self.unit}" + (f" ({images} images)" if images else "")

    def show(self, value: float) -> str:
        """Return a value with the digits that count."""
        return f"{value:.{self.digits}f}"

    def show_mean(self, measure: "Measure") -> str:
        """Return the mean, with the spread if there is one."""
        spread = "" if measure.spread is None else f" ± {self.show(measure.spread)}"
        return f"{self.show(measure.mean)}{spread}"


MEASURES = {
    "knn": MeasureKind("knn", "acc1", "KNN", "KNN accuracy", 2, " %"),
    "linear": MeasureKind("linear", "acc1", "Linear", "linear accuracy", 2, " %"),
    "picked": MeasureKind("fewlabels", "picked", "Few labels, picked", "accuracy with few picked labels", 2, " %"),
    "random": MeasureKind("fewlabels", "random", "Few labels, random", "accuracy with few random labels", 2, " %"),
    "ami": MeasureKind("clustering", "ami", "AMI", "AMI", 3, ""),
    "nmi": MeasureKind("clustering", "nmi", "NMI", "NMI", 3, ""),
}


def _on_one_line(value: Any) -> Any:
    return on_one_line(value) if isinstance(value, str) else value


def _without_gaps(points: Any) -> Any:
    """Return a curve's pairs but those without a finite value."""
    if not isinstance(points, list):
        return points
    pairs = [tuple(point) if isinstance(point, list) else point for point in points]
    return [pair for pair in pairs if not (isinstance(pair, tuple) and pair and _is_gap(pair[-1]))]


def _is_gap(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _file_beside(name: str) -> str:
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not the name of a file beside it")
    return name


Text = Annotated[str, BeforeValidator(_on_one_line)]
Curve = Annotated[list[tuple[int, float]], BeforeValidator(_without_gaps), AfterValidator(sorted)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Measure(_Record):
    """One measure of a row, over its seeds."""

    mean: float
    spread: float | None  # sample standard deviation over seeds; None with one
    values: Annotated[list[float], Field(min_length=1)]  # one for each seed
    images: int | None = None  # that it is measured on


class Cost(_Record):
    """Cost of pretraining; None where it is not known."""

    epochs: int | None = None
    epoch_seconds: float | None = None
    seconds: float | None = None
    peak_memory: float | None = None  # bytes


class Evaluated(_Record):
    """An evaluation of a run."""

    command: Text
    split: Literal["train", "val"] | None = None  # the images that were clustered, of an evaluation that chooses
    images: int | None = None  # how many there were


class SeedRun(_Record):
    """One pretrained model: a row with one seed."""

    seed: int
    folder: Text  # below the comparison's
    command: Text  # that a reader would type
    flags: list[Text]  # of pretraining as a reader would type them, without the seed
    settings: dict[str, Any] = {}  # the same as values; missing in older records
    evaluations: dict[Text, Evaluated]  # by name
    measures: dict[Text, float]
    cost: Cost
    checkpoint_sha256: Text
    warnings: list[Text] = []  # what stood against it when its last checkpoint was written
    curves: dict[Text, Curve]  # (epoch from 0, value), without gaps


class Row(_Record):
    """A method, or a variant of one, with all its seeds."""

    name: Text
    base: Text  # the row at equal epochs of which this is a longer version; its own name if it is none
    epochs: int | None  # asked for
    flags: list[Text]
    settings: dict[str, Any] = {}
    measures: dict[Text, Measure]
    cost: Cost
    runs: list[SeedRun]

    @property
    def warnings(self) -> list[str]:
        """Return what stood against its runs, each once."""
        return list(dict.fromkeys(warning for run in self.runs for warning in run.warnings))

    @property
    def seeds(self) -> int:
        """Return how many there are."""
        return max([len(measure.values) for measure in self.measures.values()], default=len(self.runs))


class Trial(_Record):
    """One draw of a method's settings, and what came of it."""

    number: int
    seed: int
    base: list[Text]  # flags of pretraining that all trials of the method share, as a reader would type them
    flags: list[Text]  # those that were drawn
    common: dict[str, Any] = {}  # what all trials share, as values; missing in older records, like the next one
    settings: dict[str, Any] = {}  # what was drawn, as values
    drawn: dict[Text, Text]  # the same as text
    epochs_asked: int
    state: Literal["finished", "stopped", "failed"]  # stopped: by the pruner
    why: Text | None = None  # it failed
    value: float | None  # the accuracy that it is judged by; None where it did not come to its end
    curve: Curve  # (epoch from 0, accuracy)
    seconds: float


class Search(_Record):
    """The trials that the settings of a comparison's methods were chosen by, as many of each method."""

    metric: Text  # in metrics.csv, of the held-out images of `val_dir`
    trials: int
    epochs: int
    seed: int
    images: int | None = None  # held out, which judged the trials; unknown in older records
    ranges: dict[Text, dict[Text, Text]]  # of each method, by flag
    of_methods: dict[Text, list[Trial]]


class Comparison(_Record):
    """The result of a study: all of comparison.json.

    Example:
        >>> read(Path("trained_models/comparison")).table()  # doctest: +SKIP
    """

    title: Text
    kind: Literal["compare", "ablate"]
    budget: Literal["epochs", "seconds"]
    command: Text
    settings: dict[str, Any]
    reference: Text | None = None  # the row that the others of an ablation are compared with
    machine: dict[str, Any]
    versions: dict[str, Any]
    rows: Annotated[list[Row], Field(min_length=1)]
    failed: dict[Text, Text]  # runs and why they failed
    elsewhere: list[Text] = []  # runs that another process still worked on
    search: Search | None = None  # where the rows' settings were chosen by trials

    @model_validator(mode="after")
    def _names_differ(self) -> "Comparison":
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise ValueError("two rows have the same name")
        return self

    @property
    def ablates(self) -> bool:
        """Return whether its rows are variants of one method."""
        return self.kind == "ablate"

    @property
    def reference_row(self) -> Row:
        """Return the row of an ablation that the others are compared with."""
        return next((row for row in self.rows if row.name == self.reference), self.rows[0])

    @property
    def kinds(self) -> dict[str, MeasureKind]:
        """Return the measures that any row has."""
        return {name: kind for name, kind in MEASURES.items() if any(name in row.measures for row in self.rows)}

    def table(self) -> str:
        """Return a line for each row: its measures with their spread over seeds, and its cost."""
        headings = [kind.heading(self.rows, name) for name, kind in self.kinds.items()]
        first = "variant" if self.ablates else "method"
        return table((first, *headings, "seeds", "epochs", "[h:]mm:ss", "MB"), map(self._cells, self.rows))

    def _cells(self, row: Row) -> list[str]:
        cost = row.cost
        measures = (
            kind.show_mean(row.measures[name]) if name in row.measures else "-" for name, kind in self.kinds.items()
        )
        return [
            row.name,
            *measures,
            str(row.seeds),
            "-" if cost.epochs is None else str(cost.epochs),
            "-" if cost.seconds is None else clock(cost.seconds),
            "-" if cost.peak_memory is None else f"{cost.peak_memory / 1e6:.0f}",
        ]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row for each run: the row's name, the seed, each measure and the cost."""
        runs = [(row, run) for row in self.rows for run in row.runs]
        return data_frame(
            [{"name": row.name, "seed": run.seed, **run.measures, **run.cost.model_dump()} for row, run in runs]
        )

    def save(self, folder: str | Path) -> Path:
        """Write comparison.json into a folder; return the file."""
        file = Path(folder) / "comparison.json"
        write_whole(file, json.dumps(self.model_dump(), indent=1) + "\n")
        return file


class AnalysisFigure(_Record):
    """A picture of an analysis."""

    file: Annotated[Text, AfterValidator(_file_beside)]
    title: Text
    caption: Text


class Analysis(_Record):
    """All of analysis.json, which lies beside its pictures."""

    method: Text | None
    checkpoint: Text
    checkpoint_sha256: Text
    command: Text
    flags: list[Text]
    versions: dict[str, Any]
    seconds: float
    data: dict[str, Any]
    settings: dict[str, Any]
    numbers: dict[str, Any]
    figures: list[AnalysisFigure]


def read(folder: Path) -> Comparison:
    """Read the comparison in a folder."""
    file = folder / "comparison.json"
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; run solo-hcsc compare first")
    return _validated(Comparison, file, "compare")


def read_published(file: Path) -> tuple[Comparison, dict[str, Analysis]]:
    """Read a report's numbers: the comparison, and its analyses by the run's folder."""
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("analyses"), dict):
        raise UserError(f"{file}: neither a folder of solo-hcsc compare nor the JSON beside a report")
    analyses = {name: _checked(Analysis, one, file, "report") for name, one in content["analyses"].items()}
    return _checked(Comparison, content.get("comparison"), file, "report"), analyses


def analysis_folder(folder: Path, run: SeedRun) -> Path:
    """Return where the analysis of a run of the comparison in `folder` is, if there is one."""
    return folder / run.folder / "analysis"


def read_analysis(folder: Path, run: SeedRun) -> Analysis | None:
    """Read the analysis of a run of the comparison in `folder`, if there is one."""
    where = analysis_folder(folder, run)
    file = where / "analysis.json"
    try:
        if not where.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{folder / 'comparison.json'}: the run {run.folder} is outside of its folder")
        if not file.is_file():
            return None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from error
    return _validated(Analysis, file, "analyse")


def write_analysis(folder: Path, analysis: Analysis) -> None:
    """Write analysis.json into the folder of its pictures."""
    write_whole(folder / "analysis.json", json.dumps(analysis.model_dump(), indent=2) + "\n")


_Model = TypeVar("_Model", bound=_Record)


def _validated(model: type[_Model], file: Path, command: str) -> _Model:
    return _checked(model, read_json(file), file, command)


def _checked(model: type[_Model], content: Any, file: Path, command: str) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        reason = _reason(error.errors(include_url=False))
        raise UserError(f"{file}: not what solo-hcsc {command} writes ({reason}); repeat it") from error


def _reason(errors: Sequence[Any]) -> str:
    first = errors[0]
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(map(str, first["loc"]))
    return on_one_line(f"{where}: {message}" if where else message)
