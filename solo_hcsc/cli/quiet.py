"""Keeps other packages' chatter off the user's screen; `python -W default` brings it back."""

import logging
import sys
import warnings

# Packages whose warnings a user of the commands can do nothing about.
_PACKAGES = (
    "solo|torch|torchvision|pytorch_lightning|lightning_fabric|lightning_utilities|torchmetrics|timm"
    "|umap|seaborn|numba|sklearn|nvidia|wandb|pydantic|multiprocessing|PIL"
)


def quiet() -> None:
    if sys.warnoptions:
        return
    warnings.filterwarnings("ignore", module=rf"({_PACKAGES})(\.|$)")
    # Raised by our callers' frames on behalf of those packages.
    warnings.filterwarnings("ignore", message=".*(weight_norm|in the registry|lr_scheduler.step).*")
    import pytorch_lightning  # noqa: F401  its import sets the level of its own logger

    for name in ("pytorch_lightning", "lightning_fabric", "timm", "torch.distributed", "umap"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what it finds wrong with a file it also raises
