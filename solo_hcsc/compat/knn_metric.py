"""The framework's weighted KNN classifier on torchmetrics 1."""

from typing import Any

import solo.methods.base
import solo.utils.knn
import torch
import torch.nn.functional as F
from torchmetrics import Metric

from solo_hcsc.compat.fix import fixes


class WeightedKNNClassifier(solo.utils.knn.WeightedKNNClassifier):
    """solo-learn's metric: its states and update, with a constructor, forward and vote that work today."""

    def __init__(
        self,
        k: int = 20,
        T: float = 0.07,
        max_distance_matrix_size: int = int(5e6),
        distance_fx: str = "cosine",
        epsilon: float = 0.00001,
        dist_sync_on_step: bool = False,
    ) -> None:
        if distance_fx not in ("cosine", "euclidean"):
            raise ValueError(f"distance_fx must be cosine or euclidean, not {distance_fx!r}")
        Metric.__init__(self, dist_sync_on_step=dist_sync_on_step)  # the original passes compute_on_step
        self.k = k
        self.T = T
        self.max_distance_matrix_size = max_distance_matrix_size
        self.distance_fx = distance_fx
        self.epsilon = epsilon
        for bank in ("train_features", "train_targets", "test_features", "test_targets"):
            self.add_state(bank, default=[], persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Only updates: there is no value of a single batch."""
        self.update(*args, **kwargs)

    @torch.no_grad()
    def compute(self) -> tuple[float, float]:
        """KNN accuracy @1 and @5, in percent."""
        bank = torch.cat(self.train_features).float()
        bank_labels = torch.cat(self.train_targets)
        queries = torch.cat(self.test_features).float()
        labels = torch.cat(self.test_targets)
        if self.distance_fx == "cosine":
            bank, queries = F.normalize(bank), F.normalize(queries)

        k = min(self.k, len(bank))
        num_classes = int(torch.cat([bank_labels, labels]).max()) + 1
        chunk = max(1, self.max_distance_matrix_size // len(bank))
        hits = torch.zeros(2, device=bank.device)
        for query, label in zip(queries.split(chunk), labels.split(chunk), strict=True):
            weights, neighbours = self._similarity(query, bank).topk(k)
            if self.distance_fx == "cosine":
                weights = (weights / self.T).exp()
            votes = weights.new_zeros(len(query), num_classes)
            votes.scatter_add_(1, bank_labels[neighbours], weights)
            ranked = votes.topk(min(5, k, num_classes)).indices
            correct = ranked == label[:, None]
            hits += torch.stack([correct[:, 0].sum(), correct.sum()])
        top1, top5 = (100 * hits / len(labels)).tolist()
        return top1, top5

    def _similarity(self, query: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
        if self.distance_fx == "cosine":
            return query @ bank.T
        return 1 / (torch.cdist(query, bank) + self.epsilon)


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
