"""Labels that are likely wrong: those that the clusters of a tree contradict.

Shapes: `N` images, `L` levels, `C` classes.
"""

from dataclasses import dataclass

import numpy as np

WEIGHT = 10.0  # how many images of its own a cluster needs to count as much as the level above it
LEAST_MARGIN = 0.5


@dataclass(frozen=True, eq=False)
class Suspects:
    """Images whose label is likely wrong, the likeliest first.

    Args:
        images: (S,) their indexes.
        suggested: (S,) the class that the tree suggests.
        margins: (S,) how much likelier that class is than the label, from 0.5 to 1.
    """

    images: np.ndarray
    suggested: np.ndarray
    margins: np.ndarray


def find_suspects(labels: np.ndarray, clusters: np.ndarray) -> Suspects:
    """Find the images that are among another class at every scale of the tree.

    A class's share in an image's bottom cluster is smoothed by its share in the cluster above, and so on up to its
    share of all images; the image itself is never counted. An image is suspect where the share of the
    commonest other class is larger than that of its own by at least 0.5.

    Args:
        labels: (N,) class numbers, -1 for none.
        clusters: (N, L), the bottom level first.

    Returns:
        The suspects; images without a label are none, and give no evidence.

    Example:
        >>> labels = np.array([0] * 20 + [1] * 20)
        >>> labels[3] = 1
        >>> found = find_suspects(labels, np.array([[0]] * 20 + [[1]] * 20))
        >>> found.images.tolist(), found.suggested.tolist(), found.margins.round(2).tolist()
        ([3], [0], [0.65])
    """
    known = np.flatnonzero(labels >= 0)
    if not len(known):
        return Suspects(*(np.empty(0, kind) for kind in (int, int, float)))
    own, paths = labels[known], clusters[known]
    classes = int(own.max()) + 1
    everything = np.zeros((len(known), 1), int)
    counts = [_counts(level, own, classes) for level in np.concatenate([paths, everything], axis=1).T]
    nodes = [*paths.T, everything[:, 0]]
    other = _commonest_other(counts, nodes, own)
    margin = _share(counts, nodes, other, 0) - _share(counts, nodes, own, 1)
    found = np.flatnonzero((margin >= LEAST_MARGIN) & (other >= 0))
    found = found[np.argsort(-margin[found], kind="stable")]
    return Suspects(known[found], other[found], margin[found])


def _counts(level: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Count the images of each class in each cluster, (M, C)."""
    counts = np.zeros((int(level.max()) + 1, classes), np.int32)
    np.add.at(counts, (level, labels), 1)
    return counts


def _commonest_other(counts: list[np.ndarray], nodes: list[np.ndarray], own: np.ndarray) -> np.ndarray:
    """Find the commonest other class (N,) in each image's bottom cluster.

    Where that is all of one class, in the smallest cluster that has two.
    """
    other = np.full(len(own), -1)
    for count, node in zip(counts, nodes, strict=True):
        first, second = _two_commonest(count)
        best = np.where(first[node] == own, second[node], first[node])
        other = np.where((other < 0) & (count[node, best] > 0) & (best != own), best, other)
    return other


def _two_commonest(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first = counts.argmax(axis=1)
    rest = counts.copy()
    rest[np.arange(len(counts)), first] = -1
    return first, rest.argmax(axis=1)


def _share(counts: list[np.ndarray], nodes: list[np.ndarray], of: np.ndarray, itself: int) -> np.ndarray:
    """Return the smoothed share (N,) of a class at the bottom, without the image, of which `itself` are."""
    share: np.ndarray = np.zeros(len(of))
    for number in reversed(range(len(counts))):
        count, node = counts[number], nodes[number]
        total = count.sum(axis=1)[node] - 1
        before = WEIGHT if number < len(counts) - 1 else 0.0
        share = (count[node, of] - itself + before * share) / np.maximum(total + before, 1)
    return share
