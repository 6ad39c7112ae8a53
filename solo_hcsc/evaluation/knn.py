"""Weighted KNN on features: solo-learn's classifier."""

from collections.abc import Sequence

import torch

from solo_hcsc.evaluation.features import Features
from solo_hcsc.framework import WeightedKNNClassifier


def accuracies(
    bank: Features, queries: Features, ks: Sequence[int], temperature: float, distance: str
) -> list[tuple[int, float, float]]:
    """K, top-1 and top-5 accuracy of the framework's weighted KNN classifier, in percent."""
    knn = WeightedKNNClassifier(T=temperature, distance_fx=distance)
    knn.update(train_features=bank.x, train_targets=bank.y, test_features=queries.x, test_targets=queries.y)
    return [(k, *found) for k, found in knn.accuracies(ks).items()]


def knn_accuracy(
    bank: torch.Tensor,
    bank_labels: torch.Tensor,
    queries: torch.Tensor,
    labels: torch.Tensor,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Top-1 accuracy in percent of weighted KNN with cosine similarity, as `solo-hcsc knn` computes it.

    Args:
        bank: features (N, D) whose labels are known, `bank_labels` (N,).
        queries: features (n, D) to classify, whose right classes are `labels` (n,).
        k: neighbours that vote.
        temperature: of the votes' weights.

    Returns:
        The share of the queries whose class is found, in percent.

    Example:
        >>> points = torch.eye(4)
        >>> knn_accuracy(points, torch.arange(4), points, torch.tensor([0, 1, 2, 0]), k=1)
        75.0
    """
    return accuracies(Features(bank, bank_labels), Features(queries, labels), [k], temperature, "cosine")[0][1]
