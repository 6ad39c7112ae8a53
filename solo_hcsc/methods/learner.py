"""HCSC's part of a training module: projectors, the clustering pass, the step, and what it logs.

It knows no framework. solo-learn's modules have an encoder, a momentum encoder and classifiers on both, and Lightning's
loops and logs; an adapter for each version of solo-learn joins the two.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.coding import Coded, Processes, SelectiveCoding, describe, selection_quality
from solo_hcsc.hcsc.health import Health, Sign, collapse_in_tree, collapse_of, of_epoch, of_tree
from solo_hcsc.hcsc.options import Options

CentreCropBatches = Callable[[Sequence[int]], Iterable[torch.Tensor]]

# How well negatives are selected costs a comparison of the batch with the queue.
STEPS_BETWEEN_PRECISION = 20
LARGE = 2e9  # bytes
JUDGED = 256  # images by whose features collapse is judged


class Extracted(NamedTuple):
    """What a pass over centre crops gives."""

    embeddings: torch.Tensor | None  # (n, D) unit vectors; None where another process has them
    images: torch.Tensor | None  # (n,) the indexes of the images
    features: torch.Tensor | None = None  # (n, F) unit vectors of the encoder, where they are clustered


class Learner(nn.Module):
    """What makes HCSC of a Lightning module with two encoders: `class HCSC(Learner, BaseMomentumMethod)`.

    View 1 is the query, view 2 the key: one pass through the encoder and one through the momentum encoder.

    The adapter calls `build_projectors` when it is made and `begin` as soon as it knows the number of images, and has
    the properties and functions below that raise `NotImplementedError`.
    """

    # What Lightning's and solo-learn's modules have.
    current_epoch: int
    global_step: int
    global_rank: int
    device: torch.device
    trainer: Any
    log: Callable[..., None]
    log_dict: Callable[..., None]
    features_dim: int
    num_classes: int
    num_large_crops: int
    knn_eval: bool
    knn: Callable[..., None]
    momentum_classifier: nn.Module | None
    _base_shared_step: Callable[..., dict[str, Any]]
    _shared_step_momentum: Callable[..., dict[str, Any]]

    # ---- what an adapter gives ----

    @property
    def encoders(self) -> tuple[nn.Module, nn.Module]:
        """Return the encoder and the momentum encoder."""
        raise NotImplementedError

    def tell(self, text: str) -> None:
        """Show a line to the user, with its `arguments` named as the user writes them."""
        raise NotImplementedError

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the rows of all processes, one process after the other."""
        raise NotImplementedError

    # ---- how it is made ----

    def build_projectors(self, hidden: int | None, output: int) -> None:
        """Make MoCo v2's projector and its momentum copy, whose weights start equal.

        Args:
            hidden: the hidden size; that of the encoder's features if None.
            output: size of the embeddings (D).
        """
        self.embedding_size = output
        self.projector = _projector(self.features_dim, hidden or self.features_dim, output)
        self.momentum_projector = _projector(self.features_dim, hidden or self.features_dim, output)
        self.momentum_projector.load_state_dict(self.projector.state_dict())
        self.momentum_projector.requires_grad_(False)

    def begin(
        self,
        options: Options,
        num_images: int,
        seed: int = 0,
        centre_crops: CentreCropBatches | None = None,
        true_labels: torch.Tensor | None = None,
    ) -> None:
        """Make queue, memory and tree.

        Args:
            options: what is computed.
            num_images: training images (N), which batches name by their indexes.
            seed: of k-means and of the selection's random numbers.
            centre_crops: given indexes of training images, yields their centre crops in that order, in batches. Needed
                where images are clustered, which is the first clustering if not every one.
            true_labels: (N, L) each image's label at every level of a label hierarchy, for `oracle_labels` alone.
        """
        options.check_images(num_images)
        self.options, self.num_images, self.seed, self.centre_crops = options, num_images, seed, centre_crops
        self.true_labels = true_labels if options.oracle_labels else None
        self.health = Health()
        self._looked_at = -1  # the epoch
        self.coding = SelectiveCoding(options, self.embedding_size, num_images, seed).to(self.device)
        kept = self.coding.bytes_of_images
        if kept > LARGE:
            self.tell(
                f"what HCSC keeps of {num_images} images takes {kept / 1e9:.1f} GB in every process and checkpoint; "
                "`cluster_sample` 1000000 keeps the keys of so many, `query_cluster` cosine no clusters"
            )
        # Identical in all processes by construction: DDP need not send them around at every step.
        self._ddp_params_and_buffers_to_ignore = [f"coding.{name}" for name, _ in self.coding.named_buffers()]

    @property
    def resolved_options(self) -> dict[str, Any]:
        """Return what a run records of the method in args.json and in its checkpoints."""
        return {"hcsc_options": self.options.as_dict()}

    @property
    def learnable_params(self) -> list[dict[str, Any]]:
        """Return the module's own, and the projector's."""
        own: list[dict[str, Any]] = super().learnable_params  # type: ignore[misc]
        return [*own, {"name": "projector", "params": self.projector.parameters()}]

    @property
    def momentum_pairs(self) -> list[tuple[Any, Any]]:
        """Return the module's own pair, and that of the projectors."""
        own: list[tuple[Any, Any]] = super().momentum_pairs  # type: ignore[misc]
        return [*own, (self.projector, self.momentum_projector)]

    def forward(self, X: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return features `feats`, the classifier's `logits`, and unit embeddings `z` (B, D) of a batch of images."""
        out: dict[str, torch.Tensor] = super().forward(X)
        return {**out, "z": self._embedded(out)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the options, and the signs of ill health that stand."""
        checkpoint.update(self.resolved_options)
        checkpoint["health"] = self.health.as_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the signs of ill health."""
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]
        self.health = Health.from_dict(checkpoint.get("health"))

    # ---- before an epoch: the tree of prototypes ----

    def on_train_epoch_start(self) -> None:
        if self.coding.due(self.current_epoch):
            self.cluster()

    def cluster(self) -> None:
        """Cluster embeddings (Alg. 1) in one process and install the tree in all."""
        if self.options.oracle_labels and self.true_labels is None:
            raise ArgumentError("`oracle_labels`: the module was not given `true_labels` of the training images")
        # The first epoch has no keys yet, other options never.
        keys = self.coding.has_enough_keys and not self.options.oracle_labels
        found = Extracted(None, None, None) if keys else self.extract()
        if self.global_rank == 0:
            hierarchy = self.coding.cluster(self.current_epoch, *found, labels=self.true_labels)
            self._tell_news("tree", of_tree(hierarchy, self.options))
            for number, level in enumerate(hierarchy.levels):
                self.log_dict(
                    {f"{name}_{number}": float(value) for name, value in describe(level).items()}, rank_zero_only=True
                )
            self.log("clustering_seconds", hierarchy.seconds, rank_zero_only=True)
        if dist.is_available() and dist.is_initialized():
            for buffer in self.coding.shared_buffers():
                dist.broadcast(buffer, src=0)
            state = [self.coding.get_extra_state()]
            dist.broadcast_object_list(state, src=0)
            self.coding.set_extra_state(state[0])

    @property
    def clustered_side(self) -> nn.Sequential:
        """Return the encoder and the projector whose embeddings are clustered."""
        online, momentum = self.encoders
        if self.options.clustered_encoder == "momentum":
            return nn.Sequential(momentum, self.momentum_projector)
        return nn.Sequential(online, self.projector)

    @torch.no_grad()
    def extract(self) -> "Extracted":
        """Return what training images' centre crops give; labels are not read.

        All images, or with `cluster_sample` so many, evenly spread over the data set and others in every epoch. Every
        process works on its share; only the first, which clusters, gets all embeddings and features, the others None.
        """
        if self.centre_crops is None:
            raise ArgumentError("`centre_crops`: hcsc clusters the training images before an epoch; give them")
        encoder, projector = self.clustered_side
        rank, processes = self.global_rank, self.trainer.world_size
        indexes = spread(self.num_images, self.options.cluster_sample, self.current_epoch, self.seed)
        share, images = indexes[rank::processes], torch.tensor(indexes)
        was_training = encoder.training
        encoder.eval()
        bar = tqdm(total=len(share), desc="embeddings", unit="image", leave=False, disable=True if rank else None)
        sees_features = self.options.clustered_space == "encoder" and not self.options.oracle_labels
        embedded = [torch.zeros(0, self.coding.dim, device=self.device)]
        features = [torch.zeros(0, self.features_dim, device=self.device)]
        with bar, self.trainer.precision_plugin.forward_context():
            for crops in self.centre_crops(share):
                crops = crops.to(self.device, non_blocking=True)
                encoded = encoder(crops)
                embedded.append(F.normalize(projector(encoded).float(), dim=1))
                if sees_features:
                    features.append(F.normalize(encoded.float(), dim=1))
                bar.update(len(crops))
        encoder.train(was_training)
        whole = self._whole(torch.cat(embedded), len(indexes))
        return Extracted(whole, images, self._whole(torch.cat(features), len(indexes)) if sees_features else None)

    def _whole(self, share: torch.Tensor, count: int) -> torch.Tensor | None:
        """Gather strided shards (count, n) of all processes on the first; None elsewhere."""
        return gather_strided(share, count, self.global_rank, self.trainer.world_size)

    def on_train_epoch_end(self) -> None:
        self.look_at_epoch()

    def look_at_epoch(self) -> None:
        """Tell, once, what is wrong with the epoch that has just ended."""
        if self._looked_at == self.current_epoch:
            return
        self._looked_at = self.current_epoch
        self._tell_news("epoch", of_epoch(self.trainer.callback_metrics, self.options, self.current_epoch))
        if self.global_rank == 0:
            self._tell_news("collapse", self._collapse())

    def _collapse(self) -> dict[str, Sign]:
        """Return the signs of collapse that the tree and the encoder's features agree on."""
        tree = self.coding.hierarchy
        signs = {} if tree is None else collapse_in_tree(tree, self.options)
        if not signs or self.centre_crops is None:
            return {}
        seen = collapse_of(self._features(spread(self.num_images, JUDGED, self.current_epoch, self.seed)))
        return {name: sign._replace(text=f"{sign.text} ({seen})") for name, sign in signs.items()} if seen else {}

    @torch.no_grad()
    def _features(self, indexes: Sequence[int]) -> torch.Tensor:
        """Return features (n, F) of training images' centre crops, without batch statistics, which amplify noise."""
        encoder, _ = self.encoders
        was_training = encoder.training
        encoder.eval()
        with self.trainer.precision_plugin.forward_context():
            found = [encoder(crops.to(self.device)).float() for crops in self.centre_crops(indexes)]  # type: ignore[misc]
        encoder.train(was_training)
        return torch.cat(found).cpu()

    def _tell_news(self, about: str, signs: Mapping[str, Sign]) -> None:
        for line in self.health.news(self.current_epoch, about, signs):
            self.tell(line)

    # ---- a step ----

    def training_step(self, batch: Sequence[Any], batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch of indexes, crops and labels (Eq. 10), with the classifiers'."""
        index, views, targets = batch
        large = views[: self.num_large_crops]
        queries = large if self.options.symmetric else large[:1]
        keys = large[::-1] if self.options.symmetric else large[1:]

        online = [self._base_shared_step(view, targets) for view in queries]
        target = [self._shared_step_momentum(view, targets) for view in keys]
        with torch.no_grad():
            key = [F.normalize(self.momentum_projector(out["feats"]), dim=1) for out in target]
        z = [self._embedded(out) for out in online]
        encoder, _ = self.encoders
        local = [F.normalize(self.projector(encoder(view)), dim=1) for view in views[self.num_large_crops :]]

        coded = self.coding.step(
            z,
            key,
            index,
            epoch=self.current_epoch,
            step=self.global_step,
            labels=targets,
            local=local,
            processes=Processes(self.global_rank, self.trainer.world_size, self.gather),
        )
        self.loss_terms = coded.inputs | coded.parts  # named if the loss is not finite
        self._log_coding(coded, targets, batch_idx)
        class_loss = self._log_classifiers(online, target, targets)
        self.log("train_hcsc_loss_step", coded.loss, on_step=True, on_epoch=False)
        self._log_epoch({"train_hcsc_loss_epoch": coded.loss})
        return coded.loss + class_loss

    def _embedded(self, out: dict[str, Any]) -> torch.Tensor:
        """Return unit embeddings of what the module's forward gave, which may have them already."""
        return out["z"] if "z" in out else F.normalize(self.projector(out["feats"]), dim=1)

    def _log_classifiers(
        self, online: list[dict[str, Any]], target: list[dict[str, Any]], targets: torch.Tensor
    ) -> torch.Tensor:
        """Run solo-learn's online evaluation on the views that were used; return the classifiers' loss."""
        total = torch.stack([out["loss"] for out in online]).mean()
        self.log("train_class_loss_step", total, on_step=True, on_epoch=False)  # which progress leaves out
        names = {"train_class_loss": "loss", "train_acc1": "acc1", "train_acc5": "acc5"}
        self._log_means(names, online)
        if self.momentum_classifier is not None:
            beside = torch.stack([out["loss"] for out in target]).mean()
            self.log("train_momentum_class_loss_step", beside, on_step=True, on_epoch=False)
            total = total + beside
            self._log_means({name.replace("train_", "train_momentum_"): key for name, key in names.items()}, target)
        if self.knn_eval:
            features = torch.cat([out["feats"] for out in online]).detach()
            labels = targets.repeat(len(online))
            known = labels != -1
            self.knn(train_features=features[known], train_targets=labels[known])
        return total

    def _log_means(self, names: dict[str, str], outs: list[dict[str, Any]]) -> None:
        self._log_epoch({f"{name}_epoch": sum(out[key] for out in outs) / len(outs) for name, key in names.items()})

    def _log_epoch(self, values: dict[str, Any]) -> None:
        """Log means over the epoch and the processes; means of every step would make the processes wait for it."""
        self.log_dict(values, on_step=False, on_epoch=True, sync_dist=True)

    def _log_coding(self, coded: Coded, targets: torch.Tensor, batch_idx: int) -> None:
        log = {name: part.detach() for name, part in coded.parts.items()}
        if batch_idx % STEPS_BETWEEN_PRECISION == 0:
            log["queue_age"] = coded.queue_age(self.global_step)
            if self.num_classes > 1:
                for level, out in enumerate(coded.left_out()):
                    quality = selection_quality(out, targets, coded.queue_labels, coded.same_image)
                    log |= {f"left_out_{name}_{level}": value for name, value in quality._asdict().items()}
        self._log_epoch(log)


def gather_strided(share: torch.Tensor, count: int, rank: int, processes: int) -> torch.Tensor | None:
    """Gather strided shards (count, n) of all processes on the first; None elsewhere."""
    if processes == 1:
        return share
    # Shares differ by one image at most: pad, gather, and put image `rank + i * processes` where it belongs.
    padded = F.pad(share, (0, 0, 0, -(-count // processes) - len(share)))
    gathered = [torch.empty_like(padded) for _ in range(processes)] if rank == 0 else None
    dist.gather(padded, gathered, dst=0)
    if gathered is None:
        return None
    rows = share.new_empty(count, share.size(1))
    for number, part in enumerate(gathered):
        places = rows[number::processes]
        places.copy_(part[: len(places)])
    return rows


def spread(images: int, sample: int, epoch: int, seed: int) -> Sequence[int]:
    """Return indexes of `sample` images at equal distances, from an epoch's own first one; all for 0 or too many.

    Example:
        >>> len(spread(images=100, sample=10, epoch=0, seed=0)), len(spread(100, 0, 0, 0))
        (10, 100)
    """
    if not 0 < sample < images:
        return range(images)
    first = random.Random(f"{seed} {epoch}").random()
    return [int((number + first) * images / sample) for number in range(sample)]


def _projector(features: int, hidden: int, output: int) -> nn.Sequential:
    """Make MoCo v2's projector: two layers."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, output))
