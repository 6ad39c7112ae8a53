"""Judge the encoder after every epoch of pretraining without labels, by what the epoch has computed anyway."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn

from solo_hcsc.hcsc.measures import alignment, dead_dimensions, rankme, uniformity
from solo_hcsc.solo102 import BaseMethod

IMAGES = 512  # at the end of an epoch, of all processes
PAIRS = 8  # at least, for the alignment
SHARE = 1 / 100  # of the epoch's images: what goes through the encoder once more, as pairs


class JudgeEpoch(Callback):
    """Log `rankme`, `uniformity`, `dead_dimensions` and `alignment` of the encoder's features.

    The first three are of the first view of the epoch's last images, as the training steps had them: every method
    forwards it first. Not every method forwards a second view through the same encoder, so for the alignment a few
    pairs of the last batch go through it once more, in evaluation mode. Neither touches random numbers or statistics.
    """

    def __init__(self) -> None:
        self._features: deque[torch.Tensor] = deque()
        self._views: list[torch.Tensor] = []
        self._awaits_first_view = False
        self._hook: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, BaseMethod):
            self._hook = pl_module.encoder.register_forward_hook(self._take)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._features.clear()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if isinstance(pl_module, BaseMethod):
            self._views = [] if isinstance(batch[1], torch.Tensor) else batch[1][: pl_module.num_large_crops]
            self._awaits_first_view = True

    def _take(self, encoder: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if self._awaits_first_view:
            self._awaits_first_view = False
            self._features.append(output.detach())
            while sum(map(len, self._features)) - len(self._features[0]) >= IMAGES:
                self._features.popleft()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._features:
            return
        each = max(1, IMAGES // trainer.world_size)
        features = _of_all(torch.cat([*self._features])[-each:], trainer)
        pairs = [_of_all(view, trainer) for view in self._pairs(trainer, pl_module)]
        self._features.clear()
        self._views = []
        if trainer.is_global_zero:
            judged = {"rankme": rankme(features), "uniformity": uniformity(features)}
            judged["dead_dimensions"] = dead_dimensions(features)
            if pairs:
                judged["alignment"] = alignment(pairs[0], pairs[1])
            pl_module.log_dict(judged, rank_zero_only=True)

    @torch.no_grad()
    def _pairs(self, trainer: Trainer, pl_module: Any) -> Sequence[torch.Tensor]:
        """Return features of two views of a few images of the last batch; none for a method with one view."""
        if len(self._views) < 2:
            return ()
        first, second, *_ = self._views
        of_epoch = int(trainer.num_training_batches) * len(first)  # of this process
        number = max(-(-PAIRS // trainer.world_size), int(of_epoch * SHARE))
        encoder = pl_module.encoder
        was_training = encoder.training
        encoder.eval()
        with trainer.precision_plugin.forward_context():
            found = encoder(torch.cat([first[:number], second[:number]]))
        encoder.train(was_training)
        return found.chunk(2)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._remove()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _of_all(features: torch.Tensor, trainer: Trainer) -> torch.Tensor:
    """Gather features (n, D) of all processes on the host."""
    return trainer.strategy.all_gather(features.float()).flatten(0, -2).cpu()
