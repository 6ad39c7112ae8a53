"""What picking and spreading work on: vectors of images, their names, and clusters of any tree.

Shapes: `N` images, `D` embedding size, `L` levels of a tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from solo_hcsc.errors import ArgumentError, on_one_line
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.kmeans import normalise
from solo_hcsc.hcsc.options import Options
from solo_hcsc.hcsc.vectors import as_clusters, as_numbers, as_vectors


@dataclass(frozen=True, eq=False)
class Pool:
    """Hold the images that are picked from or labelled.

    Args:
        points: (N, D) unit vectors, less the mean of all.
        tree: a `Tree`, which can be cut into any number of clusters; None where only vectors are known.
        clusters: (N, L) that were given, the bottom level first; None if none were.
        paths: N names; None without names.
    """

    points: np.ndarray
    tree: Any = None
    clusters: np.ndarray | None = None
    paths: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.points)

    def levels(self, sizes: Sequence[int]) -> np.ndarray:
        """Return the clusters (N, L) that were given, or those of a tree with so many at each level."""
        if self.clusters is not None:
            return self.clusters
        if self.tree is None:
            return cluster(self.points, sizes)
        most = len(self.tree.means)
        return np.stack([self.tree.cut(size) for size in dict.fromkeys(min(size, most) for size in sizes)], axis=1)

    def numbers(self, images: Iterable[Any], argument: str) -> list[int]:
        """Return the numbers of images that are given by number or by path."""
        given = list(images.tolist() if isinstance(images, np.ndarray | torch.Tensor) else images)
        if not any(isinstance(image, str) for image in given):
            return as_numbers(given, argument, below=len(self)).tolist()
        known = {path: number for number, path in enumerate(self.paths or ())}
        for image in given:
            if image not in known:
                shown = on_one_line(image)
                raise ArgumentError(f"`{argument}` has {shown}, which is none of the {len(known)} images' paths")
        return [known[image] for image in given]


def as_pool(value: Any, clusters: Any = None) -> Pool:
    """Return the vectors, names and clusters of a `Tree`, of `Embeddings`, or of an array or tensor (N, D)."""
    is_tree = hasattr(value, "leaves") and hasattr(value, "cut")
    vectors = value.means[value.leaves] if is_tree else as_vectors(value, "images")
    paths = getattr(value, "keys" if is_tree else "paths", None)
    given = None if clusters is None else as_clusters(clusters, len(vectors))
    return Pool(centred(vectors), value if is_tree else None, given, None if paths is None else tuple(paths))


def centred(features: np.ndarray, mean: np.ndarray | None = None) -> np.ndarray:
    """Return features (N, D) less their mean (D,), or another one, at unit length.

    Example:
        >>> centred(np.array([[1.0, 5.0], [3.0, 5.0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    return normalise(features - (features.mean(axis=0) if mean is None else mean))


def cluster(points: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return the clusters (N, L) of unit vectors (N, D) in a tree with so many prototypes, the bottom level first."""
    options = Options(num_prototypes=tuple(sizes), min_cluster_size=1)
    assignments = build_hierarchy(torch.from_numpy(points), options).assignments
    assert assignments is not None
    return assignments.numpy()


def as_mapping(value: Any, argument: str) -> Mapping[Any, Any]:
    """Return a mapping from images to what is known of them; raise `ArgumentError` for anything else."""
    if not isinstance(value, Mapping):
        raise ArgumentError(f"`{argument}` is {type(value).__name__}: give {{path or number of an image: label}}")
    return value
