"""Writing checkpoints: each is whole or not there, and the last good one outlives whatever goes wrong."""

import errno
import json
import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning import Callback, LightningModule, Trainer

from solo_hcsc.errors import UserError

_UNFINISHED = ".part"
# Errors of a disk, as opposed to faults of a program.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.ENOENT)


class WholeFiles(TorchCheckpointIO):
    """Writes under a temporary name, flushes to the disk, renames: a kill at any moment leaves no half checkpoint."""

    def __init__(self) -> None:
        self.failure: str | None = None  # kept, not raised: the other processes wait for this one

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        part = path.with_name(path.name + _UNFINISHED)
        self.failure = None
        try:
            with part.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            _flush_folder(path.parent)
        except (OSError, RuntimeError) as error:
            part.unlink(missing_ok=True)
            reason = error if isinstance(error, OSError) else error.__context__  # torch covers it with one of its own
            if not isinstance(reason, OSError):
                raise
            self.failure = f"{path} cannot be written: {reason.strerror}"


class Checkpoints(Callback):
    """Saves after epochs and within them, and keeps the last K and the best.

    Files are called NAME-ID-ep=EPOCH.ckpt as the framework's are, NAME-ID-ep=EPOCH-step=STEP.ckpt within an epoch, and
    NAME-ID-best.ckpt.
    """

    def __init__(self, args: Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.files = WholeFiles()
        self.last: Path | None = None
        self._of_epochs: list[Path] = []
        self._within_epoch: Path | None = None
        self._saved_step = -1
        self.best: float | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]

    def on_train_start(self, trainer: Trainer, _: LightningModule) -> None:
        self.folder = trainer.strategy.broadcast(self.folder)  # every process drew an ID
        self._saved_step = trainer.global_step
        if trainer.is_global_zero:
            part = self.folder / f"args.json{_UNFINISHED}"
            part.write_text(json.dumps(recorded(self.args), indent=2) + "\n")
            part.replace(self.folder / "args.json")

    def on_save_checkpoint(self, trainer: Trainer, _: LightningModule, checkpoint: dict[str, Any]) -> None:
        loop = checkpoint["loops"]["fit_loop"]
        if loop["epoch_progress"]["current"]["processed"] == trainer.current_epoch:
            # Within an epoch the batch that is about to start has been counted, and will be again.
            batches = loop["epoch_loop.batch_progress"]
            for counts in (batches["total"], batches["current"]):
                counts["ready"] = counts["completed"]

    def on_train_batch_start(self, trainer: Trainer, _: LightningModule, batch: Any, batch_idx: int) -> None:
        """Here and not at the end of a batch, where the momentum encoder has not followed yet."""
        every, step = self.args.checkpoint_every_n_steps, trainer.global_step
        if not every or step % every or step == self._saved_step:
            return
        before = self._within_epoch
        self._within_epoch = self._save(trainer, f"ep={trainer.current_epoch}-step={step}")
        self._remove(trainer, before)

    def on_train_epoch_end(self, trainer: Trainer, _: LightningModule) -> None:
        is_last = trainer.current_epoch + 1 == trainer.max_epochs or trainer.should_stop
        is_last = is_last or 0 < trainer.max_steps <= trainer.global_step
        is_best = self._is_best(trainer)
        path = None
        if is_last or trainer.current_epoch % self.args.checkpoint_frequency == 0:
            path = self._save(trainer, f"ep={trainer.current_epoch}")
            self._of_epochs.append(path)
            self._remove(trainer, self._within_epoch, *self._of_epochs[: -self.args.keep_checkpoints])
            self._of_epochs = self._of_epochs[-self.args.keep_checkpoints :]
            self._within_epoch = None
        if is_best:
            self._keep_best(trainer, path)

    def _is_best(self, trainer: Trainer) -> bool:
        value = trainer.callback_metrics.get(self.args.keep_best)
        if value is None or (self.best is not None and float(value) <= self.best):
            return False
        self.best = float(value)
        return True

    def _keep_best(self, trainer: Trainer, saved: Path | None) -> None:
        if saved is None:
            self._save(trainer, "best")
        elif trainer.is_global_zero:
            part = self._file("best").with_name(f"best{_UNFINISHED}")
            part.unlink(missing_ok=True)
            try:
                part.hardlink_to(saved)
            except OSError:  # a file system without links
                shutil.copyfile(saved, part)
            part.replace(self._file("best"))

    def _file(self, which: str) -> Path:
        return self.folder / f"{self.args.name}-{self.folder.name}-{which}.ckpt"

    def _save(self, trainer: Trainer, which: str) -> Path:
        path = self._file(which)
        trainer.save_checkpoint(path)
        failure = trainer.strategy.broadcast(self.files.failure)
        if failure:
            raise UserError(f"{failure}; {self.rescue()}")
        self.last = path
        self._saved_step = trainer.global_step
        return path

    def _remove(self, trainer: Trainer, *paths: Path | None) -> None:
        for path in paths:
            if path is not None and trainer.is_global_zero:
                path.unlink(missing_ok=True)

    def rescue(self) -> str:
        """What a message says of the results so far."""
        if self.last is None:
            return "no checkpoint was written yet"
        return f"last good checkpoint: {self.last}; go on from it with --resume_from_checkpoint"


def recorded(args: Namespace) -> dict[str, Any]:
    """The arguments as args.json has them."""
    return json.loads(json.dumps(vars(args), default=str))


def check_space(folder: Path, model: LightningModule, args: Namespace) -> None:
    """Refuses to start where the checkpoints that are kept, and one being written, do not fit on the disk."""
    one = checkpoint_bytes(model, args)
    needed = one * (args.keep_checkpoints + 1 + bool(args.keep_best))
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"--checkpoint_dir {args.checkpoint_dir}: {free / 1e6:.0f} MB are free and the checkpoints take "
            f"{needed / 1e6:.0f} MB ({one / 1e6:.0f} MB each); free space, or give another folder"
        )


def checkpoint_bytes(model: LightningModule, args: Namespace) -> int:
    """About how large a checkpoint is: the method's state and the optimiser's moments."""
    tensors = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    trained = [value for value in model.parameters() if value.requires_grad]
    moments = 2 if args.optimizer in ("adam", "adamw") else 1
    return sum(map(_bytes, tensors)) + moments * sum(map(_bytes, trained))


def remove_unfinished(folder: Path) -> None:
    """What a killed run was writing."""
    for part in folder.glob(f"*{_UNFINISHED}"):
        part.unlink(missing_ok=True)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flush_folder(folder: Path) -> None:
    """Makes a rename last through a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
