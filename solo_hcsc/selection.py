"""Which negatives a query keeps: Eq. 3, 4 and 5 for queue entries, Eq. 7 and 8 for prototypes.

Shapes: `z (B, D)` queries, `queue (Q, D)`, `prototypes (M, D)`, `temperatures (M,)`, `clusters (B,)` the queries'
clusters, `parents (M,)`. Vectors have unit length. Everything is in float32, without gradients.
"""

import torch


def similarity(z: torch.Tensor, prototypes: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Eq. 3: s(z, c) = z.c / tau_c for every pair, (B, M)."""
    return z @ prototypes.T / temperatures


def most_similar(z: torch.Tensor, prototypes: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
    """c(z), the cluster (B,) of highest similarity; by cosine where no temperatures are given."""
    scores = z @ prototypes.T if temperatures is None else similarity(z, prototypes, temperatures)
    return scores.argmax(dim=1)


def instance_keep_probability(
    queue: torch.Tensor, prototypes: torch.Tensor, temperatures: torch.Tensor, clusters: torch.Tensor
) -> torch.Tensor:
    """Eq. 4: 1 - P(queue entry j belongs to the query's cluster), (B, Q)."""
    belongs = similarity(queue, prototypes, temperatures).softmax(dim=1)
    return 1 - belongs[:, clusters].T


def prototype_keep_probability(
    prototypes: torch.Tensor,
    upper_prototypes: torch.Tensor,
    upper_temperatures: torch.Tensor,
    parents: torch.Tensor,
    clusters: torch.Tensor,
) -> torch.Tensor:
    """Eq. 7: 1 - P(prototype j belongs to the parent of the query's cluster), (B, M)."""
    belongs = similarity(prototypes, upper_prototypes, upper_temperatures).softmax(dim=1)
    return 1 - belongs[:, parents[clusters]].T


def draw(keep_probability: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Eq. 5 and 8: one Bernoulli trial per pair; True where the negative is kept."""
    return torch.rand(keep_probability.shape, generator=generator, device=keep_probability.device) < keep_probability
