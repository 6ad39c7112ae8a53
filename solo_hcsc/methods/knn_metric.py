"""Weighted votes of nearest neighbours, the way solo-learn evaluates features by KNN."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from solo_hcsc.hcsc.kmeans import import_faiss

SMALL_BANK = 10_000  # images up to which all distances of some queries are computed at once
QUERIES = 1_000  # that faiss searches for together
PART = 10_000  # of the bank that faiss is given at once


class NeighbourVotes:
    """What a torchmetrics `Metric` needs to be solo-learn's KNN metric: `class KNN(NeighbourVotes, Metric)`.

    The same arguments, states and calls as solo-learn's own, with a constructor, forward and vote that work today.
    """

    train_features: list[torch.Tensor]
    train_targets: list[torch.Tensor]
    test_features: list[torch.Tensor]
    test_targets: list[torch.Tensor]

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
        """Update only: a single batch has no value."""
        self.update(*args, **kwargs)

    def compute(self) -> tuple[float, float]:
        """Return the KNN accuracy @1 and @5, in percent."""
        return self.accuracies([self.k])[self.k]

    @torch.no_grad()
    def accuracies(self, ks: Sequence[int]) -> dict[int, tuple[float, float]]:
        """Return what `compute` would for several numbers of neighbours; they are searched once."""
        bank, bank_labels, queries, labels = map(
            _joined, (self.train_features, self.train_targets, self.test_features, self.test_targets)
        )
        num_classes = 1 + int(max(bank_labels.max(), labels.max()))
        large = len(bank) > SMALL_BANK and bank.device.type == "cpu"
        search = self._search_by_faiss(bank) if large else partial(self._search, self._ready(bank))
        chunk = QUERIES if large else max(1, self.max_distance_matrix_size // len(bank))
        hits = {k: torch.zeros(2, device=bank.device) for k in ks}  # each once, also if it is asked for twice
        for query, label in zip(queries.split(chunk), labels.split(chunk), strict=True):
            weights, neighbours = search(self._ready(query), min(max(ks), len(bank)))
            if self.distance_fx == "cosine":
                # Relative to the nearest: any common factor is right, and the exponential of 1 / T may overflow.
                weights = ((weights - weights[:, :1]) / self.T).exp()
            for k in hits:
                votes = weights.new_zeros(len(query), num_classes)
                votes.scatter_add_(1, bank_labels[neighbours[:, :k]], weights[:, :k])
                votes, ranked = votes.topk(min(5, k, num_classes))
                correct = (ranked == label[:, None]) & (votes > 0)  # a class without a vote is no guess
                hits[k] += torch.stack([correct[:, 0].sum(), correct.sum()])
        return {k: tuple((100 * hit / len(labels)).tolist()) for k, hit in hits.items()}

    def _ready(self, features: torch.Tensor) -> torch.Tensor:
        return F.normalize(features.float()) if self.distance_fx == "cosine" else features.float()

    def _search(self, bank: torch.Tensor, query: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the similarities (n, k) to, and indexes (n, k) of, the nearest in the bank, nearest first."""
        if self.distance_fx == "cosine":
            return (query @ bank.T).topk(k)
        return (1 / (torch.cdist(query, bank) + self.epsilon)).topk(k)

    def _search_by_faiss(self, bank: torch.Tensor) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
        """Search by faiss, which never has all distances of a query at once."""
        faiss = import_faiss("KNN in a bank of this size searches")
        cosine = self.distance_fx == "cosine"
        index = (faiss.IndexFlatIP if cosine else faiss.IndexFlatL2)(bank.size(1))
        if faiss.get_num_gpus():
            options = faiss.GpuMultipleClonerOptions()
            options.shard = True
            index = faiss.index_cpu_to_all_gpus(index, options)
        for part in bank.split(PART):  # the index has its own copy; another one of a large bank would be too much
            index.add(self._ready(part).numpy())

        def search(query: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
            found, neighbours = (torch.from_numpy(array) for array in index.search(query.numpy(), k))
            return found if cosine else 1 / (found.clamp(min=0).sqrt() + self.epsilon), neighbours

        return search


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
