"""HCSC (Hierarchical Contrastive Selective Coding, CVPR 2022) as a solo-learn method."""

import random
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from solo.methods.base import BaseMomentumMethod
from solo.utils.misc import gather
from solo.utils.momentum import initialize_momentum_params
from torch import nn
from tqdm import tqdm

from solo_hcsc.cli.console import announce
from solo_hcsc.cli.errors import UserError, in_flags, note
from solo_hcsc.cli.flags import longest_warmup
from solo_hcsc.cli.parser import Flags, yes_or_no
from solo_hcsc.framework.datasets import CentreCropBatches
from solo_hcsc.hcsc.coding import Coded, Processes, SelectiveCoding, describe, selection_quality
from solo_hcsc.hcsc.health import Health, Sign, of_epoch, of_tree
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.hcsc.options import IMAGES_EACH, PRESETS, Options, levels_for

# How well negatives are selected costs a comparison of the batch with the queue.
STEPS_BETWEEN_PRECISION = 20
LARGE = 2e9  # bytes


class HCSC(BaseMomentumMethod):
    """A MoCo v2 whose negatives are selected by a tree of prototypes, and a contrast with those prototypes.

    View 1 is the query, view 2 the key: one pass through the encoder and one through the momentum encoder.

    Args:
        proj_output_dim: size of the embeddings (D).
        proj_hidden_dim: the projector's hidden size; the encoder's feature size if None.
        num_images: training images (N), which batches name by their indexes.
        seed: of k-means and of the selection's random numbers.
        centre_crops: given indexes of training images, yields their centre crops in that order, in batches. Needed
            where images are clustered, which is the first clustering if not every one.
        **kwargs: solo-learn's own arguments, and the fields of `solo_hcsc.Options`.

    Example:
        >>> import solo_hcsc.framework, solo.methods
        >>> solo.methods.METHODS["hcsc"].__name__
        'HCSC'
    """

    def __init__(
        self,
        proj_output_dim: int,
        proj_hidden_dim: int | None,
        num_images: int,
        seed: int = 0,
        centre_crops: CentreCropBatches | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.options = options_in(kwargs)
        self.options.check_images(num_images)
        precision = str(kwargs.get("precision", "32-true"))
        if precision.endswith("-true") and precision != "32-true":
            raise UserError(f"--precision {precision}: hcsc trains in 32, 16 (mixed) or bf16 (mixed)")
        self.seed = seed
        self.num_images = num_images
        self.centre_crops = centre_crops
        self.health = Health()

        hidden = proj_hidden_dim or self.features_dim
        self.projector = _projector(self.features_dim, hidden, proj_output_dim)
        self.momentum_projector = _projector(self.features_dim, hidden, proj_output_dim)
        initialize_momentum_params(self.projector, self.momentum_projector)
        self.coding = SelectiveCoding(self.options, proj_output_dim, num_images, seed)
        kept = self.coding.bytes_of_images
        if kept > LARGE:
            note(
                f"what HCSC keeps of {num_images} images takes {kept / 1e9:.1f} GB in every process and checkpoint; "
                "--cluster_sample 1000000 keeps the keys of so many, --query_cluster cosine no clusters"
            )
        # Identical in all processes by construction: DDP need not send them around at every step.
        self._ddp_params_and_buffers_to_ignore = [f"coding.{name}" for name, _ in self.coding.named_buffers()]

    @staticmethod
    def add_model_specific_args(parent_parser: ArgumentParser) -> ArgumentParser:
        parent_parser = BaseMomentumMethod.add_model_specific_args(parent_parser)
        parser = parent_parser.add_argument_group("hcsc")
        parser.add_argument("--proj_output_dim", type=int, default=128)
        parser.add_argument(
            "--proj_hidden_dim", type=int, help="the projector's hidden size; the encoder's if not given"
        )
        add_option_flags(parser)
        parent_parser.set_defaults(base_tau_momentum=0.999, final_tau_momentum=0.999, lr=0.03)
        return parent_parser

    @staticmethod
    def shorten(flags: Flags) -> dict[str, Any]:
        """The warm-up that suits a short run, where none was typed."""
        options = options_in(vars(flags))
        most = max(longest_warmup(flags.max_epochs), flags.clustering_start or 0)
        if "proto_warmup_epochs" in flags.typed or options.proto_warmup_epochs <= most:
            return {}
        return {"proto_warmup_epochs": most}

    @staticmethod
    def choose_levels(settings: Mapping[str, Any], images: int) -> dict[str, Any]:
        """How many prototypes suit the images, where nobody has said; and a line where many will be dropped."""
        options = options_in(settings)
        clustered = options.clustered_at_most(images)
        levels = levels_for(clustered, options.min_cluster_size)
        if not options.needs_tree:
            return {}
        if settings["num_prototypes"] is None and levels != options.num_prototypes:
            shown = " ".join(map(str, levels))
            announce(
                f"--num_prototypes {shown}: chosen for {clustered} images, at least {IMAGES_EACH} for each prototype "
                "of the bottom level, and the levels in the paper's proportions"
            )
            return {"num_prototypes": list(levels)}
        if settings["num_prototypes"] is not None and clustered < options.few_images:
            bottom = options.num_prototypes[0]
            announce(
                f"--num_prototypes {bottom}: {clustered} images are {clustered // bottom} for each, and clusters of "
                f"fewer than {options.min_cluster_size} (--min_cluster_size) are dropped, which many will be; "
                f"better ask for at most {levels[0]}"
            )
        return {}

    @staticmethod
    def check_flags(flags: Mapping[str, Any]) -> None:
        """Refuses what can be refused before any data is read."""
        options = options_in(flags)
        options.check_schedule(flags["max_epochs"])
        if options.needs_tree:
            import_faiss()

    @staticmethod
    def check_batch(flags: Mapping[str, Any], batch: int) -> None:
        """Refuses more keys in a `batch` over all processes than the queue takes."""
        options_in(flags).check_batch(batch)

    @property
    def resolved_options(self) -> dict[str, Any]:
        """What a run records of the method in args.json and in its checkpoints."""
        return {"hcsc_options": self.options.as_dict()}

    @property
    def learnable_params(self) -> list[dict[str, Any]]:
        return [*super().learnable_params, {"params": self.projector.parameters()}]

    @property
    def momentum_pairs(self) -> list[tuple[Any, Any]]:
        return [*super().momentum_pairs, (self.projector, self.momentum_projector)]

    def forward(self, X: torch.Tensor) -> dict[str, torch.Tensor]:
        out = super().forward(X)
        return {**out, "z": F.normalize(self.projector(out["feats"]), dim=1)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(self.resolved_options)
        checkpoint["health"] = self.health.as_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.health = Health.from_dict(checkpoint.get("health"))

    # ---- before an epoch: the tree of prototypes ----

    def on_train_epoch_start(self) -> None:
        if self.coding.due(self.current_epoch):
            self.cluster()

    def cluster(self) -> None:
        """Clusters embeddings (Alg. 1) in one process and installs the tree in all."""
        # The first epoch has no keys yet, other options never.
        embeddings, images = (None, None) if self.coding.has_enough_keys else self.extract()
        if self.global_rank == 0:
            hierarchy = self.coding.cluster(self.current_epoch, embeddings, images)
            self._tell("tree", of_tree(hierarchy, self.options))
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
        """The encoder and the projector whose embeddings are clustered."""
        if self.options.clustered_encoder == "momentum":
            return nn.Sequential(self.momentum_encoder, self.momentum_projector)
        return nn.Sequential(self.encoder, self.projector)

    @torch.no_grad()
    def extract(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Unit embeddings (n, D) of training images' centre crops, and the images' indexes (n,); labels are not read.

        All images, or with `--cluster_sample` so many, evenly spread over the data set and others in every epoch. Every
        process works on its share; only the first, which clusters, gets all embeddings, and the others None.
        """
        if self.centre_crops is None:
            raise UserError("hcsc clusters the training images before an epoch: give `centre_crops` to the method")
        encoder, projector = self.clustered_side
        rank, processes = self.global_rank, self.trainer.world_size
        indexes = spread(self.num_images, self.options.cluster_sample, self.current_epoch, self.seed)
        share, images = indexes[rank::processes], torch.tensor(indexes)
        was_training = encoder.training
        encoder.eval()
        bar = tqdm(total=len(share), desc="embeddings", unit="image", leave=False, disable=True if rank else None)
        parts = []
        with bar, self.trainer.precision_plugin.forward_context():
            for crops in self.centre_crops(share):
                crops = crops.to(self.device, non_blocking=True)
                parts.append(F.normalize(projector(encoder(crops)).float(), dim=1))
                bar.update(len(crops))
        encoder.train(was_training)
        found = torch.cat(parts) if parts else torch.zeros(0, self.coding.dim, device=self.device)
        if processes == 1:
            return found, images
        # Shares differ by one image at most: pad, gather, and put image `rank + i * processes` where it belongs.
        padded = F.pad(found, (0, 0, 0, -(-len(indexes) // processes) - len(found)))
        gathered = [torch.empty_like(padded) for _ in range(processes)] if rank == 0 else None
        dist.gather(padded, gathered, dst=0)
        if gathered is None:
            return None, images
        embeddings = found.new_empty(len(indexes), found.size(1))
        for number, part in enumerate(gathered):
            places = embeddings[number::processes]
            places.copy_(part[: len(places)])
        return embeddings, images

    def on_train_epoch_end(self) -> None:
        self.look_at_epoch()

    def look_at_epoch(self) -> None:
        """Tells what is wrong with the epoch that has just ended; once, however often it is asked."""
        self._tell("epoch", of_epoch(self.trainer.callback_metrics, self.options, self.current_epoch))

    def _tell(self, about: str, signs: Mapping[str, Sign]) -> None:
        for line in self.health.news(self.current_epoch, about, signs):
            note(in_flags(line))

    # ---- a step ----

    def training_step(self, batch: Sequence[Any], batch_idx: int) -> torch.Tensor:
        index, views, targets = batch
        large = views[: self.num_large_crops]
        queries = large if self.options.symmetric else large[:1]
        keys = large[::-1] if self.options.symmetric else large[1:]

        online = [self._base_shared_step(view, targets) for view in queries]
        target = [self._shared_step_momentum(view, targets) for view in keys]
        with torch.no_grad():
            key = [F.normalize(self.momentum_projector(out["feats"]), dim=1) for out in target]
        z = [F.normalize(self.projector(out["feats"]), dim=1) for out in online]
        local = [F.normalize(self.projector(self.encoder(v)), dim=1) for v in views[self.num_large_crops :]]

        coded = self.coding.step(
            z,
            key,
            index,
            epoch=self.current_epoch,
            step=self.global_step,
            labels=targets,
            local=local,
            processes=Processes(self.global_rank, self.trainer.world_size, gather),
        )
        self.loss_terms = coded.inputs | coded.parts  # named if the loss is not finite
        self._log_coding(coded, targets, batch_idx)
        class_loss = self._log_classifiers(online, target, targets)
        self.log("train_hcsc_loss_step", coded.loss, on_step=True, on_epoch=False)
        self._log_epoch({"train_hcsc_loss_epoch": coded.loss})
        return coded.loss + class_loss

    def _log_classifiers(
        self, online: list[dict[str, Any]], target: list[dict[str, Any]], targets: torch.Tensor
    ) -> torch.Tensor:
        """The framework's online evaluation, on the views that were used; returns the classifiers' loss."""
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
            self.knn(train_features=features, train_targets=targets.repeat(len(online)))
        return total

    def _log_means(self, names: dict[str, str], outs: list[dict[str, Any]]) -> None:
        self._log_epoch({f"{name}_epoch": sum(out[key] for out in outs) / len(outs) for name, key in names.items()})

    def _log_epoch(self, values: dict[str, Any]) -> None:
        """Logs means over the epoch and the processes; means of every step would make the processes wait for it."""
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


def options_in(values: Mapping[str, Any]) -> Options:
    """HCSC's options among other flags or arguments; what is None is the preset's."""
    return Options(**{item.name: values[item.name] for item in fields(Options) if values.get(item.name) is not None})


def add_option_flags(group: Any) -> None:
    """A flag for each of HCSC's options."""
    group.add_argument("--preset", default="recommended", help=f"a set of the options below: {', '.join(PRESETS)}")
    for item in fields(Options):
        if item.name == "preset":
            continue
        default = item.metadata["default"]
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        settings: dict[str, Any] = {"help": f"{item.metadata['help']} (recommended: {shown})", "default": None}
        if isinstance(default, tuple):
            settings |= {"type": int, "nargs": "+"}
        elif isinstance(default, bool):
            settings |= {"type": yes_or_no, "nargs": "?", "const": True}
        else:
            settings |= {"type": type(default)}
        if item.metadata["choices"]:
            settings["choices"] = item.metadata["choices"]
        group.add_argument(f"--{item.name}", **settings)


def spread(images: int, sample: int, epoch: int, seed: int) -> Sequence[int]:
    """Indexes of `sample` images at equal distances, from an epoch's own first one; all images for 0 or too many."""
    if not 0 < sample < images:
        return range(images)
    first = random.Random(f"{seed} {epoch}").random()
    return [int((number + first) * images / sample) for number in range(sample)]


def _projector(features: int, hidden: int, output: int) -> nn.Sequential:
    """MoCo v2's: two layers."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, output))
