"""The images nearest to each one, searched block by block, so that few of all embeddings are in memory."""

from pathlib import Path
from typing import Any

import numpy as np

from solo_hcsc.hcsc.kmeans import import_faiss, normalise

APPROXIMATE = 100_000  # images from which faiss looks for neighbours in parts of the data
PROBES = 16  # parts that are looked through
BLOCK = 4096  # rows in memory at a time: 32 MB of 2048 numbers each


class StoredRows:
    """Read rows of an NPY file (N, D) when they are asked for; nothing of it stays in memory."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def shape(self) -> tuple[int, int]:
        """Return N and D."""
        return self._mapped().shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        return np.array(self._mapped()[which])

    def _mapped(self) -> Any:
        # Mapped anew each time: what was read counts as this process's memory for as long as the map lives.
        return np.load(self._file, mmap_mode="r")


Rows = np.ndarray | StoredRows


def nearest_rows(rows: Rows, start: int, stop: int, k: int, block: int = BLOCK) -> tuple[np.ndarray, np.ndarray]:
    """Find the `k` other rows most similar to each of those from `start` up to `stop`.

    Args:
        rows: (N, D); compared by their cosine, each with all.
        block: how many are compared with at a time.

    Returns:
        Their numbers (stop - start, k), the most similar first, and the similarities (stop - start, k).
    """
    faiss = import_faiss()
    queries = normalise(rows[start:stop])
    own = np.arange(start, stop)[:, None]
    numbers, similarities = np.empty((len(own), 0), "int64"), np.empty((len(own), 0), "float32")
    for low in range(0, len(rows), block):
        others = normalise(rows[slice(low, low + block)])
        found, places = faiss.knn(queries, others, min(k + 1, len(others)), metric=faiss.METRIC_INNER_PRODUCT)
        numbers = np.concatenate([numbers, places + low], axis=1)
        similarities = np.concatenate([similarities, np.where(places + low == own, -np.inf, found)], axis=1)
        order = np.lexsort((numbers, -similarities), axis=1)[:, :k]  # of equal ones the first
        numbers = np.take_along_axis(numbers, order, axis=1)
        similarities = np.take_along_axis(similarities, order, axis=1)
    return numbers, similarities


def nearest_others(points: np.ndarray, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest others of each of some vectors: exactly, or of 100,000 and more approximately.

    Args:
        points: (N, D) unit vectors.
        count: how many of each, less than N.
        seed: of the approximate search.

    Returns:
        Their numbers (N, count), nearest first, and distances (N, count); -1 and NaN where fewer were found.

    Example:
        >>> numbers, distances = nearest_others(np.eye(3, dtype="float32")[[0, 1, 1]], 1)
        >>> numbers[1:].tolist(), distances[2].tolist()
        ([[2], [1]], [0.0])
    """
    faiss = import_faiss("neighbours are found")
    index = faiss.IndexFlatL2(points.shape[1])
    if len(points) >= APPROXIMATE:
        index = faiss.IndexIVFFlat(index, points.shape[1], int(4 * len(points) ** 0.5))
        index.cp.seed, index.nprobe = seed, PROBES
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 64
        index.train(points)
    index.add(points)
    squares, found = index.search(points, count + 1)
    squares[found < 0] = np.nan  # the parts that were looked through have no more
    own = found == np.arange(len(points))[:, None]
    own[~own.any(axis=1), -1] = True  # among equal ones an image need not find itself
    shape = len(points), count
    return found[~own].reshape(shape), np.sqrt(np.maximum(squares[~own].reshape(shape), 0))
