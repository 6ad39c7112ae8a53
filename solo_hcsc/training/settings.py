"""What the flags of a run mean, as values: parsed once, never changed after."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solo_hcsc.errors import UserError

_OFFLINE_MODES = ("offline", "disabled", "dryrun")


@dataclass(frozen=True)
class Wandb:
    """Where Weights & Biases logs go, if they do."""

    wandb: bool
    project: str | None
    entity: str | None
    offline: bool
    name: str | None  # of the run


@dataclass(frozen=True)
class Records:
    """What a run writes, and how much of it is kept."""

    checkpoint_dir: Path
    checkpoint_frequency: int  # epochs
    checkpoint_every_n_steps: int  # 0: only after epochs
    keep_checkpoints: int
    keep_best: str | None  # the metric
    name: str


@dataclass(frozen=True)
class Loop:
    """Lightning's training loop."""

    seed: int
    max_epochs: int
    min_epochs: int | None
    max_steps: int
    min_steps: int | None
    max_time: str | None
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    gradient_clip_algorithm: str | None
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    overfit_batches: int | float
    check_val_every_n_epoch: int
    val_check_interval: int | float | None
    num_sanity_val_steps: int
    log_every_n_steps: int
    fast_dev_run: bool
    detect_anomaly: bool
    benchmark: bool | None
    deterministic: bool | None
    profiler: str | None
    enable_progress_bar: bool
    progress_bar_refresh_rate: int | None


@dataclass(frozen=True)
class Resume:
    """From which checkpoint a run goes on, if it does."""

    resume_from_checkpoint: Path | None
    auto_resume: bool
    auto_resumer_max_hours: int
    recorded: Mapping[str, Any]  # this run's flags, as args.json has them
    given: frozenset[str]  # the flags that were typed with another value than their default


def check_wandb(wandb: Wandb) -> None:
    """Refuses online logging without an account."""
    if not wandb.wandb or wandb.offline or os.environ.get("WANDB_MODE") in _OFFLINE_MODES:
        return
    import wandb as package  # takes a second, and most runs do without

    if not package.login(prompt=False):
        raise UserError("`wandb`: you are not logged in; run `wandb login`, or add `offline`")
