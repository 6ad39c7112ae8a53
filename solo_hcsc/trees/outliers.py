"""Images that are unlike all others: far from their nearest neighbours."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.trees.stored import stored

NEIGHBOURS = 10
FENCE = 1.5  # interquartile ranges above the third quartile, Tukey's fence
APPROXIMATE = 100_000  # images from which faiss looks for neighbours in parts of the data
PROBES = 16


@dataclass(frozen=True, eq=False)
class Outliers:
    """How far N images are from their neighbours.

    Args:
        distances: (N,) float32, the mean distance to the nearest ones.
        fence: the distance above which an image is an outlier.
    """

    distances: np.ndarray
    fence: float

    @property
    def images(self) -> np.ndarray:
        """The numbers of the outliers, the farthest first."""
        found = np.flatnonzero(self.distances > self.fence)
        return found[np.argsort(-self.distances[found], kind="stable")]


def find_outliers(vectors: Any, neighbours: int = NEIGHBOURS, seed: int = 0) -> Outliers:
    """Find the images whose mean distance to their nearest neighbours is above Tukey's upper fence.

    Args:
        vectors: (N, D) features, a tensor, an array or `Embeddings`; brought to unit length.
        neighbours: of each image; fewer where there are not so many.
        seed: of the approximate search that 100,000 images and more take.

    Returns:
        The outliers' numbers, the farthest first, with every image's mean distance and the fence.

    Example:
        >>> features = np.random.default_rng(0).normal(size=(100, 8)) + 5
        >>> features[7] *= -1
        >>> int(find_outliers(features).images[0])
        7
    """
    points = as_unit_vectors(stored(vectors, "vectors"), "vectors")
    if neighbours < 1:
        raise ArgumentError(f"`neighbours` {neighbours}: give at least 1")
    count = min(neighbours, len(points) - 1)
    if not count:
        return Outliers(np.zeros(len(points), dtype=np.float32), 0.0)
    faiss = import_faiss("outliers are found")
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
    distances = np.sqrt(np.maximum(squares[~own].reshape(len(points), count), 0))
    means = np.nan_to_num(np.nanmean(distances, axis=1), nan=2.0).astype(np.float32)
    first, third = np.percentile(means.astype(float), [25, 75])
    return Outliers(means, float(third + FENCE * (third - first)))
