"""Modules that solo-learn imports and that no longer exist, or no longer import."""

import importlib
import math
import sys
import warnings
from types import ModuleType

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class LinearWarmupCosineAnnealingLR(LRScheduler):
    """Linear warm-up from `warmup_start_lr`, then a cosine down to `eta_min`; one `step()` an epoch."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_epochs: int,
        max_epochs: int,
        warmup_start_lr: float = 0.0,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.warmup_epochs = warmup_epochs
        self.max_epochs = max_epochs
        self.warmup_start_lr = warmup_start_lr
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        return [self._lr_at(self.last_epoch, float(base)) for base in self.base_lrs]

    def _lr_at(self, epoch: int, base: float) -> float:
        if epoch < self.warmup_epochs:
            progress = epoch / max(1, self.warmup_epochs - 1)
            return self.warmup_start_lr + progress * (base - self.warmup_start_lr)
        progress = (epoch - self.warmup_epochs) / max(1, self.max_epochs - self.warmup_epochs)
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * progress)) / 2


def strtobool(text: str) -> int:
    """Return 1 for a yes, 0 for a no, as distutils had it."""
    answers = {"y": 1, "yes": 1, "t": 1, "true": 1, "on": 1, "1": 1}
    answers |= {"n": 0, "no": 0, "f": 0, "false": 0, "off": 0, "0": 0}
    try:
        return answers[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither yes nor no") from None


def install() -> None:
    """Put a stand-in where the real module does not import.

    - `pl_bolts` (lightning-bolts 0.7.0, the last one, does not import on Lightning 2): solo takes one scheduler of it.
    - `distutils` (gone in Python 3.12 unless setuptools brings it): DINO reads its flags with `strtobool`.
    """
    if not _imports("pl_bolts.optimizers.lr_scheduler"):
        _register(
            "pl_bolts.optimizers.lr_scheduler",
            LinearWarmupCosineAnnealingLR=LinearWarmupCosineAnnealingLR,
        )
    if not _imports("distutils.util"):
        _register("distutils.util", strtobool=strtobool)


# Parts of solo-learn that it imports where DALI and UMAP are installed; they take seconds and a gigabyte.
_OPTIONAL = ("solo.utils.dali_dataloader", "solo.methods.dali", "solo.utils.auto_umap", "wandb")  # the last: timm's


def import_solo() -> None:
    """Import solo-learn without its optional parts, as if their packages were missing; each can be imported later."""
    hidden = [name for name in _OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # decorators that torch has renamed, as the repairs know
            importlib.import_module("solo")
    finally:
        for name in hidden:
            del sys.modules[name]


def _imports(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # whatever a broken package raises on import, it cannot be used
        return False
    return True


def _register(dotted_name: str, **contents: object) -> None:
    """Enter a module and its parents into `sys.modules`."""
    parts = dotted_name.split(".")
    parent: ModuleType | None = None
    for depth in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:depth]))
        sys.modules[module.__name__] = module
        if parent is not None:
            setattr(parent, parts[depth - 1], module)
        parent = module
    assert parent is not None
    vars(parent).update(contents)
