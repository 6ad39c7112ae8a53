"""The sheets of test images that `solo-hcsc detect` writes, for a page; reading them needs no torch."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from solo_hcsc.report import svg


def of_results(results: Iterable[Mapping[str, Any]], prefix: str = "sheet-") -> list[svg.Shown]:
    """Return a sheet for each result that has one beside it.

    Args:
        results: As `solo_hcsc.runs.results.read_results` has them.
        prefix: Of the names within the pictures, unique on a page.
    """
    found = []
    for number, result in enumerate(results):
        pictures = result["settings"].get("pictures") or {}
        file = Path(result["file"]).parent / str(pictures.get("file"))
        if file.is_file():
            title = f"{pictures['title']}, {_trained(result)}"
            element = svg.read(file, f"{prefix}{number}-", title)
            found.append(svg.Shown.of(title, pictures["caption"], element, wide=True))
    return found


def _trained(result: Mapping[str, Any]) -> str:
    """Return `hcsc, AP50 61.2 %, iy3y9xbs`: the method, the figure, and the run's folder."""
    weights = "random weights" if result["settings"].get("random_weights") else result["method"] or "?"
    return f"{weights}, AP50 {result['metrics']['AP50']:.1f} %, {Path(result['file']).parent.name}"
