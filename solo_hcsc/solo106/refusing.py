"""End a run of the checkout's own scripts with one line, in the names of its YAML files."""

import re
import sys
from typing import NoReturn

from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.launch import end_of

# Where arguments that are not HCSC's own stand in a config; all others are below `method_kwargs`.
_ELSEWHERE = {
    "max_epochs": "max_epochs",
    "lr": "optimizer.lr",
    "batch_size": "optimizer.batch_size",
    "warmup_epochs": "scheduler.warmup_epochs",
    "base_tau_momentum": "momentum.base_tau",
    "precision": "precision",
}


def in_config(text: str) -> str:
    """Return the library's text, which names its arguments as `name`, with the keys of the config.

    Example:
        >>> in_config("`queue_size` 8: too small; lower `lr`")
        'method_kwargs.queue_size 8: too small; lower optimizer.lr'
    """
    return re.sub(r"`(\w+)`", lambda found: _ELSEWHERE.get(found[1], f"method_kwargs.{found[1]}"), text)


def end(error: UserError) -> NoReturn:
    """End the process with an error's line and its exit code."""
    sys.exit(end_of(error, in_config(str(error)) if isinstance(error, ArgumentError) else str(error)))
