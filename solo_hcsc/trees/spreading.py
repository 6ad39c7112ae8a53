"""From few labels to all images: by their neighbours, a linear classifier and the clusters of a tree.

Shapes: `N` images, `D` embedding size, `L` levels of a tree, `m` labelled images, `C` classes.
"""

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.options import levels_for
from solo_hcsc.hcsc.vectors import as_numbers, as_vectors
from solo_hcsc.trees.picking import as_clusters, centred, clusters_of
from solo_hcsc.trees.stored import stored


def spread(features: Any, labelled: Any, classes: Any, paths: Any = None) -> np.ndarray:
    """How much of each image belongs to each class, told from a few images whose classes are known.

    The labelled images say it of each image alone: weighted KNN and a linear classifier, in equal parts. Half of an
    image's answer is this, half what is so said of the images in its clusters, on average over the levels of a tree.

    Args:
        features: (N, D) of any encoder, as an array, a tensor or `Embeddings`; their mean is taken off first.
        labelled: m numbers of images.
        classes: (m,) their classes, from 0, at least two.
        paths: (L, N) the cluster of every image at each level of a tree; one is made of the features if not given.

    Returns:
        (N, C) shares; each row sums to 1. The largest of a row is the confidence in its class. A labelled image has
        its class with 1.

    Example:
        >>> ring = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
        >>> spread(ring, [0, 2], np.array([0, 1]), np.array([[0, 0, 1, 1]])).argmax(axis=1).tolist()
        [0, 0, 1, 1]
    """
    points = centred(as_vectors(stored(features, "features"), "features"))
    known, classes = as_numbers(labelled, "labelled", below=len(points)), as_numbers(classes, "classes")
    if known.ndim != 1 or known.shape != classes.shape or not len(known):
        raise ArgumentError(f"`labelled` has shape {known.shape} and `classes` {classes.shape}: give (m,) of each")
    if (classes == classes[0]).all():
        raise ArgumentError(f"`classes` are all {classes[0]}: give at least two classes")
    count = int(classes.max()) + 1
    own = (knn_shares(points, points[known], classes, count) + linear_shares(points, points[known], classes, count)) / 2
    own[known] = np.eye(count)[classes]
    levels = clusters_of(points, levels_for(len(points))) if paths is None else as_clusters(paths, len(points))
    found = own / 2 + sum(_means(clusters, own) for clusters in levels) / (2 * len(levels))
    found[known] = own[known]
    return found


def knn_shares(points: np.ndarray, known: np.ndarray, classes: np.ndarray, count: int, k: int = 20) -> np.ndarray:
    """The votes (n, C) for unit vectors (n, D) by weighted KNN from `known` (m, D); each row sums to 1."""
    cosines = points @ known.T
    if k < len(known):
        cosines[cosines < np.partition(cosines, -k, axis=1)[:, [-k]]] = -np.inf
    weights = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / 0.07)
    votes = weights @ np.eye(count)[classes]
    return votes / votes.sum(axis=1, keepdims=True)


def linear_shares(points: np.ndarray, known: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """The probabilities (n, C) for unit vectors (n, D) by a logistic regression on `known` (m, D)."""
    shares = np.zeros((len(points), count))
    if (classes == classes[0]).all():
        shares[:, classes[0]] = 1
        return shares
    fitted = LogisticRegression(C=100, max_iter=1000).fit(known, classes)
    shares[:, fitted.classes_] = fitted.predict_proba(points)
    return shares


def accuracy(shares: np.ndarray, classes: np.ndarray, coverage: float = 1.0) -> float:
    """The accuracy in percent among the surest images: a `coverage` of all, by the largest of their shares (n, C).

    Example:
        >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]), coverage=0.5)
        100.0
    """
    surest = np.argsort(-shares.max(axis=1), kind="stable")[: max(1, round(coverage * len(shares)))]
    return float(100 * (shares[surest].argmax(axis=1) == classes[surest]).mean())


def _means(clusters: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The mean share (N, C) in each image's cluster."""
    sums = np.zeros((clusters.max() + 1, shares.shape[1]))
    np.add.at(sums, clusters, shares)
    return (sums / np.maximum(np.bincount(clusters), 1)[:, None])[clusters]
