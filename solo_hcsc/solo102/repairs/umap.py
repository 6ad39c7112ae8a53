"""The framework's AutoUMAP callback; imported only by a run that asks for it, with the extra `umap`."""

from types import SimpleNamespace
from typing import Any

import torch
from pytorch_lightning.loggers import WandbLogger
from solo.utils.auto_umap import AutoUMAP
from torch.utils.data import DataLoader, TensorDataset

from solo_hcsc.solo102.repairs.fix import apply, fixes

__all__ = ["AutoUMAP"]

_original = AutoUMAP.plot


def _cannot_take_a_single_loader() -> bool:
    loader = DataLoader(TensorDataset(torch.empty(0)))
    trainer = SimpleNamespace(val_dataloaders=loader, loggers=[], is_global_zero=False, current_epoch=0)
    module = SimpleNamespace(device=torch.device("cpu"), eval=lambda: None, train=lambda: None)
    try:
        AutoUMAP(SimpleNamespace(name="probe")).plot(trainer, module)
    except TypeError:
        return True
    return False


@fixes(broken=_cannot_take_a_single_loader)
def auto_umap() -> None:
    """AutoUMAP takes the first of `trainer.val_dataloaders`, which is now the loader itself, not a list."""

    def plot_with_list(self: Any, trainer: Any, module: Any) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        view = SimpleNamespace(
            val_dataloaders=[trainer.val_dataloaders],
            is_global_zero=trainer.is_global_zero,
            current_epoch=trainer.current_epoch,
            logger=loggers[0] if loggers else None,
        )
        if trainer.val_dataloaders is not None:
            threads = torch.get_num_threads()
            _original(self, view, module)
            torch.set_num_threads(threads)  # numba sets its own number for all that uses OpenMP

    AutoUMAP.plot = plot_with_list


apply()
