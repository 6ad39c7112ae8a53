"""Choose a linear classifier's learning rate on held-out training images, from features that are computed once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation.features import Features
from solo_hcsc.evaluation.models import Sweep

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
HELD_OUT = 0.2
STEPS = 1000  # that a rate is tried for at most
IMAGES = 20_000  # that rates are tried with at most


@dataclass(frozen=True)
class Tried:
    """Hold a learning rate, and how well a classifier trained with it does on the held-out images."""

    lr: float
    acc1: float  # in percent
    loss: float  # infinite if it diverged


@dataclass(frozen=True)
class Rate:
    """Hold the learning rate with the highest accuracy on held-out images; of equals, that with the lowest loss."""

    lr: float
    tried: tuple[Tried, ...]
    images: int
    held_out: int

    @property
    def said(self) -> str:
        return f"best of {len(self.tried)} learning rates on {self.held_out} held-out training images"


def choose_rate(features: Features, backbone: nn.Module, settings: Mapping[str, Any], seed: int) -> Rate:
    """Train a classifier for each of `RATES` on part of the images, and choose by the rest.

    Args:
        features: of the training images, and their labels.
        backbone: what `features` go through, which knows their size; an identity.
        settings: the classifier's, as solo-learn's linear model takes them. They count, but for the epochs, of which
            there may be fewer, and the schedule, which is a cosine if there is one.
        seed: of the part that is held out and of the order.
    """
    draw = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(features.y), generator=draw)[:IMAGES]
    count = max(1, int(HELD_OUT * len(some)))
    if count == len(some):
        raise ArgumentError("`lr`: is chosen on held-out training images, and there is one image; give it")
    held, rest = some[:count], some[count:]
    batch = min(settings["batch_size"], len(rest))
    per_epoch = len(rest) // batch
    epochs = max(1, min(settings["max_epochs"], STEPS // per_epoch))
    schedule = "none" if settings["scheduler"] == "none" else "cosine"
    chosen = {"max_epochs": epochs, "batch_size": batch, "scheduler": schedule}
    heads = fit_heads(Features(features.x[rest], features.y[rest]), backbone, {**settings, **chosen}, RATES, draw)
    with torch.no_grad():
        tried = tuple(
            _tried(lr, head(features.x[held]), features.y[held]) for lr, head in zip(RATES, heads, strict=True)
        )
    best = max(tried, key=lambda one: (one.acc1, -one.loss))
    return Rate(best.lr, tried, len(rest), len(held))


def fit_heads(
    features: Features,
    backbone: nn.Module,
    settings: Mapping[str, Any],
    rates: Sequence[float],
    draw: torch.Generator,
) -> list[nn.Module]:
    """Train a classifier for each learning rate, all on the same batches, whose order is drawn anew in each epoch.

    Args:
        features: to train on.
        backbone: what they go through, which knows their size; an identity.
        settings: as in `choose_rate`.
        rates: the learning rates.
        draw: of the order.
    """
    model = Sweep(backbone, **{**settings, "lr_sweep": rates, "lr": rates[0]})
    made = model.configure_optimizers()
    (optimizer,), schedulers = made if isinstance(made, tuple) else ([made], [])
    batch = settings["batch_size"]
    full = len(features.y) // batch * batch
    for _ in range(settings["max_epochs"]):
        for part in torch.randperm(len(features.y), generator=draw)[:full].split(batch):
            optimizer.zero_grad()
            model.training_step((features.x[part], features.y[part]), 0).backward()
            optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return list(model.classifier)


def _tried(lr: float, logits: torch.Tensor, labels: torch.Tensor) -> Tried:
    loss = float(F.cross_entropy(logits, labels))
    if not math.isfinite(loss):
        return Tried(lr, 0.0, math.inf)
    return Tried(lr, 100 * float((logits.argmax(dim=1) == labels).float().mean()), loss)
