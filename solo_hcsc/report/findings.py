"""What a person wants to know of images at once: duplicates, outliers, likely wrong labels, clusters; as CSV files.

Shapes: `N` images.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from solo_hcsc.cells import as_cell
from solo_hcsc.data.folders import ImagesWithoutLabels, files_and_labels
from solo_hcsc.encoders.cache import remembered, stamp_of
from solo_hcsc.encoders.table import Embeddings
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.progress import say
from solo_hcsc.report.maps import tsne
from solo_hcsc.trees.duplicates import Group, find_duplicates
from solo_hcsc.trees.mislabelled import Suspects, find_mislabelled
from solo_hcsc.trees.outliers import find_outliers
from solo_hcsc.trees.plane import FEWEST, differ

MOST_FITTED = 3000  # images that a map is fitted on: 9 CPU seconds
DIRECTIONS = 50  # of the features that it is fitted on, those of most variance
NEAR = 3  # fitted images between which another one lies
SEED = 5
SIDE = 1000  # of a map


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found among N images; numbers are theirs.

    Args:
        groups: duplicates, the image to keep first; None for images that are no files.
        outliers: numbers, the farthest from their neighbours first.
        distances: of the outliers.
        suspects: likely wrong labels.
        places: (N, 2) on a map, from 0 to SIDE; None without one.
    """

    groups: tuple[Group, ...] | None
    outliers: np.ndarray
    distances: np.ndarray
    suspects: Suspects
    places: np.ndarray | None = None


def look_for(found: Embeddings, files: Sequence[str] | None, cache: Path | None = None, plane: bool = True) -> Findings:
    """Find duplicates, outliers, likely wrong labels and places on a map.

    Args:
        found: embeddings of N images.
        files: of the images; None for others, among which no duplicates are looked for.
        cache: the folder of a cache, from which duplicates and places come if they were found before.
        plane: whether to make a map.
    """
    vectors = as_unit_vectors(found, "embeddings")
    digest = sha256(vectors.data).hexdigest()
    far = find_outliers(vectors)
    groups = places = None
    if files is not None:
        facts = [digest, *(f"{file} {stamp_of(file)}" for file in files)]
        rows = remembered(cache, "duplicates", facts, lambda: _groups(files, vectors))
        groups = tuple(Group(keep, tuple(others), exact) for keep, others, exact in rows)
    if plane and len(found) >= FEWEST and differ(vectors):
        places = np.array(remembered(cache, "places", [digest], lambda: _places(vectors)))
    suspects = find_mislabelled(vectors, np.full(len(found), -1) if found.labels is None else found.labels)
    return Findings(groups, far.images, far.distances[far.images], suspects, places)


def _groups(files: Sequence[str], vectors: np.ndarray) -> list[Any]:
    say(f"looking for duplicates among {len(files):,} images")
    groups = find_duplicates(files, vectors).groups
    return [[group.keep, list(group.others), group.exact] for group in groups]


def _places(vectors: np.ndarray) -> list[Any]:
    """Return places on a map (N, 2) as whole numbers: t-SNE of some images, the others among those that they are like.

    The middle 99.8 % of the images in each direction fill the map.
    """
    say("making a map of the images")
    sample = np.linspace(0, len(vectors) - 1, min(MOST_FITTED, len(vectors))).astype(int)
    directions = np.linalg.svd(vectors[sample] - vectors[sample].mean(axis=0), full_matrices=False)[2][:DIRECTIONS]
    fitted = tsne(vectors[sample] @ directions.T, SEED)
    found = np.empty((len(vectors), 2), "float32")
    found[sample] = fitted
    others = np.setdiff1d(np.arange(len(vectors)), sample)
    if len(others):
        near = import_faiss().knn(vectors[others], vectors[sample], NEAR, metric=import_faiss().METRIC_INNER_PRODUCT)[1]
        found[others] = fitted[near].mean(axis=1)
    low, high = np.percentile(found, [0.1, 99.9], axis=0)
    shares = (found - (low + high) / 2) / max(float((high - low).max()), 1e-9) + 0.5
    return np.clip(np.rint(shares * SIDE), 0, SIDE).astype(int).tolist()


def files_of(dataset: Any) -> list[str] | None:
    """Return the files of a data set's images; None where these are no files."""
    if isinstance(dataset, ImagesWithoutLabels) or hasattr(dataset, "samples"):
        return files_and_labels(dataset)[0]
    return None


# ---- CSV files ----


def write_lists(folder: Path, findings: Findings, found: Embeddings, clusters: Iterable[dict[str, Any]]) -> None:
    """Write duplicates.csv, outliers.csv, mislabelled.csv and clusters.csv, without what cannot be known."""
    names = found.names
    if findings.groups is not None:
        _write(folder / "duplicates.csv", ("group", "path", "keep", "exact"), duplicate_rows(findings, found.paths))
    label = [] if names is None else ["label"]
    rows: Iterable[Sequence[Any]] = (
        [found.paths[image], *([] if names is None else [names[image] or ""]), f"{distance:.4f}"]
        for image, distance in zip(findings.outliers.tolist(), findings.distances.tolist(), strict=True)
    )
    _write(folder / "outliers.csv", ("path", *label, "distance"), rows)
    if names is not None:
        suspects = findings.suspects
        each = zip(suspects.images.tolist(), suspects.suggested.tolist(), suspects.margins.tolist(), strict=True)
        rows = ([found.paths[i], names[i], found.classes[other], f"{margin:.3f}"] for i, other, margin in each)
        _write(folder / "mislabelled.csv", ("path", "label", "suggested", "margin"), rows)
    every = [*clusters]
    _write(folder / "clusters.csv", [*every[0]], ([*row.values()] for row in every))


def duplicate_rows(findings: Findings, paths: Sequence[str]) -> Iterable[Sequence[Any]]:
    """Yield group, path, whether to keep it, and whether all files of the group are the same."""
    for number, group in enumerate(findings.groups or (), 1):
        for image in (group.keep, *group.others):
            yield number, paths[image], str(image == group.keep).lower(), str(group.exact).lower()


def _write(file: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(head)
        writer.writerows([as_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
