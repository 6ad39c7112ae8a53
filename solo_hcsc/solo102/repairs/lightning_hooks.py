"""Hooks whose names or signatures Lightning 2 changed."""

import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric.utilities import move_data_to_device
from pytorch_lightning import LightningModule
from solo.methods.base import BaseMethod, BaseMomentumMethod
from solo.methods.dino import DINO
from solo.methods.linear import LinearModel

from solo_hcsc.solo102.repairs.fix import fixes

_CLASSES = (BaseMethod, BaseMomentumMethod, LinearModel)


class _HiddenEpochEnd:
    """A `validation_epoch_end` that reads as None except while our hook below calls it."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None or not module.__dict__.get("_ending_validation"):
            return None
        return MethodType(self.function, module)


def _collect(self: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
    self.__dict__.setdefault("_validation_outputs", []).append(outputs)


def _end_validation(self: Any) -> None:
    outputs = self.__dict__.pop("_validation_outputs", [])
    if dist.is_available() and dist.is_initialized():
        # Means of each process's own batches, averaged, would weigh the images of a smaller share more.
        outputs = [out for share in _gathered(outputs) for out in share]
    self._ending_validation = True
    try:
        self.validation_epoch_end(outputs)
    finally:
        self._ending_validation = False
    if getattr(self, "knn", None) is not None and not self.trainer.sanity_checking:
        # The metric's own reset is undone when torchmetrics un-syncs it after a distributed compute.
        self.knn.reset()


def _gathered(outputs: list[Any]) -> list[list[Any]]:
    """Gather every process's outputs, on the CPU."""
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, move_data_to_device(outputs, torch.device("cpu")))
    return shares


@fixes(broken=lambda: any(callable(getattr(c, "validation_epoch_end", None)) for c in _CLASSES))
def validation_epoch_end() -> None:
    """Lightning 2 refuses a module that has `validation_epoch_end` and no longer collects outputs for it."""
    for cls in _CLASSES:
        cls.validation_epoch_end = _HiddenEpochEnd(vars(cls)["validation_epoch_end"])
    for cls in (BaseMethod, LinearModel):
        cls.on_validation_batch_end = _collect
        cls.on_validation_epoch_end = _end_validation


def _needs_dataloader_idx() -> bool:
    parameter = inspect.signature(BaseMomentumMethod.on_train_batch_end).parameters.get("dataloader_idx")
    return parameter is not None and parameter.default is parameter.empty


@fixes(broken=_needs_dataloader_idx)
def on_train_batch_end() -> None:
    """Lightning 2 calls the hook without `dataloader_idx`, which the momentum methods require."""
    original = BaseMomentumMethod.on_train_batch_end

    def with_default(self: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        original(self, outputs, batch, batch_idx, dataloader_idx)

    BaseMomentumMethod.on_train_batch_end = with_default


@fixes(broken=lambda: len(inspect.signature(DINO.clip_gradients).parameters) == 2)
def dino_clip_gradients() -> None:
    """DINO's own `clip_gradients(clip)` has the name of a Lightning hook that takes the optimizer."""
    original = DINO.clip_gradients

    def dispatch(
        self: Any,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if isinstance(optimizer, (int, float)):
            original(self, optimizer)
        else:
            LightningModule.clip_gradients(self, optimizer, gradient_clip_val, gradient_clip_algorithm)

    DINO.clip_gradients = dispatch
