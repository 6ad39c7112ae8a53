"""Keeps other packages' chatter off the user's screen; `python -W default` brings it back."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator

# Packages whose warnings a user of the commands can do nothing about.
_PACKAGES = (
    "solo|torch|torchvision|pytorch_lightning|lightning_fabric|lightning_utilities|torchmetrics|timm"
    "|umap|seaborn|numba|sklearn|nvidia|wandb|pydantic|multiprocessing|PIL"
)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Hide what a library writes to the standard output from below Python."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Hide what `quiet` does until the end of a block, in a program that is not ours."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        quiet()
        try:
            yield
        finally:
            logging.disable(disabled)


def quiet() -> None:
    """Hide other packages' warnings; called before anything else is imported, and needs none of them."""
    if any(not option.startswith("ignore") for option in sys.warnoptions):  # PYTHONWARNINGS=ignore asks for less
        return
    warnings.filterwarnings("ignore", module=rf"({_PACKAGES})(\.|$)")
    # Raised by our callers' frames on behalf of those packages.
    warnings.filterwarnings("ignore", message=".*(weight_norm|in the registry|lr_scheduler.step).*")
    logging.disable(logging.WARNING)  # whatever the level that a package sets when it is imported
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what it finds wrong with a file it also raises
