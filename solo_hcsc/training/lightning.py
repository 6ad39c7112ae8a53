"""Reach into Lightning's loops for a resume within an epoch, which Lightning does not document.

`probe` names what the installed Lightning lacks of it; a run asks it first, and setup.cfg's upper bound on Lightning is
the last series in which the tests of resumed runs passed.
"""

from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning import __version__ as version

from solo_hcsc.errors import UserError


def check(trainer: Trainer) -> None:
    """Refuse a Lightning whose loops are not those that this was written for."""
    lacking = probe(trainer)
    if lacking:
        raise UserError(
            f"pytorch-lightning {version}: its loops have no {', '.join(lacking)}, which checkpoints within an epoch "
            "need; install a version that setup.cfg allows"
        )


def probe(trainer: Trainer) -> list[str]:
    """Return the names that are missing; none if all is as expected."""
    state = trainer.fit_loop.state_dict()
    lacking = [
        key for key in ("epoch_progress", "epoch_loop.batch_progress", "epoch_loop.state_dict") if key not in state
    ]
    epoch_loop = trainer.fit_loop.epoch_loop
    if "_batches_that_stepped" not in state.get("epoch_loop.state_dict", {}):
        lacking.append("_batches_that_stepped")
    lacking += [name for name in ("_should_check_val_epoch", "batch_progress") if not hasattr(epoch_loop, name)]
    lacking += [] if hasattr(trainer.fit_loop, "restarted_mid_epoch") else ["restarted_mid_epoch"]
    lacking += [] if hasattr(type(trainer._logger_connector), "metrics") else ["metrics of its loggers"]
    for key in ("epoch_progress", "epoch_loop.batch_progress"):
        counts = state.get(key, {}).get("current", {})
        lacking += [f"{key}.{name}" for name in ("ready", "completed", "processed") if name not in counts]
    return lacking


def is_within_epoch(trainer: Trainer) -> bool:
    return trainer.fit_loop.epoch_loop.batch_progress.current.completed < trainer.num_training_batches


def rewind(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Change Lightning's record of its loops such that a resumed run goes on where this one stands."""
    loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    trained = 0  # batches of the epoch being resumed
    if is_within_epoch(trainer):
        trained = batches["current"]["completed"]
        for counts in (epochs["total"], epochs["current"]):
            counts["processed"] = counts["completed"]  # one that was stopped early has been counted
        for counts in (batches["total"], batches["current"]):
            counts["ready"] = counts["completed"]  # the batch that is about to start has been counted
        validates = trainer.fit_loop.epoch_loop._should_check_val_epoch()
        if validates and trained % trainer.val_check_batch == 0:  # there Lightning counts a step once more
            loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
    for loader in loop["state_dict"].get("combined_loader", []):
        loader["done"] = trained


def epoch_row(trainer: Trainer) -> tuple[dict[str, float], int]:
    """Return what Lightning will log of the epoch that has just ended, and the step it will log it with."""
    metrics = {name: float(value) for name, value in trainer._logger_connector.metrics["log"].items()}
    return metrics | {"epoch": trainer.current_epoch}, trainer.fit_loop.epoch_loop._batches_that_stepped - 1
