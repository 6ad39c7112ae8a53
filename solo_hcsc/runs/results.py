"""Evaluation results on disk: one JSON file each; and a run's metrics.csv."""

import contextlib
import csv
import glob
import json
import math
import platform
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from statistics import mean, pstdev
from typing import TYPE_CHECKING, Any

from solo_hcsc.data.source import STORED
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import read_json, try_writing, write_whole
from solo_hcsc.tables import data_frame, score, table

if TYPE_CHECKING:  # these need torch, which a summary of results does without
    import pandas

    from solo_hcsc.data.images import Skipped
    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.encoders.loading import Encoder

_PACKAGES = (
    *("solo_hcsc", "solo-learn", "torch", "torchvision", "pytorch-lightning", "torchmetrics", "timm", "numpy"),
    *("scikit-learn", "faiss-cpu", "faiss-gpu"),
)
JUDGED = ("rankme", "alignment", "uniformity", "dead_dimensions")  # in metrics.csv


@dataclass(frozen=True)
class Invocation:
    """A command as it was typed, for the record."""

    command: str
    argv: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"solo-hcsc {self.command} {shlex.join(self.argv)}".rstrip()


_ORIGIN = ("checkpoint", "checkpoint_sha256", "pretraining", "warnings", "command", "flags")  # entries of a file


@dataclass(frozen=True, eq=False)
class Result:
    """Hold what an evaluation found, and all that it takes to repeat it.

    Args:
        evaluation: its name, such as `knn`.
        metrics: the figures to compare by.
        settings: how it was done.
        data: which images, how many, of how many classes; `name` is the data set's.
        rows: one for each way that was tried, each level or class; a list in a row has a value for each draw.
        columns: which entries of the rows `table` shows, in order, and their headings; all if not given.
        digits: after the point, in the table.
        method: what the encoder was pretrained with.
        seconds: how long it took.
        origin: the checkpoint and the command, as `of` and `load` add them; empty for features in memory.
        versions: of the packages that computed it.

    Example:
        >>> found = Result("knn", {"acc1": 75.0}, rows=[{"k": 20, "acc1": 75.0}], columns={"k": "k", "acc1": "top-1 %"})
        >>> print(found.table())
         k  top-1 %
        --  -------
        20    75.00
    """

    evaluation: str
    metrics: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=lambda: {"name": "arrays"})
    rows: Sequence[Mapping[str, Any]] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    digits: int = 2
    method: str | None = None
    seconds: float = 0.0
    origin: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    def table(self) -> str:
        """Return the rows as text; the metrics where there are no rows."""
        rows = self.rows or [self.metrics]
        columns = self.columns if self.rows and self.columns else dict.fromkeys(dict.fromkeys(chain(*rows)))
        header = [heading or name for name, heading in columns.items()]
        return table(header, [[self._cell(row.get(name), name) for name in columns] for row in rows])

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a table of pandas; the metrics where there are no rows."""
        return data_frame(self.rows or [self.metrics])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {self._cell(value, name)}" for name, value in self.metrics.items())
        return f"{self.evaluation}: {figures}\n{self.table()}"

    def _cell(self, value: Any, name: str) -> str:
        """Format a setting as it was given, a figure with its digits, those of several draws by mean and deviation."""
        if isinstance(value, list | tuple) and value:
            return f"{score(mean(value), self.digits)} ± {score(pstdev(value), self.digits)}"
        if value is None or value != value:
            return "-"
        if isinstance(value, float):
            return f"{value:g}" if name in self.settings else score(value, self.digits)
        return str(value)

    def of(self, encoder: "Encoder", invocation: Invocation | None = None) -> "Result":
        """Return the same result with the checkpoint of which it is, and the command that asked for it."""
        trained = encoder.trained_with
        origin = {
            "checkpoint": str(encoder.checkpoint),
            "checkpoint_sha256": encoder.fingerprint,
            "pretraining": _pretraining(trained, encoder),
            "warnings": list(encoder.warnings),
        }
        if invocation is not None:
            origin |= {"command": invocation.line, "flags": list(invocation.argv)}
        return replace(self, method=trained.get("method") or self.method, origin=origin)

    def save(self, file: str | Path) -> Path:
        """Write a JSON file, which is never half there, and return its path; `load` reads it."""
        unknown: dict[str, Any] = {"checkpoint": "", "checkpoint_sha256": "", "pretraining": {}, "warnings": []}
        origin = {**unknown, "command": "", "flags": [], **self.origin}
        content = {
            "evaluation": self.evaluation,
            "method": self.method,
            "dataset": self.data["name"],
            "metrics": self.metrics,
            "settings": self.settings,
            "data": self.data,
            **origin,
            "seconds": round(self.seconds, 1),
            "versions": self.versions,
            "rows": [dict(row) for row in self.rows],
            "columns": self.columns,
            "digits": self.digits,
        }
        write_whole(Path(file), json.dumps(content, indent=2, default=str) + "\n")
        return Path(file)

    @classmethod
    def load(cls, file: str | Path) -> "Result":
        """Read what `save` wrote."""
        content = read_json(Path(file))
        try:
            known = {item.name: content[item.name] for item in fields(cls) if item.name in content}
            return cls(**known, origin={name: content[name] for name in _ORIGIN if name in content})
        except (TypeError, KeyError) as error:
            raise UserError(f"{file}: not a result that an evaluation wrote ({error})") from error


def result_file(checkpoint: Path, evaluation: str, source: "ImageSource") -> Path:
    """Return where a checkpoint's result goes, a file beside it for each evaluation and data set; try it at once."""
    file = beside(checkpoint, evaluation, source.dataset, source.data_dir)
    try_writing(file, "copy the checkpoint elsewhere")
    return file


def beside(checkpoint: Path, evaluation: str, dataset: str, data_dir: Any = None) -> Path:
    """Return the file of a checkpoint's result."""
    name = Path(data_dir or "").resolve().name
    if dataset in STORED:  # of which a pattern may be the name
        name = re.sub(r"[^\w.-]+", "_", name)
    data = f"{dataset}-{name}" if dataset in ("custom", *STORED) else dataset
    return checkpoint.parent / f"{evaluation}-{data}-{checkpoint.stem}.json"


def describe_data(
    source: "ImageSource", classes: int | None, skipped: "Sequence[Skipped]" = (), **images: int
) -> dict[str, Any]:
    """Describe the images: where they are, how many of which split and of how many classes, and their size.

    `skipped`: images that could not be read and are not among those.
    """
    folders = {f"{split}_dir": getattr(source, f"{split}_dir") for split in ("train", "val") if split in images}
    places = {"data_dir": source.data_dir, **folders}
    level = {} if source.class_level is None else {"class_level": source.class_level}
    level |= {"train_list": str(source.train_list)} if source.train_list and "train" in images else {}
    return {
        "name": source.dataset,
        **{name: str(place) for name, place in places.items() if place is not None},
        **{f"{split}_images": count for split, count in images.items()},
        **({} if classes is None else {"classes": classes}),
        **level,
        "crop_size": source.crop_size[0],
        **({"unreadable": [on_one_line(one.path) for one in skipped]} if skipped else {}),
    }


def shown_accuracies(classes: int) -> tuple[int, ...]:
    """Return which top-k accuracies say anything: of five classes, the right one is always among the first five."""
    return (1, 5) if classes > 5 else (1,)


def named_accuracies(tops: Sequence[int], values: Sequence[float]) -> dict[str, float]:
    """Return top-k accuracies by the names that they have in results."""
    return {f"acc{top}": value for top, value in zip(tops, values, strict=True)}


def column(k: int) -> str:
    """Return the heading of a top-k accuracy."""
    return f"top-{k} %"


def _pretraining(trained: Mapping[str, Any], encoder: "Encoder") -> dict[str, Any]:
    """Return the facts by which the paper's tables tell models apart."""
    names = ("dataset", "max_epochs", "batch_size", "seed", "preset", "num_prototypes")
    known = {name: trained[name] for name in names if name in trained}
    if trained.get("oracle_labels"):
        known["oracle_labels"] = True
    if trained.get("init_weights"):
        known["init_weights"] = str(trained["init_weights"])
    if isinstance(trained.get("num_small_crops"), int):
        known["multi_crop"] = trained["num_small_crops"] > 0
    if encoder.epochs is not None:
        known["epochs"] = encoder.epochs  # that it was really trained for
        known |= _judged(encoder.checkpoint.with_name("metrics.csv"), encoder.epochs)
    return {"encoder": encoder.name, **known}


def _judged(file: Path, epochs: int) -> dict[str, float]:
    """Read the measures without labels that a run logged in the last of so many epochs; none of foreign runs."""
    if not file.is_file():
        return {}
    with contextlib.suppress(UserError):  # an evaluation is not lost for them
        found = read_metrics(file, JUDGED.__contains__)
        return {name: values[epochs - 1] for name, values in found.items() if epochs - 1 in values}
    return {}


def versions(*others: str) -> dict[str, str]:
    """Return the versions of what computes, and of further packages."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *others):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # one of the two faiss packages, or an extra
            continue
    return found


def read_results(folder: Path, pattern: str = "**/*.json") -> list[dict[str, Any]]:
    """Read all results below a folder, oldest first, each with its file's name."""
    results = []
    files = [file for file in folder.glob(pattern) if file.is_file()]
    for file in sorted(files, key=lambda file: (file.stat().st_mtime, file)):
        content = read_json(file)
        if isinstance(content, dict) and "evaluation" in content and "metrics" in content:
            results.append({**content, "file": str(file)})
    return results


def results_of(checkpoint: Path, fingerprint: str) -> list[dict[str, Any]]:
    """Read what evaluations found for a checkpoint with this SHA-256, beside which they write."""
    found = read_results(checkpoint.parent, f"*-{glob.escape(checkpoint.stem)}.json")
    return [result for result in found if result.get("checkpoint_sha256") == fingerprint]


def read_metrics(file: Path, wanted: Callable[[str], bool]) -> dict[str, dict[int, float]]:
    """Read the wanted columns of a run's metrics.csv: each epoch's last value, since a resumed epoch has two."""
    found: dict[str, dict[int, float]] = {}
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                for name, value in row.items():
                    if value and wanted(name or "") and math.isfinite(float(value)):
                        found.setdefault(name, {})[_epoch(row["epoch"])] = float(value)
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{file}: not what a run writes ({reason}); restore or remove it") from error
    return found


def _epoch(text: str) -> int:
    """Parse an epoch of metrics.csv; refuse one that no run reaches, on which a curve's drawing would fail."""
    if len(text) > 9:
        raise ValueError(f"epoch {text[:20]}...")
    return int(text)
