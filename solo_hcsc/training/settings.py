"""Settings of a training: rows that declare them, values that they mean, and refusals of those that do not fit."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from solo_hcsc.data.augmentation import AUGMENTATION
from solo_hcsc.data.settings import IMAGES, PRETRAINED_ON, TRAIN_LIST, WORKERS, check_colours, check_skipping
from solo_hcsc.devices import DEVICES
from solo_hcsc.encoders.settings import ENCODER
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.extras import require
from solo_hcsc.methods.names import method_names
from solo_hcsc.settings import (
    HIDDEN,
    NOT_NEGATIVE,
    ONE,
    SHARE,
    Bound,
    Setting,
    Settings,
    count_or_share,
    yes_or_no,
)

SCHEDULERS = ("reduce", "cosine", "warmup_cosine", "step", "exponential", "none")
DEFAULT_METHOD = "hcsc"
LONGEST_NAME = 200  # bytes; the ID, the epoch and the step follow it in a checkpoint's name, of 255 at most
_OFFLINE_MODES = ("offline", "disabled", "dryrun")

# ---- rows: Lightning's Trainer, with the spellings that scripts for Lightning 1 use ----

_SEED = Bound(lambda value: 0 <= value < 2**32, f"must be below {2**32} and not negative")
_STEPS = Bound(lambda value: value == -1 or value >= 1, "must be at least 1, or -1 for no limit")
_SOME = Bound(lambda value: value != 0, "nothing would be trained on; leave it out")
_SOME_OF = "use only so many (10) or this share (0.1) of the {} batches"
LOOP = (
    Setting("seed", int, 5, _SEED, "seed of Python, NumPy and torch"),
    Setting("max_epochs", int, 100, ONE, "epochs to train"),
    Setting("min_epochs", int, None, None, "epochs to train at least"),
    Setting("max_steps", int, -1, _STEPS, "stop after so many steps; -1: no limit"),
    Setting("min_steps", int, None, None, "steps to train at least"),
    Setting("max_time", str, None, None, "stop after this time, as DD:HH:MM:SS"),
    Setting("accumulate_grad_batches", int, 1, ONE, "batches per optimiser step"),
    Setting("gradient_clip_val", float, None, None, "clip gradients at this value"),
    Setting("gradient_clip_algorithm", ("norm", "value"), None, None, "clip by norm or by value"),
    Setting("limit_train_batches", count_or_share, None, _SOME, _SOME_OF.format("train")),
    Setting("limit_val_batches", count_or_share, None, None, _SOME_OF.format("val")),
    Setting("overfit_batches", count_or_share, 0.0, None, "train and validate on so few batches only"),
    Setting("check_val_every_n_epoch", int, 1, ONE, "epochs between validations"),
    Setting(
        "val_check_interval",
        count_or_share,
        None,
        None,
        "validate within an epoch, after so many batches or this share",
    ),
    Setting("num_sanity_val_steps", int, 2, None, "validation batches to try before training"),
    Setting("log_every_n_steps", int, 50, None, "steps between rows of metrics.csv"),
    Setting("fast_dev_run", yes_or_no, False, None, "one batch of everything, to see that it runs"),
    Setting("detect_anomaly", yes_or_no, False, None, "let autograd name the operation that made a NaN"),
    Setting("terminate_on_nan", yes_or_no, True, None, HIDDEN),
    Setting("profiler", ("simple", "advanced"), None, None, "print where the time went"),
    Setting("enable_progress_bar", yes_or_no, True, None, "show progress"),
    Setting("progress_bar_refresh_rate", int, None, None, "batches between the bar's updates; 0 hides it"),
    Setting("default_root_dir", Path, None, None, HIDDEN),
)


# ---- rows: what a run writes ----


def records(best: tuple[str, ...]) -> tuple[Setting, ...]:
    """Return the settings of what a run keeps; `best`: the metrics that `keep_best` takes."""
    every = "also save within an epoch, after so many steps; 0: only after epochs"
    below = "the run's folder is made below this, as METHOD/ID"
    return (
        Setting("checkpoint_dir", Path, Path("trained_models"), None, below),
        Setting("checkpoint_frequency", int, 1, ONE, "epochs between checkpoints; the last epoch is always saved"),
        Setting("checkpoint_every_n_steps", int, 0, NOT_NEGATIVE, every),
        Setting("keep_checkpoints", int, 1, ONE, "how many of the run's epochs keep their checkpoint"),
        Setting("keep_best", best, None, None, "also keep the one with the highest"),
        Setting("save_checkpoint", bool, True, None, "always on: kept for existing scripts"),
        Setting("resume_from_checkpoint", Path, None, None, "go on from this checkpoint"),
    )


_FOUND = "go on from the newest checkpoint below `checkpoint_dir` of a run with the same flags, or start anew"
RESUME = (
    Setting("auto_resume", bool, False, None, _FOUND),
    Setting("auto_resumer_max_hours", int, 36, None, "`auto_resume` takes only checkpoints younger than this"),
)


def wandb(name: str = "name of the run") -> tuple[Setting, ...]:
    """Return the settings of Weights & Biases; `name`: the help of `name`."""
    return (
        Setting("wandb", bool, False, None, "log to Weights & Biases"),
        Setting("offline", bool, False, None, "with wandb: write to disk only; needs no account"),
        Setting("project", str, "solo-learn", None, "wandb project, or MLflow experiment"),
        Setting("entity", str, None, None, "wandb user or team"),
        Setting("name", str, None, None, name),
    )


LOGGERS = ("csv", "tensorboard", "mlflow", "wandb")
_LOGGED = "where to log, one or more; metrics.csv is always written (tensorboard and mlflow are extras of their names)"


def logging(name: str = "name of the run, in file names and loggers") -> tuple[Setting, ...]:
    """Return the settings of loggers; `name`: the help of `name`."""
    return (Setting("logger", LOGGERS, ["csv"], None, _LOGGED), *wandb(name))


# ---- rows: optimisation ----


def optimiser(lr: str, optimisers: tuple[str, ...], scheduler: str) -> tuple[Setting, ...]:
    """Return solo-learn's settings of batches, optimiser and schedule; `lr`: the help of `lr`."""
    return (
        Setting("batch_size", int, 128, ONE, "images per step and process"),
        Setting("lr", float, 0.3, NOT_NEGATIVE, lr),
        Setting("classifier_lr", float, 0.3, NOT_NEGATIVE, "learning rate of the online classifier"),
        Setting("weight_decay", float, 0.0001, NOT_NEGATIVE, "weight decay"),
        WORKERS,
        Setting("optimizer", optimisers, "sgd", None, "optimiser; lars means `optimizer` sgd `lars`"),
        Setting("lars", bool, False, None, "scale SGD's steps layer by layer (LARS)"),
        Setting("exclude_bias_n_norm", bool, False, None, "LARS: leave biases and norms out"),
        Setting("scheduler", SCHEDULERS, scheduler, None, "learning rate schedule"),
    )


DECAY_STEPS = Setting(
    "lr_decay_steps",
    int,
    None,
    None,
    "epochs at which `scheduler` step divides the learning rate by 10",
    several=True,
)
# What solo-learn's methods share; its momentum methods add theirs.
SHARED = (
    *ENCODER,
    *optimiser(
        "learning rate; pretraining multiplies it by batch size x devices / 256",
        ("sgd", "lars", "adam", "adamw"),
        "warmup_cosine",
    ),
    Setting("grad_clip_lars", bool, False, None, "LARS: never enlarge a step"),
    Setting("eta_lars", float, 1e-3, None, "LARS: trust coefficient"),
    Setting("min_lr", float, 0.0, None, "where the cosine ends"),
    Setting("warmup_start_lr", float, 0.003, None, "where warmup_cosine starts"),
    Setting(
        "warmup_epochs", int, 10, NOT_NEGATIVE, "epochs of linear warm-up in warmup_cosine; of a short run a fifth"
    ),
    Setting("encode_indexes_into_labels", bool, False, None, "for old bash files: DALI always hands out true indexes"),
    Setting("knn_eval", bool, False, None, "weighted KNN accuracy at each validation"),
    Setting("knn_k", int, 20, ONE, "neighbours of `knn_eval`"),
    DECAY_STEPS,
)


_BALANCED = (
    "draw the training images evenly over a tree: the run's own, renewed with it, or `balance_tree`; none: each once "
    "in an epoch"
)
_GIVEN = "folder of a saved tree of the training images, which `balance` tree keeps to"
_PICTURES = "a UMAP picture of the validation features (needs the extra umap)"
_NEW_STATISTICS = (
    "the encoder's batch norms keep the statistics of `init_weights`; their scales and shifts learn. In short runs at "
    "another image size new ones cost more than the run gains (docs/when-hcsc.md)"
)


def pretraining() -> dict[str, tuple[Setting, ...]]:
    """Return the settings of pretraining that do not depend on the method, by the titles of their groups."""
    alone = "a folder of images, in train/ and val/ below it or not, in class folders or not"
    dataset = replace(IMAGES[0], help=f"which data set; if not given, `data_dir` is {alone}")
    first = "first epochs in which the encoder stays as it is, and only what comes after it learns"
    return {
        "method": (Setting("method", str, DEFAULT_METHOD, None, f"one of {', '.join(method_names())}"),),
        "data": (dataset, *IMAGES[1:], TRAIN_LIST, *PRETRAINED_ON),
        "balance": (
            Setting("balance", ("none", "tree"), "none", None, _BALANCED),
            Setting("balance_strength", float, 1.0, SHARE, "0: each image once; 1: evenly over the tree"),
            Setting("balance_tree", Path, None, None, _GIVEN),
        ),
        "augmentation": AUGMENTATION,
        "encoder, optimiser and online evaluation": SHARED,
        "devices (Lightning)": DEVICES,
        "training loop (Lightning)": LOOP,
        "gentle start, for `init_weights`": (
            Setting("freeze_encoder_epochs", int, 0, NOT_NEGATIVE, first),
            Setting("freeze_batchnorm", bool, False, None, _NEW_STATISTICS),
        ),
        "records": (
            *records(("val_acc1", "val_knn_acc1")),
            *RESUME,
            Setting("auto_umap", bool, False, None, _PICTURES),
            Setting("auto_umap_dir", Path, Path("auto_umap"), None, "folder for the UMAP pictures"),
            Setting("auto_umap_frequency", int, 1, None, "epochs between UMAP pictures"),
        ),
        "logging": logging(),
    }


# ---- what they mean ----


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


# ---- what does not go together ----


def check_training(settings: Settings) -> None:
    """Refuse settings of a training that do not go together."""
    check_colours(settings)
    check_skipping(settings)
    if settings.scheduler == "reduce" and settings.limit_val_batches == 0:
        raise ArgumentError("`scheduler` reduce watches the validation loss: `limit_val_batches` 0 leaves none")
    if settings.keep_best and settings.limit_val_batches == 0:
        raise ArgumentError(f"`keep_best` {settings.keep_best}: `limit_val_batches` 0 leaves nothing to compare")
    check_name(settings)
    if settings.scheduler == "step" and not settings.lr_decay_steps:
        raise ArgumentError("`scheduler` step needs `lr_decay_steps`, e.g. 60 80")
    if settings.lars and settings.optimizer not in ("sgd", "lars"):
        raise ArgumentError(f"`lars` works with `optimizer` sgd, not {settings.optimizer}")


def check_name(settings: Settings) -> None:
    """Refuse a name that cannot be part of a file's."""
    name = settings.name
    if name and "/" in name:
        raise ArgumentError(f"`name` {name}: is part of a file name and must not contain /")
    if name and len(os.fsencode(name)) > LONGEST_NAME:
        raise ArgumentError(f"`name` {name[:20]}...: is part of a file name and must not exceed {LONGEST_NAME} bytes")


def check_wandb(wandb: Wandb, asked: str = "`wandb`") -> None:
    """Refuse logging without the package, and online logging without an account; `asked`: by what."""
    if not wandb.wandb:
        return
    require("wandb", asked)
    if wandb.offline or os.environ.get("WANDB_MODE") in _OFFLINE_MODES:
        return
    import wandb as package  # takes a second, and most runs do without

    if not package.login(prompt=False):
        raise UserError(f"{asked}: you are not logged in; run `wandb login`, or add `offline`")
