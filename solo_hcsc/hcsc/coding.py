"""Section 4 of the paper as one module: queue, tree of prototypes, and the loss of a batch (Eq. 10).

Shapes: `B` batch, `D` embedding size, `Q` queue length, `L` levels, `M_l` prototypes at level `l`, `N` images, `K` keys
of an image in a step. Vectors have unit length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from solo_hcsc.hcsc.hierarchy import Hierarchy, Level, build_hierarchy
from solo_hcsc.hcsc.instances import PairDraws, SharedDraws
from solo_hcsc.hcsc.losses import LEAST_TEMPERATURE, over_levels, proto_nce, selected_proto_nce
from solo_hcsc.hcsc.options import Options
from solo_hcsc.hcsc.processes import Processes
from solo_hcsc.hcsc.queue import KeyMemory, Queue, mean_age
from solo_hcsc.hcsc.random_numbers import SeededNumbers
from solo_hcsc.hcsc.selection import (
    draw_clusters,
    instance_keep_probability,
    keep_by_chance,
    most_similar,
    prototype_keep_probability,
    sample_rows,
)
from solo_hcsc.hcsc.tree_buffers import LevelInUse, TreeBuffers

ALONE = Processes()


@dataclass(frozen=True)
class Coded:
    """A batch's loss and what is worth logging of it.

    Args:
        loss: () to differentiate.
        parts: `instance_loss_{l}`, `prototype_loss_{l}` and `left_out_{l}` (the share of negatives) of each level `l`.
        left_out: returns per level (B, Q): True where a queue entry was left out for the query.
        same_image: (B, K) places in the queue with this step's keys of the query's image, which are no negatives.
        queue_labels: (Q,) the labels of the queue's entries when the loss was taken.
        queue_steps: (Q,) the steps at which they had come in.
    """

    loss: torch.Tensor
    parts: dict[str, torch.Tensor]
    left_out: Callable[[], list[torch.Tensor]]
    same_image: torch.Tensor
    queue_labels: torch.Tensor
    queue_steps: torch.Tensor

    def queue_age(self, step: int) -> torch.Tensor:
        """`Queue.age` when the loss was taken."""
        return mean_age(self.queue_steps, step)


class SelectiveCoding(nn.Module):
    """Instance-wise and prototypical contrastive selective coding (HCSC) on a queue of keys.

    It has everything of HCSC but the encoders and the images: in every step give `step` the queries and the keys, and
    before an epoch call `cluster` where `due` says so. All state is in buffers of fixed size and in the extra state,
    so that a checkpoint of any epoch loads strictly.

    Args:
        options: what is computed.
        dim: D.
        num_images: N, how many training images there are.
        seed: of all random numbers; the same in all processes.

    Example:
        >>> unit = lambda *shape: torch.nn.functional.normalize(torch.randn(*shape), dim=-1)
        >>> options = Options(num_prototypes=(6, 2), queue_size=32, min_cluster_size=1, proto_warmup_epochs=1)
        >>> coding = SelectiveCoding(options, dim=8, num_images=64)
        >>> for epoch in range(2):
        ...     if coding.due(epoch):  # in epoch 1, of the keys of epoch 0
        ...         tree = coding.cluster(epoch)
        ...     for number, index in enumerate(torch.arange(64).split(16)):
        ...         queries = unit(16, 8).requires_grad_()  # an encoder's
        ...         coded = coding.step([queries], [unit(16, 8)], index, epoch=epoch, step=4 * epoch + number)
        ...         coded.loss.backward()
        >>> sorted(coded.parts)[:2], coding.hierarchy.num_levels
        (['instance_loss_0', 'instance_loss_1'], 2)
    """

    def __init__(self, options: Options, dim: int, num_images: int, seed: int = 0) -> None:
        super().__init__()
        self.options, self.dim, self.num_images, self.seed = options, dim, num_images, seed
        # The released code's clamped probabilities and zero logits have no such form: they go the direct way.
        plain = not options.clamp_probabilities and options.left_out == "removed"
        self.shares_draws = plain and options.temperature >= LEAST_TEMPERATURE
        # Only k-means assignments need to know each image's cluster, and only clusterings of keys the keys.
        assigned = options.needs_tree and options.query_cluster == "assignment"
        averaged = options.needs_tree and options.clustered_features == "keys"
        self.queue = Queue(options.queue_size, dim, len(options.num_prototypes), seed)
        self.memory = KeyMemory(options.clustered_at_most(num_images) if averaged else 0, dim, num_images)
        self.tree = TreeBuffers(options.num_prototypes, dim, num_images if assigned else 0)
        self.numbers = SeededNumbers(seed)

    # ---- the tree ----

    @property
    def hierarchy(self) -> Hierarchy | None:
        """The tree in use, a copy on the CPU; None before the first clustering.

        It has the images' clusters where `query_cluster` is "assignment"; with other options they are not kept. How
        long it took is not kept either, so that checkpoints of equal runs are equal.
        """
        return self.tree.hierarchy

    @property
    def kept(self) -> tuple[int, ...]:
        """How many prototypes the tree in use has at each level; empty before the first clustering."""
        return self.tree.kept

    @property
    def clustered_epoch(self) -> int:
        """The epoch before which the tree in use was made; -1 before the first clustering."""
        return self.tree.epoch

    @property
    def has_enough_keys(self) -> bool:
        """Whether enough images have an average of keys for a clustering of these."""
        return len(self.memory.remembered_rows()) >= self.options.clustered_at_least

    def due(self, epoch: int) -> bool:
        """Whether the options ask for a new tree before this epoch (the first is 0) and there is none yet."""
        return self.options.clusters_in(epoch) and self.clustered_epoch != epoch

    def cluster(
        self, epoch: int, embeddings: torch.Tensor | None = None, images: torch.Tensor | None = None
    ) -> Hierarchy:
        """Makes a new tree (Alg. 1) and uses it from now on.

        Args:
            epoch: the one that is about to begin.
            embeddings: (n, D) unit vectors of training images; the averages of their keys if not given.
            images: (n,) the indexes of these images; all, in order, if not given.

        Returns:
            The tree; an image that was not clustered has -1 in its `assignments` (L, N).

        Example:
            >>> coding = SelectiveCoding(Options(num_prototypes=(4, 2), queue_size=16), dim=8, num_images=100)
            >>> tree = coding.cluster(0, torch.eye(8)[:4].repeat(20, 1), images=torch.arange(80))
            >>> tree.assignments.shape, tree.assignments[:, 99].tolist(), coding.kept
            (torch.Size([2, 100]), [-1, -1], (4, 2))
        """
        if embeddings is None:
            if not self.has_enough_keys:
                raise ValueError(
                    f"fewer than {self.options.clustered_at_least} images have keys to cluster; give `embeddings`"
                )
            embeddings, images = self.memory.remembered()
        elif images is None and len(embeddings) != self.num_images:
            raise ValueError(f"{len(embeddings)} embeddings for {self.num_images} images; say of which with `images`")
        last = [self.level(number).prototypes for number in range(len(self.kept))]
        hierarchy = build_hierarchy(embeddings, self.options, self.seed * 1000 + epoch, last)
        if images is not None:
            hierarchy = hierarchy.over(images, self.num_images)
        self.install(hierarchy, epoch)
        return hierarchy

    def install(self, hierarchy: Hierarchy, epoch: int) -> None:
        """Makes a tree the one in use, as made before `epoch`; its `assignments` are (L, N), or None."""
        self.tree.install(hierarchy, epoch)
        if self.shares_draws and self.options.instance_selection:
            self.queue.clusters.copy_(self.draw_clusters(self.queue.keys))

    def level(self, number: int) -> LevelInUse:
        """Prototypes (M_l, D), temperatures (M_l,) and parents (M_l,) of a level of the tree in use."""
        return self.tree.level(number)

    def shared_buffers(self) -> list[torch.Tensor]:
        """The buffers to send to all processes after one has clustered, along with the extra state.

        Not among them: the averages of keys, which are as long as the data set and the same everywhere.
        """
        return [buffer for name, buffer in self.named_buffers() if not name.startswith("memory.")]

    @property
    def bytes_of_images(self) -> int:
        """How much memory goes into what is kept of every image: averages of keys and clusters."""
        return sum(kept.numel() * kept.element_size() for kept in (self.memory.averages, self.tree.assignments))

    # ---- a step ----

    def step(
        self,
        queries: Sequence[torch.Tensor],
        keys: Sequence[torch.Tensor],
        index: torch.Tensor,
        *,
        epoch: int,
        step: int,
        labels: torch.Tensor | None = None,
        local: Sequence[torch.Tensor] = (),
        processes: Processes = ALONE,
    ) -> Coded:
        """The loss of a batch; puts its keys into the queue and into the averages.

        Args:
            queries: one (B, D) of the encoder, or two where each view is query and key (`symmetric`).
            keys: as many (B, D) of the momentum encoder, each of the other view.
            index: (B,) the images' indexes in the data set.
            epoch: for the weight of the prototype loss.
            step: a number that grows, for the age of the queue's entries.
            labels: (B,) if known; they are never trained with, only kept to say how well the selection does.
            local: further queries (B, D) of small crops.
            processes: those that share the batch, if there are several.

        Returns:
            The mean loss over the pairs of queries and keys, and what is worth logging of the first pair.

        Example:
            >>> coding = SelectiveCoding(Options(queue_size=16), dim=8, num_images=100)  # no tree yet: InfoNCE
            >>> coded = coding.step([torch.eye(8)], [torch.eye(8)], torch.arange(8), epoch=0, step=0)
            >>> list(coded.parts), coded.same_image[:, 0].tolist()
            (['instance_loss_0'], [0, 1, 2, 3, 4, 5, 6, 7])
        """
        with torch.no_grad():
            keys = [key.detach() for key in keys]
            gathered = [processes.rows_of_all(key) for key in keys]
            labels = index.new_full((len(index),), -1) if labels is None else labels
            labels = processes.rows_of_all(labels)
        self.options.check_batch(len(labels))
        same_image = None
        if self.options.batch_negatives:
            places = [self.enqueue(key, labels, step) for key in gathered]
            same_image = processes.rows_of_this(torch.stack(places, dim=1))
        weight = self.options.proto_weight_at(epoch)
        coded = [self(z, key, index, local, weight, same_image) for z, key in zip(queries, keys, strict=True)]
        if same_image is None:
            for key in gathered:
                self.enqueue(key, labels, step)
        if self.memory.size:
            self.memory.remember(torch.stack(gathered).mean(dim=0), processes.rows_of_all(index))
        return replace(coded[0], loss=torch.stack([one.loss for one in coded]).mean())

    def enqueue(self, keys: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        """`Queue.enqueue`; the new entries draw their clusters."""
        places = self.queue.enqueue(keys, labels, step)
        if self.kept and self.shares_draws and self.options.instance_selection:
            self.queue.clusters[:, places] = self.draw_clusters(keys[-len(self.queue.keys) :])
        return places

    @torch.no_grad()
    def draw_clusters(self, keys: torch.Tensor) -> torch.Tensor:
        """One drawn cluster per level and key, (L, n)."""
        generator = self.numbers.on(keys.device)
        levels = (self.level(number)[:2] for number in range(len(self.kept)))
        with torch.autocast(keys.device.type, enabled=False):
            return torch.stack([draw_clusters(keys.float(), *level, generator) for level in levels])

    # ---- the loss ----

    def forward(
        self,
        z: torch.Tensor,
        key: torch.Tensor,
        index: torch.Tensor,
        local: Sequence[torch.Tensor],
        proto_weight: float,
        same_image: torch.Tensor | None = None,
    ) -> Coded:
        """Eq. 10 for one pair of queries and keys; changes nothing but the random numbers' state.

        Args:
            z: (B, D) queries.
            key: (B, D) their keys.
            index: (B,) their images' indexes.
            local: further queries (B, D) of small crops.
            proto_weight: the prototype loss's weight.
            same_image: (B, K) where the queue has this step's keys of the query's image, if it has any.
        """
        with torch.autocast(z.device.type, enabled=False):
            z, key, local = z.float(), key.float(), [view.float() for view in local]
            same_image = index.new_empty(len(z), 0) if same_image is None else same_image
            return self._code(z, key, index, local, proto_weight, same_image)

    def _code(
        self,
        z: torch.Tensor,
        key: torch.Tensor,
        index: torch.Tensor,
        local: list[torch.Tensor],
        proto_weight: float,
        same_image: torch.Tensor,
    ) -> Coded:
        options, generator = self.options, self.numbers.on(z.device)
        cosines = self.cosines(z)
        clusters = self.find_clusters(cosines, index)
        instance = self._instance_losses(key, same_image, clusters, generator)

        parts: dict[str, torch.Tensor] = {}
        loss = z.new_zeros(())
        if options.instance_loss:
            mean, losses = instance.of(z)
            parts |= {f"instance_loss_{level}": value for level, value in enumerate(losses)}
            loss = loss + mean
            if local:
                plain = not options.local_selection
                of_local = self._instance_losses(key, same_image, [], generator) if plain else instance
                loss = loss + over_levels([of_local.of(view)[0] for view in local], options.local_views)
        if self.kept and options.prototype_loss and proto_weight > 0:
            masks = [self._prototype_mask(asked, level, generator) for level, asked in enumerate(clusters)]
            losses = self._prototype_losses(z, cosines, clusters, masks)
            parts |= {f"prototype_loss_{level}": value for level, value in enumerate(losses)}
            loss = loss + proto_weight * losses.mean()
            if local:
                masks = masks if options.local_selection else [None for _ in masks]
                views = [self._prototype_losses(view, self.cosines(view), clusters, masks).mean() for view in local]
                loss = loss + proto_weight * over_levels(views, options.local_views)
        parts |= {f"left_out_{level}": share for level, share in enumerate(instance.shares())}
        return Coded(loss, parts, instance.left_out, same_image, self.queue.labels.clone(), self.queue.steps.clone())

    @torch.no_grad()
    def cosines(self, z: torch.Tensor) -> list[torch.Tensor]:
        """The similarity of vectors (B, D) to every prototype, per level (B, M_l)."""
        return [z @ self.level(number).prototypes.T for number in range(len(self.kept))]

    @torch.no_grad()
    def find_clusters(self, cosines: list[torch.Tensor], index: torch.Tensor) -> list[torch.Tensor]:
        """c(z): the clusters (B,) of queries at every level, as `query_cluster` has it.

        Args:
            cosines: of the queries, as `cosines` gives them.
            index: (B,) the queries' images.
        """
        levels = [self.level(number) for number in range(len(self.kept))]
        if self.options.query_cluster == "cosine":
            return [most_similar(cosine, None) for cosine in cosines]
        if self.options.query_cluster == "similarity":
            return [most_similar(cosine, level.temperatures) for cosine, level in zip(cosines, levels, strict=True)]
        clusters: list[torch.Tensor] = []
        for number, cosine in enumerate(cosines):  # an image that was not clustered: the nearest, then its parents
            found = levels[number - 1].parents[clusters[-1]] if number else most_similar(cosine, None)
            known = self.tree.assignments[number, index]
            clusters.append(torch.where(known >= 0, known, found))
        return clusters

    @torch.no_grad()
    def left_out(self, clusters: list[torch.Tensor], candidates: torch.Tensor) -> list[torch.Tensor]:
        """Eq. 5 with other candidates than the queue.

        Args:
            clusters: per level (B,), the queries', as `find_clusters` gives them.
            candidates: (n, D).

        Returns:
            Per level (B, n): True where a candidate is left out for a query.
        """
        if self.shares_draws:
            drawn = self.draw_clusters(candidates)
            return [cluster == asked[:, None] for cluster, asked in zip(drawn, clusters, strict=True)]
        generator = self.numbers.on(candidates.device)
        return [~self._instance_mask(asked, level, candidates, generator) for level, asked in enumerate(clusters)]

    def _instance_losses(
        self, key: torch.Tensor, same_image: torch.Tensor, clusters: list[torch.Tensor], generator: torch.Generator
    ) -> PairDraws | SharedDraws:
        """Eq. 5: which entries are left out for queries of these clusters, and the losses with them."""
        queue = self.queue.keys
        selecting = bool(clusters) and self.options.instance_selection
        if selecting and self.shares_draws:
            drawn = self.queue.clusters.clone()  # as `left_out` may be asked for after new keys have come in
            return SharedDraws(self.options, key, queue, same_image, drawn, torch.stack(clusters))
        masks: list[torch.Tensor | None] = [None]
        if selecting:
            masks = [self._instance_mask(asked, level, queue, generator) for level, asked in enumerate(clusters)]
        return PairDraws(self.options, key, queue.clone(), same_image, masks)  # keys may come in before backward

    @torch.no_grad()
    def _instance_mask(
        self, clusters: torch.Tensor, level: int, candidates: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Eq. 5 for every pair: True where it is kept, (B, n)."""
        prototypes, temperatures, _ = self.level(level)
        keep = instance_keep_probability(candidates, prototypes, temperatures, clusters)
        return keep_by_chance(keep.clamp(0.0, 0.999) if self.options.clamp_probabilities else keep, generator)

    @torch.no_grad()
    def _prototype_mask(self, clusters: torch.Tensor, level: int, generator: torch.Generator) -> torch.Tensor | None:
        """Eq. 8: True where a prototype is kept, (B, M_l); None at the top level, which leaves nothing out."""
        if not self.options.prototype_selection or level + 1 == len(self.kept):
            return None
        prototypes, _, parents = self.level(level)
        if self.shares_draws:
            return sample_rows(self.tree.parent_chances(level), generator) != parents[clusters][:, None]
        upper, upper_temperatures, _ = self.level(level + 1)
        keep = prototype_keep_probability(prototypes, upper, upper_temperatures, parents, clusters)
        return keep_by_chance(keep.clamp(0.0001, 0.999) if self.options.clamp_probabilities else keep, generator)

    def _prototype_losses(
        self,
        z: torch.Tensor,
        cosines: list[torch.Tensor],
        clusters: list[torch.Tensor],
        masks: list[torch.Tensor | None],
    ) -> torch.Tensor:
        """Eq. 2 at every level (L,)."""
        left_out, outside_batch = self.options.left_out, self.options.proto_negatives == "outside_batch"
        losses = []
        for level, (cosine, asked, mask) in enumerate(zip(cosines, clusters, masks, strict=True)):
            prototypes, temperatures, _ = self.level(level)
            if left_out == "removed" and not outside_batch:
                losses.append(selected_proto_nce(z, prototypes, temperatures, asked, mask, cosine))
            else:
                candidates = self._candidates(asked, level) if outside_batch else None
                losses.append(proto_nce(z, prototypes, temperatures, asked, mask, left_out, candidates))
        return torch.stack(losses)

    @torch.no_grad()
    def _candidates(self, clusters: torch.Tensor, level: int) -> torch.Tensor:
        """The released code's negatives (M,): no image's of the batch, nor the highest used number (its off-by-one)."""
        candidates = torch.zeros(self.kept[level], dtype=torch.bool, device=clusters.device)
        candidates[: self.tree.highest[level]] = True
        return candidates.index_fill_(0, clusters, False)

    # ---- what a checkpoint has besides buffers ----

    def get_extra_state(self) -> dict[str, Any]:
        return {"tree": self.tree.facts(), "generator": self.numbers.state}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.tree.set_facts(state["tree"])
        self.numbers.state = state["generator"]


def describe(level: Level) -> dict[str, float]:
    """What is worth logging of a level of a new tree.

    Example:
        >>> describe(Level(torch.eye(2), torch.tensor([0.5, 0.25]), None, torch.tensor([2, 2])))["temperature_max"]
        0.5
    """
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
    left_out: torch.Tensor, labels: torch.Tensor, queue_labels: torch.Tensor, same_image: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """How well a level leaves out what it should.

    Args:
        left_out: (B, Q) of a level, as `Coded.left_out` gives it.
        labels: (B,) the queries'.
        queue_labels: (Q,), as in `Coded`; -1 where unknown.
        same_image: (B, K), as in `Coded`.

    Returns:
        Of the left-out negatives, the share with the query's label; of those with its label, the share left out.

    Example:
        >>> left_out, none = torch.tensor([[True, True, False]]), torch.empty(1, 0, dtype=torch.long)
        >>> precision, recall = precision_and_recall(left_out, torch.tensor([7]), torch.tensor([7, 3, -1]), none)
        >>> precision.item(), recall.item()
        (0.5, 1.0)
    """
    same = ((labels[:, None] == queue_labels) & (queue_labels >= 0)).scatter(1, same_image, False)
    hits = (left_out & same).sum()
    return hits / left_out.sum().clamp(min=1), hits / same.sum().clamp(min=1)
