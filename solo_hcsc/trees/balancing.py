"""Even shares down a tree: of images to keep, and of what a sampler draws.

Every node's share is split evenly over its children, where none gets more than it has room for (Vo et al., TMLR 2024,
arXiv 2405.15613, Section 3.3). Shapes: `N` images, `L` levels of a tree, the bottom first; `K` children, `M` clusters.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from solo_hcsc.errors import ArgumentError, on_one_line
from solo_hcsc.hcsc.vectors import as_numbers

if TYPE_CHECKING:
    from solo_hcsc.trees.tree import Tree

MOST = 30.0  # times that an image is drawn at most in an epoch of as many draws as images


def split_evenly(target: float, room: np.ndarray) -> np.ndarray:
    """Split a number over K children as evenly as their room (K,) allows; whole numbers where `room` has these.

    Example:
        >>> split_evenly(10, np.array([9, 1, 7])).tolist()
        [5, 1, 4]
        >>> split_evenly(3.0, np.array([0.5, 9.0])).tolist()
        [0.5, 2.5]
    """
    found = np.zeros_like(room)
    left = min(target, room.sum())
    for done, child in enumerate(np.argsort(room, kind="stable")):
        share = left // (len(room) - done) if room.dtype.kind == "i" else left / (len(room) - done)
        found[child] = min(room[child], share)
        left -= found[child]
    return found


def down_the_tree(clusters: np.ndarray, target: float, most: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Split a number of images evenly from the root of a tree down to its bottom clusters.

    Args:
        clusters: (N, L), the bottom level first.
        target: how many.
        most: how often an image can be taken; once, and each cluster a whole number of times, if not given.

    Returns:
        The bottom cluster of each image (N,), from 0 to M - 1, those of one parent side by side; and each cluster's
        share (M,).

    Example:
        >>> levels = np.array([[0, 0]] * 6 + [[1, 0]] * 2 + [[2, 1]] * 2)
        >>> nodes, shares = down_the_tree(levels, 6)
        >>> shares.tolist()
        [2, 2, 2]
    """
    nodes = np.zeros(len(clusters), dtype=np.int64)
    shares = np.array([target], dtype=np.int64 if most is None else np.float64)
    for level in clusters.T[::-1]:
        names, below, sizes = np.unique(nodes * (int(level.max()) + 1) + level, return_inverse=True, return_counts=True)
        parents = names // (int(level.max()) + 1)
        room = sizes if most is None else sizes * most
        starts = np.searchsorted(parents, np.arange(len(shares) + 1))
        parts = [
            split_evenly(share, room[start:stop])
            for share, start, stop in zip(shares.tolist(), starts, starts[1:], strict=False)
        ]
        nodes, shares = below.reshape(-1), np.concatenate(parts)
    return nodes, shares


def balanced_weights(clusters: Any, strength: float = 1.0, most: float = MOST) -> np.ndarray:
    """Return how often each image (N,) is drawn in an epoch of N draws that is balanced over a tree.

    Args:
        clusters: (N, L) each image's cluster at every level, the bottom first; -1 for an image that has none, which is
            drawn once.
        strength: 0 draws every image once, 1 evenly over the tree; in between the weights are its powers.
        most: how often an image is drawn at most.

    Returns:
        Weights (N,), above 0 and of sum N.

    Example:
        >>> levels = np.array([[0, 0]] * 6 + [[1, 0]] * 3 + [[2, 1]] * 3)
        >>> balanced_weights(levels)[[0, 6, 9]].tolist()
        [0.5, 1.0, 2.0]
        >>> balanced_weights(levels, strength=0).tolist() == [1.0] * 12
        True
    """
    levels = np.asarray(clusters)
    if levels.ndim != 2 or not levels.size or levels.dtype.kind not in "iu":
        raise ArgumentError(f"`clusters` has shape {levels.shape}: give whole numbers (N, L), each image's clusters")
    if not 0 <= strength <= 1:
        raise ArgumentError(f"`strength` {strength}: give a number from 0 to 1")
    if not most >= 1:
        raise ArgumentError(f"`most` {most}: give at least 1")
    known = (levels >= 0).all(axis=1)
    weights = np.ones(len(levels))
    if known.any() and strength > 0:
        nodes, shares = down_the_tree(levels[known].astype(np.int64), float(known.sum()), most)
        even = (shares / np.bincount(nodes))[nodes] ** strength
        weights[known] = even * known.sum() / even.sum()
    return weights


def draw(weights: np.ndarray, clusters: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw N images by their weights (N,), as close to them as whole numbers allow, in random order.

    Each image is drawn its weight's number of times, rounded down or up, and so is each cluster of the tree.

    Args:
        weights: above 0, of sum N.
        clusters: (N,) numbers by which images that belong together are side by side, as `down_the_tree` gives them.
        generator: what is drawn with.

    Example:
        >>> drawn = draw(np.array([0.5, 0.5, 2.0]), np.array([0, 0, 1]), np.random.default_rng(0))
        >>> int(np.bincount(drawn, minlength=3)[2])
        2
    """
    count = len(weights)
    order = np.lexsort((generator.random(count), clusters))
    ends = np.cumsum(weights[order])
    marks = (np.arange(count) + generator.random()) * (ends[-1] / count)
    return generator.permutation(order[np.minimum(np.searchsorted(ends, marks, side="right"), count - 1)])


def bottom_nodes(clusters: np.ndarray) -> np.ndarray:
    """Return the bottom cluster (N,) of each image, numbered such that those of one parent are side by side."""
    return down_the_tree(as_numbers(clusters + 1, "clusters"), len(clusters))[0]


def effective_clusters(clusters: np.ndarray) -> float:
    """Return how many clusters of equal size would be as mixed as these (N,): the exponential of their entropy.

    Example:
        >>> round(effective_clusters(np.array([0, 0, 1, 1])), 3), effective_clusters(np.array([3, 3]))
        (2.0, 1.0)
    """
    shares = np.unique(clusters, return_counts=True)[1] / len(clusters)
    return float(np.exp(-(shares * np.log(shares)).sum()))


def levels_by_name(tree: "Tree", names: Sequence[str], argument: str) -> np.ndarray:
    """Return the clusters (N, L) of N images in a tree that has them among its own, by their names.

    Args:
        tree: with keys.
        names: of the images.
        argument: what the caller's argument for the tree is called, for the message.
    """
    rows = {key: row for row, key in enumerate(map(on_one_line, tree.keys or ()))}
    missing = [name for name in names if name not in rows]
    if missing:
        raise ArgumentError(
            f"`{argument}`: its tree has {len(tree)} images, but not {len(missing)} of these {len(names)}, such as "
            f"{missing[0]}; build it of the same folder"
        )
    return tree.levels[[rows[name] for name in names]]
