"""Building a tree of images from their feature vectors.

Shapes: `N` images, `D` features.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.kmeans import fast_kmeans, nearest
from solo_hcsc.hcsc.linkage import Progress, lump, merge_table, ward, ward_along_graph
from solo_hcsc.hcsc.options import Options
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.trees.levels import choose_levels
from solo_hcsc.trees.stored import stored
from solo_hcsc.trees.tree import Tree, check_level_sizes
from solo_hcsc.typed import typed

BUILDERS = ("auto", "exact", "graph", "kmeans")
POWER = 0.8  # of sizes in the distance of clusters: benchmarks/README.md has AMI for others
MOST_LEAVES = 50_000  # of more images the lowest merges are left out, and leaves are clusters of about 20 at a million
SMALL_CLUSTERS = 4_000  # of k-means, whose time grows with their number


@typed
def build_tree(
    vectors: Any,
    levels: Sequence[int] | None = None,
    keys: Sequence[str] | None = None,
    builder: str = "auto",
    power: float = POWER,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tree:
    """Build a tree of images from their feature vectors, by a linkage like Ward's.

    Args:
        vectors: (N, D), a tensor, a NumPy array, or the `Embeddings` that `embed` returns. Rows that are not at unit
            length are brought to it.
        levels: numbers of clusters at each level, falling, such as (300, 100, 30); from the data if not given (see
            `levels.choose_levels`).
        keys: N names of the images, such as paths; those of `Embeddings` if not given.
        builder: "exact" compares all clusters, in time that grows with N squared; "graph" merges neighbours only, until
            10,000 clusters are left; "kmeans" makes small clusters by k-means and merges these; "auto" is "exact" up
            to 10,000 images and "graph" beyond.
        power: of the clusters' sizes in their distance: 1 is Ward's linkage, less makes clusters less equal in size.
        seed: of k-means and of the graph; "exact" draws nothing.
        progress: called with what is done and what there is to do.

    Returns:
        The tree, whose leaves are the images, or clusters of them where there are more than 50,000.

    Example:
        >>> tree = build_tree(torch.eye(3).repeat_interleave(10, dim=0), levels=(3,))
        >>> tree.sizes[tree.nodes(3)].tolist()
        [10, 10, 10]
    """
    points = as_unit_vectors(stored(vectors, "vectors"), "vectors")
    if builder not in BUILDERS:
        raise ArgumentError(f"`builder` {builder}: give {', '.join(BUILDERS)}")
    keys = getattr(vectors, "paths", None) if keys is None else keys
    if keys is not None and len(keys) != len(points):
        raise ArgumentError(f"`keys` has {len(keys)} names and `vectors` {len(points)} rows: give one of each image")
    if not 0 <= power <= 1:
        raise ArgumentError(f"`power` {power}: give a number from 0 to 1")
    if levels is not None:
        check_level_sizes(tuple(levels), min(len(points), MOST_LEAVES))
    if builder == "kmeans":
        leaves, means = _small_clusters(points, seed)
        merges = ward(means, np.bincount(leaves), power, progress)
    else:
        if builder == "exact":
            merges = ward(points, None, power, progress)
        elif builder == "graph":
            merges = ward_along_graph(points, None, power, seed=seed, progress=progress)
        else:
            merges = merge_table(points, None, power, seed, progress)
        merges, leaves = lump(merges, min(len(points), MOST_LEAVES))
        means = points if len(merges) + 1 == len(points) else _means(points, leaves, len(merges) + 1)
    if levels is None:
        levels = choose_levels(merges[:, 2], len(points))
    elif levels[0] > len(means):
        raise ArgumentError(f"`levels` {tuple(levels)}: this tree has {len(means)} leaves; give no more clusters")
    sizes = tuple(int(size) for size in levels)
    return Tree(merges, leaves, means, sizes, None if keys is None else tuple(map(str, keys)))


def _small_clusters(points: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster images by fours, but into at most 4,000 clusters; return the clusters (N,) and their means (M, D)."""
    count = min(SMALL_CLUSTERS, max(1, len(points) // 4))
    options = Options(num_prototypes=(count,), kmeans_restarts=1)
    found = np.unique(nearest(points, fast_kmeans(points, count, options, seed))[1], return_inverse=True)[1]
    return found, _means(points, found, int(found.max()) + 1)


def _means(points: np.ndarray, clusters: np.ndarray, count: int) -> np.ndarray:
    sums = torch.zeros(count, points.shape[1]).index_add_(0, torch.from_numpy(clusters), torch.from_numpy(points))
    return (sums / torch.bincount(torch.from_numpy(clusters), minlength=count)[:, None]).numpy()
