"""Show how a training goes: by a bar with the loss, or a line per epoch."""

import time
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import TQDMProgressBar

from solo_hcsc.progress import epoch as tell_epoch
from solo_hcsc.progress import moves
from solo_hcsc.tables import clock, judged, pace, three_digits
from solo_hcsc.training.callbacks import EpochCost

INSTANCES = "instance_loss_0"  # of HCSC's bottom level
CLASSIFIERS = ("train_class_loss_step", "train_momentum_class_loss_step")


def progress_callback(refresh_rate: int, cost: EpochCost) -> Callback:
    """Return the callback that suits the reporter.

    Args:
        refresh_rate: batches between updates of a bar.
        cost: a callback before this one, which knows how many images there were per second.
    """
    return LossBar(refresh_rate, cost) if moves() else EpochLines(cost)


def loss_of(outputs: Any, trainer: Trainer) -> Any:
    """Return the method's own loss: without what the online classifiers beside it add to a training step's."""
    total, logged = outputs["loss"] if isinstance(outputs, dict) else outputs, trainer.callback_metrics
    whole = total.detach() * trainer.accumulate_grad_batches  # by which Lightning has divided it
    return whole - sum(logged[name] for name in CLASSIFIERS if name in logged)


class LossBar(TQDMProgressBar):
    """Lightning's bar with the loss and images per second, one per epoch; a finished one stays, with its measures."""

    def __init__(self, refresh_rate: int, cost: EpochCost) -> None:
        super().__init__(refresh_rate, leave=True)
        self._cost = cost
        self._outputs: Any = None
        self._judged: dict[str, str] = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._outputs = outputs
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._judged = judged(trainer.callback_metrics)
        super().on_train_epoch_end(trainer, pl_module)
        self._judged = {}

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if self._outputs is None:
            return metrics
        loss, speed = float(loss_of(self._outputs, trainer)), self._cost.images_per_second
        return {"loss": f"{loss:.3f}", **metrics, **self._judged, "images/s": three_digits(speed)}


class EpochLines(Callback):
    """Tell `epoch 3/10: loss 5.310, val_acc1 61.2, rank 87, 14 s, 360 images/s; 1:38 left`, for logs and pipes."""

    _SHOWN = ("val_acc1", "val_knn_acc1", "val_map")

    def __init__(self, cost: EpochCost) -> None:
        self._cost = cost

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_epoch = trainer.current_epoch
        self._started = time.monotonic()
        self.on_train_epoch_start(trainer, pl_module)  # not called by a run that goes on within an epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_started = time.monotonic()
        self._total: Any = 0.0
        self._steps = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._total = self._total + loss_of(outputs, trainer)
        self._steps += 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now, epoch = time.monotonic(), trainer.current_epoch + 1
        parts = [f"loss {float(self._total) / max(1, self._steps):.3f}"]
        if INSTANCES in trainer.callback_metrics:  # the prototypes' part grows with its weight, not with failure
            parts[0] += f" (of instances {float(trainer.callback_metrics[INSTANCES]):.3f})"
        shown = (name for name in self._SHOWN if name in trainer.callback_metrics)
        parts += [f"{name} {float(trainer.callback_metrics[name]):.1f}" for name in shown]
        parts += [f"{name} {value}" for name, value in judged(trainer.callback_metrics).items()]
        parts += [f"{now - self._epoch_started:.0f} s"]
        if speed := self._cost.images_per_second:
            parts += [pace(speed)]
        line = f"epoch {epoch}/{trainer.max_epochs}: {', '.join(parts)}"
        left = (trainer.max_epochs or epoch) - epoch
        if left > 0:
            line += f"; {clock((now - self._started) / (epoch - self._first_epoch) * left)} left"
        tell_epoch(line)
