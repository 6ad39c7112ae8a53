"""The losses: Eq. 1 and 2, and their means over levels, Eq. 6 and 9.

Shapes: `z (B, D)` queries, `key (B, D)`, `queue (Q, D)`, `prototypes (M, D)`, `temperatures (M,)`, `clusters (B,)`,
`keep (B, Q)` or `(B, M)`: False where a negative is left out. Vectors have unit length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def info_nce(
    z: torch.Tensor,
    key: torch.Tensor,
    queue: torch.Tensor,
    temperature: float,
    keep: torch.Tensor | None = None,
    left_out: str = "removed",
) -> torch.Tensor:
    """Eq. 1, the mean over queries: each query's key against the queue entries it keeps."""
    positive = (z * key).sum(dim=1, keepdim=True) / temperature
    negative = _mask_logits(z @ queue.T / temperature, keep, left_out)
    return (torch.cat([positive, negative], dim=1).logsumexp(dim=1) - positive[:, 0]).mean()


def selected_info_nce(
    z: torch.Tensor,
    key: torch.Tensor,
    queue: torch.Tensor,
    temperature: float,
    queue_clusters: torch.Tensor,
    clusters: torch.Tensor,
) -> torch.Tensor:
    """Eq. 1 at every level (L,), with the queue entries left out whose drawn cluster is the query's.

    `queue_clusters (L, Q)`, `clusters (L, B)`. Equals `info_nce(z, key, queue, temperature, keep)` with
    `keep = queue_clusters[l] != clusters[l][:, None]`, at a fraction of its time and memory.
    """
    return _SelectedInfoNCE.apply(z, key, queue, temperature, queue_clusters, clusters)


class _SelectedInfoNCE(torch.autograd.Function):
    """One product with the queue serves all levels: few entries are left out, so a level is the sum over the whole
    queue, in float64, less a few terms.

    Finding the few needs their number, which a GPU would have to wait for. There, and where the few are many (clusters
    have collapsed) or nearly all of the sum, a mask over all pairs does the same.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: torch.Tensor,
        key: torch.Tensor,
        queue: torch.Tensor,
        temperature: float,
        queue_clusters: torch.Tensor,
        clusters: torch.Tensor,
    ) -> torch.Tensor:
        positive = (z * key).sum(dim=1) / temperature
        weights = (z @ queue.T).mul_(1 / temperature)  # (B, Q), then exp(logit - top) in place
        top = torch.maximum(weights.amax(dim=1), positive)
        weights.sub_(top[:, None]).exp_()
        own = (positive - top).exp()
        total = weights.sum(dim=1, dtype=torch.float64)
        left_out = [_left_out(*level, weights, total) for level in zip(queue_clusters, clusters, strict=True)]
        inverse = torch.stack([1 / (own + level.kept(weights, total)) for level in left_out])  # (L, B)
        ctx.save_for_backward(key, queue, own, inverse.to(z.dtype), weights)
        ctx.left_out, ctx.temperature = left_out, temperature
        return (-inverse.log() - (positive - top)).mean(dim=1).to(z.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        key, queue, own, inverse, weights = ctx.saved_tensors
        scale = inverse * grads[0][:, None]  # (L, B)
        levels = list(zip(ctx.left_out, scale, strict=True))
        listed = [share for level, share in levels if isinstance(level, _Listed)]
        kept = weights * (torch.stack(listed).sum(dim=0)[:, None] if listed else 0)
        for level, share in levels:
            level.correct(kept, weights, share)
        gradient = kept @ queue + (own * scale.sum(dim=0) - grads[0].sum())[:, None] * key
        return gradient.mul_(1 / (ctx.temperature * len(key))), None, None, None, None, None


MOST_LISTED = 1 / 16  # of all pairs; beyond, the mask is faster
LEAST_KEPT = 0.01  # of a row's sum; below, a difference of sums would lose digits


def _left_out(
    queue_clusters: torch.Tensor, clusters: torch.Tensor, weights: torch.Tensor, total: torch.Tensor
) -> "_Listed | _Masked":
    """The pairs (b, j) of a level with queue_clusters[j] == clusters[b]."""
    if clusters.device.type == "cpu":
        ordered, order = queue_clusters.sort()
        first = torch.searchsorted(ordered, clusters)
        counts = torch.searchsorted(ordered, clusters, right=True) - first
        if int(counts.sum()) <= MOST_LISTED * weights.numel():
            rows = torch.arange(len(clusters)).repeat_interleave(counts)
            within = torch.arange(len(rows)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
            listed = _Listed(rows, rows * len(queue_clusters) + order[first.repeat_interleave(counts) + within])
            if bool((listed.kept(weights, total) >= LEAST_KEPT * total).all()):
                return listed
    return _Masked(queue_clusters == clusters[:, None])


@dataclass(frozen=True)
class _Listed:
    """Left-out pairs one by one: their rows, and their places in a flat (B x Q)."""

    rows: torch.Tensor
    places: torch.Tensor

    def kept(self, weights: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """The sum (B,) of each row of `weights` (B, Q) without its left-out places; `total` is the sum with them."""
        return total.index_add(0, self.rows, weights.view(-1)[self.places].double(), alpha=-1)

    def correct(self, result: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor) -> None:
        """Takes `weights`, times their row's `scale`, out of `result` in left-out places."""
        terms = weights.view(-1)[self.places] * scale[self.rows]
        result.view(-1).index_add_(0, self.places, -terms)


@dataclass(frozen=True)
class _Masked:
    """Left-out pairs as a mask (B, Q)."""

    mask: torch.Tensor

    def kept(self, weights: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return weights.masked_fill(self.mask, 0).sum(dim=1, dtype=torch.float64)

    def correct(self, result: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor) -> None:
        """Adds `weights`, times their row's `scale`, to `result` in the other places."""
        result.add_((weights * scale[:, None]).masked_fill_(self.mask, 0))


def proto_nce(
    z: torch.Tensor,
    prototypes: torch.Tensor,
    temperatures: torch.Tensor,
    clusters: torch.Tensor,
    keep: torch.Tensor | None = None,
    left_out: str = "removed",
    candidates: torch.Tensor | None = None,
) -> torch.Tensor:
    """Eq. 2, the mean over queries: each query's prototype against the others it keeps.

    `candidates (M,)`: False where a prototype is nobody's negative. A query's own prototype always counts.
    """
    logits = z @ prototypes.T / temperatures
    own = F.one_hot(clusters, len(prototypes)).bool()
    negative = _mask_logits(logits, keep, left_out)
    if candidates is not None:
        negative = _mask_logits(negative, candidates.expand_as(negative), "removed")
    return F.cross_entropy(torch.where(own, logits, negative), clusters)


def over_levels(losses: Sequence[torch.Tensor], how: str = "mean") -> torch.Tensor:
    """The outer sum of Eq. 6 and 9: the mean over levels; the released code sums Eq. 6."""
    total = torch.stack(list(losses)).sum()
    return total / len(losses) if how == "mean" else total


def _mask_logits(logits: torch.Tensor, keep: torch.Tensor | None, how: str) -> torch.Tensor:
    """Takes left-out negatives from the denominator; with "zero_logit" they stay there as exp(0)."""
    if keep is None:
        return logits
    return logits.masked_fill(~keep, 0.0 if how == "zero_logit" else torch.finfo(logits.dtype).min)
