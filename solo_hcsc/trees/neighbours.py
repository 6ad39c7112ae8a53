"""The images nearest to each one, searched block by block, so that few of all embeddings are in memory."""

from pathlib import Path
from typing import Any

import numpy as np

from solo_hcsc.hcsc.kmeans import import_faiss, normalise

BLOCK = 4096  # rows in memory at a time: 32 MB of 2048 numbers each


class StoredRows:
    """Read rows of an NPY file (N, D) when they are asked for; nothing of it stays in memory."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""
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
