"""The losses: Eq. 1 and 2, and their means over levels, Eq. 6 and 9.

Shapes: `z (B, D)` queries, `key (B, D)`, `queue (Q, D)`, `prototypes (M, D)`, `temperatures (M,)`, `clusters (B,)`,
`keep (B, Q)` or `(B, M)`: False where a negative is left out, `same_image (B, K)`: the queue entries of this step that
are of the query's image, which are no negatives. Vectors have unit length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from solo_hcsc.hcsc.selection import left_out_masks


def info_nce(
    z: torch.Tensor,
    key: torch.Tensor,
    queue: torch.Tensor,
    temperature: float,
    keep: torch.Tensor | None = None,
    left_out: str = "removed",
    same_image: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute Eq. 1, the mean over queries: each query's key against the queue entries it keeps."""
    positive = (z * key).sum(dim=1, keepdim=True) / temperature
    negative = _mask_logits(z @ queue.T / temperature, keep, left_out)
    if same_image is not None and same_image.size(1):
        negative = negative.scatter(1, same_image, torch.finfo(negative.dtype).min)
    return (torch.cat([positive, negative], dim=1).logsumexp(dim=1) - positive[:, 0]).mean()


def selected_info_nce(
    z: torch.Tensor,
    key: torch.Tensor,
    queue: torch.Tensor,
    temperature: float,
    queue_clusters: torch.Tensor,
    clusters: torch.Tensor,
    same_image: torch.Tensor | None = None,
    left_out: str = "removed",
    rare: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute Eq. 6 and, without gradients, its levels (L,); an entry with the query's cluster is left out.

    `queue_clusters (L, Q)`, `clusters (L, B)`, `rare (n,)`: the `rare_pairs`, left out too. A level equals
    `info_nce(z, key, queue, temperature, keep, left_out)` with `keep = ~left_out_masks(queue_clusters, clusters, rare)`
    and the same `same_image`. Here one product with the queue serves all levels, and its place in memory becomes the
    gradient's. Exponentials are taken as they are, which `LEAST_TEMPERATURE` allows.
    """
    with torch.no_grad():
        positive = (z * key).sum(dim=1) / temperature
        weights = (z / temperature @ queue.T).exp_()  # (B, Q)
        if same_image is not None:
            weights.scatter_(1, same_image, 0.0)
        pairs, kept = _left_out(queue_clusters, clusters, weights, rare)
        if left_out == "zero_logit":  # then exp(0) remains of each pair
            kept = kept + pairs.count(weights)
        inverse = 1 / (positive.exp() + kept)  # (L, B), one over each query's denominator
        losses = -(inverse.log() + positive).mean(dim=1)
        pairs.scale(weights, inverse)  # now the derivative by each logit, summed over levels
        gradient = weights @ queue + (positive.exp() * inverse.sum(dim=0) - len(clusters))[:, None] * key
        gradient /= temperature * clusters.numel()
    return _WithGradient.apply(z, losses.mean(), gradient), losses


class _WithGradient(torch.autograd.Function):
    """A loss whose gradient by `z` was computed along with it, so that nothing large waits for the backward pass."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, loss: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return grads[0] * gradient, None, None


LEAST_TEMPERATURE = 0.02  # unit vectors over it have exponentials, and sums of many, well within float32
MOST_LISTED = 1 / 16  # of all pairs and levels; beyond, masks are faster
LEAST_KEPT = 0.1  # of a query's sum; below, a difference of sums would lose digits


def _left_out(
    queue_clusters: torch.Tensor, clusters: torch.Tensor, weights: torch.Tensor, rare: torch.Tensor | None = None
) -> tuple["_Listed | _Masked", torch.Tensor]:
    """Find the pairs (b, j) of each level l with queue_clusters[l, j] == clusters[l, b]; sum the others, (L, B).

    The `rare` pairs are among the first. Usually these are few: then a level's sum is the sum over the whole queue less
    some terms. Listing them needs their number, which a GPU would have to wait for. There, and where clusters have
    collapsed, masks over all pairs do the same.
    """
    if weights.device.type == "cpu":
        levels, batch = clusters.shape
        # Numbers that no two levels share. A negative one, an entry without a cluster, is nobody's.
        count = 1 + int(clusters.max())
        first = torch.arange(levels)[:, None] * count
        asked = (clusters + first).view(-1)
        drawn = torch.where((queue_clusters >= 0) & (queue_clusters < count), queue_clusters + first, -1).view(-1)
        sizes = torch.bincount(asked, minlength=levels * count + 1)  # queries in each cluster; the last: none
        matches = sizes[drawn]
        total = int(matches.sum())
        if total <= MOST_LISTED * levels * weights.numel():
            entries = torch.arange(len(drawn)).repeat_interleave(matches, output_size=total)
            within = torch.arange(total) - (matches.cumsum(0) - matches)[entries]
            queries = asked.argsort()[(sizes.cumsum(0) - sizes)[drawn[entries]] + within]
            places = queries % batch * weights.size(1) + entries % weights.size(1)
            if rare is not None:
                rare = rare[rare < levels * weights.numel()]
                queries = torch.cat([queries, rare // weights.size(1)])
                places = torch.cat([places, rare % weights.numel()])
            listed = _Listed(queries, places, levels)
            whole = weights.sum(dim=1)
            kept = listed.kept(weights, whole)
            if bool((kept >= LEAST_KEPT * whole).all()):
                return listed, kept
    masked = _Masked(left_out_masks(queue_clusters, clusters, rare))
    return masked, masked.kept(weights)


@dataclass(frozen=True)
class _Listed:
    """Left-out pairs one by one: `level * B + query`, and their places in a flat (B x Q)."""

    queries: torch.Tensor
    places: torch.Tensor
    levels: int

    def kept(self, weights: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Sum the rows of `weights` (B, Q) without what each level leaves out, (L, B); `whole (B,)`: with it."""
        sums = whole.repeat(self.levels)
        return sums.index_add_(0, self.queries, weights.view(-1)[self.places], alpha=-1).view(self.levels, -1)

    def count(self, weights: torch.Tensor) -> torch.Tensor:
        """Return how many negatives each level leaves out, (L, B); a `same_image`, whose weight is 0, is none."""
        counts = weights.new_zeros(self.levels * len(weights))
        negatives = (weights.view(-1)[self.places] > 0).to(weights.dtype)
        return counts.index_add_(0, self.queries, negatives).view(self.levels, -1)

    def scale(self, weights: torch.Tensor, by: torch.Tensor) -> None:
        """Multiply row b of `weights` by the sum of `by[l, b]` over the levels that keep the place."""
        less = weights.view(-1)[self.places] * by.view(-1)[self.queries]
        weights.mul_(by.sum(dim=0)[:, None]).view(-1).index_add_(0, self.places, less, alpha=-1)


@dataclass(frozen=True)
class _Masked:
    """Left-out pairs as masks (L, B, Q)."""

    masks: torch.Tensor

    def kept(self, weights: torch.Tensor) -> torch.Tensor:
        return torch.stack([weights.masked_fill(mask, 0).sum(dim=1) for mask in self.masks])

    def count(self, weights: torch.Tensor) -> torch.Tensor:
        return torch.stack([((weights > 0) & mask).sum(dim=1) for mask in self.masks])

    def scale(self, weights: torch.Tensor, by: torch.Tensor) -> None:
        factor = torch.zeros_like(weights)
        for mask, share in zip(self.masks, by, strict=True):
            factor += share[:, None].masked_fill(mask, 0)
        weights.mul_(factor)


def proto_nce(
    z: torch.Tensor,
    prototypes: torch.Tensor,
    temperatures: torch.Tensor,
    clusters: torch.Tensor,
    keep: torch.Tensor | None = None,
    left_out: str = "removed",
    candidates: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute Eq. 2, the mean over queries: each query's prototype against the others it keeps.

    `candidates (M,)`: False where a prototype is nobody's negative. A query's prototype always counts.
    """
    logits = z @ prototypes.T / temperatures
    positive = F.one_hot(clusters, len(prototypes)).bool()
    negative = _mask_logits(logits, keep, left_out)
    if candidates is not None:
        negative = _mask_logits(negative, candidates.expand_as(negative), "removed")
    return F.cross_entropy(torch.where(positive, logits, negative), clusters)


def selected_proto_nce(
    z: torch.Tensor,
    prototypes: torch.Tensor,
    temperatures: torch.Tensor,
    clusters: torch.Tensor,
    keep: torch.Tensor | None,
    cosine: torch.Tensor,
    left_out: str = "removed",
    candidates: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `proto_nce` from `cosine (B, M)` of `z` and `prototypes`, which finding the clusters needed too."""
    with torch.no_grad():
        clusters = clusters[:, None]
        logits = cosine / temperatures
        positive = logits.gather(1, clusters)
        out = None if keep is None else ~keep
        if out is not None:
            logits.masked_fill_(out, 0.0 if left_out == "zero_logit" else -torch.inf)
        if candidates is not None:
            logits.masked_fill_(~candidates, -torch.inf)
        logits = logits.scatter_(1, clusters, positive).log_softmax(dim=1)
        loss = -logits.gather(1, clusters).mean()
        slopes = logits.exp_()
        positive = slopes.gather(1, clusters) - 1
        if out is not None and left_out == "zero_logit":  # a constant has no slope
            slopes.masked_fill_(out, 0.0)
        slopes.scatter_(1, clusters, positive)
        gradient = slopes.div_(temperatures) @ prototypes / len(z)
    return _WithGradient.apply(z, loss, gradient)


def over_levels(losses: Sequence[torch.Tensor], how: str = "mean") -> torch.Tensor:
    """Compute the outer sum of Eq. 6 and 9: the mean over levels; the released code sums Eq. 6."""
    total = torch.stack(list(losses)).sum()
    return total / len(losses) if how == "mean" else total


def _mask_logits(logits: torch.Tensor, keep: torch.Tensor | None, how: str) -> torch.Tensor:
    """Take left-out negatives from the denominator; with "zero_logit" they stay there as exp(0)."""
    if keep is None:
        return logits
    return logits.masked_fill(~keep, 0.0 if how == "zero_logit" else torch.finfo(logits.dtype).min)
