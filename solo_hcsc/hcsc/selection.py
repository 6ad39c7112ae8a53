"""Which negatives a query keeps: Eq. 3, 4 and 5 for queue entries, Eq. 7 and 8 for prototypes.

The direct way is a probability and a Bernoulli trial for every pair (`instance_keep_probability`,
`prototype_keep_probability`, `keep_by_chance`). The default is faster and has the same distribution: every queue entry
draws one cluster `a_j ~ softmax_i s(z_j, c_i)` when it comes in (`draw_clusters`), and is left out for a query iff
`a_j` is the query's cluster. For a given query each entry is then left out with exactly Eq. 4's probability,
independently of the other entries; only draws for different queries and steps are shared.

Shapes: `z (B, D)` queries, `queue (Q, D)`, `prototypes (M, D)`, `temperatures (M,)`, `clusters (B,)` the queries'
clusters, `parents (M,)`. Vectors have unit length. Everything is in float32, without gradients.
"""

import torch


def similarity(z: torch.Tensor, prototypes: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Eq. 3: s(z, c) = z.c / tau_c for every pair, (B, M)."""
    return z @ prototypes.T / temperatures


def most_similar(cosine: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
    """c(z), the cluster (B,) of highest similarity, from z.c (B, M); the nearest where no temperatures are given."""
    return (cosine if temperatures is None else cosine / temperatures).argmax(dim=1)


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


def keep_by_chance(keep_probability: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Eq. 5 and 8: one Bernoulli trial per pair; True where the negative is kept."""
    return torch.rand(keep_probability.shape, generator=generator, device=keep_probability.device) < keep_probability


def draw_clusters(
    vectors: torch.Tensor,
    prototypes: torch.Tensor,
    temperatures: torch.Tensor,
    generator: torch.Generator | None = None,
    chunk: int = 1024,
) -> torch.Tensor:
    """One cluster (n,) for each of `vectors` (n, D), drawn with the probabilities of Eq. 4 and 7."""
    draws = [
        sample_rows(similarity(part, prototypes, temperatures).softmax(dim=1).cumsum(dim=1), generator)
        for part in vectors.split(chunk)
    ]
    return torch.cat(draws) if draws else torch.zeros(0, dtype=torch.long, device=vectors.device)


def sample_rows(cumulative: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """An index (n,) for each row of cumulative probabilities (n, M)."""
    uniform = torch.rand(len(cumulative), 1, generator=generator, device=cumulative.device)
    # The last column may end a rounding error below 1, so the scale comes from it.
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).clamp(max=cumulative.size(1) - 1)[
        :, 0
    ]
