"""Images that are unlike all others: far from their nearest neighbours."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.trees.neighbours import nearest_others
from solo_hcsc.trees.stored import stored
from solo_hcsc.typed import typed

NEIGHBOURS = 10
FENCE = 1.5  # interquartile ranges above the third quartile, Tukey's fence


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
        """Return the numbers of the outliers, the farthest first."""
        found = np.flatnonzero(self.distances > self.fence)
        return found[np.argsort(-self.distances[found], kind="stable")]


@typed
def find_outliers(
    vectors: Any, neighbours: int = NEIGHBOURS, seed: int = 0, fence: float = FENCE, local: bool = False
) -> Outliers:
    """Find the images whose mean distance to their nearest neighbours is above Tukey's upper fence.

    Args:
        vectors: (N, D) features, a tensor, an array or `Embeddings`; brought to unit length.
        neighbours: of each image; fewer where there are not so many.
        seed: of the approximate search that 100,000 images and more take.
        fence: how many interquartile ranges above the third quartile an outlier is.
        local: divide each distance by those of its neighbours, so that rare kinds of images, which have few like them
            but some, are no outliers (as the local outlier factor does, Breunig et al., SIGMOD 2000).

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
    numbers, distances = nearest_others(points, count, seed)
    means = np.nan_to_num(np.nanmean(distances, axis=1), nan=2.0).astype(np.float32)
    if local:
        theirs = np.nanmean(np.where(numbers < 0, np.nan, means[numbers]), axis=1)
        means = (means / np.maximum(np.nan_to_num(theirs, nan=1.0), 1e-3)).astype(np.float32)
    first, third = np.percentile(means.astype(float), [25, 75])
    return Outliers(means, float(third + fence * (third - first)))
