"""Write checkpoints: each is whole or absent, and the last good one outlives whatever goes wrong."""

import errno
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning import Callback, LightningModule, Trainer

from solo_hcsc.encoders.twins import with_twins, without_twins
from solo_hcsc.errors import UserError
from solo_hcsc.files import write_whole, written_whole
from solo_hcsc.interrupts import deferred
from solo_hcsc.training.lightning import epoch_row, is_within_epoch, rewind
from solo_hcsc.training.metrics import MetricsFile
from solo_hcsc.training.settings import Records

# Errors of a disk, as opposed to faults of a program.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.ENOENT)


class WholeFiles(TorchCheckpointIO):
    """Write under a temporary name, flush to the disk, rename: a kill at any moment leaves no half checkpoint.

    A file has the encoder's weights under a second name too, which nobody sees who reads it here.
    """

    def __init__(self) -> None:
        self.failure: str | None = None  # kept, not raised: the other processes wait for this one

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.failure = None
        checkpoint = checkpoint | {"state_dict": with_twins(checkpoint["state_dict"])}
        try:
            with written_whole(Path(path)) as part, part.open("wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            reason = error if isinstance(error, OSError) else error.__context__  # torch covers it with one of its own
            if not isinstance(reason, OSError):
                raise
            self.failure = f"{path} cannot be written: {reason.strerror}"

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(*args, **kwargs)
        return checkpoint | {"state_dict": without_twins(checkpoint["state_dict"])}


class Checkpoints(Callback):
    """Save after epochs and within them, and keep the last K and the best.

    Files are called NAME-ID-ep=EPOCH.ckpt as the framework's are, NAME-ID-ep=EPOCH-step=STEP.ckpt within an epoch, and
    NAME-ID-best.ckpt.
    """

    def __init__(
        self, records: Records, folder: Path, flags: Mapping[str, Any], resumed: Path | None, metrics: MetricsFile
    ) -> None:
        """Keep what to write: `flags` go to args.json; `resumed` is the checkpoint that the run goes on from."""
        self.records = records
        self.folder = folder
        self.flags = flags
        self.resumed = resumed
        self.metrics = metrics
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
        steps = [trainer.global_step] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(steps, trainer.global_step)
        if len(set(steps)) > 1:
            raise UserError(
                f"the processes would go on from different steps ({' '.join(map(str, steps))}); "
                "`checkpoint_dir` must be a folder that all machines share"
            )
        self._first_process(trainer, self._begin)

    def _begin(self) -> None:
        write_whole(self.folder / "args.json", json.dumps(self.flags, indent=2) + "\n")
        if self.resumed is not None and self.best is not None:
            for best in self.resumed.parent.glob("*-best.ckpt"):
                _link(best, self._file("best"))

    def on_save_checkpoint(self, trainer: Trainer, _: LightningModule, checkpoint: dict[str, Any]) -> None:
        for name in [name for name in checkpoint["callbacks"] if name.startswith("Timer")]:
            del checkpoint["callbacks"][name]  # --max_time is each job's own
        rewind(trainer, checkpoint)

    def on_train_batch_start(self, trainer: Trainer, _: LightningModule, batch: Any, batch_idx: int) -> None:
        """Save here, not at the end of a batch, where the momentum encoder has not followed yet."""
        every, step = self.records.checkpoint_every_n_steps, trainer.global_step
        if every and step % every == 0 and step != self._saved_step:
            self._save_within_epoch(trainer)

    def on_train_epoch_end(self, trainer: Trainer, _: LightningModule) -> None:
        if is_within_epoch(trainer):  # --max_steps or --max_time
            return self._save_within_epoch(trainer)
        is_last = trainer.current_epoch + 1 == trainer.max_epochs or trainer.should_stop
        due = is_last or trainer.current_epoch % self.records.checkpoint_frequency == 0
        self.metrics.log_metrics(*epoch_row(trainer))  # Lightning does so later: a kill in between would lose the row
        names = ["best"] * self._is_best(trainer) + [f"ep={trainer.current_epoch}"] * due
        if names:
            saved = self._save(trainer, names[0])
        if len(names) == 2:
            self._first_process(trainer, lambda: _link(saved, self._file(names[1])))
        if due:
            self.last = self._file(names[-1])
            self._of_epochs.append(self.last)
            self._remove(trainer, self._within_epoch, *self._of_epochs[: -self.records.keep_checkpoints])
            self._of_epochs = self._of_epochs[-self.records.keep_checkpoints :]
            self._within_epoch = None

    def _is_best(self, trainer: Trainer) -> bool:
        value = trainer.callback_metrics.get(self.records.keep_best or "")
        if value is None or (self.best is not None and float(value) <= self.best):
            return False
        self.best = float(value)
        return True

    def _save_within_epoch(self, trainer: Trainer) -> None:
        before = self._within_epoch
        self._within_epoch = self._save(trainer, f"ep={trainer.current_epoch}-step={trainer.global_step}")
        if before != self._within_epoch:
            self._remove(trainer, before)

    def _file(self, which: str) -> Path:
        return self.folder / f"{self.records.name}-{self.folder.name}-{which}.ckpt"

    def _save(self, trainer: Trainer, which: str) -> Path:
        path = self._file(which)
        with deferred():  # torch writes in C++, which would make another error of Ctrl-C
            self.metrics.save()
            trainer.save_checkpoint(path, weights_only=False)
            self._raise_together(trainer, self.files.failure)
            self.last = path
        self._saved_step = trainer.global_step
        return path

    def _remove(self, trainer: Trainer, *paths: Path | None) -> None:
        def remove() -> None:
            for path in paths:
                if path is not None:
                    path.unlink(missing_ok=True)

        self._first_process(trainer, remove)

    def _first_process(self, trainer: Trainer, action: Callable[[], None]) -> None:
        """Let the first process work on files; the others end with it if it cannot."""
        failure = None
        if trainer.is_global_zero:
            try:
                action()
            except OSError as error:
                failure = f"{error.filename2 or error.filename or self.folder}: {error.strerror}"
        self._raise_together(trainer, failure)

    def _raise_together(self, trainer: Trainer, failure: str | None) -> None:
        failure = trainer.strategy.broadcast(failure)
        if failure:
            raise UserError(f"{failure}; {self.rescue()}")

    def rescue(self) -> str:
        """Return the part of a message that says which checkpoint the run can go on from."""
        written = (self.last, self._within_epoch, *reversed(self._of_epochs), self.resumed)
        known = [path for path in written if path is not None]
        there = [path for path in known if path.is_file()]
        if there:
            return f"last good checkpoint: {there[0]}; go on from it with `resume_from_checkpoint`"
        return f"no checkpoint is left: {known[0]} is gone" if known else "no checkpoint was written yet"


def as_recorded(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as args.json has them: what JSON does not know becomes text."""
    return json.loads(json.dumps(dict(flags), default=str))


def check_space(folder: Path, model: LightningModule, records: Records, optimizer: str) -> None:
    """Refuse to start where the checkpoints that are kept, and one being written, do not fit on the disk."""
    one = checkpoint_bytes(model, optimizer)
    kept = records.keep_checkpoints + bool(records.keep_best) + bool(records.checkpoint_every_n_steps)
    needed = one * (kept + 1)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"`checkpoint_dir` {records.checkpoint_dir}: {free / 1e6:.0f} MB are free and the checkpoints take "
            f"{needed / 1e6:.0f} MB ({one / 1e6:.0f} MB each); free space, or give another folder"
        )


def checkpoint_bytes(model: LightningModule, optimizer: str) -> int:
    """Estimate the size of a checkpoint: the method's state and the optimiser's moments."""
    tensors = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    trained = [value for value in model.parameters() if value.requires_grad]
    moments = 2 if optimizer in ("adam", "adamw") else 1
    return sum(map(_bytes, tensors)) + moments * sum(map(_bytes, trained))


def _link(source: Path, path: Path) -> None:
    """Give a checkpoint a second name, or copy it where the file system has no links."""
    with written_whole(path) as part:
        try:
            part.hardlink_to(source)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV):
                raise
            shutil.copyfile(source, part)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
