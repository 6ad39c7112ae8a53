"""Optimisers and schedulers."""

import sys
from functools import partial
from typing import Any

import torch
from solo.methods.base import BaseMethod
from solo.methods.linear import LinearModel
from solo.methods.simsiam import SimSiam
from solo.utils.lars import LARSWrapper
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torchvision.models import resnet18

from solo_hcsc.solo102.repairs.fix import bare_method, fixes


def _lars_ignores_the_closures_gradients() -> bool:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = LARSWrapper(SGD([weight], lr=1.0), eta=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (3 * weight).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    # LARS: the step is eta * |weight| along the gradient's direction, 0.5 * 2 / 2 for each entry.
    return not torch.allclose(weight, torch.full((2, 2), 0.5))


@fixes(broken=_lars_ignores_the_closures_gradients)
def lars_step() -> None:
    """LARS is a silent no-op: it scales the gradients that are there, then Lightning's closure makes new ones."""
    scale_and_step = LARSWrapper.step

    def step(self: Any, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale_and_step(self)
        return loss

    LARSWrapper.step = step


def _state_without_get_lr(scheduler: LRScheduler) -> dict[str, Any]:
    state = type(scheduler).state_dict(scheduler)
    return {key: value for key, value in state.items() if key not in ("get_lr", "state_dict")}


def _static_lr_is_saved() -> bool:
    scheduler = bare_method(SimSiam, pred_hidden_dim=8).configure_optimizers()[1][0]
    return "get_lr" in scheduler.state_dict()


@fixes(broken=_static_lr_is_saved)
def static_lr_state() -> None:
    """A scheduler with static groups saves a `functools.partial`, which `weights_only` loading refuses."""
    original = BaseMethod.configure_optimizers

    def configure_optimizers(self: Any) -> Any:
        result = original(self)
        for scheduler in result[1] if isinstance(result, tuple) else []:
            if "get_lr" in vars(scheduler):
                scheduler.state_dict = partial(_state_without_get_lr, scheduler)
        return result

    BaseMethod.configure_optimizers = configure_optimizers


def _reduce_has_no_monitor() -> bool:
    linear = bare_method(LinearModel, backbone=resnet18(), scheduler="reduce")
    return isinstance(linear.configure_optimizers(), tuple)


@fixes(broken=_reduce_has_no_monitor)
def reduce_on_plateau() -> None:
    """Lightning wants to know what the linear evaluation's default scheduler watches."""
    original = LinearModel.configure_optimizers

    def configure_optimizers(self: Any) -> Any:
        result = original(self)
        if isinstance(result, tuple) and isinstance(result[1][0], ReduceLROnPlateau):
            # Lightning's own step would come after the epoch's checkpoint; training.PlateausBeforeSaving makes it.
            plateau = {"scheduler": result[1][0], "monitor": "val_loss", "frequency": sys.maxsize}
            return {"optimizer": result[0][0], "lr_scheduler": plateau}
        return result

    LinearModel.configure_optimizers = configure_optimizers
