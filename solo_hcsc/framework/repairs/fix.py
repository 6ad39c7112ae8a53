"""What a fix is: a function that repairs one thing, and a probe that tells whether that thing is broken."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FIXES: list["Fix"] = []
_applied: set[str] = set()


@dataclass(frozen=True)
class Fix:
    name: str
    broken: Callable[[], bool]
    apply: Callable[[], None]


def fixes(broken: Callable[[], bool]) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Registers the decorated function as the fix of what `broken` probes for."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        FIXES.append(Fix(function.__name__, broken, function))
        return function

    return register


def apply() -> None:
    """Applies every fix that is not applied yet."""
    for fix in FIXES:
        if fix.name not in _applied:
            _applied.add(fix.name)
            fix.apply()


def bare_method(cls: type, **settings: Any) -> Any:
    """A real method with neutral settings, for the probes and for its encoder."""
    defaults: dict[str, Any] = {
        "encoder": "resnet18",
        "num_classes": 2,
        "backbone_args": {"cifar": False},
        "max_epochs": 2,
        "batch_size": 4,
        "optimizer": "sgd",
        "lars": False,
        "lr": 0.1,
        "weight_decay": 0.0,
        "classifier_lr": 0.1,
        "exclude_bias_n_norm": False,
        "accumulate_grad_batches": 1,
        "extra_optimizer_args": {},
        "scheduler": "cosine",
        "min_lr": 0.0,
        "warmup_start_lr": 0.0,
        "warmup_epochs": 0,
        "num_large_crops": 2,
        "num_small_crops": 0,
        "proj_output_dim": 8,
        "proj_hidden_dim": 8,
    }
    return cls(**(defaults | settings))
