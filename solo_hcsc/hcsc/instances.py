"""Eq. 5 and 6 of a batch: which queue entries are left out for its queries, and the instance losses with them."""

from dataclasses import dataclass

import torch

from solo_hcsc.hcsc.losses import info_nce, over_levels, selected_info_nce
from solo_hcsc.hcsc.options import Options


@dataclass(frozen=True)
class PairDraws:
    """A batch's instance losses the direct way: a mask for every pair."""

    options: Options
    key: torch.Tensor
    queue: torch.Tensor
    same_image: torch.Tensor  # (B, K)
    masks: list[torch.Tensor | None]

    def of(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Eq. 6 and its levels (L,)."""
        tau, left_out = self.options.temperature, self.options.left_out
        losses = [info_nce(z, self.key, self.queue, tau, mask, left_out, self.same_image) for mask in self.masks]
        return over_levels(losses, self.options.icsc_levels), torch.stack(losses)

    def left_out(self) -> list[torch.Tensor]:
        """Per level (B, Q): True where a negative was left out."""
        return [(~mask).scatter(1, self.same_image, False) for mask in self.masks if mask is not None]

    def shares(self) -> list[torch.Tensor]:
        """The share of negatives left out, per level."""
        negatives = self.queue.size(0) - self.same_image.size(1)
        return [out.sum(dim=1).float().mean() / negatives for out in self.left_out()]


@dataclass(frozen=True)
class SharedDraws:
    """A batch's instance losses the default way: an entry is left out for a query iff it drew the query's cluster."""

    options: Options
    key: torch.Tensor
    queue: torch.Tensor
    same_image: torch.Tensor  # (B, K)
    queue_clusters: torch.Tensor  # (L, Q)
    clusters: torch.Tensor  # (L, B)

    def of(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        draws = self.queue_clusters, self.clusters
        mean, levels = selected_info_nce(z, self.key, self.queue, self.options.temperature, *draws, self.same_image)
        return mean if self.options.icsc_levels == "mean" else mean * len(levels), levels

    def left_out(self) -> list[torch.Tensor]:
        pairs = zip(self.queue_clusters, self.clusters, strict=True)
        return [(drawn == asked[:, None]).scatter(1, self.same_image, False) for drawn, asked in pairs]

    def shares(self) -> list[torch.Tensor]:
        size = self.queue_clusters.size(1)
        shares = []
        for drawn, asked, count in zip(self.queue_clusters, self.clusters, self.options.num_prototypes, strict=True):
            ones = torch.ones(size, device=asked.device)
            entries = torch.zeros(count, device=asked.device).index_add_(0, drawn, ones)[asked]
            entries = entries - (drawn[self.same_image] == asked[:, None]).sum(dim=1)
            shares.append(entries.mean() / (size - self.same_image.size(1)))
        return shares
