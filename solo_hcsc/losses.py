"""The losses: Eq. 1 and 2, and their means over levels, Eq. 6 and 9.

Shapes: `z (B, D)` queries, `key (B, D)`, `queue (Q, D)`, `prototypes (M, D)`, `temperatures (M,)`, `clusters (B,)`,
`keep (B, Q)` or `(B, M)`: False where a negative is left out. Vectors have unit length.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F


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
    negative = _leave_out(z @ queue.T / temperature, keep, left_out)
    return (torch.cat([positive, negative], dim=1).logsumexp(dim=1) - positive[:, 0]).mean()


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
    negative = _leave_out(logits, keep, left_out)
    if candidates is not None:
        negative = _leave_out(negative, candidates.expand_as(negative), "removed")
    return F.cross_entropy(torch.where(own, logits, negative), clusters)


def over_levels(losses: Sequence[torch.Tensor], how: str = "mean") -> torch.Tensor:
    """The outer sum of Eq. 6 and 9: the mean over levels; the released code sums Eq. 6."""
    total = torch.stack(list(losses)).sum()
    return total / len(losses) if how == "mean" else total


def _leave_out(logits: torch.Tensor, keep: torch.Tensor | None, how: str) -> torch.Tensor:
    """Takes left-out negatives from the denominator; with "zero_logit" they stay there as exp(0)."""
    if keep is None:
        return logits
    return logits.masked_fill(~keep, 0.0 if how == "zero_logit" else torch.finfo(logits.dtype).min)
