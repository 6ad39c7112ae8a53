"""Where a training's metrics go beside metrics.csv: TensorBoard, MLflow, Weights & Biases, by Lightning's loggers."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from pytorch_lightning.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.extras import require
from solo_hcsc.quiet import muted
from solo_hcsc.training.settings import Wandb, check_wandb


@dataclass(frozen=True)
class Logging(Wandb):
    """Which loggers a training has, and what they are told."""

    logger: tuple[str, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """Return the loggers beside metrics.csv; `wandb` alone asks for that one, as in solo-learn."""
        return frozenset(self.logger) - {"csv"} | ({"wandb"} if self.wandb else set())


def check_logging(logging: Logging) -> None:
    """Refuse loggers without their packages, and online logging to wandb without an account."""
    for kind in ("tensorboard", "mlflow"):
        if kind in logging.kinds:
            require(kind, f"`logger` {kind}")
    if "wandb" in logging.kinds:
        check_wandb(replace(logging, wandb=True), "`wandb`" if logging.wandb else "`logger` wandb")


def make_loggers(logging: Logging, folder: Path) -> list[Logger]:
    """Make the loggers of a run whose folder is there.

    TensorBoard's file goes into the run's folder. MLflow's runs go to MLFLOW_TRACKING_URI, or to a database that all
    runs of `checkpoint_dir` share.
    """
    found: list[Logger] = []
    if "tensorboard" in logging.kinds:
        found.append(TensorBoardLogger(folder, name="", version="", default_hp_metric=False))
    if "mlflow" in logging.kinds:
        found.append(_mlflow(logging, folder))
    if "wandb" in logging.kinds:
        found.append(
            WandbLogger(
                name=logging.name,
                project=logging.project,
                entity=logging.entity,
                offline=logging.offline,
                # What Lightning makes of it is a variable that wandb reads once in a process.
                mode="offline" if logging.offline else None,
                id=folder.name,
                save_dir=folder,
            )
        )
    return found


def _mlflow(logging: Logging, folder: Path) -> Logger:
    place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent.parent.resolve() / 'mlflow.db'}"
    from mlflow.exceptions import MlflowException  # of an optional package

    try:
        with muted():  # it says which tables it makes
            made = MLFlowLogger(str(logging.project), logging.name, place, tags={"solo_hcsc.run": folder.name})
            _ = made.run_id  # reaches the server
    except MlflowException as error:
        reason = on_one_line(str(error).strip().splitlines()[0])[:150]
        raise UserError(f"`logger` mlflow: {place} cannot be logged to ({reason})") from error
    return made
