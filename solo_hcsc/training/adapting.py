"""Train an adapter on views of images that a frozen encoder has seen once: seconds on a CPU.

Shapes: `N` images, `V` random views of each, `P` size of a point, `B` batch, `D` embedding size, `L` levels.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from solo_hcsc.encoders.adapter import Adapter
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.options import Options
from solo_hcsc.trees.balancing import balanced_weights, bottom_nodes, draw
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.neighbours import nearest_others

DIM = 128  # D
_INNER = 256  # of the projector
_MOST_PROTOTYPES = 3000  # as in the paper
_NEIGHBOURS = 5  # of an image, whose views may stand for its own
_ASSIGN_EVERY = 0.05  # temperature of SwAV's assignments; its predictions have twice that


@dataclass(frozen=True)
class Recipe:
    """How an adapter is trained.

    Args:
        loss: `hcsc`; `infonce`, which is MoCo's; `swav`, its swapped assignments; or `none`, which trains nothing.
        epochs: how often each image is seen.
        batch: B, at most half of the images.
        lr: of AdamW, falling to 0 by a cosine.
        weight_decay: of AdamW.
        momentum: of the network that makes the keys.
        balance_strength: 0 draws each image once in an epoch, 1 evenly over a tree of all.
        neighbours: how often the key is a view of one of the image's five nearest neighbours.
        options: of HCSC, in place of `DEFAULTS`.
        seed: of all random numbers.
    """

    loss: str = "hcsc"
    epochs: int = 40
    batch: int = 256
    lr: float = 3e-3
    weight_decay: float = 1e-4
    momentum: float = 0.99
    balance_strength: float = 0.0
    neighbours: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def coding(self, images: int, batch: int) -> Options:
        """Return HCSC's options for so many images in batches of so many."""
        given = {"num_prototypes": levels_for(images)} | dict(self.options)
        own = {} if self.loss == "hcsc" else {"instance_selection": False, "prototype_loss": False}
        return Options(**{**DEFAULTS, "queue_size": batch, **given, **own})


# HCSC of cached views: the tree is there from the start, and the batch's keys are the negatives.
DEFAULTS: Mapping[str, Any] = {
    "clustered_features": "images",
    "clustered_space": "encoder",
    "clustering_start": 0,
    "recluster_every": 5,
    "min_cluster_size": 2,
    "proto_warmup_epochs": 0,
    "proto_ramp_epochs": 0,
    "proto_weight": 3.0,
    "instance_selection": False,
}


def levels_for(images: int) -> tuple[int, ...]:
    """Return how many prototypes suit so many images: one for ten of them, and a third at each of three levels above.

    Example:
        >>> levels_for(2700), levels_for(40)
        ((270, 90, 30, 10), (4, 2))
    """
    bottom = min(_MOST_PROTOTYPES, max(2, images // 10))
    return tuple(dict.fromkeys(max(2, round(bottom / 3**level)) for level in range(4)))


def epochs_for(images: int, batch: int = Recipe.batch) -> int:
    """Return for how many epochs an adapter is trained: 40, or more of few images, so that there are 400 steps.

    Example:
        >>> epochs_for(5000), epochs_for(300)
        (40, 200)
    """
    return max(40, -(-400 // (images // min(batch, images // 2))))


class _Networks(nn.Module):
    """An adapter with a projector on top."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        width = adapter.inner.in_features
        self.adapter = adapter
        self.projector = nn.Sequential(nn.Linear(width, _INNER), nn.ReLU(), nn.Linear(_INNER, DIM))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.projector(self.adapter.adapted(points)), dim=1)


class _Swapped(nn.Module):
    """SwAV's loss: a view predicts to which of some learnt prototypes another one belongs."""

    def __init__(self, prototypes: int) -> None:
        super().__init__()
        self.prototypes = nn.Linear(DIM, prototypes, bias=False)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        weight = F.normalize(self.prototypes.weight, dim=1)
        scores = [embedding @ weight.T for embedding in (first, second)]
        told = [F.log_softmax(score / (2 * _ASSIGN_EVERY), dim=1) for score in scores]
        sought = [_even(score.detach()) for score in scores]
        parts = [(sought[1 - one] * told[one]).sum(dim=1).mean() for one in (0, 1)]
        return -torch.stack(parts).mean()


def _even(scores: torch.Tensor) -> torch.Tensor:
    """Return assignments (B, K) of rows that sum to 1, in which all columns are used alike: Sinkhorn's, 3 times."""
    found = (scores / _ASSIGN_EVERY).exp()
    for _ in range(3):
        found = found / found.sum(dim=0)
        found = found / found.sum(dim=1, keepdim=True)
    return found


def fit_adapter(
    adapter: Adapter,
    views: torch.Tensor,
    recipe: Recipe,
    labels: torch.Tensor | None = None,
    each: Callable[[int, Adapter], bool] | None = None,
    clusters: np.ndarray | None = None,
) -> Adapter:
    """Train an adapter.

    Args:
        adapter: as `Adapter.of` makes it; it stays as it is.
        views: (N, V + 1, P) frozen points of each image: its centre, then random views.
        recipe: how.
        labels: (N, L) of an oracle, for studies: the tree of `hcsc` is theirs.
        each: called after every epoch with the number of epochs and the adapter so far; true ends the training.
        clusters: (N, L) that epochs are balanced over, the bottom level first; a tree's of the centres if not given.

    Returns:
        The trained adapter; with loss `none` the given one.
    """
    if recipe.loss == "none":
        return adapter
    images, count = views.shape[0], views.shape[1] - 1
    batch = min(recipe.batch, images // 2)
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        online = _Networks(copy.deepcopy(adapter)).train()
        options = recipe.coding(images, batch)
        swapped = _Swapped(options.num_prototypes[0]) if recipe.loss == "swav" else None
    momentum = copy.deepcopy(online).requires_grad_(False)
    if labels is not None:
        told = {"oracle_labels": True, "clustered_space": "projector", "tree_builder": "kmeans"}
        sizes = tuple(int(level.max()) + 1 for level in labels.T)
        options = Options(**{**options.as_dict(), **told, "num_prototypes": sizes})
    coding = SelectiveCoding(options, DIM, images, recipe.seed)
    near = _near(views[:, 0]) if recipe.neighbours else None
    shares = _shares(views[:, 0], recipe.balance_strength, clusters) if recipe.balance_strength else None
    trained = [*online.parameters(), *([] if swapped is None else swapped.parameters())]
    optimizer = torch.optim.AdamW(trained, lr=recipe.lr, weight_decay=recipe.weight_decay)
    steps = images // batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs * steps)
    for epoch in range(recipe.epochs):
        if coding.due(epoch):
            _cluster(coding, epoch, momentum, views[:, 0], labels)
        for step, rows in enumerate(_order(images, shares, generator)[: steps * batch].split(batch), epoch * steps):
            first, second = _draw(views, rows, near, recipe.neighbours, count, generator)
            queries = online(first)
            if swapped is not None:
                loss = swapped(queries, online(second))
            else:
                with torch.no_grad():
                    keys = momentum(second)
                loss = coding.step([queries], [keys], rows, epoch=epoch, step=step).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            follow(momentum, online, recipe.momentum)
        if each is not None and each(epoch + 1, online.adapter):
            break
    return online.adapter.eval().requires_grad_(False)


def _shares(points: torch.Tensor, strength: float, clusters: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each image (N,) is drawn to cover a tree evenly, and its bottom cluster (N,)."""
    levels = build_tree(points.float()).levels if clusters is None else clusters
    return balanced_weights(levels, strength), bottom_nodes(levels)


def _order(images: int, shares: tuple[np.ndarray, np.ndarray] | None, generator: torch.Generator) -> torch.Tensor:
    """Return the images (N,) of an epoch: each once, or as their shares say."""
    order = torch.randperm(images, generator=generator)
    if shares is None:
        return order
    return torch.from_numpy(draw(*shares, np.random.default_rng(order[:4].tolist())))


def _draw(
    views: torch.Tensor, rows: torch.Tensor, near: torch.Tensor | None, share: float, count: int, generator: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a view (B, P) of each image, and another one, of the image or of a neighbour."""
    first = torch.randint(count, (len(rows),), generator=generator)
    other = (first + torch.randint(1, count, (len(rows),), generator=generator)) % count
    seen = rows
    if near is not None:
        chosen = near[rows, torch.randint(near.shape[1], (len(rows),), generator=generator)]
        seen = torch.where(torch.rand(len(rows), generator=generator) < share, chosen, rows)
    return views[rows, 1 + first].float(), views[seen, 1 + other].float()


def _near(points: torch.Tensor) -> torch.Tensor:
    """Return the rows (N, k) of each image's nearest neighbours; its own where fewer are found."""
    found = torch.from_numpy(nearest_others(points.float().numpy(), min(_NEIGHBOURS, len(points) - 1))[0])
    return torch.where(found < 0, torch.arange(len(points))[:, None], found)


@torch.no_grad()
def _cluster(
    coding: SelectiveCoding, epoch: int, networks: _Networks, centres: torch.Tensor, labels: torch.Tensor | None
) -> None:
    """Make the tree of the adapted centres; its prototypes are means of their embeddings."""
    points = torch.cat([networks.adapter.adapted(part.float()) for part in centres.split(8192)])
    embeddings = torch.cat([F.normalize(networks.projector(part), dim=1) for part in points.split(8192)])
    if labels is not None:
        coding.cluster(epoch, embeddings, labels=labels)
    elif coding.options.clustered_space == "encoder":
        coding.cluster(epoch, embeddings, features=points)
    else:
        coding.cluster(epoch, embeddings)


@torch.no_grad()
def follow(momentum: nn.Module, online: nn.Module, tau: float) -> None:
    """Let the weights of the momentum network follow those of the one that is trained."""
    for slow, fast in zip(momentum.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, 1 - tau)
