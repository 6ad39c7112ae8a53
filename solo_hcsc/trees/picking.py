"""Which images to label first: the typical ones of a tree's clusters, from the top of the tree to its bottom.

Shapes: `N` images, `D` embedding size, `L` levels of a tree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import torch

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.kmeans import normalise
from solo_hcsc.hcsc.options import IMAGES_EACH, Options
from solo_hcsc.hcsc.vectors import as_numbers, as_vectors
from solo_hcsc.trees.names import WAYS
from solo_hcsc.trees.neighbours import nearest_rows
from solo_hcsc.trees.stored import stored

SAME = 0.999  # the cosine from which two images count as one
NEIGHBOURS = 20  # whose mean distance says how typical an image is (Hacohen et al., TypiClust, ICML 2022)
_FIRST = {"typical": "most typical", "nearest": "nearest to the centre"}


@dataclass(frozen=True)
class Pick:
    """An image to label, by its number, and why."""

    image: int
    reason: str


def centred(features: np.ndarray, mean: np.ndarray | None = None) -> np.ndarray:
    """Features (N, D) less their mean (D,), or another one, at unit length.

    Example:
        >>> centred(np.array([[1.0, 5.0], [3.0, 5.0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    return normalise(features - (features.mean(axis=0) if mean is None else mean))


def clusters_for(points: np.ndarray, budget: int) -> np.ndarray:
    """The clusters (L, N) of unit vectors (N, D): a level of `budget`, above it ever half as many, below it twice."""
    sizes = [min(len(points), max(budget, len(points) // IMAGES_EACH))]
    while sizes[-1] // 2 > budget:
        sizes.append(sizes[-1] // 2)
    if sizes[-1] > budget:
        sizes.append(budget)
    while sizes[-1] > 3:
        sizes.append(sizes[-1] // 2)
    return clusters_of(points, sizes)


def clusters_of(points: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The clusters (L, N) of unit vectors (N, D) in a tree with so many prototypes, the bottom level first."""
    options = Options(num_prototypes=tuple(sizes), min_cluster_size=1)
    assignments = build_hierarchy(torch.from_numpy(points), options).assignments
    assert assignments is not None
    return assignments.numpy()


def pick(
    features: Any,
    budget: int,
    already: Any = (),
    way: str = "typical",
    paths: Any = None,
) -> list[Pick]:
    """The images whose labels tell most, the most telling first.

    The clusters of a tree are visited from the top level down, the largest of a level first, and
    each that has no labelled or picked image yet gives one. An image as good as identical to one of those is never
    picked.

    Args:
        features: (N, D) of any encoder, as an array, a tensor or `Embeddings`; their mean is taken off first.
        budget: how many to pick.
        already: the numbers of images that are labelled.
        way: which image of a cluster: `typical`, `nearest` to its centre; or `farthest`, farthest-first without a
            tree.
        paths: (L, N) the cluster of every image at each level of a tree, the bottom first; a tree is made of the
            features if not given.

    Returns:
        At most `budget` picks, fewer only if all others are duplicates; the same ones each time.

    Example:
        >>> corners = np.repeat(np.eye(3, dtype="float32"), [5, 4, 3], axis=0)
        >>> [one.image for one in pick(corners, 2, already=[0])]
        [5, 9]
    """
    walk = _Walk(centred(as_vectors(stored(features, "features"), "features")))
    images = len(walk.points)
    if not isinstance(budget, Integral) or budget < 1:
        raise ArgumentError(f"`budget` is {budget!r}: give how many images to pick, at least 1")
    if way not in WAYS:
        raise ArgumentError(f"`way` is {way!r}: give one of {', '.join(WAYS)}")
    already = as_numbers(already, "already", below=images).tolist()
    for image in already:
        walk.take(image)
    if paths is None and way != "farthest":
        paths = clusters_for(walk.points, min(int(budget) + len(already), images))
    elif paths is not None:
        paths = as_clusters(paths, images)
    visits = _farthest(walk) if paths is None or way == "farthest" else _from_the_tree(walk, paths, way)
    picks: list[Pick] = []
    for one in visits:
        if len(picks) == budget:
            break
        walk.take(one.image)
        picks.append(one)
    return picks


def as_clusters(paths: Any, images: int) -> np.ndarray:
    """Return clusters (L, N) of so many images as whole numbers; raise `ArgumentError` for anything else."""
    clusters = as_numbers(paths, "paths")
    if clusters.ndim != 2 or not len(clusters) or clusters.shape[1] != images:
        raise ArgumentError(f"`paths` has shape {clusters.shape}: give (L, {images}), the cluster of every image")
    return clusters


@dataclass
class _Walk:
    """What is picked so far."""

    points: np.ndarray  # (N, D) unit vectors
    closest: np.ndarray = field(init=False)  # (N,) each image's cosine to the most similar picked one
    picked: np.ndarray = field(init=False)  # (N,) bool

    def __post_init__(self) -> None:
        self.closest = np.full(len(self.points), -1, "float32")
        self.picked = np.zeros(len(self.points), bool)

    def take(self, image: int) -> None:
        self.picked[image] = True
        self.closest = np.maximum(self.closest, self.points @ self.points[image])
        self.closest[image] = 1


def _farthest(walk: _Walk) -> Iterator[Pick]:
    """Farthest-first; without any before it, the image nearest to the mean of all."""
    if not walk.picked.any():
        yield Pick(int((walk.points @ walk.points.mean(axis=0)).argmax()), "nearest to the mean of all images")
    while walk.closest.min() <= SAME:
        image = int(walk.closest.argmin())
        yield Pick(image, f"farthest from all before it: cosine {walk.closest[image]:.2f} to the most similar one")


def _from_the_tree(walk: _Walk, paths: np.ndarray, way: str) -> Iterator[Pick]:
    """An image of each cluster without any, level by level from the top; then more of each at the bottom."""
    for level in range(len(paths), 0, -1):
        yield from _from_level(walk, paths[level - 1], level, way)
    while (walk.closest <= SAME).any():
        yield from _from_level(walk, paths[0], 1, way, again=True)


def _from_level(walk: _Walk, clusters: np.ndarray, level: int, way: str, again: bool = False) -> Iterator[Pick]:
    """The best image of each cluster of a level, the largest cluster first; `again`: of covered ones too."""
    sizes = np.bincount(clusters)
    for rank, cluster in enumerate(np.argsort(-sizes, kind="stable"), start=1):
        members = np.flatnonzero(clusters == cluster)
        free = members[walk.closest[members] <= SAME]
        if not len(free) or (walk.picked[members].any() and not again):
            continue
        if way == "typical":
            scores = _typicality(walk.points[members])[walk.closest[members] <= SAME]
        else:
            scores = walk.points[free] @ walk.points[members].mean(axis=0)
        first = f"{'next ' * again}{_FIRST[way]}"
        yield Pick(
            int(free[scores.argmax()]),
            f"{first} of {len(members)} images, cluster {rank} of {np.count_nonzero(sizes)} by size at level {level}",
        )


def _typicality(points: np.ndarray) -> np.ndarray:
    """How near (n,) unit vectors (n, D) are to their nearest others: the mean distance, negated."""
    if len(points) == 1:
        return np.zeros(1)
    similarities = nearest_rows(points, 0, len(points), min(NEIGHBOURS, len(points) - 1))[1]
    return -np.sqrt(np.maximum(2 - 2 * similarities, 0)).mean(axis=1)
