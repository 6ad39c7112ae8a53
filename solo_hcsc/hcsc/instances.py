"""Eq. 5 and 6 of a batch: which queue entries are left out for its queries, and the instance losses with them."""

from dataclasses import dataclass

import torch

from solo_hcsc.hcsc.losses import info_nce, over_levels, selected_info_nce
from solo_hcsc.hcsc.options import Options
from solo_hcsc.hcsc.selection import left_out_masks


@dataclass(frozen=True)
class PairDraws:
    """A batch's instance losses the direct way: a mask for every pair."""

    options: Options
    key: torch.Tensor
    queue: torch.Tensor
    same_image: torch.Tensor  # (B, K)
    masks: list[torch.Tensor | None]

    def of(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute Eq. 6 and its levels (L,)."""
        tau, left_out = self.options.temperature, self.options.left_out
        losses = [info_nce(z, self.key, self.queue, tau, mask, left_out, self.same_image) for mask in self.masks]
        return over_levels(losses, self.options.icsc_levels), torch.stack(losses)

    def left_out(self) -> list[torch.Tensor]:
        """Return masks (B, Q) per level: True where a negative was left out."""
        return [(~mask).scatter(1, self.same_image, False) for mask in self.masks if mask is not None]

    def shares(self) -> list[torch.Tensor]:
        """Return the share of negatives left out, per level."""
        negatives = self.queue.size(0) - self.same_image.size(1)
        return [out.sum(dim=1).float().mean() / negatives for out in self.left_out()]


@dataclass(frozen=True)
class SharedDraws:
    """A batch's instance losses the default way: an entry is left out for a query iff it drew the query's cluster.

    With clamped probabilities some more pairs are left out, which are drawn for this batch alone.
    """

    options: Options
    key: torch.Tensor
    queue: torch.Tensor
    same_image: torch.Tensor  # (B, K)
    queue_clusters: torch.Tensor  # (L, Q)
    clusters: torch.Tensor  # (L, B)
    rare: torch.Tensor | None = None  # (n,), as `rare_pairs` gives them

    def of(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self.key, self.queue, self.options.temperature, self.queue_clusters, self.clusters, self.same_image
        mean, levels = selected_info_nce(z, *batch, self.options.left_out, self.rare)
        return mean if self.options.icsc_levels == "mean" else mean * len(levels), levels

    def left_out(self) -> list[torch.Tensor]:
        masks = left_out_masks(self.queue_clusters, self.clusters, self.rare)
        return [mask.scatter(1, self.same_image, False) for mask in masks]

    def shares(self) -> list[torch.Tensor]:
        size = self.queue_clusters.size(1)
        shares = []
        for drawn, asked, count in zip(self.queue_clusters, self.clusters, self.options.num_prototypes, strict=True):
            ones = torch.ones(size, device=asked.device)
            entries = torch.zeros(count, device=asked.device).index_add_(0, drawn, ones)[asked]
            entries = entries - (drawn[self.same_image] == asked[:, None]).sum(dim=1)
            shares.append(entries.mean() / (size - self.same_image.size(1)))
        if self.rare is not None:
            levels, batch = self.clusters.shape
            ones = torch.ones(len(self.rare), device=self.rare.device)
            found = torch.zeros(levels + 1, device=ones.device).index_add_(0, self.rare // (batch * size), ones)
            found /= batch * (size - self.same_image.size(1))
            shares = [share + more for share, more in zip(shares, found[:-1], strict=True)]
        return shares
