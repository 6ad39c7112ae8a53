"""Labels that are likely wrong: those that a linear classifier, trained on all other images, contradicts.

Shapes: `N` images, `D` features, `C` classes, `S` suspects, `b` images of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.trees.stored import stored
from solo_hcsc.typed import typed

LEAST_MARGIN = 0.25
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # times the features' mean variance over all directions
JUDGED = 10_000  # images at most whose errors choose the penalty
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Suspects:
    """Images whose label is likely wrong, the likeliest first.

    Args:
        images: (S,) their numbers.
        suggested: (S,) the class that the other images suggest.
        margins: (S,) how far the score of that class is above the label's, from `LEAST_MARGIN` on; about 1 at most.
    """

    images: np.ndarray
    suggested: np.ndarray
    margins: np.ndarray


@typed
def find_mislabelled(vectors: Any, labels: Any = None, least: float = LEAST_MARGIN) -> Suspects:
    """Find the images whose label the others contradict, by features and labels alone.

    A linear classifier by least squares (ridge regression of one-hot labels) gives each image a score in each class,
    trained without the image itself: the closed form of leaving one out costs no more than one training. An image is
    suspect where the score of another class is above that of its label by `least`. The penalty is the one whose scores
    have the least squared error.

    Args:
        vectors: (N, D) features, a tensor, an array, a file, or `Embeddings`; brought to unit length.
        labels: (N,) class numbers, -1 for none; those of `Embeddings` if not given.
        least: the margin from which an image is listed.

    Returns:
        The suspects; images without a label are none, and give no evidence.

    Example:
        >>> features = np.repeat(np.eye(2), 20, axis=0) + np.random.default_rng(0).normal(size=(40, 2)) / 20
        >>> labels = np.repeat([0, 1], 20)
        >>> labels[3] = 1
        >>> found = find_mislabelled(features, labels)
        >>> found.images.tolist(), found.suggested.tolist()
        ([3], [0])
    """
    images, suggested, margins = margins_of(vectors, labels)
    order = np.flatnonzero(margins >= least)
    order = order[np.argsort(-margins[order], kind="stable")]
    return Suspects(images[order], suggested[order], margins[order])


def margins_of(vectors: Any, labels: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers (n,) of labelled images, the best other class of each, and how far it is ahead of the label.

    Of fewer than two classes there are none. Arguments are those of `find_mislabelled`.
    """
    labels = getattr(vectors, "labels", None) if labels is None else labels
    points = as_unit_vectors(stored(vectors, "vectors"), "vectors")
    given = np.full(len(points), -1) if labels is None else np.asarray(labels)
    if given.shape != (len(points),) or given.dtype.kind not in "iu":
        raise ArgumentError(f"`labels` has shape {given.shape}: give the number of a class, or -1, for each vector")
    images = np.flatnonzero(given >= 0)
    classes, own = np.unique(given[images], return_inverse=True)
    if len(classes) < 2:
        return np.empty(0, int), np.empty(0, int), np.empty(0)
    others, margins = np.empty(len(images), int), np.empty(len(images))
    for rows, scores in _scores(points[images], own, len(classes)):
        at = np.arange(len(scores)), own[rows]
        theirs = scores[at].copy()
        scores[at] = -np.inf
        others[rows] = scores.argmax(axis=1)
        margins[rows] = scores.max(axis=1) - theirs
    return images, classes[others], margins


def _scores(points: np.ndarray, own: np.ndarray, classes: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of images and their scores (b, C), each by the classifier of all other images."""
    count = len(points)
    middle, shares = points.mean(axis=0), np.bincount(own, minlength=classes) / count
    sums = np.stack([points[own == label].sum(axis=0) for label in range(classes)], axis=1)  # (D, C)
    sums = sums - middle[:, None] * shares * count
    if count < points.shape[1]:  # there is no variance in other directions than these
        _, lengths, directions = np.linalg.svd(points - middle, full_matrices=False)
        spectrum, directions = lengths.astype(float) ** 2, directions.T
    else:
        spectrum, directions = np.linalg.eigh((points.T @ points - count * np.outer(middle, middle)).astype(float))
        spectrum = np.maximum(spectrum, 0)
    unit = max(spectrum.sum() / points.shape[1], 1e-12)
    sums = directions.T @ sums

    def scores(rows: slice, penalty: float) -> np.ndarray:
        turned = (points[rows] - middle) @ directions
        weights = 1 / (spectrum + penalty * unit)
        leverage = np.einsum("bd,d,bd->b", turned, weights, turned) + 1 / count
        found = (turned * weights) @ sums + shares
        at = np.arange(len(found)), own[rows]
        found[at] -= leverage
        return found / np.maximum(1 - leverage, 1e-6)[:, None]

    def error(penalty: float) -> float:
        rows = slice(0, None, -(-count // JUDGED))
        found = scores(rows, penalty)
        found[np.arange(len(found)), own[rows]] -= 1
        return float(np.square(found).sum())

    best = min(PENALTIES, key=error)
    for start in range(0, count, BLOCK):
        rows = slice(start, start + BLOCK)
        yield rows, scores(rows, best)
