"""The framework's weighted KNN classifier on torchmetrics 1."""

import solo.methods.base
import solo.utils.knn
import torch
from torchmetrics import Metric

from solo_hcsc.methods.knn_metric import NeighbourVotes
from solo_hcsc.solo102.repairs.fix import fixes

ORIGINAL = solo.utils.knn.WeightedKNNClassifier


class WeightedKNNClassifier(NeighbourVotes, Metric):
    """solo-learn's metric, as it works today."""


def _cannot_vote_over_labels_with_gaps() -> bool:
    try:
        knn = solo.methods.base.WeightedKNNClassifier(k=1)
        features, labels = torch.eye(2), torch.tensor([3, 7])
        knn(train_features=features, train_targets=labels)
        knn(test_features=features, test_targets=labels)
        return knn.compute() != (100.0, 100.0)
    except (ValueError, RuntimeError):
        return True


@fixes(broken=_cannot_vote_over_labels_with_gaps)
def weighted_knn_classifier() -> None:
    """torchmetrics 1 refuses `compute_on_step`; labels with gaps and bf16 features break the vote.

    "cosine" also took a plain dot product, so that features of any norm overflowed the exponential.
    """
    for module in (solo.utils.knn, solo.methods.base):
        module.WeightedKNNClassifier = WeightedKNNClassifier
