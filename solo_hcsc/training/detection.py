"""Train a detector: its optimiser, and a learning rate that warms up and falls in steps, by iterations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import LambdaLR

MOMENTUM = 0.9
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True)
class Schedule:
    """Set the learning rate by iteration, as detectron2 does.

    Args:
        lr: the rate after the warm-up.
        lr_steps: iterations from which on it is a tenth of what it was before.
        warmup_steps: iterations in which it rises in a line.
        warmup_factor: with which share of it that begins.
    """

    lr: float
    lr_steps: tuple[int, ...]
    warmup_steps: int
    warmup_factor: float

    def factor(self, iteration: int) -> float:
        """Return the share of `lr` that an iteration, from 0, has.

        Example:
            >>> schedule = Schedule(0.02, (18000, 22000), 100, 0.001)
            >>> [round(schedule.factor(iteration), 6) for iteration in (0, 50, 100, 18000, 22000)]
            [0.001, 0.5005, 1.0, 0.1, 0.01]
        """
        decayed = 0.1 ** sum(iteration >= step for step in self.lr_steps)
        if iteration >= self.warmup_steps:
            return decayed
        done = iteration / self.warmup_steps
        return decayed * (self.warmup_factor * (1 - done) + done)


class DetectorTraining(LightningModule):
    """A detector of torchvision's kind, all of whose weights learn by SGD with momentum 0.9.

    Args:
        detector: in training, it maps images and targets to losses.
        schedule: of the learning rate.
        weight_decay: of all weights but those of norms.
        weight_decay_norm: of norms' weights; detectron2 leaves them alone.
    """

    against_nan = "try a lower `lr`, more `warmup_steps` or `precision` 32"

    def __init__(self, detector: nn.Module, schedule: Schedule, weight_decay: float, weight_decay_norm: float) -> None:
        super().__init__()
        self.detector = detector
        self.schedule = schedule
        self.weight_decay, self.weight_decay_norm = weight_decay, weight_decay_norm
        self.loss_terms: dict[str, torch.Tensor] = {}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, targets = batch
        losses = self.detector(images, targets)
        total = torch.stack([*losses.values()]).sum()
        self.loss_terms = {name: loss.detach() for name, loss in losses.items()}
        self.log_dict({"train_loss": total.detach(), **self.loss_terms}, batch_size=len(images))
        return total

    def configure_optimizers(self) -> Any:
        norms = {id(parameter) for parameter in self._norms()}
        parts = [parameter for parameter in self.parameters() if parameter.requires_grad]
        groups = [
            {"params": [one for one in parts if id(one) not in norms], "weight_decay": self.weight_decay},
            {"params": [one for one in parts if id(one) in norms], "weight_decay": self.weight_decay_norm},
        ]
        optimizer = torch.optim.SGD([group for group in groups if group["params"]], self.schedule.lr, MOMENTUM)
        return [optimizer], [{"scheduler": LambdaLR(optimizer, self.schedule.factor), "interval": "step"}]

    def _norms(self) -> Iterator[nn.Parameter]:
        for module in self.modules():
            if isinstance(module, _NORMS):
                yield from module.parameters(recurse=False)
