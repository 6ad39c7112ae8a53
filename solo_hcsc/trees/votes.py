"""Weighted votes of the nearest neighbours: for KNN as an evaluation, for solo-learn's metric, and to spread labels.

Shapes: `N` vectors with labels (the bank), `n` queries, `D` dimensions, `C` classes.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F

from solo_hcsc.hcsc.kmeans import import_faiss

DISTANCES = ("cosine", "euclidean")
TEMPERATURE = 0.07
EPSILON = 0.00001  # added to euclidean distances
DISTANCE_MATRIX = int(5e6)  # distances that are computed at once
SMALL_BANK = 10_000  # vectors up to which all distances of some queries are computed at once
QUERIES = 1_000  # that faiss searches for together
PART = 10_000  # of the bank that faiss is given at once

Found = tuple[torch.Tensor, torch.Tensor]
Search = Callable[[torch.Tensor, int], Found]


@torch.no_grad()
def knn_votes(
    bank: torch.Tensor,
    labels: torch.Tensor,
    queries: torch.Tensor,
    ks: Sequence[int],
    classes: int,
    temperature: float | None = TEMPERATURE,
    distance: str = "cosine",
    at_once: int = DISTANCE_MATRIX,
    epsilon: float = EPSILON,
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the votes of the k nearest neighbours for some queries after the other, which are looked for once.

    Args:
        bank: (N, D).
        labels: (N,) classes of the bank, from 0.
        queries: (n, D).
        ks: numbers of neighbours; more than N count as N.
        classes: C.
        temperature: a neighbour votes with exp(cosine / temperature); not used by the euclidean distance.
        distance: `cosine`, or `euclidean`, by whose inverse neighbours vote.
        at_once: distances that are held in memory.
        epsilon: added to euclidean distances.

    Returns:
        For each part of the queries a tensor of votes (part, C) for every one of `ks`.

    Example:
        >>> bank, labels = torch.eye(3), torch.tensor([0, 1, 1])
        >>> [(votes.argmax(1).tolist()) for votes, in knn_votes(bank, labels, torch.eye(3)[1:], [2], classes=2)]
        [[1, 1]]
    """
    large = len(bank) > SMALL_BANK and bank.device.type == "cpu"
    searching = _faiss_search if large else _full_search
    search = searching(bank, distance, epsilon)
    for part in queries.split(QUERIES if large else max(1, at_once // len(bank))):
        weights, neighbours = search(_ready(part, distance), min(max(ks), len(bank)))
        if temperature is not None and distance == "cosine":
            # Relative to the nearest: any common factor is right, and the exponential of 1 / temperature may overflow.
            weights = ((weights - weights[:, :1]) / temperature).exp()
        empty = weights.new_zeros(len(part), classes)
        yield tuple(empty.scatter_add(1, labels[neighbours[:, :k]], weights[:, :k]) for k in ks)


def knn_accuracies(
    bank: torch.Tensor, bank_labels: torch.Tensor, queries: torch.Tensor, labels: torch.Tensor, ks: Sequence[int],
    temperature: float | None = TEMPERATURE, distance: str = "cosine", at_once: int = DISTANCE_MATRIX,
    epsilon: float = EPSILON,
) -> dict[int, tuple[float, float]]:  # fmt: skip
    """Return top-1 and top-5 accuracy in percent for each number of neighbours; arguments are those of `knn_votes`.

    Example:
        >>> points = torch.eye(4)
        >>> knn_accuracies(points, torch.arange(4), points, torch.tensor([0, 1, 2, 0]), [1])
        {1: (75.0, 75.0)}
    """
    classes = 1 + int(max(bank_labels.max(), labels.max()))
    hits = {k: torch.zeros(2, device=bank.device) for k in ks}  # each once, also if it is asked for twice
    done = 0
    for parts in knn_votes(bank, bank_labels, queries, list(hits), classes, temperature, distance, at_once, epsilon):
        label = labels[done : done + len(parts[0])]
        done += len(label)
        for k, votes in zip(hits, parts, strict=True):
            strongest, ranked = votes.topk(min(5, k, classes))
            correct = (ranked == label[:, None]) & (strongest > 0)  # a class without a vote is no guess
            hits[k] += torch.stack([correct[:, 0].sum(), correct.sum()])
    return {k: tuple((100 * hit / len(labels)).tolist()) for k, hit in hits.items()}


def _ready(features: torch.Tensor, distance: str) -> torch.Tensor:
    return F.normalize(features.float()) if distance == "cosine" else features.float()


def _full_search(bank: torch.Tensor, distance: str, epsilon: float) -> Search:
    """Return a function of queries and k: similarities (n, k) to, and indexes (n, k) of, the nearest, nearest first."""
    bank = _ready(bank, distance)
    if distance == "cosine":
        return lambda query, k: (query @ bank.T).topk(k)
    return lambda query, k: (1 / (torch.cdist(query, bank) + epsilon)).topk(k)


def _faiss_search(bank: torch.Tensor, distance: str, epsilon: float) -> Search:
    """Return `_full_search` by faiss, which never has all distances of a query at once."""
    faiss = import_faiss("KNN in a bank of this size searches")
    cosine = distance == "cosine"
    index = (faiss.IndexFlatIP if cosine else faiss.IndexFlatL2)(bank.size(1))
    if faiss.get_num_gpus():
        options = faiss.GpuMultipleClonerOptions()
        options.shard = True
        index = faiss.index_cpu_to_all_gpus(index, options)
    for part in bank.split(PART):  # the index has its own copy; another one of a large bank would be too much
        index.add(_ready(part, distance).numpy())

    def search(query: torch.Tensor, k: int) -> Found:
        found, neighbours = (torch.from_numpy(array) for array in index.search(query.numpy(), k))
        return found if cosine else 1 / (found.clamp(min=0).sqrt() + epsilon), neighbours

    return search
