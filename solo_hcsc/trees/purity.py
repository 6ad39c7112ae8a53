"""Measures of clusters and of trees of clusters against labels, by counting: none of them looks at pairs of images.

Shapes: `N` images, `L` levels of a tree.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.cluster import contingency_matrix


def dendrogram_purity(levels: Sequence[np.ndarray], labels: np.ndarray) -> float:
    """Compute dendrogram purity (Heller and Ghahramani, "Bayesian Hierarchical Clustering", ICML 2005).

    Two images of one class meet in the smallest node of the tree that has both. The measure is the share of this
    class among the node's images, on average over all such pairs, each counted once (as in Kobren et al., KDD 2017;
    the first paper draws an image and then its mate, which is the same where classes are equally large). It is 1 if
    each class is a pure subtree.

    Args:
        levels: L clusterings (N,), the bottom first; a cluster lies within one cluster of the next level. Images of
            different clusters of the top meet in a root that has all images.
        labels: (N,) the images' classes.

    Returns:
        From 0 to 1; 1 where no two images have the same class.

    Example:
        >>> bottom, top = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 0, 0, 1])
        >>> dendrogram_purity([bottom, top], np.array([0, 0, 1, 1, 1]))  # 1, and 1, 3/5, 3/5
        0.8
    """
    _, classes = np.unique(labels, return_inverse=True)
    met, total = np.zeros(len(labels)), 0.0  # images of its own class that each image has met, below this level
    for clusters in [*levels, np.zeros(len(labels), int)]:
        _, nodes = np.unique(clusters, return_inverse=True)
        mates = _sizes(nodes * (classes.max() + 1) + classes)
        total += float((mates / _sizes(nodes)) @ (mates - 1 - met))
        met = mates - 1
    return total / float(met.sum()) if met.any() else 1.0


def _sizes(groups: np.ndarray) -> np.ndarray:
    """Return how many images each image's group has (N,)."""
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return counts[inverse]


def leaf_purity(clusters: np.ndarray, labels: np.ndarray) -> float:
    """Compute leaf purity (Mautz, Plant and Böhm, "DeepECT: The Deep Embedded Cluster Tree", 2020).

    Args:
        clusters: (N,) the images' clusters at the bottom of the tree.
        labels: (N,) the images' classes.

    Returns:
        The share of images that are of the commonest class of their cluster.

    Example:
        >>> leaf_purity(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]))
        0.75
    """
    return float(contingency_matrix(labels, clusters, sparse=True).max(axis=0).sum() / len(labels))


def matched_accuracy(clusters: np.ndarray, labels: np.ndarray) -> float:
    """Compute clustering accuracy (Xie, Girshick and Farhadi, "Unsupervised Deep Embedding for Clustering", ICML 2016).

    Args:
        clusters: (N,) the images' clusters.
        labels: (N,) the images' classes.

    Returns:
        The share of images whose cluster stands for their class, where each cluster stands for at most one class and
        each class has at most one cluster, matched as well as possible (Hungarian algorithm).

    Example:
        >>> matched_accuracy(np.array([2, 2, 2, 5]), np.array([0, 0, 1, 1]))
        0.75
    """
    counts = contingency_matrix(labels, clusters)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(labels))
