"""The framework's AutoUMAP callback; there only with the extra `umap`."""

from types import SimpleNamespace
from typing import Any

from pytorch_lightning.loggers import WandbLogger

from solo_hcsc.framework.repairs.fix import fixes

try:
    from solo.utils.auto_umap import AutoUMAP
except ImportError:
    AutoUMAP = None

_originals: list[Any] = [AutoUMAP.plot] if AutoUMAP else []


@fixes(broken=lambda: AutoUMAP is not None and AutoUMAP.plot in _originals)
def auto_umap() -> None:
    """AutoUMAP takes the first of `trainer.val_dataloaders`, which is now the loader itself, not a list."""
    if AutoUMAP is None:
        return
    plot = AutoUMAP.plot

    def plot_with_list(self: Any, trainer: Any, module: Any) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        view = SimpleNamespace(
            val_dataloaders=[trainer.val_dataloaders],
            is_global_zero=trainer.is_global_zero,
            current_epoch=trainer.current_epoch,
            logger=loggers[0] if loggers else None,
        )
        if trainer.val_dataloaders is not None:
            plot(self, view, module)

    AutoUMAP.plot = plot_with_list
