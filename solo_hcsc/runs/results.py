"""Evaluation results on disk: one JSON file each; and a run's metrics.csv."""

import contextlib
import csv
import glob
import json
import math
import platform
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import read_json, try_writing, write_whole

if TYPE_CHECKING:  # these need torch, which a summary of results does without
    from solo_hcsc.data.images import Skipped
    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.runs.encoders import Encoder

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


@dataclass(frozen=True)
class Result:
    """What an evaluation found, and all that it takes to repeat it."""

    evaluation: str
    method: str | None
    data: Mapping[str, Any]
    metrics: Mapping[str, float]  # the figures to compare by
    settings: Mapping[str, Any]
    seconds: float

    def write(self, file: Path, encoder: "Encoder", invocation: Invocation) -> None:
        trained = encoder.trained_with
        content = {
            "evaluation": self.evaluation,
            "method": trained.get("method") or self.method,
            "dataset": self.data["name"],
            "metrics": self.metrics,
            "settings": self.settings,
            "data": self.data,
            "checkpoint": str(encoder.checkpoint),
            "checkpoint_sha256": encoder.fingerprint,
            "pretraining": _pretraining(trained, encoder),
            "warnings": list(encoder.warnings),
            "seconds": round(self.seconds, 1),
            "command": invocation.line,
            "flags": list(invocation.argv),
            "versions": versions(),
        }
        write_whole(file, json.dumps(content, indent=2, default=str) + "\n")


def result_file(checkpoint: Path, evaluation: str, source: "ImageSource") -> Path:
    """Where a checkpoint's result goes: beside it, a file for each evaluation and data set; tried before the work."""
    data = f"custom-{source.data_dir.resolve().name}" if source.dataset == "custom" else source.dataset
    file = checkpoint.parent / f"{evaluation}-{data}-{checkpoint.stem}.json"
    try_writing(file, "copy the checkpoint elsewhere")
    return file


def describe_data(
    source: "ImageSource", classes: int | None, skipped: "Sequence[Skipped]" = (), **images: int
) -> dict[str, Any]:
    """Where the images are, how many of which split, of how many classes, and at what size they were looked at.

    `skipped`: images that could not be read and are not among those.
    """
    folders = {f"{split}_dir": getattr(source, f"{split}_dir") for split in ("train", "val") if split in images}
    places = {"data_dir": source.data_dir, **folders}
    level = {} if source.class_level is None else {"class_level": source.class_level}
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
    """Which top-k accuracies say anything: of five classes, the right one is always among the first five."""
    return (1, 5) if classes > 5 else (1,)


def named_accuracies(tops: Sequence[int], values: Sequence[float]) -> dict[str, float]:
    """Top-k accuracies by the names that they have in results."""
    return {f"acc{top}": value for top, value in zip(tops, values, strict=True)}


def column(k: int) -> str:
    """The heading of a top-k accuracy."""
    return f"top-{k} %"


def _pretraining(trained: Mapping[str, Any], encoder: "Encoder") -> dict[str, Any]:
    """What the paper's tables tell models apart by."""
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
    """The measures without labels that a run logged in the last of so many epochs; none of a foreign or older run."""
    if not file.is_file():
        return {}
    with contextlib.suppress(UserError):  # an evaluation is not lost for them
        found = read_metrics(file, JUDGED.__contains__)
        return {name: values[epochs - 1] for name, values in found.items() if epochs - 1 in values}
    return {}


def versions(*others: str) -> dict[str, str]:
    """Of what computes, and of further packages."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *others):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # one of the two faiss packages, or an extra
            continue
    return found


def read_results(folder: Path, pattern: str = "**/*.json") -> list[dict[str, Any]]:
    """All results below a folder, oldest first, each with its file's name."""
    results = []
    files = [file for file in folder.glob(pattern) if file.is_file()]
    for file in sorted(files, key=lambda file: (file.stat().st_mtime, file)):
        content = read_json(file)
        if isinstance(content, dict) and "evaluation" in content and "metrics" in content:
            results.append({**content, "file": str(file)})
    return results


def results_of(checkpoint: Path, fingerprint: str) -> list[dict[str, Any]]:
    """What evaluations found for a checkpoint with this SHA-256, beside which they write."""
    found = read_results(checkpoint.parent, f"*-{glob.escape(checkpoint.stem)}.json")
    return [result for result in found if result.get("checkpoint_sha256") == fingerprint]


def read_metrics(file: Path, wanted: Callable[[str], bool]) -> dict[str, dict[int, float]]:
    """The wanted columns of a run's metrics.csv: each epoch's last value, since a resumed epoch has two."""
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
    """An epoch of metrics.csv; one that no run reaches would end a curve's drawing with a traceback."""
    if len(text) > 9:
        raise ValueError(f"epoch {text[:20]}...")
    return int(text)
