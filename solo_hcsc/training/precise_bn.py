"""Recompute batch norm's averages before an evaluation, over many batches and with the final weights (PreciseBN).

In training they are moving averages over batches of a few images, most of them from before the last steps.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(frozen=True)
class Moments:
    """Moments of the values of C channels: their number, means (C,) and summed squared deviations (C,)."""

    count: float
    mean: torch.Tensor
    deviations: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor) -> "Moments":
        """Return the moments of a batch (B, C, ...)."""
        count = values.numel() / values.shape[1]
        others = [dim for dim in range(values.ndim) if dim != 1]
        variance, mean = torch.var_mean(values.detach().float(), dim=others, correction=0)
        return cls(count, mean.cpu().double(), variance.cpu().double() * count)

    def joined(self, other: "Moments") -> "Moments":
        """Return the moments of both together (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        deviations = self.deviations + other.deviations + gap.square() * (self.count * other.count / count)
        return Moments(count, mean, deviations)


def has_batch_norm(model: nn.Module) -> bool:
    return any(map(_keeps_averages, model.modules()))


@torch.no_grad()
def recompute(model: nn.Module, batches: Iterable[Any], step: Callable[[Any], Any]) -> None:
    """Set the averages of all batch norms to the mean and variance of their inputs over all the batches.

    The layers normalise by each batch's own statistics meanwhile, as in training. Several processes put theirs
    together.

    Args:
        model: left in training mode.
        batches: what `step` takes.
        step: runs the model on one.
    """
    layers: list[Any] = [module for module in model.modules() if _keeps_averages(module)]
    found: dict[int, Moments] = {}
    hooks = [layer.register_forward_pre_hook(partial(_collect, found, place)) for place, layer in enumerate(layers)]
    try:
        model.train()
        for batch in batches:
            step(batch)
    finally:
        for hook in hooks:
            hook.remove()
    for place, moments in _of_all_processes(found).items():
        layer = layers[place]
        layer.running_mean.copy_(moments.mean)
        layer.running_var.copy_(moments.deviations / max(1.0, moments.count - 1))


def _keeps_averages(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.track_running_stats


def _collect(found: dict[int, Moments], place: int, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    if inputs[0].numel():  # a batch without a single region
        moments = Moments.of(inputs[0])
        found[place] = found[place].joined(moments) if place in found else moments


def _of_all_processes(found: dict[int, Moments]) -> dict[int, Moments]:
    if not dist.is_initialized():
        return found
    each: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(each, found)
    together: dict[int, Moments] = {}
    for share in each:
        for place, moments in share.items():
            together[place] = together[place].joined(moments) if place in together else moments
    return together
