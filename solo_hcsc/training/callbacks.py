"""Callbacks of a training: seeds, stops, what is told, and what it costs."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer

from solo_hcsc.data.images import UnreadableFiles
from solo_hcsc.data.loaders import derive_seed, seed_host
from solo_hcsc.errors import Ended, UserError
from solo_hcsc.interrupts import is_interrupt
from solo_hcsc.launch import started_by_lightning
from solo_hcsc.progress import last_words, note
from solo_hcsc.training.locking import let_go
from solo_hcsc.training.saving import Checkpoints

AGAINST_NAN = "try a lower `lr`, more `warmup_epochs` or `precision` 32"


class SeedSteps(Callback):
    """Seed every generator at the start of an epoch and of a step.

    A step's random numbers depend on the seed, the epoch, the batch and the process, not on what came before: a resumed
    run needs no generator's state.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._began_within_epoch = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began_within_epoch = trainer.fit_loop.restarted_mid_epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seed(trainer, -1)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._began_within_epoch:  # Lightning leaves this hook out then, and methods set their epoch up in it
            self._began_within_epoch = False
            self._seed(trainer, -1)
            pl_module.on_train_epoch_start()
        self._seed(trainer, batch_idx)

    def _seed(self, trainer: Trainer, batch_idx: int) -> None:
        place = self.seed, trainer.current_epoch, batch_idx, trainer.global_rank
        seed_host(*place)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(derive_seed(*place))


class LookAtEpoch(Callback):
    """Let a method that can look at the epoch that ends, before the checkpoint that keeps what it says."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        look = getattr(pl_module, "look_at_epoch", None)
        if look is not None:
            look()


class StopOnNonFiniteLoss(Callback):
    """End the run on a NaN or infinity before a checkpoint has it.

    On the CPU that is before it reaches the weights. Looking at a GPU's loss at once would mean to wait for it in every
    step, so there the step before is looked at, whose outcome has arrived meanwhile.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._unseen: Callable[[], None] | None = None  # raises if the loss that it is about was not finite

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        finite = torch.isfinite(loss.detach()).float()
        if trainer.world_size > 1:  # all processes stop together, or those without a NaN wait for ever
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        arrived = _fetch(finite)
        where = f"step {trainer.global_step} of epoch {trainer.current_epoch + 1}"
        terms, advice = getattr(pl_module, "loss_terms", {}), getattr(pl_module, "against_nan", AGAINST_NAN)

        loss = loss.detach()

        def look() -> None:
            if not arrived():
                self._stop(where, loss, terms, advice)

        if finite.device.type == "cuda":
            self._see()
            self._unseen = look
        else:
            look()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._see()

    def _see(self) -> None:
        look, self._unseen = self._unseen, None
        if look is not None:
            look()

    def _stop(self, where: str, loss: torch.Tensor, terms: dict[str, torch.Tensor], advice: str) -> None:
        guilty = [name for name, term in terms.items() if not torch.isfinite(term)]
        which = f"the loss ({', '.join(guilty)})" if guilty else "the loss"
        became = "is not finite in another process" if torch.isfinite(loss) else f"became {float(loss)}"
        raise UserError(f"{which} {became} at {where}; {self.checkpoints.rescue()}; {advice}")


class EndTogether(Callback):
    """End the run in all processes where one ends or is killed: with one line, and no traceback about a lost peer."""

    _PATIENCE = 10.0  # seconds that this process has to notice by itself that a child has ended

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._children: list[subprocess.Popen[bytes]] = []  # that this process has started
        self._training = False
        self._ending = threading.Event()  # this process knows that the run ends
        self._speaking = threading.Event()  # a thread speaks for a lost child, and then ends this process

    def watch(self, children: list[subprocess.Popen[bytes]]) -> None:
        """Speak for each of these that is lost; called as soon as they have been started."""
        self._children = children
        for child in children:
            threading.Thread(target=self._wait_for, args=(child,), daemon=True).start()

    def _wait_for(self, child: subprocess.Popen[bytes]) -> None:
        """End this process, which may wait for a lost child's answer for ever."""
        code = child.wait()
        killed = code == -signal.SIGKILL
        if code == 0 or self._ending.wait(0 if killed else self._PATIENCE):
            return
        self._speaking.set()
        for other in self._children:
            other.kill()
        how = "was killed" if killed else f"ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}"
        last_words(f"one of the processes {how}; {self.checkpoints.rescue()}")
        let_go()
        os._exit(2)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ending.set()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, UserError):
            self._ending.set()
            if exception.in_one_process:  # the others would wait for this process, and then for its answer
                self._kill_children()
            return
        if started_by_lightning() and "peer" in str(exception):  # the one that was lost, or the main process, speaks
            raise Ended("", 0) from exception
        if is_interrupt(exception) or not self._training:
            self._ending.set()
            self._kill_children()
            return
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if child.wait(timeout=2) == 0:  # it has said why
                    raise Ended("", 2) from exception
        if trainer.world_size > 1 and "peer" in str(exception):
            self._speaking.wait(5 if self._children else 0)  # a child's thread above is about to speak
            if self._speaking.is_set():
                threading.Event().wait()  # until it ends this process
            line = f"another process was lost; {self.checkpoints.rescue()}"  # torchrun's or SLURM's
            raise Ended(line, 2) from exception
        self._ending.set()

    def _kill_children(self) -> None:
        for child in self._children:
            child.kill()


class StopAfterSteps(Callback):
    """Stop after `max_steps`; Lightning's own takes every later resume for one within an epoch."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if 0 < self.steps <= trainer.global_step:
            trainer.should_stop = True


class PlateausBeforeSaving(Callback):
    """Step schedulers that watch a metric before the epoch's checkpoint is written; Lightning does it after."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor in trainer.callback_metrics:
                config.scheduler.step(trainer.callback_metrics[config.monitor])  # type: ignore[arg-type]


class EpochCost(Callback):
    """Log what each epoch took: its seconds, images per second, and the most memory of the main process until then."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # not called by a run that goes on within an epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic()
        self._validating = 0.0  # seconds
        self._images = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._images += len(batch[-1]) * trainer.world_size

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._paused = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._validating += time.monotonic() - self._paused

    @property
    def images_per_second(self) -> float:
        """Return the training images of all processes since the epoch began, by its seconds without validation."""
        return self._images / (time.monotonic() - self._started - self._validating)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        cost = {"epoch_seconds": time.monotonic() - self._started, "memory_mb": memory / 1e6}
        cost["images_per_second"] = self.images_per_second
        if pl_module.device.type == "cuda":
            cost["gpu_memory_mb"] = torch.cuda.max_memory_allocated(pl_module.device) / 1e6
        pl_module.log_dict(cost, rank_zero_only=True)


class TellUnreadable(Callback):
    """Say after an epoch how many images could not be read. Loaders' processes name them, the main process counts."""

    def __init__(self, unreadable: UnreadableFiles, images: int) -> None:
        self.unreadable = unreadable
        self.images = images
        self._said = 0
        self._news = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.unreadable.write_to(trainer.strategy.broadcast(self.unreadable.file))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = len(self.unreadable.read())
        self._news = found > self._said
        if self._news:
            self._say(found)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._said and not self._news:  # else the last epoch has just said it
            self._say(self._said)

    def _say(self, found: int) -> None:
        self._said = found
        note(
            f"{found} of {self.images} images could not be read; each is replaced by the next one; named in "
            f"{self.unreadable.file}"
        )


def _fetch(flag: torch.Tensor) -> Callable[[], bool]:
    """Start copying a flag to the host; the function returned waits for no more than that."""
    if flag.device.type != "cuda":
        return lambda: bool(flag)
    host = torch.empty_like(flag, device="cpu", pin_memory=True)
    host.copy_(flag, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def arrived() -> bool:
        copied.synchronize()
        return bool(host)

    return arrived
