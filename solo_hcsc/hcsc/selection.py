"""Which negatives a query keeps: Eq. 3, 4 and 5 for queue entries, Eq. 7 and 8 for prototypes.

The direct way is a probability and a Bernoulli trial for every pair (`instance_keep_probability`,
`prototype_keep_probability`, `keep_by_chance`). The default is faster and has the same distribution: every queue entry
draws one cluster `a_j ~ softmax_i s(z_j, c_i)` when it comes in (`draw_clusters`), and is left out for a query iff
`a_j` is the query's cluster. For a given query each entry is then left out with exactly Eq. 4's probability,
independently of the other entries; only draws for different queries and steps are shared.

The released code keeps no pair with more than `INSTANCES_KEPT[1]`. Pairs that Eq. 4 leaves out more rarely than that
allows are few when counted by their draws, so they are found without looking at the others (`rare_pairs`), anew in
every step and for every query.

Shapes: `z (B, D)` queries, `queue (Q, D)`, `prototypes (M, D)`, `temperatures (M,)`, `clusters (B,)` the queries'
clusters, `parents (M,)`. Vectors have unit length. Everything is in float32, without gradients.
"""

import math

import torch

# The released code's bounds of the probability to keep a queue entry (Eq. 4), and a prototype (Eq. 7).
INSTANCES_KEPT = 0.0, 0.999
PROTOTYPES_KEPT = 0.0001, 0.999


def similarity(z: torch.Tensor, prototypes: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Compute Eq. 3: s(z, c) = z.c / tau_c for every pair, (B, M)."""
    return z @ prototypes.T / temperatures


def most_similar(cosine: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
    """Find c(z), the cluster (B,) of highest similarity, from z.c (B, M); the nearest without temperatures."""
    return (cosine if temperatures is None else cosine / temperatures).argmax(dim=1)


def instance_keep_probability(
    queue: torch.Tensor, prototypes: torch.Tensor, temperatures: torch.Tensor, clusters: torch.Tensor
) -> torch.Tensor:
    """Compute Eq. 4: 1 - P(queue entry j belongs to the query's cluster), (B, Q)."""
    belongs = similarity(queue, prototypes, temperatures).softmax(dim=1)
    return 1 - belongs[:, clusters].T


def prototype_keep_probability(
    prototypes: torch.Tensor,
    upper_prototypes: torch.Tensor,
    upper_temperatures: torch.Tensor,
    parents: torch.Tensor,
    clusters: torch.Tensor,
) -> torch.Tensor:
    """Compute Eq. 7: 1 - P(prototype j belongs to the parent of the query's cluster), (B, M)."""
    belongs = similarity(prototypes, upper_prototypes, upper_temperatures).softmax(dim=1)
    return 1 - belongs[:, parents[clusters]].T


def keep_by_chance(keep_probability: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw Eq. 5 and 8, one Bernoulli trial per pair: True where the negative is kept."""
    return torch.rand(keep_probability.shape, generator=generator, device=keep_probability.device) < keep_probability


def draw_clusters(
    vectors: torch.Tensor,
    prototypes: torch.Tensor,
    temperatures: torch.Tensor,
    generator: torch.Generator | None = None,
    chunk: int = 1024,
) -> torch.Tensor:
    """Draw a cluster (n,) for each of `vectors` (n, D), with the probabilities of Eq. 4 and 7."""
    draws = [
        sample_rows(similarity(part, prototypes, temperatures).softmax(dim=1).cumsum(dim=1), generator)
        for part in vectors.split(chunk)
    ]
    return torch.cat(draws) if draws else torch.zeros(0, dtype=torch.long, device=vectors.device)


def log_partitions(
    vectors: torch.Tensor, prototypes: torch.Tensor, temperatures: torch.Tensor, chunk: int = 1024
) -> torch.Tensor:
    """Compute the logarithms (n,) of Eq. 4's denominators for `vectors` (n, D)."""
    return torch.cat([similarity(part, prototypes, temperatures).logsumexp(dim=1) for part in vectors.split(chunk)])


def sparse_places(count: int, chance: float, generator: torch.Generator | None, device: torch.device) -> torch.Tensor:
    """Draw which of `count` independent trials succeed, in order (n,); then `count` for the rest.

    Drawn by the gaps between successes, so that the cost is that of the successes. There are as many gaps as could be
    needed (but for a chance below 1e-16), whatever comes out: no GPU is waited for, and processes that draw with the
    same seed stay in step.
    """
    expected = count * chance
    gaps = torch.empty(math.ceil(expected + 9 * math.sqrt(expected) + 20), dtype=torch.float64, device=device)
    return (gaps.geometric_(chance, generator=generator).cumsum(dim=0) - 1).clamp(max=count).long()


def rare_pairs(
    queue: torch.Tensor,
    partitions: torch.Tensor,
    queue_clusters: torch.Tensor,
    clusters: torch.Tensor,
    prototypes: torch.Tensor,
    temperatures: torch.Tensor,
    same_image: torch.Tensor,
    least: float,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw further pairs to leave out, so that each is left out with a probability of at least `least`.

    An entry that belongs to a query's cluster with p < least was left out with p by its own draw. Where it was not, it
    is left out here with (least - p) / (1 - p): together that is `least`. Pairs are proposed with `least` each, and
    accepted with what is missing from that.

    Args:
        queue: (Q, D).
        partitions: (L, Q), the entries' `log_partitions`.
        queue_clusters: (L, Q), the entries' drawn clusters.
        clusters: (L, B), the queries'.
        prototypes: (L, B, D), of the queries' clusters.
        temperatures: (L, B), likewise.
        same_image: (B, K) entries that are no negatives of the query.

    Returns:
        Places (n,) in a flat (L, B, Q), none of them twice, left out already or of the query's image. L * B * Q stands
        for no place.
    """
    (_, batch), size = clusters.shape, len(queue)
    count = clusters.numel() * size
    proposed = sparse_places(count, least, generator, queue.device)
    pairs = proposed.clamp(max=count - 1)
    rows, entries = pairs // size, pairs % size  # level * B + query; entry
    entry_rows = rows // batch * size + entries  # level * Q + entry
    score = (queue[entries] * prototypes.flatten(0, 1)[rows]).sum(dim=1) / temperatures.view(-1)[rows]
    belongs = (score - partitions.view(-1)[entry_rows]).exp()
    missing = (1 - belongs / least).clamp(min=0) / (1 - belongs)  # of the proposals
    accepted = torch.rand(len(pairs), generator=generator, device=queue.device) < missing
    accepted &= queue_clusters.reshape(-1)[entry_rows] != clusters.view(-1)[rows]
    accepted &= (same_image[rows % batch] != entries[:, None]).all(dim=1)
    return torch.where(accepted, proposed, count)


def left_out_masks(
    queue_clusters: torch.Tensor, clusters: torch.Tensor, rare: torch.Tensor | None = None
) -> torch.Tensor:
    """Return masks (L, B, Q): True where an entry drew the query's cluster, or is among the `rare_pairs`."""
    masks = queue_clusters[:, None, :] == clusters[:, :, None]
    if rare is None:
        return masks
    return torch.cat([masks.view(-1), masks.new_zeros(1)]).index_fill_(0, rare, True)[:-1].view_as(masks)


def sample_rows(cumulative: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw an index (n,) for each row of cumulative probabilities (n, M)."""
    uniform = torch.rand(len(cumulative), 1, generator=generator, device=cumulative.device)
    # The last column may end a rounding error below 1, so the scale comes from it.
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).clamp(max=cumulative.size(1) - 1)[
        :, 0
    ]
