"""Section 4 of the paper as one module: the queue, the tree of prototypes, and the loss of a batch (Eq. 10)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from solo_hcsc.hcsc.hierarchy import Hierarchy, Level
from solo_hcsc.hcsc.losses import (
    LEAST_TEMPERATURE,
    info_nce,
    over_levels,
    proto_nce,
    selected_info_nce,
    selected_proto_nce,
)
from solo_hcsc.hcsc.options import Options, clustered_at_most, needs_tree
from solo_hcsc.hcsc.selection import (
    draw,
    draw_clusters,
    instance_keep_probability,
    most_similar,
    prototype_keep_probability,
    sample_rows,
    similarity,
)

NEWEST = 0.5  # the share of an epoch's keys in the averages that are clustered


@dataclass(frozen=True)
class Coded:
    """A batch's loss and what is logged of it."""

    loss: torch.Tensor
    parts: dict[str, torch.Tensor]
    left_out: Callable[[], list[torch.Tensor]]  # per level (B, Q): True where a queue entry was left out for the query
    own: torch.Tensor  # (B, K) places in the queue that are no negatives of the query


@dataclass(frozen=True)
class _PairDraws:
    """A batch's instance losses the direct way: a mask for every pair."""

    options: Options
    key: torch.Tensor
    queue: torch.Tensor
    own: torch.Tensor  # (B, K) places of the query's image in the queue
    masks: list[torch.Tensor | None]

    def of(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Eq. 6 and its levels (L,)."""
        tau, left_out = self.options.temperature, self.options.left_out
        losses = [info_nce(z, self.key, self.queue, tau, mask, left_out, self.own) for mask in self.masks]
        return over_levels(losses, self.options.icsc_levels), torch.stack(losses)

    def left_out(self) -> list[torch.Tensor]:
        """Per level (B, Q): True where a negative was left out."""
        return [(~mask).scatter(1, self.own, False) for mask in self.masks if mask is not None]

    def shares(self) -> list[torch.Tensor]:
        """The share of negatives left out, per level."""
        negatives = self.queue.size(0) - self.own.size(1)
        return [out.sum(dim=1).float().mean() / negatives for out in self.left_out()]


@dataclass(frozen=True)
class _SharedDraws:
    """A batch's instance losses the default way: an entry is left out for a query iff it drew the query's cluster."""

    options: Options
    key: torch.Tensor
    queue: torch.Tensor
    own: torch.Tensor  # (B, K)
    queue_clusters: torch.Tensor  # (L, Q)
    clusters: torch.Tensor  # (L, B)

    def of(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        draws = self.queue_clusters, self.clusters
        mean, levels = selected_info_nce(z, self.key, self.queue, self.options.temperature, *draws, self.own)
        return mean if self.options.icsc_levels == "mean" else mean * len(levels), levels

    def left_out(self) -> list[torch.Tensor]:
        drawn_and_asked = zip(self.queue_clusters, self.clusters, strict=True)
        return [(drawn == asked[:, None]).scatter(1, self.own, False) for drawn, asked in drawn_and_asked]

    def shares(self) -> list[torch.Tensor]:
        size = self.queue_clusters.size(1)
        shares = []
        for drawn, asked, count in zip(self.queue_clusters, self.clusters, self.options.num_prototypes, strict=True):
            ones = torch.ones(size, device=asked.device)
            entries = torch.zeros(count, device=asked.device).index_add_(0, drawn, ones)[asked]
            entries = entries - (drawn[self.own] == asked[:, None]).sum(dim=1)
            shares.append(entries.mean() / (size - self.own.size(1)))
        return shares


class SelectiveCoding(nn.Module):
    """Instance-wise and prototypical contrastive selective coding on a queue of keys.

    All state is in buffers of fixed size: a level's arrays are padded to the number of prototypes asked for, and
    `kept` says how many there are, so that a checkpoint of any epoch loads strictly.
    """

    queue: torch.Tensor  # (Q, D)
    queue_ptr: torch.Tensor  # () where the next key goes
    queue_labels: torch.Tensor  # (Q,) -1 where unknown
    queue_clusters: torch.Tensor  # (L, Q) each entry's drawn cluster; -1 before the first clustering
    queue_steps: torch.Tensor  # (Q,) the step at which an entry came in; -1 for the random ones of the start
    assignments: torch.Tensor  # (L, N) each image's cluster; -1 if it was not clustered
    keys: torch.Tensor  # (S + 1, D) averages of images' keys, 0 before the first; the last row is of images without one

    def __init__(self, options: Options, dim: int, num_images: int, seed: int) -> None:
        super().__init__()
        self.options = options
        self.kept: tuple[int, ...] = ()  # prototypes per level; empty before the first clustering
        self.highest: tuple[int, ...] = ()  # the highest cluster number that an image has, per level
        self.clustered_epoch = -1
        self.num_images, self.seed = num_images, seed
        self._generator: torch.Generator | None = None
        self._generator_state: tuple[str, torch.Tensor] | None = None  # device and state, from a checkpoint
        size = options.queue_size
        start = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("queue", F.normalize(start, dim=1))
        self.register_buffer("queue_ptr", torch.zeros((), dtype=torch.long))
        self.register_buffer("queue_labels", torch.full((size,), -1))
        self.register_buffer("queue_steps", torch.full((size,), -1))
        self.register_buffer("queue_clusters", torch.full((len(options.num_prototypes), size), -1))
        # The released code's clamped probabilities and zero logits have no such form: they go the direct way.
        plain = not options.clamp_probabilities and options.left_out == "removed"
        self.shares_draws = plain and options.temperature >= LEAST_TEMPERATURE
        self._parent_draws: dict[int, torch.Tensor] = {}  # per level: cumulative probabilities of Eq. 7 (M_l, M_l+1)
        # Only k-means assignments need to know each image's cluster, and only clusterings of keys the keys.
        images = num_images if options.query_cluster == "assignment" and needs_tree(options) else 0
        self.register_buffer("assignments", torch.full((len(options.num_prototypes), images), -1))
        self.averages_keys = options.clustered_features == "keys" and needs_tree(options)
        rows = clustered_at_most(options, num_images) + 1 if self.averages_keys else 0
        self.register_buffer("keys", torch.zeros(rows, dim))
        for level, count in enumerate(options.num_prototypes):
            self.register_buffer(f"prototypes_{level}", torch.zeros(count, dim))
            self.register_buffer(f"temperatures_{level}", torch.ones(count))
            self.register_buffer(f"parents_{level}", torch.zeros(count, dtype=torch.long))

    # ---- the tree ----

    def install(self, hierarchy: Hierarchy, epoch: int, images: torch.Tensor | slice = slice(None)) -> None:
        """Makes a new tree the one in use; `images (n,)`: the indexes of those that were clustered, if not all."""
        for number, level in enumerate(hierarchy.levels):
            count = len(level.prototypes)
            self._padded("prototypes", number)[:count] = level.prototypes
            self._padded("temperatures", number)[:count] = level.temperatures
            if level.parents is not None:
                self._padded("parents", number)[:count] = level.parents
        if self.assignments.numel():
            self.assignments.fill_(-1)[:, images] = hierarchy.assignments.to(self.assignments.device)
        self.kept = tuple(len(level.prototypes) for level in hierarchy.levels)
        self.highest = tuple(int(row.max()) for row in hierarchy.assignments)
        self.clustered_epoch = epoch
        self._parent_draws.clear()
        if self.shares_draws and self.options.instance_selection:
            self.queue_clusters.copy_(self.draw_clusters(self.queue))

    def draw_clusters(self, keys: torch.Tensor) -> torch.Tensor:
        """One drawn cluster per level and key, (L, n)."""
        generator = self.generator(keys.device)
        levels = (self.level(number)[:2] for number in range(len(self.kept)))
        with torch.autocast(keys.device.type, enabled=False):
            return torch.stack([draw_clusters(keys.float(), *level, generator) for level in levels])

    def level(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prototypes (M, D), temperatures (M,) and parents (M,) of a level."""
        count = self.kept[number]
        names = ("prototypes", "temperatures", "parents")
        prototypes, temperatures, parents = (self._padded(name, number)[:count] for name in names)
        return prototypes, temperatures, parents

    def _padded(self, name: str, number: int) -> torch.Tensor:
        return self.get_buffer(f"{name}_{number}")

    # ---- the queue ----

    @torch.no_grad()
    def enqueue(self, keys: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        """Replaces the oldest entries; returns the places of the keys, of more than the queue holds the last ones."""
        size = len(self.queue)
        places = _places(self.queue_ptr, len(keys), size)
        self.queue_ptr.copy_((self.queue_ptr + len(keys)) % size)
        keys, labels = keys[-size:], labels[-size:]
        self.queue[places] = keys.to(self.queue.dtype)
        self.queue_labels[places] = labels
        self.queue_steps[places] = step
        if self.kept and self.shares_draws and self.options.instance_selection:
            self.queue_clusters[:, places] = self.draw_clusters(keys)
        return places

    @torch.no_grad()
    def remember(self, keys: torch.Tensor, index: torch.Tensor) -> None:
        """Moves the averages of these images' keys towards the new ones, for the next clustering.

        A key shows one crop in one light; an average over epochs clusters almost as a pass over centre crops would.
        """
        rows = _rows(index, self.num_images, len(self.keys) - 1)
        self.keys[rows] = self.keys[rows].lerp(keys.to(self.keys.dtype), NEWEST)

    def remembered_images(self) -> torch.Tensor:
        """The rows (n,) of `keys` that have an image's average."""
        return self.keys[:-1].any(dim=1).nonzero()[:, 0]

    def remembered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The averages (n, D), as unit vectors, and the indexes (n,) of their images."""
        rows = self.remembered_images()
        averages = self.keys[rows]
        F.normalize(averages, dim=1, out=averages)
        return averages, rows * self.num_images // (len(self.keys) - 1)

    def queue_age(self, step: int) -> torch.Tensor:
        """Mean number of steps since the entries came in."""
        real = self.queue_steps >= 0
        return ((step - self.queue_steps) * real).sum() / real.sum().clamp(min=1)

    # ---- the loss ----

    def forward(
        self,
        z: torch.Tensor,
        key: torch.Tensor,
        index: torch.Tensor,
        local: list[torch.Tensor],
        proto_weight: float,
        own: torch.Tensor | None = None,
    ) -> Coded:
        """Eq. 10 for queries `z (B, D)`, their keys, their images' indexes (B,), and further queries of small crops.

        `own (B, K)`: where the queue has this step's keys of the query's image, which are no negatives, if it has any.
        """
        with torch.autocast(z.device.type, enabled=False):
            z, key, local = z.float(), key.float(), [view.float() for view in local]
            own = index.new_empty(len(z), 0) if own is None else own
            return self._code(z, key, index, local, proto_weight, own)

    def _code(
        self,
        z: torch.Tensor,
        key: torch.Tensor,
        index: torch.Tensor,
        local: list[torch.Tensor],
        proto_weight: float,
        own: torch.Tensor,
    ) -> Coded:
        options, generator = self.options, self.generator(z.device)
        cosines = self._cosines(z)
        clusters = self.find_clusters(cosines, index)
        instance = self._instance_losses(key, own, clusters, generator)

        parts: dict[str, torch.Tensor] = {}
        loss = z.new_zeros(())
        if options.instance_loss:
            mean, losses = instance.of(z)
            parts |= {f"instance_loss_{level}": value for level, value in enumerate(losses)}
            loss = loss + mean
            if local:
                selecting = instance if options.local_selection else self._instance_losses(key, own, [], generator)
                loss = loss + over_levels([selecting.of(view)[0] for view in local], options.local_views)
        if self.kept and options.prototype_loss and proto_weight > 0:
            masks = [self._prototype_mask(asked, level, generator) for level, asked in enumerate(clusters)]
            losses = self._prototype_losses(z, cosines, clusters, masks)
            parts |= {f"prototype_loss_{level}": value for level, value in enumerate(losses)}
            loss = loss + proto_weight * losses.mean()
            if local:
                masks = masks if options.local_selection else [None for _ in masks]
                views = [self._prototype_losses(view, self._cosines(view), clusters, masks).mean() for view in local]
                loss = loss + proto_weight * over_levels(views, options.local_views)
        parts |= {f"left_out_{level}": share for level, share in enumerate(instance.shares())}
        return Coded(loss, parts, instance.left_out, own)

    def _instance_losses(
        self, key: torch.Tensor, own: torch.Tensor, clusters: list[torch.Tensor], generator: torch.Generator
    ) -> _PairDraws | _SharedDraws:
        """Eq. 5: which entries are left out for queries of these clusters, and the losses with them."""
        selecting = bool(clusters) and self.options.instance_selection
        if selecting and self.shares_draws:
            return _SharedDraws(self.options, key, self.queue, own, self.queue_clusters, torch.stack(clusters))
        masks: list[torch.Tensor | None] = [None]
        if selecting:
            masks = [self._instance_mask(asked, level, self.queue, generator) for level, asked in enumerate(clusters)]
        queue = self.queue.clone()  # keys may come in before the backward pass
        return _PairDraws(self.options, key, queue, own, masks)

    @torch.no_grad()
    def _cosines(self, z: torch.Tensor) -> list[torch.Tensor]:
        """The queries' similarity to every prototype, per level (B, M)."""
        return [z @ self.level(number)[0].T for number in range(len(self.kept))]

    @torch.no_grad()
    def find_clusters(self, cosines: list[torch.Tensor], index: torch.Tensor) -> list[torch.Tensor]:
        """c(z): the queries' clusters (B,) at every level."""
        levels = [self.level(number) for number in range(len(self.kept))]
        if self.options.query_cluster == "cosine":
            return [most_similar(cosine, None) for cosine in cosines]
        if self.options.query_cluster == "similarity":
            return [most_similar(cosine, level[1]) for cosine, level in zip(cosines, levels, strict=True)]
        clusters: list[torch.Tensor] = []
        for number, cosine in enumerate(cosines):  # an image that was not clustered: the nearest, then its parents
            found = levels[number - 1][2][clusters[-1]] if number else most_similar(cosine, None)
            known = self.assignments[number, index]
            clusters.append(torch.where(known >= 0, known, found))
        return clusters

    @torch.no_grad()
    def left_out(self, clusters: list[torch.Tensor], candidates: torch.Tensor) -> list[torch.Tensor]:
        """Eq. 5 with other candidates (n, D) than the queue, for queries of these clusters: what is left out (B, n)."""
        if self.shares_draws:
            drawn = self.draw_clusters(candidates)
            return [cluster == own[:, None] for cluster, own in zip(drawn, clusters, strict=True)]
        generator = self.generator(candidates.device)
        return [~self._instance_mask(own, level, candidates, generator) for level, own in enumerate(clusters)]

    @torch.no_grad()
    def _instance_mask(
        self, clusters: torch.Tensor, level: int, candidates: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        prototypes, temperatures, _ = self.level(level)
        keep = instance_keep_probability(candidates, prototypes, temperatures, clusters)
        return draw(keep.clamp(0.0, 0.999) if self.options.clamp_probabilities else keep, generator)

    @torch.no_grad()
    def _prototype_mask(self, clusters: torch.Tensor, level: int, generator: torch.Generator) -> torch.Tensor | None:
        """None at the top level, which leaves nothing out."""
        if not self.options.prototype_selection or level + 1 == len(self.kept):
            return None
        prototypes, _, parents = self.level(level)
        upper, upper_temperatures, _ = self.level(level + 1)
        if self.shares_draws:
            if level not in self._parent_draws:  # constant until the next clustering
                belongs = similarity(prototypes, upper, upper_temperatures).softmax(dim=1)
                self._parent_draws[level] = belongs.cumsum(dim=1)
            return sample_rows(self._parent_draws[level], generator) != parents[clusters][:, None]
        keep = prototype_keep_probability(prototypes, upper, upper_temperatures, parents, clusters)
        return draw(keep.clamp(0.0001, 0.999) if self.options.clamp_probabilities else keep, generator)

    def _prototype_losses(
        self,
        z: torch.Tensor,
        cosines: list[torch.Tensor],
        clusters: list[torch.Tensor],
        masks: list[torch.Tensor | None],
    ) -> torch.Tensor:
        """Eq. 2 at every level (L,)."""
        losses = []
        for level, (cosine, own, mask) in enumerate(zip(cosines, clusters, masks, strict=True)):
            prototypes, temperatures, _ = self.level(level)
            if self.options.left_out == "removed" and self.options.proto_negatives == "all":
                losses.append(selected_proto_nce(z, prototypes, temperatures, own, mask, cosine))
            else:
                candidates = self._candidates(own, level) if self.options.proto_negatives == "outside_batch" else None
                direct = proto_nce(z, prototypes, temperatures, own, mask, self.options.left_out, candidates)
                losses.append(direct)
        return torch.stack(losses)

    @torch.no_grad()
    def _candidates(self, clusters: torch.Tensor, level: int) -> torch.Tensor:
        """The released code's negatives (M,): no image's of the batch, nor the highest used number (its off-by-one)."""
        candidates = torch.zeros(self.kept[level], dtype=torch.bool, device=clusters.device)
        candidates[: self.highest[level]] = True
        return candidates.index_fill_(0, clusters, False)

    # ---- randomness and what a checkpoint has besides buffers ----

    def generator(self, device: torch.device) -> torch.Generator:
        """The selection's own random numbers, seeded by the run."""
        if self._generator is None or self._generator.device.type != device.type:
            self._generator = torch.Generator(device).manual_seed(self.seed)
            # A state only fits its kind of device; on another one the draws start anew from the seed.
            if self._generator_state is not None and self._generator_state[0] == device.type:
                self._generator.set_state(self._generator_state[1])
        return self._generator

    def get_extra_state(self) -> dict[str, Any]:
        state = self._generator_state
        if self._generator is not None:
            state = (self._generator.device.type, self._generator.get_state())
        counts = {"kept": list(self.kept), "highest": list(self.highest)}
        return counts | {"clustered_epoch": self.clustered_epoch, "generator": state}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.kept, self.highest = tuple(state["kept"]), tuple(state["highest"])
        self.clustered_epoch = state["clustered_epoch"]
        self._generator, self._generator_state = None, state["generator"]
        self._parent_draws.clear()


def _rows(index: torch.Tensor, images: int, size: int) -> torch.Tensor:
    """The rows (B,) of images in a table for `size` of them at equal distances; `size` for one without a row."""
    rows = -(-index * size // images)
    return torch.where(rows * images // size == index, rows, size)


def _places(first: torch.Tensor, count: int, size: int) -> torch.Tensor:
    """Where `count` new entries go in a ring of `size`, from place `first` on; of too many, the last ones."""
    return (first + torch.arange(count, device=first.device))[-size:] % size


def describe(level: Level) -> dict[str, float]:
    """What is logged of a level of a new tree."""
    return {
        "clusters": len(level.prototypes),
        "dropped": level.dropped,
        "temperature_min": float(level.temperatures.min()),
        "temperature_max": float(level.temperatures.max()),
        "imbalance": level.imbalance,
        "objective": level.objective,
    }


@torch.no_grad()
def precision_and_recall(
    left_out: torch.Tensor, labels: torch.Tensor, queue_labels: torch.Tensor, own: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the left-out negatives, the share with the query's label; of those with its label, the share left out."""
    same = ((labels[:, None] == queue_labels) & (queue_labels >= 0)).scatter(1, own, False)
    hits = (left_out & same).sum()
    return hits / left_out.sum().clamp(min=1), hits / same.sum().clamp(min=1)
