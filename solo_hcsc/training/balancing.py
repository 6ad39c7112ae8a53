"""Draw training images evenly over a tree: the run's own, which is renewed with it, or a given one.

The shares of an epoch are those of the tree as it is at the end of the epoch before, and every checkpoint has them: so
a resumed run draws the same images, also within an epoch.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pytorch_lightning import Callback, LightningModule, Trainer
from torch.utils.data import Dataset

from solo_hcsc.data.folders import files_and_labels
from solo_hcsc.data.loaders import BalancedSampler, Shares
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import ArgumentError, on_one_line
from solo_hcsc.methods.learner import gather_strided
from solo_hcsc.progress import say, watch
from solo_hcsc.training.lightning import is_within_epoch
from solo_hcsc.trees.balancing import balanced_weights, bottom_nodes, levels_by_name
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.tree import Tree

Crops = Callable[[Sequence[int]], Iterable[torch.Tensor]]


def shares_of(clusters: np.ndarray, strength: float) -> Shares:
    """Return how often each image is drawn in an epoch that is balanced over a tree's clusters (N, L)."""
    weights = torch.from_numpy(balanced_weights(clusters, strength)).float()
    return Shares(weights, torch.from_numpy(bottom_nodes(clusters)).int())


def given_clusters(folder: Path, dataset: Dataset, source: ImageSource) -> np.ndarray:
    """Return the training images' clusters (N, L) in a saved tree, which has them by their paths.

    Args:
        folder: where `Tree.save` wrote.
        dataset: the training images; files.
        source: where they are. The tree's paths may be below the folder of training images, or below `data_dir`.
    """
    try:
        tree = Tree.load(folder)
    except ValueError as error:
        raise ArgumentError(f"`balance_tree` {error}") from None
    files = files_and_labels(dataset)[0]
    known = {*map(on_one_line, tree.keys or ())}
    roots = [str(folder) + "/" for folder in (source.folder("train"), source.data_dir)]
    names = [[on_one_line(file.removeprefix(root)) for file in files] for root in roots]
    found = next((some for some in names if some[0] in known), names[0])
    return levels_by_name(tree, found, "balance_tree")


class BalanceByTree(Callback):
    """Give the sampler its shares: those of a given tree, or after an epoch those of the run's own.

    HCSC has a tree. For any other method one is built of the encoder's features of the training images' centre crops,
    after 1, 2, 4, 8, ... epochs.

    Args:
        sampler: what draws the images.
        strength: 0 draws each image once, 1 evenly over the tree.
        clusters: (N, L) of a tree that is kept; the run's own if None.
        crops: given indexes of training images, yields their centre crops in that order, in batches.
    """

    def __init__(self, sampler: BalancedSampler, strength: float, clusters: np.ndarray | None, crops: Crops) -> None:
        self.sampler, self.strength, self.crops = sampler, strength, crops
        self.is_given = clusters is not None
        if clusters is not None:
            sampler.balance(shares_of(clusters, strength))

    def state_dict(self) -> dict[str, Any]:
        shares = self.sampler.shares
        return {} if shares is None or self.is_given else {"weights": shares.weights, "clusters": shares.clusters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and not self.is_given:
            self.sampler.balance(Shares(state["weights"].cpu(), state["clusters"].cpu()))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.is_given and not is_within_epoch(trainer):
            self._renew(trainer, pl_module)
        if self.sampler.shares is not None:
            weights = self.sampler.shares.weights
            even = float(weights.sum() ** 2 / (weights**2).sum() / len(weights))
            pl_module.log_dict({"balance_most": float(weights.max()), "balance_even": even}, rank_zero_only=True)

    def _renew(self, trainer: Trainer, model: LightningModule) -> None:
        """Take the tree of the run for the epochs to come."""
        coding: Any = getattr(model, "coding", None)
        hierarchy = None if coding is None else coding.hierarchy
        if hierarchy is not None and hierarchy.assignments is not None and (hierarchy.assignments >= 0).any():
            self.sampler.balance(shares_of(hierarchy.assignments.numpy(), self.strength))
            return
        done = trainer.current_epoch + 1
        if done & (done - 1) or done == trainer.max_epochs:
            return
        features = self._features(trainer, model)
        shares = None
        if features is not None:
            tree = build_tree(features)
            shares = shares_of(tree.levels, self.strength)
            sizes = " ".join(map(str, tree.level_sizes))
            say(f"`balance` tree: renewed after epoch {done}: {sizes} clusters")
        self.sampler.balance(trainer.strategy.broadcast(shares))

    @torch.no_grad()
    def _features(self, trainer: Trainer, model: LightningModule) -> np.ndarray | None:
        """Return unit vectors (N, F) of all training images on the first process; None on the others."""
        encoder, rank, processes = model.get_submodule("encoder"), trainer.global_rank, trainer.world_size
        count = len(self.sampler.dataset)  # type: ignore[arg-type]
        indexes = range(rank, count, processes)
        was_training = encoder.training
        encoder.eval()
        with trainer.precision_plugin.forward_context():
            found = [
                F.normalize(encoder(crops.to(model.device)).float(), dim=1)
                for (crops,) in watch(((crops,) for crops in self.crops(indexes)), len(indexes), "embeddings")
            ]
        encoder.train(was_training)
        whole = gather_strided(torch.cat(found), count, rank, processes)
        return None if whole is None else whole.cpu().numpy()
