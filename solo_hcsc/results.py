"""Evaluation results on disk: one JSON file each, and a table of many."""

import json
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from solo_hcsc.checkpoints import recorded_args

_PACKAGES = ("solo_hcsc", "solo-learn", "torch", "torchvision", "pytorch-lightning")


def write_result(
    file: Path,
    evaluation: str,
    dataset: str,
    checkpoint: Path,
    metrics: dict[str, float],
    settings: dict[str, Any],
    seconds: float,
) -> None:
    result = {
        "evaluation": evaluation,
        "method": recorded_args(checkpoint).get("method"),
        "dataset": dataset,
        "metrics": metrics,
        "settings": settings,
        "checkpoint": str(checkpoint),
        "seconds": round(seconds, 1),
        "command": sys.argv,
        "versions": {"python": platform.python_version()} | {p: version(p) for p in _PACKAGES},
    }
    file.write_text(json.dumps(result, indent=2, default=str) + "\n")


def read_results(folder: Path) -> list[dict[str, Any]]:
    """All results below a folder, oldest first."""
    results = []
    for file in sorted(folder.rglob("*.json"), key=lambda file: file.stat().st_mtime):
        try:
            content = json.loads(file.read_text())
        except ValueError:
            continue  # not ours: every file of ours is written in one go
        if isinstance(content, dict) and "evaluation" in content and "metrics" in content:
            results.append(content)
    return results


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns: text to the left, numbers to the right."""
    cells = [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    numeric = [all(_is_number(row[i]) for row in cells) and bool(cells) for i in range(len(header))]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, cells)])


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()
