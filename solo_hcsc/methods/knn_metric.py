"""Weighted votes of nearest neighbours, the way solo-learn evaluates features by KNN."""

from collections.abc import Sequence
from typing import Any

import torch

from solo_hcsc.trees.votes import DISTANCE_MATRIX, DISTANCES, EPSILON, TEMPERATURE, knn_accuracies


class NeighbourVotes:
    """Give a torchmetrics `Metric` all it needs to be solo-learn's KNN metric: `class KNN(NeighbourVotes, Metric)`.

    The same arguments, states and calls as solo-learn's own, with a constructor, forward and vote that work today.
    """

    train_features: list[torch.Tensor]
    train_targets: list[torch.Tensor]
    test_features: list[torch.Tensor]
    test_targets: list[torch.Tensor]

    def __init__(
        self,
        k: int = 20,
        T: float = TEMPERATURE,
        max_distance_matrix_size: int = DISTANCE_MATRIX,
        distance_fx: str = "cosine",
        epsilon: float = EPSILON,
        dist_sync_on_step: bool = False,
    ) -> None:
        if distance_fx not in DISTANCES:
            raise ValueError(f"distance_fx must be cosine or euclidean, not {distance_fx!r}")
        super().__init__(dist_sync_on_step=dist_sync_on_step)  # type: ignore[call-arg]
        self.k = k
        self.T = T
        self.max_distance_matrix_size = max_distance_matrix_size
        self.distance_fx = distance_fx
        self.epsilon = epsilon
        for bank in ("train_features", "train_targets", "test_features", "test_targets"):
            self.add_state(bank, default=[], persistent=False)  # type: ignore[attr-defined]

    def update(
        self,
        train_features: torch.Tensor | None = None,
        train_targets: torch.Tensor | None = None,
        test_features: torch.Tensor | None = None,
        test_targets: torch.Tensor | None = None,
    ) -> None:
        """Add features (n, D) with their labels (n,) to the bank, to the queries, or to both."""
        self._add("train", train_features, train_targets)
        self._add("test", test_features, test_targets)

    def _add(self, part: str, features: torch.Tensor | None, targets: torch.Tensor | None) -> None:
        if features is None and targets is None:
            return
        if features is None or targets is None or len(features) != len(targets):
            raise ValueError(f"{part}_features and {part}_targets go together, one label each")
        getattr(self, f"{part}_features").append(features.detach())
        getattr(self, f"{part}_targets").append(targets.detach())

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Update only: there is no value of a single batch."""
        self.update(*args, **kwargs)

    def compute(self) -> tuple[float, float]:
        """Return KNN accuracy @1 and @5, in percent."""
        return self.accuracies([self.k])[self.k]

    def accuracies(self, ks: Sequence[int]) -> dict[int, tuple[float, float]]:
        """Return `compute` for several numbers of neighbours, which are looked for once."""
        bank = _joined(self.train_features), _joined(self.train_targets)
        queries = _joined(self.test_features), _joined(self.test_targets)
        at_once = self.max_distance_matrix_size
        return knn_accuracies(*bank, *queries, ks, self.T, self.distance_fx, at_once, self.epsilon)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
