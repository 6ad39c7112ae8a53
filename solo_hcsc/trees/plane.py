"""Maps of features in the plane, fitted on some images and applied to all; UMAP is an extra, imported when it is used.

Shapes: `N` images, `D` embedding size, `n` images of a sample or a block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.kmeans import normalise
from solo_hcsc.trees.neighbours import Rows

FEWEST = 10  # images of which a map says anything
MOST_FITTED = 5000  # images that a map is fitted on; the others are placed among them
SEED = 5


def fit_map(kind: str, rows: Rows) -> Callable[[int, int], np.ndarray]:
    """Return a function that gives the places (n, 2) of rows from one number up to another; `kind`: umap or pca.

    Fitted on rows that are spread evenly, at unit length: as near in the map as they are by their cosine.
    """
    sample = np.linspace(0, len(rows) - 1, min(MOST_FITTED, len(rows))).astype(int)
    features = normalise(rows[sample])
    if not differ(features):
        raise UserError(f"`map` {kind}: the encoder gives all images the same features; leave it out")
    if kind == "pca":
        return _fit_pca(features, rows)
    umap = fit_umap(features, SEED)
    places = dict(zip(sample.tolist(), umap.embedding_, strict=True))

    def place(start: int, stop: int) -> np.ndarray:
        found = np.array([places.get(row, (np.nan, np.nan)) for row in range(start, stop)], dtype="float32")
        others = np.flatnonzero(np.isnan(found[:, 0]))
        if len(others):
            with same_threads():
                found[others] = umap.transform(normalise(rows[start:stop][others]))
        return found

    return place


def _fit_pca(features: np.ndarray, rows: Rows) -> Callable[[int, int], np.ndarray]:
    from sklearn.decomposition import PCA

    pca = PCA(2, random_state=SEED).fit(features)
    return lambda start, stop: pca.transform(normalise(rows[start:stop]))


def fit_umap(features: np.ndarray, seed: int) -> Any:
    """Fit UMAP to features (n, D); its `embedding_` are their places (n, 2)."""
    from umap import UMAP

    with same_threads():
        return UMAP(n_neighbors=min(15, len(features) - 1), random_state=seed, n_jobs=1).fit(features)


@contextmanager
def same_threads() -> Iterator[None]:
    """Leave torch its number of threads: numba sets its own for all that uses OpenMP."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def has_umap() -> bool:
    """Return whether UMAP is installed."""
    return find_spec("umap") is not None


def differ(features: np.ndarray) -> bool:
    """Return whether there is anything to map: a collapsed encoder gives every image the same features."""
    return bool(np.ptp(features, axis=0).max() > 1e-6)
