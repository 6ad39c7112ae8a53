"""Read checkpoints; nothing in them is executed."""

import math
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from solo_hcsc.encoders.recorded import EXPORTED, RunFiles, find_run, written_at
from solo_hcsc.encoders.twins import without_twins
from solo_hcsc.errors import UserError, on_one_line

# What torch.load raises on broken files, as files with flipped bytes show.
_LOADING_ERRORS = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    BadZipFile,
    OSError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    SafetensorError,
)
# What solo-learn 1.0.6 saves beside the weights of SimSiam and NNSiam: the scheduler that keeps one learning rate as it
# is, with all that it refers to.
_OF_SCHEDULERS = frozenset(
    "functools.partial builtins.getattr builtins.dict collections.defaultdict solo.methods.base.static_lr"
    " solo.utils.lr_scheduler.LinearWarmupCosineAnnealingLR torch.optim.lr_scheduler.MultiStepLR"
    " torch.optim.sgd.SGD torch.optim.adam.Adam torch.optim.adamw.AdamW solo.utils.lars.LARS".split()
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's file, read once, with what its run recorded."""

    path: Path
    recorded: Mapping[str, Any]  # its run's settings; empty for foreign weights
    content: dict[str, Any]

    @cached_property
    def weights(self) -> dict[str, Any]:
        """Return the named weights."""
        return weights_in(self.content, self.path)


def open_checkpoint(files: RunFiles) -> Checkpoint:
    """Read the checkpoint of a run that got furthest, without the state of its optimisers."""
    path = furthest(files)
    content = {name: value for name, value in load_checkpoint(path).items() if name != "optimizer_states"}
    return Checkpoint(path, files.settings, content)


def furthest(files: RunFiles) -> Path:
    """Return the checkpoint of a run that got furthest."""
    return files.checkpoints[0] if len(files.checkpoints) == 1 else max(files.checkpoints, key=steps_and_time)


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint itself, or the furthest one of the newest run below a folder, but for evaluations' runs."""
    return furthest(find_run(path))


def steps_and_time(path: Path) -> tuple[float, float]:
    """Sort key: step, then modification time; the greatest is the checkpoint that got furthest.

    A file's time alone is not enough, since clocks are set back. The weights are not read. A file that is no checkpoint
    comes last of all, so that it is named and not passed over.
    """
    try:
        content = _content(path, mmap=True)
    except _LOADING_ERRORS:
        return math.inf, written_at(path)
    steps = content.get("global_step") if isinstance(content, dict) else None
    return float(steps) if isinstance(steps, int) else -1.0, written_at(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint's contents, on the CPU."""
    if not path.is_file():
        raise UserError(f"{path}: {'a folder; give a file' if path.is_dir() else 'there is no such checkpoint'}")
    if path.suffix == ".json":
        raise UserError(f"{path}: a record, not a checkpoint; give the checkpoint beside it, or their folder")
    try:
        if path.suffix == EXPORTED:
            return dict(load_file(path))
        checkpoint = _content(path)
    except _LOADING_ERRORS as error:
        raise UserError(f"{path}: {_refusal(error)}") from error
    if not isinstance(checkpoint, dict):
        raise UserError(f"{path}: not a checkpoint of a training run (it has no state_dict)")
    return checkpoint


class _Placeholder:
    """Stands for a scheduler or what it refers to: takes anything, keeps nothing, does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Keep nothing."""

    def __setstate__(self, state: Any) -> None:
        """Restore nothing."""


def _empty(*args: Any) -> dict[Any, Any]:
    """Stand for a dictionary, into which torch puts its items."""
    return {}


def _content(path: Path, mmap: bool = False) -> Any:
    """Read a file without running anything in it; put placeholders where a scheduler was."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError:
        named = _named_code(path)
        if not named or not named <= _OF_SCHEDULERS:
            raise
        stand_ins: list[Any] = [(_empty if name.endswith("dict") else _Placeholder, name) for name in named]
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def _named_code(path: Path) -> set[str]:
    """Return the functions and classes in a file that torch does not know to be harmless; none if it cannot tell."""
    try:
        return set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except _LOADING_ERRORS:
        return set()


def weights_in(checkpoint: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the named weights of a checkpoint, or of a file that has nothing else."""
    inner = checkpoint.get("state_dict", checkpoint.get("model", checkpoint))
    if not isinstance(inner, dict) or not any(isinstance(value, torch.Tensor) for value in inner.values()):
        raise UserError(f"{path}: not a checkpoint of a training run (it has no state_dict)")
    for name, value in inner.items():
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not _is_stored(value):
            raise UserError(
                f"{path}: {on_one_line(name)} has shape {tuple(value.shape)}, and fewer numbers than that are in the "
                "file (an expanded tensor); save it with .contiguous()"
            )
    return without_twins({str(key): value for key, value in inner.items()})


def _is_stored(value: torch.Tensor) -> bool:
    """Return whether all numbers of a tensor are in its file: looking at the others may take hours."""
    return value.device.type == "meta" or value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _refusal(error: Exception) -> str:
    """Explain torch's message, which advises to load the file regardless."""
    message = str(error).strip()
    code = re.search(r"GLOBAL (\S+)", message)
    if code or "TorchScript" in message:
        what = code.group(1) if code else "a TorchScript program"
        return f"refused, because it carries code or Python objects ({what}) that loading would run; keep tensors only"
    if isinstance(error, pickle.UnpicklingError):
        return "not a readable checkpoint: not in torch's format"
    reason = on_one_line(message.splitlines()[0]) if message else type(error).__name__
    return f"not a readable checkpoint: {reason[:150]}"


def finished_epochs(checkpoint: dict[str, Any]) -> int | None:
    """Return how many epochs a checkpoint has finished; None if it does not tell."""
    try:
        return int(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])
    except (LookupError, TypeError, ValueError):
        return None
