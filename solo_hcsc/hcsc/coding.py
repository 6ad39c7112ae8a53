"""Section 4 of the paper as one module: queue, tree of prototypes, and the loss of a batch (Eq. 10).

Shapes: `B` batch, `D` embedding size, `Q` queue length, `L` levels, `M_l` prototypes at level `l`, `N` images, `K` keys
of an image in a step. Vectors have unit length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.hierarchy import MIN_TEMPERATURE, Hierarchy, Level, build_hierarchy, hierarchy_of_labels
from solo_hcsc.hcsc.instances import PairDraws, SharedDraws
from solo_hcsc.hcsc.losses import LEAST_TEMPERATURE, over_levels, proto_nce, selected_proto_nce
from solo_hcsc.hcsc.options import Options
from solo_hcsc.hcsc.processes import Processes
from solo_hcsc.hcsc.queue import KeyMemory, Queue, mean_age
from solo_hcsc.hcsc.random_numbers import SeededNumbers
from solo_hcsc.hcsc.selection import (
    INSTANCES_KEPT,
    PROTOTYPES_KEPT,
    draw_clusters,
    instance_keep_probability,
    keep_by_chance,
    left_out_masks,
    log_partitions,
    most_similar,
    prototype_keep_probability,
    rare_pairs,
    sample_rows,
)
from solo_hcsc.hcsc.tree_buffers import LevelInUse, TreeBuffers
from solo_hcsc.hcsc.vectors import check_unit_vectors
from solo_hcsc.typed import typed

ALONE = Processes()


@dataclass(frozen=True)
class Coded:
    """A batch's loss and what is worth logging of it.

    Args:
        loss: () to differentiate; NaN if one of the `inputs` is not finite, even where selection left that out.
        parts: `instance_loss_{l}`, `prototype_loss_{l}` and `left_out_{l}` (the share of negatives) of each level `l`.
        left_out: returns per level (B, Q): True where a queue entry was left out for the query.
        inputs: the sums () of `queries`, `keys` and `queue`, not finite where a value of theirs is not.
        same_image: (B, K) places in the queue with this step's keys of the query's image, which are no negatives.
        queue_labels: (Q,) the labels of the queue's entries when the loss was taken.
        queue_steps: (Q,) the steps at which they had come in.
    """

    loss: torch.Tensor
    parts: dict[str, torch.Tensor]
    left_out: Callable[[], list[torch.Tensor]]
    inputs: dict[str, torch.Tensor]
    same_image: torch.Tensor
    queue_labels: torch.Tensor
    queue_steps: torch.Tensor

    def queue_age(self, step: int) -> torch.Tensor:
        """Return `Queue.age` when the loss was taken."""
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
        seed: of all random numbers; give the same in all processes.

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

    @typed
    def __init__(self, options: Options, dim: int, num_images: int, seed: int = 0) -> None:
        super().__init__()
        self.options, self.dim, self.num_images, self.seed = options, dim, num_images, seed
        # Lower temperatures go the direct way, pair by pair, and so do tests and benchmarks that set this to False.
        self.shares_draws = options.temperature >= LEAST_TEMPERATURE
        # Only k-means assignments need to know each image's cluster, and only clusterings of keys the keys.
        assigned = options.needs_tree and options.query_cluster == "assignment"
        averaged = options.needs_tree and options.clustered_features == "keys"
        clamped = self.shares_draws and options.instance_selection and options.clamp_probabilities
        named = options.instance_selection and options.entry_cluster == "assignment"
        self.queue = Queue(options.queue_size, dim, len(options.num_prototypes), seed, partitions=clamped, images=named)
        self.memory = KeyMemory(options.clustered_at_most(num_images) if averaged else 0, dim, num_images)
        self.tree = TreeBuffers(options.num_prototypes, dim, num_images if assigned else 0)
        self.numbers = SeededNumbers(seed)
        self._checked = False  # whether a step has looked at the length of its vectors

    # ---- the tree ----

    @property
    def hierarchy(self) -> Hierarchy | None:
        """Return the tree in use, a copy on the CPU; None before the first clustering.

        It has the images' clusters where `query_cluster` is "assignment"; with other options they are not kept. How
        long it took is not kept either, so that checkpoints of equal runs are equal.
        """
        return self.tree.hierarchy

    @property
    def kept(self) -> tuple[int, ...]:
        """Return how many prototypes the tree in use has at each level; empty before the first clustering."""
        return self.tree.kept

    @property
    def clustered_epoch(self) -> int:
        """Return the epoch before which the tree in use was made; -1 before the first clustering."""
        return self.tree.epoch

    @property
    def has_enough_keys(self) -> bool:
        """Return whether enough images have an average of keys for a clustering of these."""
        return len(self.memory.remembered_rows()) >= self.options.clustered_at_least

    def due(self, epoch: int) -> bool:
        """Return whether the options ask for a new tree before this epoch (the first is 0) and there is none yet."""
        return self.options.clusters_in(epoch) and self.clustered_epoch != epoch

    def cluster(
        self,
        epoch: int,
        embeddings: torch.Tensor | None = None,
        images: torch.Tensor | None = None,
        features: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Hierarchy:
        """Make a new tree (Alg. 1) and use it from now on.

        Args:
            epoch: the one that is about to begin.
            embeddings: (n, D) unit vectors of training images; the averages of their keys if not given.
            images: (n,) the indexes of these images; all, in order, if not given.
            features: (n, F) unit vectors of the encoder, to be clustered where `clustered_space` is "encoder".
            labels: (n, L) that are the clusters where `oracle_labels` is true, as `hierarchy_of_labels` takes them.

        Returns:
            The tree; an image that was not clustered has -1 in its `assignments` (N, L).

        Example:
            >>> coding = SelectiveCoding(Options(num_prototypes=(4, 2), queue_size=16), dim=8, num_images=100)
            >>> tree = coding.cluster(0, torch.eye(8)[:4].repeat(20, 1), images=torch.arange(80))
            >>> tree.assignments.shape, tree.assignments[99].tolist(), coding.kept
            (torch.Size([100, 2]), [-1, -1], (4, 2))
        """
        if embeddings is None:
            if not self.has_enough_keys:
                raise ValueError(
                    f"fewer than {self.options.clustered_at_least} images have keys to cluster; give `embeddings`"
                )
            embeddings, images = self.memory.remembered()
        elif images is None and len(embeddings) != self.num_images:
            raise ValueError(f"{len(embeddings)} embeddings for {self.num_images} images; say of which with `images`")
        if (features is None) != (self.options.clustered_space == "projector" or self.options.oracle_labels):
            raise ValueError(
                f"`clustered_space` is {self.options.clustered_space}; give `features` where it is encoder"
            )
        if (labels is None) == self.options.oracle_labels:
            raise ValueError(f"`oracle_labels` is {self.options.oracle_labels}; give `labels` if true, else none")
        if labels is not None:
            hierarchy = hierarchy_of_labels(embeddings, labels, self.options)
        else:
            hierarchy = build_hierarchy(embeddings, self.options, self.seed * 1000 + epoch, features)
        if images is not None:
            hierarchy = hierarchy.over(images, self.num_images)
        self.install(hierarchy, epoch)
        return hierarchy

    def install(self, hierarchy: Hierarchy, epoch: int) -> None:
        """Put a tree to use, as made before `epoch`; its `assignments` are (N, L), or None."""
        self.tree.install(hierarchy, epoch)
        self._draw_in_queue(slice(None), self.queue.keys)

    def level(self, number: int) -> LevelInUse:
        """Return prototypes (M_l, D), temperatures (M_l,) and parents (M_l,) of a level of the tree in use."""
        return self.tree.level(number)

    def shared_buffers(self) -> list[torch.Tensor]:
        """Return the buffers to send to all processes after one has clustered, along with the extra state.

        Not among them: the averages of keys, which are as long as the data set and the same everywhere.
        """
        return [buffer for name, buffer in self.named_buffers() if not name.startswith("memory.")]

    @property
    def bytes_of_images(self) -> int:
        """Return the memory that averages of keys and clusters take, of all images."""
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
        """Compute the loss of a batch, and put its keys into the queue and into the averages.

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
            The mean loss over the pairs of queries and keys, and what is worth logging of the first pair. The first
            step raises `ArgumentError` for vectors that are not at unit length; later ones do not look, because a GPU
            would have to be waited for.

        Example:
            >>> coding = SelectiveCoding(Options(queue_size=16), dim=8, num_images=100)  # no tree yet: InfoNCE
            >>> coded = coding.step([torch.eye(8)], [torch.eye(8)], torch.arange(8), epoch=0, step=0)
            >>> list(coded.parts), coded.same_image[:, 0].tolist()
            (['instance_loss_0'], [0, 1, 2, 3, 4, 5, 6, 7])
        """
        if not self._checked:
            for argument, vectors in (("queries", queries), ("keys", keys), ("local", local)):
                check_unit_vectors(vectors, argument, self.dim, len(index))
            if len(queries) != len(keys):
                raise ArgumentError(f"`keys` has {len(keys)} and `queries` {len(queries)}: give one for each")
            self._checked = True
        with torch.no_grad():
            keys = [key.detach() for key in keys]
            gathered = [processes.rows_of_all(key) for key in keys]
            labels = index.new_full((len(index),), -1) if labels is None else labels
            labels = processes.rows_of_all(labels)
            images = processes.rows_of_all(index) if self.memory.size or self.queue.images is not None else None
        self.options.check_batch(len(labels))
        same_image = None
        if self.options.batch_negatives:
            places = [self.enqueue(key, labels, step, images) for key in gathered]
            same_image = processes.rows_of_this(torch.stack(places, dim=1))
        weight = self.options.proto_weight_at(epoch)
        of_all = index, local, weight, same_image, processes
        coded = [self(z, key, *of_all) for z, key in zip(queries, keys, strict=True)]
        if same_image is None:
            for key in gathered:
                self.enqueue(key, labels, step, images)
        if self.memory.size and images is not None:
            self.memory.remember(torch.stack(gathered).mean(dim=0), images)
        inputs = {name: torch.stack([one.inputs[name] for one in coded]).sum() for name in coded[0].inputs}
        return replace(coded[0], loss=torch.stack([one.loss for one in coded]).mean(), inputs=inputs)

    def enqueue(
        self, keys: torch.Tensor, labels: torch.Tensor, step: int, images: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Put keys into the queue; the new entries draw their clusters."""
        places = self.queue.enqueue(keys, labels, step, images)
        if self.kept:
            self._draw_in_queue(places, keys[-len(self.queue.keys) :])
        return places

    @torch.no_grad()
    def _draw_in_queue(self, places: torch.Tensor | slice, keys: torch.Tensor) -> None:
        """Let the `keys` at these places of the queue draw their clusters, where draws are shared."""
        if self.queue.images is not None:
            self.queue.clusters[:, places] = self._assigned(keys, self.queue.images[places])
            return
        if not (self.shares_draws and self.options.instance_selection):
            return
        self.queue.clusters[:, places] = self.draw_clusters(keys)
        if self.queue.partitions is not None:
            levels = (self._selecting(number) for number in range(len(self.kept)))
            with torch.autocast(keys.device.type, enabled=False):
                self.queue.partitions[:, places] = torch.stack([log_partitions(keys.float(), *lvl) for lvl in levels])

    def _assigned(self, keys: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Return the clusters (L, n) of keys' images in the tree; the nearest of an image that was not clustered."""
        with torch.autocast(keys.device.type, enabled=False):
            found = torch.stack(self.find_clusters(self.cosines(keys.float()), images.clamp(min=0)))
            near = torch.stack([most_similar(cosine, None) for cosine in self.cosines(keys.float())])
        return torch.where(images >= 0, found, near)

    def _selecting(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return prototypes (M_l, D) and temperatures (M_l,) of Eq. 4, whose temperatures always have the floor."""
        prototypes, temperatures, _ = self.level(number)
        return prototypes, temperatures.clamp(min=MIN_TEMPERATURE)

    @torch.no_grad()
    def draw_clusters(self, keys: torch.Tensor) -> torch.Tensor:
        """Draw a cluster per level and key, (L, n)."""
        generator = self.numbers.on(keys.device)
        levels = (self._selecting(number) for number in range(len(self.kept)))
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
        processes: Processes = ALONE,
    ) -> Coded:
        """Compute Eq. 10 for one pair of queries and keys; change nothing but the random numbers' state.

        Args:
            z: (B, D) queries.
            key: (B, D) their keys.
            index: (B,) their images' indexes.
            local: further queries (B, D) of small crops.
            proto_weight: the prototype loss's weight.
            same_image: (B, K) where the queue has this step's keys of the query's image, if it has any.
            processes: those that share the batch; each draws other numbers for its queries.
        """
        with torch.autocast(z.device.type, enabled=False):
            z, key, local = z.float(), key.float(), [view.float() for view in local]
            same_image = index.new_empty(len(z), 0) if same_image is None else same_image
            return self._code(z, key, index, local, proto_weight, same_image, processes)

    def _code(
        self,
        z: torch.Tensor,
        key: torch.Tensor,
        index: torch.Tensor,
        local: list[torch.Tensor],
        proto_weight: float,
        same_image: torch.Tensor,
        processes: Processes,
    ) -> Coded:
        options, generator = self.options, self.numbers.of_process(z.device, processes)
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
            masks = self._prototype_masks(clusters, generator)
            losses = self._prototype_losses(z, cosines, clusters, masks)
            parts |= {f"prototype_loss_{level}": value for level, value in enumerate(losses)}
            loss = loss + proto_weight * losses.mean()
            if local:
                of_crops = [self._crop_masks(masks, clusters, generator) for _ in local]
                views = [
                    self._prototype_losses(view, self.cosines(view), clusters, of_crop).mean()
                    for view, of_crop in zip(local, of_crops, strict=True)
                ]
                loss = loss + proto_weight * over_levels(views, options.local_views)
        parts |= {f"left_out_{level}": share for level, share in enumerate(instance.shares())}
        inputs = {"queries": z.detach().sum(), "keys": key.sum(), "queue": self.queue.keys.sum()}
        # A NaN that is left out, or has logit 0, would not be seen in the loss, but be in its gradient.
        loss = torch.where(torch.stack(list(inputs.values())).isfinite().all(), loss, torch.nan)
        seen = self.queue.labels.clone(), self.queue.steps.clone()
        return Coded(loss, parts, instance.left_out, inputs, same_image, *seen)

    @torch.no_grad()
    def cosines(self, z: torch.Tensor) -> list[torch.Tensor]:
        """Return the similarity of vectors (B, D) to every prototype, per level (B, M_l)."""
        return [z @ self.level(number).prototypes.T for number in range(len(self.kept))]

    @torch.no_grad()
    def find_clusters(self, cosines: list[torch.Tensor], index: torch.Tensor) -> list[torch.Tensor]:
        """Find c(z), the clusters (B,) of queries at every level, as `query_cluster` has it.

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
            known = self.tree.assignments[index, number]
            clusters.append(torch.where(known >= 0, known, found))
        return clusters

    @torch.no_grad()
    def left_out(self, clusters: list[torch.Tensor], candidates: torch.Tensor) -> list[torch.Tensor]:
        """Draw Eq. 5 with other candidates than the queue.

        Args:
            clusters: per level (B,), the queries', as `find_clusters` gives them.
            candidates: (n, D).

        Returns:
            Per level (B, n): True where a candidate is left out for a query.
        """
        if self.shares_draws and not self.options.clamp_probabilities:
            drawn = self.draw_clusters(candidates)
            return [cluster == asked[:, None] for cluster, asked in zip(drawn, clusters, strict=True)]
        generator = self.numbers.on(candidates.device)
        return [~self._instance_mask(asked, level, candidates, generator) for level, asked in enumerate(clusters)]

    def _instance_losses(
        self, key: torch.Tensor, same_image: torch.Tensor, clusters: list[torch.Tensor], generator: torch.Generator
    ) -> PairDraws | SharedDraws:
        """Draw Eq. 5, the entries left out for queries of these clusters, and compute the losses without them."""
        queue = self.queue.keys
        selecting = bool(clusters) and self.options.instance_selection
        if selecting and self.shares_draws:
            drawn = self.queue.clusters.clone()  # as `left_out` may be asked for after new keys have come in
            asked = torch.stack(clusters)
            rare = self._rare_pairs(asked, same_image, generator)
            return SharedDraws(self.options, key, queue, same_image, drawn, asked, rare)
        masks: list[torch.Tensor | None] = [None]
        if selecting and self.queue.images is not None:
            masks = list(~left_out_masks(self.queue.clusters, torch.stack(clusters)))
        elif selecting:
            masks = [self._instance_mask(asked, level, queue, generator) for level, asked in enumerate(clusters)]
        return PairDraws(self.options, key, queue.clone(), same_image, masks)  # keys may come in before backward

    @torch.no_grad()
    def _rare_pairs(
        self, clusters: torch.Tensor, same_image: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor | None:
        """Draw `rare_pairs` for queries of these clusters (L, B), where probabilities are clamped."""
        queue, partitions = self.queue, self.queue.partitions
        if partitions is None:
            return None
        levels = [self._selecting(number) for number in range(len(clusters))]
        prototypes, temperatures = (
            torch.stack([column[asked] for column, asked in zip(columns, clusters, strict=True)])
            for columns in zip(*levels, strict=True)
        )
        draws = queue.keys, partitions, queue.clusters, clusters
        return rare_pairs(*draws, prototypes, temperatures, same_image, 1 - INSTANCES_KEPT[1], generator)

    @torch.no_grad()
    def _instance_mask(
        self, clusters: torch.Tensor, level: int, candidates: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Draw Eq. 5 for every pair: True where it is kept, (B, n)."""
        keep = instance_keep_probability(candidates, *self._selecting(level), clusters)
        return keep_by_chance(keep.clamp(*INSTANCES_KEPT) if self.options.clamp_probabilities else keep, generator)

    def _prototype_masks(self, clusters: list[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor | None]:
        """Draw Eq. 8 for queries of these clusters at every level, anew at every call.

        What prototypes draw for all queries alike is the same in all processes; `generator` is for draws per query.
        """
        return [self._prototype_mask(asked, level, generator) for level, asked in enumerate(clusters)]

    def _crop_masks(
        self, of_query: list[torch.Tensor | None], clusters: list[torch.Tensor], generator: torch.Generator
    ) -> list[torch.Tensor | None]:
        """Draw Eq. 8 for a small crop, as `local_proto_selection` has it; `of_query`: its image's query's masks."""
        if self.options.local_proto_selection == "crop":
            return self._prototype_masks(clusters, generator)
        return of_query if self.options.local_proto_selection == "query" else [None for _ in clusters]

    @torch.no_grad()
    def _prototype_mask(self, clusters: torch.Tensor, level: int, generator: torch.Generator) -> torch.Tensor | None:
        """Draw Eq. 8: True where a prototype is kept, (B, M_l); None at the top level, which leaves nothing out."""
        options = self.options
        if not options.prototype_selection or level + 1 == len(self.kept):
            return None
        prototypes, _, parents = self.level(level)
        if self.shares_draws and not options.clamp_probabilities:
            drawn = sample_rows(self.tree.parent_chances(level), self.numbers.on(clusters.device))
            return drawn != parents[clusters][:, None]
        if self.shares_draws:
            keep = self.tree.keep_chances(level)[parents[clusters]]
        else:
            upper, upper_temperatures, _ = self.level(level + 1)
            keep = prototype_keep_probability(prototypes, upper, upper_temperatures, parents, clusters)
        return keep_by_chance(keep.clamp(*PROTOTYPES_KEPT) if options.clamp_probabilities else keep, generator)

    def _prototype_losses(
        self,
        z: torch.Tensor,
        cosines: list[torch.Tensor],
        clusters: list[torch.Tensor],
        masks: list[torch.Tensor | None],
    ) -> torch.Tensor:
        """Compute Eq. 2 at every level (L,)."""
        left_out, outside_batch = self.options.left_out, self.options.proto_negatives == "outside_batch"
        losses = []
        for level, (cosine, asked, mask) in enumerate(zip(cosines, clusters, masks, strict=True)):
            prototypes, temperatures, _ = self.level(level)
            candidates = self._candidates(asked, level) if outside_batch else None
            against = z, prototypes, temperatures, asked, mask
            if self.shares_draws:
                losses.append(selected_proto_nce(*against, cosine, left_out, candidates))
            else:
                losses.append(proto_nce(*against, left_out, candidates))
        return torch.stack(losses)

    @torch.no_grad()
    def _candidates(self, clusters: torch.Tensor, level: int) -> torch.Tensor:
        """Return the released code's negatives (M,): none of the batch's images, nor the last number in use."""
        candidates = torch.zeros(self.kept[level], dtype=torch.bool, device=clusters.device)
        candidates[: self.tree.highest[level]] = True
        return candidates.index_fill_(0, clusters, False)

    # ---- what a checkpoint has besides buffers ----

    def get_extra_state(self) -> dict[str, Any]:
        numbers = self.numbers
        return {"tree": self.tree.facts(), "generator": numbers.state, "own_streams": numbers.own_streams}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.tree.set_facts(state["tree"])
        self.numbers.state = state["generator"]
        self.numbers.own_streams = state.get("own_streams", 0)  # older checkpoints have none


def describe(level: Level) -> dict[str, float]:
    """Describe a level of a new tree by the figures that are worth logging.

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


class SelectionQuality(NamedTuple):
    """How well negatives are selected, each () in [0, 1].

    Args:
        precision: of the left-out negatives with a known label, the share with the query's (false negatives).
        recall: of the negatives with its label, the share that is left out.
        preservation: of the negatives with another label (true negatives), the share that is kept.
    """

    precision: torch.Tensor
    recall: torch.Tensor
    preservation: torch.Tensor


@torch.no_grad()
def selection_quality(
    left_out: torch.Tensor, labels: torch.Tensor, queue_labels: torch.Tensor, same_image: torch.Tensor
) -> SelectionQuality:
    """Measure how well a level leaves out what it should and keeps the rest (the paper's figure of selection).

    Args:
        left_out: (B, Q) of a level, as `Coded.left_out` gives it.
        labels: (B,) the queries'.
        queue_labels: (Q,), as in `Coded`; -1 where unknown.
        same_image: (B, K), as in `Coded`.

    Returns:
        Precision and recall of the left-out negatives, and the preservation of true ones.

    Example:
        >>> left_out, none = torch.tensor([[True, True, False, True]]), torch.empty(1, 0, dtype=torch.long)
        >>> quality = selection_quality(left_out, torch.tensor([7]), torch.tensor([7, 3, 5, -1]), none)
        >>> [value.item() for value in quality]
        [0.5, 1.0, 0.5]
    """
    negatives = (queue_labels >= 0).expand_as(left_out).scatter(1, same_image, False)
    alike = labels[:, None] == queue_labels
    false, true = negatives & alike, negatives & ~alike
    hits = (left_out & false).sum()
    return SelectionQuality(
        precision=hits / (left_out & negatives).sum().clamp(min=1),
        recall=hits / false.sum().clamp(min=1),
        preservation=(true & ~left_out).sum() / true.sum().clamp(min=1),
    )
