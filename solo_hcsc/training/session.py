"""One session of Lightning's Trainer: the run's folder, `CHECKPOINT_DIR/METHOD/ID`, its loggers and callbacks."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import LearningRateMonitor, ProgressBar
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from torch.distributed import DistNetworkError

from solo_hcsc.devices import Devices
from solo_hcsc.encoders.checkpoints import steps_and_time
from solo_hcsc.errors import Ended, NotFinite, UserError
from solo_hcsc.files import remove_abandoned
from solo_hcsc.interrupts import is_interrupt
from solo_hcsc.launch import is_main_process
from solo_hcsc.progress import say
from solo_hcsc.solo102 import random_string
from solo_hcsc.tables import clock
from solo_hcsc.training import lightning
from solo_hcsc.training.callbacks import (
    AGAINST_NAN,
    EndTogether,
    EpochCost,
    LookAtEpoch,
    PlateausBeforeSaving,
    SeedSteps,
    StopAfterSteps,
    StopOnNonFiniteLoss,
)
from solo_hcsc.training.judging import JudgeEpoch
from solo_hcsc.training.launching import check_port, watch_children
from solo_hcsc.training.locking import hold, let_go
from solo_hcsc.training.loggers import Logging, make_loggers
from solo_hcsc.training.metrics import MetricsFile
from solo_hcsc.training.progress import progress_callback
from solo_hcsc.training.saving import DISK_ERRORS, Checkpoints, as_recorded, check_space
from solo_hcsc.training.settings import Loop, Records


def new_folder(records: Records, method: str) -> Path:
    """Return the folder of a run to be; it is not made yet."""
    return records.checkpoint_dir / method / random_string()


class Session:
    """One training, from its settings to its last line: a run may take several, each going on from the last.

    Args:
        folder: where args.json, metrics.csv and checkpoints go.
        flags: what args.json is to have; they are also what loggers show.
        resume: the checkpoint to go on from, which has been checked.
        early: callbacks that end an epoch before its checkpoint is written, which keeps their state.
    """

    def __init__(
        self,
        folder: Path,
        devices: Devices,
        loop: Loop,
        records: Records,
        logging: Logging,
        flags: Mapping[str, Any],
        resume: Path | None,
        callbacks: list[Callback],
        early: Sequence[Callback] = (),
    ) -> None:
        self.folder = folder
        self.devices, self.loop, self.records, self.logging = devices, loop, records, logging
        self.flags = as_recorded(flags)
        self.resume = resume
        self.metrics = MetricsFile(folder)
        self.checkpoints = Checkpoints(records, folder, self.flags, resume, self.metrics)
        self._together = EndTogether(self.checkpoints)
        self.trainer = self._checked_trainer(callbacks, early)

    def _checked_trainer(self, callbacks: list[Callback], early: Sequence[Callback]) -> Trainer:
        """Return Lightning's Trainer for these settings; write nothing yet."""
        try:
            trainer = self._trainer(callbacks, early)
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise UserError(f"Lightning does not accept these flags: {str(error).splitlines()[0]}") from error
        lightning.check(trainer)
        check_port(trainer)
        watch_children(trainer, self._together.watch)
        return trainer

    def _trainer(self, callbacks: list[Callback], early: Sequence[Callback]) -> Trainer:
        devices, loop = self.devices, self.loop
        on_cpu = devices.accelerator == "cpu"
        hidden = loop.progress_bar_refresh_rate == 0 or not loop.enable_progress_bar
        refresh = loop.progress_bar_refresh_rate or (1 if on_cpu else 20)  # showing the loss makes a GPU wait
        cost = EpochCost()
        shown = None if hidden else progress_callback(refresh, cost)
        return Trainer(
            accelerator=devices.accelerator,
            devices=devices.devices,
            num_nodes=devices.num_nodes,
            strategy=devices.strategy,
            precision=devices.precision,  # type: ignore[arg-type]
            sync_batchnorm=devices.sync_batchnorm,
            use_distributed_sampler=devices.shards,
            benchmark=loop.benchmark,
            deterministic=loop.deterministic,
            max_epochs=loop.max_epochs,
            min_epochs=loop.min_epochs,
            min_steps=loop.min_steps,
            max_time=loop.max_time,
            accumulate_grad_batches=loop.accumulate_grad_batches,
            gradient_clip_val=loop.gradient_clip_val,
            gradient_clip_algorithm=loop.gradient_clip_algorithm,
            limit_train_batches=loop.limit_train_batches,
            limit_val_batches=loop.limit_val_batches,
            overfit_batches=loop.overfit_batches,
            check_val_every_n_epoch=loop.check_val_every_n_epoch,
            val_check_interval=loop.val_check_interval,
            num_sanity_val_steps=loop.num_sanity_val_steps,
            log_every_n_steps=loop.log_every_n_steps,
            fast_dev_run=loop.fast_dev_run,
            detect_anomaly=loop.detect_anomaly,
            profiler=loop.profiler,
            enable_progress_bar=isinstance(shown, ProgressBar),
            enable_model_summary=False,
            enable_checkpointing=False,  # Lightning's own; ours is a callback
            plugins=[self.checkpoints.files],
            default_root_dir=self.folder,
            logger=self.metrics,  # `begin` adds the others, which write something
            callbacks=[
                SeedSteps(loop.seed),
                StopAfterSteps(loop.max_steps),
                PlateausBeforeSaving(),
                StopOnNonFiniteLoss(self.checkpoints),  # before the checkpoints: none is written after a NaN
                LookAtEpoch(),
                JudgeEpoch(),
                *early,
                cost,  # before them too: an epoch's row in metrics.csv is whole when its checkpoint is written
                self.checkpoints,
                self._together,
                *([shown] if shown else []),
                *([LearningRateMonitor(logging_interval="epoch")] if self.logging.kinds else []),
                *callbacks,
            ],
        )

    def begin(self, model: LightningModule) -> None:
        """Write the first files of the run; called after every check."""
        if is_main_process():
            if self.resume is not None and self.flags.get("auto_resume"):
                hold(self.resume.parent)  # or another process could go on from there too
            self._make_folder(model)
            for runs in {self.folder.parent, *([self.resume.parent.parent] if self.resume else [])}:
                for run in runs.iterdir():
                    remove_abandoned(run)
        if self.resume is not None:
            steps = int(steps_and_time(self.resume)[0])
            self.metrics.go_on_from(self.resume.with_name(self.metrics.file.name), steps)

    def _make_folder(self, model: LightningModule) -> None:
        try:
            self.folder.mkdir(parents=True)
            probe = self.folder / "metrics.csv"
            probe.touch()
            probe.unlink()
            hold(self.folder)
        except OSError as error:
            raise UserError(
                f"`checkpoint_dir` {self.records.checkpoint_dir}: cannot write there "
                f"({error.strerror}); give another folder"
            ) from error
        try:
            check_space(self.folder, model, self.records, self.flags["optimizer"])
            self._add_loggers(model)
        except UserError:
            let_go()
            raise

    def _add_loggers(self, model: LightningModule) -> None:
        if self.loop.fast_dev_run:  # for which Lightning logs nothing
            return
        made = make_loggers(self.logging, self.folder)
        for logger in made:
            if isinstance(logger, WandbLogger):
                logger.watch(model, log="gradients", log_freq=100)
            logger.log_hyperparams(self.flags)
        self.trainer.loggers = [*self.trainer.loggers, *made]

    def fit(self, model: LightningModule, train: Any, val: Any) -> None:
        """Train; raise the reason where a signal, a disk that fails, or a NaN to cluster ends the run."""
        try:
            self.trainer.fit(model, train, val, ckpt_path=self.resume, weights_only=True)
        except BaseException as error:
            self._explain(error)
            raise
        finally:
            let_go()

    def _explain(self, error: BaseException) -> None:
        """Raise another error if the user is to know no more than the reason."""
        if isinstance(error, SIGTERMException):
            raise Ended(f"terminated; {self.checkpoints.rescue()}", 143) from error
        if is_interrupt(error):  # which Lightning makes a SystemExit
            raise KeyboardInterrupt(f"interrupted; {self.checkpoints.rescue()}") from error
        if isinstance(error, NotFinite):
            bad = f"the embeddings of {error.rows} of {error.of} images to cluster are NaN or infinite"
            raise UserError(f"{bad}; {self.checkpoints.rescue()}; {AGAINST_NAN}") from error
        if isinstance(error, DistNetworkError):  # another process has taken the port since it was looked at
            raise UserError(f"the processes cannot reach each other: {str(error).splitlines()[0]}") from error
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            where = error.filename or self.folder
            raise UserError(f"{where}: {error.strerror}; {self.checkpoints.rescue()}") from error

    def report(self, started: float, next_step: str, warnings: Sequence[str] = ()) -> None:
        """Say what stands against the run, where things are and what to try next."""
        lines = [
            f"done in {clock(time.monotonic() - started)}",
            f"  checkpoint  {self.checkpoints.last or 'none: no epoch was finished'}",
            f"  metrics     {self.folder / 'metrics.csv'}",
            f"  arguments   {self.folder / 'args.json'}",
        ]
        lines += [f"  warning     {text}" for text in warnings]
        if self.checkpoints.last:
            lines.append(f"  next        {next_step}")
        say("\n".join(lines))


def batches_per_epoch(flag: str, images: int, batch_size: int, devices: Devices, loop: Loop) -> int:
    """Return the full batches of each process; `flag` is the setting that the images come from, for a message."""
    share = images // devices.processes
    if share < batch_size:
        several = devices.processes > 1
        per_process = f" ({share} for each of {devices.processes} processes)" if several else ""
        raise UserError(
            f"{flag}: {images} images{per_process} do not fill one batch; lower `batch_size` {batch_size} or add images"
        )
    batches = share // batch_size
    if isinstance(loop.val_check_interval, int) and loop.val_check_interval > batches:
        raise UserError(f"`val_check_interval` {loop.val_check_interval}: an epoch has only {batches} batches")
    return batches
