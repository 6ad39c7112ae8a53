"""What pretraining and the evaluations that train share: the run's folder, its loggers, the Trainer."""

import contextlib
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import LearningRateMonitor, ProgressBar
from pytorch_lightning.loggers import CSVLogger, Logger, WandbLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from solo.utils.checkpointer import random_string

from solo_hcsc.cli.errors import UserError, is_main_process, started_by_lightning, stop
from solo_hcsc.training.progress import Cost, clock, progress_callback
from solo_hcsc.data.loaders import SeedSteps
from solo_hcsc.training.saving import DISK_ERRORS, Checkpoints, check_space, remove_unfinished

_OFFLINE_MODES = ("offline", "disabled", "dryrun")


class Run:
    """One run's folder, `CHECKPOINT_DIR/METHOD/ID`: args.json, metrics.csv and checkpoints."""

    def __init__(self, args: Namespace, method: str) -> None:
        self.args = args
        self.id = random_string()
        self.logdir = args.checkpoint_dir / method
        self.folder = self.logdir / self.id
        self.checkpoints = Checkpoints(args, self.folder)

    def _make_folder(self, model: LightningModule) -> None:
        if not is_main_process():
            return
        try:
            self.folder.mkdir(parents=True)
            probe = self.folder / "metrics.csv"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"--checkpoint_dir {self.args.checkpoint_dir}: cannot write there "
                f"({error.strerror}); give another folder"
            ) from error
        try:
            check_space(self.folder, model, self.args)
        except UserError:
            self.folder.rmdir()
            raise

    def trainer(self, callbacks: list[Callback]) -> Trainer:
        """Lightning's Trainer for these flags; writes nothing yet."""
        try:
            return self._trainer(callbacks)
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise UserError(f"Lightning does not accept these flags: {str(error).splitlines()[0]}") from error

    def _trainer(self, callbacks: list[Callback]) -> Trainer:
        args = self.args
        hidden = args.progress_bar_refresh_rate == 0 or not args.enable_progress_bar
        # Showing the loss makes a GPU wait.
        refresh = args.progress_bar_refresh_rate or (1 if args.accelerator == "cpu" else 20)
        progress = None if hidden else progress_callback(refresh)
        return Trainer(
            accelerator=args.accelerator,
            devices=args.devices,
            num_nodes=args.num_nodes,
            strategy=args.strategy,
            precision=args.precision,
            sync_batchnorm=args.sync_batchnorm,
            use_distributed_sampler=args.use_distributed_sampler
            if args.replace_sampler_ddp is None
            else args.replace_sampler_ddp,
            benchmark=args.benchmark,
            deterministic=args.deterministic,
            max_epochs=args.max_epochs,
            min_epochs=args.min_epochs,
            min_steps=args.min_steps,
            max_time=args.max_time,
            accumulate_grad_batches=args.accumulate_grad_batches,
            gradient_clip_val=args.gradient_clip_val,
            gradient_clip_algorithm=args.gradient_clip_algorithm,
            limit_train_batches=args.limit_train_batches,
            limit_val_batches=args.limit_val_batches,
            overfit_batches=args.overfit_batches,
            check_val_every_n_epoch=args.check_val_every_n_epoch,
            val_check_interval=args.val_check_interval,
            num_sanity_val_steps=args.num_sanity_val_steps,
            log_every_n_steps=args.log_every_n_steps,
            fast_dev_run=args.fast_dev_run,
            detect_anomaly=args.detect_anomaly,
            profiler=args.profiler,
            enable_progress_bar=isinstance(progress, ProgressBar),
            enable_model_summary=False,
            enable_checkpointing=False,  # Lightning's own; ours is a callback
            plugins=[self.checkpoints.files],
            default_root_dir=self.folder,
            logger=self._loggers(),
            callbacks=[
                SeedSteps(args.seed),
                StopAfterSteps(args.max_steps),
                PlateausBeforeSaving(),
                StopOnNonFiniteLoss(self.checkpoints),  # before the checkpoints: none is written after a NaN
                self.checkpoints,
                EndTogether(),
                Cost(),
                *([progress] if progress else []),
                *([LearningRateMonitor(logging_interval="epoch")] if args.wandb else []),
                *callbacks,
            ],
        )

    def _loggers(self) -> list[Logger]:
        loggers: list[Logger] = [CSVLogger(self.logdir, name="", version=self.id)]
        if self.args.wandb and is_main_process():
            loggers.append(
                WandbLogger(
                    name=self.args.name,
                    project=self.args.project,
                    entity=self.args.entity,
                    offline=self.args.offline,
                    id=self.id,
                    save_dir=self.folder,
                )
            )
        return loggers

    def begin(self, model: LightningModule, trainer: Trainer) -> None:
        """The first thing that a run writes: called after every check."""
        self._make_folder(model)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.watch(model, log="gradients", log_freq=100)
                logger.log_hyperparams(self.args)

    def fit(self, trainer: Trainer, model: LightningModule, train: Any, val: Any, resume: Path | None) -> None:
        """Trains; a signal, or a disk that fails on the way, ends the run with the reason."""
        if resume is not None and is_main_process():
            remove_unfinished(resume.parent)
        try:
            trainer.fit(model, train, val, ckpt_path=resume, weights_only=True)
        except SystemExit as ended:  # what Lightning makes of both signals
            if isinstance(ended, SIGTERMException):
                stop(f"terminated; {self.checkpoints.rescue()}", 143)
            if isinstance(ended.__context__, KeyboardInterrupt):
                stop(f"interrupted; {self.checkpoints.rescue()}", 130)
            raise
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            where = error.filename or self.folder
            raise UserError(f"{where}: {error.strerror}; {self.checkpoints.rescue()}") from error

    def report(self, started: float, next_step: str) -> None:
        """The last lines of a run: where things are and what to try next."""
        if not is_main_process():
            return
        lines = [
            f"done in {clock(time.monotonic() - started)}",
            f"  checkpoint  {self.checkpoints.last or 'none: no epoch was finished'}",
            f"  metrics     {self.folder / 'metrics.csv'}",
            f"  arguments   {self.folder / 'args.json'}",
        ]
        if self.checkpoints.last:
            lines.append(f"  next        {next_step}")
        print("\n".join(lines), flush=True)


class StopOnNonFiniteLoss(Callback):
    """Ends the run on a NaN or infinity before a checkpoint has it.

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
        where = f"step {trainer.global_step} of epoch {trainer.current_epoch}"
        terms = getattr(pl_module, "loss_terms", {})

        loss = loss.detach()

        def look() -> None:
            if not arrived():
                self._stop(where, loss, terms)

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

    def _stop(self, where: str, loss: torch.Tensor, terms: dict[str, torch.Tensor]) -> None:
        guilty = [name for name, term in terms.items() if not torch.isfinite(term)]
        which = f"the loss ({', '.join(guilty)})" if guilty else "the loss"
        became = "is not finite in another process" if torch.isfinite(loss) else f"became {float(loss)}"
        raise UserError(
            f"{which} {became} at {where}; {self.checkpoints.rescue()}; "
            "try a lower --lr, more --warmup_epochs or --precision 32"
        )


class EndTogether(Callback):
    """Where one of several processes ends the run with its line, the others add no traceback about the lost peer."""

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        children = getattr(trainer.strategy.launcher, "procs", [])
        if isinstance(exception, UserError):
            while exception.alone and children:  # else they would wait for this process, and then for its answer
                children.pop().kill()  # off the list, on which Lightning's observer looks for reasons to kill this one
            return
        if started_by_lightning() and "peer" in str(exception):  # the one that was lost, or the main process, speaks
            sys.exit(0)
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if child.wait(timeout=2) == 0:  # it has said why
                    sys.exit(2)


class StopAfterSteps(Callback):
    """`--max_steps`; Lightning's own takes every later resume for one within an epoch."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if 0 < self.steps <= trainer.global_step:
            trainer.should_stop = True


class PlateausBeforeSaving(Callback):
    """Steps schedulers that watch a metric before the epoch's checkpoint is written; Lightning does it after."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor in trainer.callback_metrics:
                config.scheduler.step(trainer.callback_metrics[config.monitor])  # type: ignore[arg-type]


def _fetch(flag: torch.Tensor) -> Callable[[], bool]:
    """Starts copying a flag to the host; the function returned waits for no more than that."""
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


def start(args: Namespace) -> float:
    seed_everything(args.seed, workers=True)
    return time.monotonic()


def announce(line: str) -> None:
    if is_main_process():
        print(line, flush=True)


def check_ranges(args: Namespace) -> None:
    """Numbers that would fail deep inside, refused with the flag's name."""
    at_least_1 = (
        "batch_size max_epochs crop_size num_crops_per_aug checkpoint_frequency keep_checkpoints"
        " accumulate_grad_batches check_val_every_n_epoch knn_k patch_size"
    )
    positive = "temperature max_scale min_scale std proj_output_dim proj_hidden_dim"
    at_least_0 = (
        "num_workers queue_size lr classifier_lr weight_decay warmup_epochs seed brightness contrast saturation"
        " checkpoint_every_n_steps"
    )
    share = (
        "color_jitter_prob gray_scale_prob horizontal_flip_prob gaussian_prob solarization_prob"
        " min_scale max_scale base_tau_momentum final_tau_momentum"
    )
    for names, allowed, meaning in (
        (at_least_1, lambda value: value >= 1, "must be at least 1"),
        (positive, lambda value: value > 0, "must be greater than 0"),
        (at_least_0, lambda value: value >= 0, "must not be negative"),
        (share, lambda value: 0 <= value <= 1, "must be between 0 and 1"),
    ):
        for name in names.split():
            value = getattr(args, name, None)
            values = value if isinstance(value, (list, tuple)) else [value]
            for one in values:
                if isinstance(one, (int, float)) and not allowed(one):
                    raise UserError(f"--{name} {one}: {meaning}")
    for name in ("mean", "std"):
        if len(getattr(args, name)) != 3:
            raise UserError(f"--{name}: give three values, one for each colour")
    if max(getattr(args, "hue", [0])) > 0.5:
        raise UserError(f"--hue {max(args.hue)}: must be at most 0.5")
    if args.max_steps != -1 and args.max_steps < 1:
        raise UserError(f"--max_steps {args.max_steps}: must be at least 1, or -1 for no limit")
    if args.limit_train_batches == 0:
        raise UserError("--limit_train_batches 0: nothing would be trained on; leave it out")
    if args.scheduler == "reduce" and args.limit_val_batches == 0:
        raise UserError("--scheduler reduce watches the validation loss: --limit_val_batches 0 leaves none")
    if args.keep_best and args.limit_val_batches == 0:
        raise UserError(f"--keep_best {args.keep_best}: --limit_val_batches 0 leaves nothing to compare")
    if args.seed >= 2**32:
        raise UserError(f"--seed {args.seed}: must be below {2**32}")
    if "vit" in (args.encoder or "") and args.patch_size > args.crop_size[0]:
        raise UserError(f"--patch_size {args.patch_size}: larger than --crop_size {args.crop_size[0]}")
    if args.name and "/" in args.name:
        raise UserError(f"--name {args.name}: is part of a file name and must not contain /")
    if args.scheduler == "step" and not args.lr_decay_steps:
        raise UserError("--scheduler step needs --lr_decay_steps, e.g. 60 80")
    if args.keep_best == "val_knn_acc1" and not getattr(args, "knn_eval", False):
        raise UserError("--keep_best val_knn_acc1 needs --knn_eval, of pretraining; use val_acc1")
    if args.lars and args.optimizer != "sgd":
        raise UserError(f"--lars works with --optimizer sgd, not {args.optimizer}")


def check_wandb(args: Namespace) -> None:
    if not args.wandb or args.offline or os.environ.get("WANDB_MODE") in _OFFLINE_MODES:
        return
    import wandb

    if not wandb.login(prompt=False):
        raise UserError("--wandb: you are not logged in; run `wandb login`, or add --offline")


def check_batches(flag: str, images: int, args: Namespace) -> int:
    """Batches per epoch and process; the framework drops a last one that is not full."""
    processes = len(args.gpus) * args.num_nodes
    share = images // processes
    if share < args.batch_size:
        per_process = f" ({share} for each of {processes} processes)" if processes > 1 else ""
        raise UserError(
            f"{flag}: {images} images{per_process} do not fill one batch; "
            f"lower --batch_size {args.batch_size} or add images"
        )
    batches = share // args.batch_size
    if isinstance(args.val_check_interval, int) and args.val_check_interval > batches:
        raise UserError(f"--val_check_interval {args.val_check_interval}: an epoch has only {batches} batches")
    return batches


def python_command(module: str) -> str:
    """How this interpreter runs one of our modules, for messages."""
    return f"{os.path.basename(sys.executable)} -m solo_hcsc.{module}"
