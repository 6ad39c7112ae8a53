"""Evaluation results on disk: one JSON file each, and a table of many."""

import contextlib
import csv
import json
import math
import os
import platform
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from solo_hcsc.evaluation.encoders import Encoder, recorded_args
from solo_hcsc.cli.errors import UserError

_PACKAGES = (
    "solo_hcsc",
    "solo-learn",
    "torch",
    "torchvision",
    "pytorch-lightning",
    "torchmetrics",
    "timm",
    "numpy",
    "scikit-learn",
    "faiss-cpu",
    "faiss-gpu",
)


def write_result(
    file: Path,
    evaluation: str,
    args: Namespace,
    encoder: Encoder,
    data: dict[str, Any],
    metrics: dict[str, float],
    settings: dict[str, Any],
    seconds: float,
) -> None:
    """Writes what an evaluation found, and all that it takes to repeat it; `metrics` has the figures to compare by."""
    trained = recorded_args(encoder.checkpoint)
    result = {
        "evaluation": evaluation,
        "method": trained.get("method") or args.method,
        "dataset": data["name"],
        "metrics": metrics,
        "settings": settings,
        "data": data,
        "checkpoint": str(encoder.checkpoint),
        "checkpoint_sha256": encoder.fingerprint,
        "pretraining": _pretraining(trained, encoder),
        "seconds": round(seconds, 1),
        "command": f"python -m solo_hcsc.{evaluation} {shlex.join(sys.argv[1:])}",
        "versions": versions(),
    }
    write_whole(file, json.dumps(result, indent=2, default=str) + "\n")


def write_whole(file: Path, text: str) -> None:
    """Writes a file that is never half there."""
    part = file.with_name(file.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise UserError(f"{file}: cannot be written ({error.strerror})") from error


def result_file(checkpoint: Path, evaluation: str, args: Namespace) -> Path:
    """Where a checkpoint's result goes: beside it, a file for each evaluation and data set; tried before the work."""
    data = f"custom-{args.data_dir.resolve().name}" if args.dataset == "custom" else args.dataset
    file = checkpoint.parent / f"{evaluation}-{data}-{checkpoint.stem}.json"
    part = file.with_name(file.name + ".part")
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror}); copy the checkpoint elsewhere") from error
    if file.is_dir():
        raise UserError(f"{file}: is a folder, where the result is to go; remove it")
    return file


def describe_data(args: Namespace, train_set: Dataset, val_set: Dataset) -> dict[str, Any]:
    """Where the images are and how many."""
    folders = {
        name: getattr(args, name, None) for name in ("data_dir", "train_dir", "val_dir", "train_list", "val_list")
    }
    return {
        "name": args.dataset,
        **{name: str(folder) for name, folder in folders.items() if folder is not None},
        "train_images": len(train_set),  # type: ignore[arg-type]
        "val_images": len(val_set),  # type: ignore[arg-type]
    }


def _pretraining(trained: dict[str, Any], encoder: Encoder) -> dict[str, Any]:
    """What the paper's tables tell models apart by."""
    names = ("dataset", "max_epochs", "batch_size", "seed", "preset", "num_prototypes")
    known = {name: trained[name] for name in names if name in trained}
    if isinstance(trained.get("num_small_crops"), int):
        known["multi_crop"] = trained["num_small_crops"] > 0
    if encoder.epochs is not None:
        known.setdefault("max_epochs", encoder.epochs)
    return {"encoder": encoder.name, **known}


def versions(*others: str) -> dict[str, str]:
    """Of what computes, and of further packages."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *others):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # one of the two faiss packages, or an extra
            continue
    return found


def read_results(folder: Path) -> list[dict[str, Any]]:
    """All results below a folder, oldest first, each with its file's name."""
    results = []
    files = [file for file in folder.rglob("*.json") if file.is_file()]
    for file in sorted(files, key=lambda file: (file.stat().st_mtime, file)):
        try:
            content = json.loads(file.read_text())
        except (ValueError, OSError, RecursionError) as error:
            raise UserError(f"{file}: not readable as JSON ({error}); restore or remove it") from error
        if isinstance(content, dict) and "evaluation" in content and "metrics" in content:
            results.append({**content, "file": str(file)})
    return results


def read_metrics(file: Path, wanted: Callable[[str], bool]) -> dict[str, dict[int, float]]:
    """The wanted columns of a run's metrics.csv: each epoch's last value, since a resumed epoch has two."""
    found: dict[str, dict[int, float]] = {}
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                for name, value in row.items():
                    if value and wanted(name or "") and math.isfinite(float(value)):
                        found.setdefault(name, {})[int(row["epoch"])] = float(value)
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{file}: not what a run writes ({reason}); restore or remove it") from error
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns: text to the left, numbers to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[i]) for row in cells) and bool(cells) for i in range(len(header))]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, cells)])


def cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()
