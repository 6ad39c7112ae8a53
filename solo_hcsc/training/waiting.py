"""Whether a run waits for its images."""

import time
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from solo_hcsc.data.settings import default_workers
from solo_hcsc.progress import note
from solo_hcsc.settings import Settings

WORTH_SAYING = 0.2  # share of the time


class TellWaiting(Callback):
    """Say which share of the last minute training has waited for images, if that is much.

    Args:
        help: what would help, for the end of the sentence.
        seconds: how often to look.
    """

    def __init__(self, help: str, seconds: float = 60) -> None:
        self.help = help
        self.seconds = seconds

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start_anew(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        passed = time.monotonic() - self._since
        if passed < self.seconds:
            return
        share = (self._waited(trainer) - self._before) / passed
        if share >= WORTH_SAYING:
            note(f"{share:.0%} of the time is spent waiting for images; {self.help} would help")
        self._start_anew(trainer)

    def _start_anew(self, trainer: Trainer) -> None:
        self._since, self._before = time.monotonic(), self._waited(trainer)

    def _waited(self, trainer: Trainer) -> float:
        """Return the seconds that the loader has let training wait; 0 for a loader that does not count them."""
        return getattr(trainer.train_dataloader, "waited", 0.0)


def faster_images(settings: Settings) -> str:
    """Return what lets images come faster."""
    workers = default_workers()
    more = [f"`num_workers` {workers}"] if settings.num_workers < workers else []
    fast = [] if settings.dali or settings.image_backend == "fast" else ["`image_backend` fast"]
    return " or ".join([*more, *fast, "smaller copies of the images"])
