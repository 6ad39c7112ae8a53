"""Reading checkpoints, and what a run wrote beside them; nothing in them is executed."""

import json
import math
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from solo_hcsc.cli.errors import UserError, on_one_line
from solo_hcsc.cli.files import read_json
from solo_hcsc.cli.twins import without_twins
from solo_hcsc.training.hydra_flags import flat_flags, is_nested

_SUFFIXES = (".ckpt", ".pth", ".pt", ".pth.tar")
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
EXPORTED = ".safetensors"
_KNOWN = (
    "encoder",
    "backbone_args",
    "crop_size",
    "resize",
    "mean",
    "std",
    "method",
    "init_weights",
)  # to an exported file
PRETRAINING, EVALUATION = "pretraining", "evaluation"  # what a run is, in its args.json


def find_checkpoint(path: Path) -> Path:
    """The checkpoint itself, or the furthest one of the newest run below a folder, evaluations' own runs aside."""
    if path.is_dir():
        files = (file for suffix in _SUFFIXES for file in path.rglob(f"*{suffix}") if file.is_file())
        found = [file for file in files if role_of(recorded_flags(file)) != EVALUATION]
        if not found:
            raise UserError(f"{path}: no checkpoint ({', '.join(_SUFFIXES)}) in this folder")
        newest = max(found, key=_written).parent
        return max((file for file in found if file.parent == newest), key=progress)
    if not path.exists():
        raise UserError(f"{path}: there is no such checkpoint")
    return path


def progress(path: Path) -> tuple[float, float]:
    """By what of two checkpoints the one that got further is told: its steps, then when it was written.

    A file's time alone is not enough, since clocks are set back. The weights are not read. A file that is no checkpoint
    comes last of all, so that it is named and not passed over.
    """
    try:
        content = _content(path, mmap=True)
    except _LOADING_ERRORS:
        return math.inf, _written(path)
    steps = content.get("global_step") if isinstance(content, dict) else None
    return float(steps) if isinstance(steps, int) else -1.0, _written(path)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # a run that still lives has just replaced it
        return 0.0


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's contents, on the CPU."""
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
        """Nothing to keep."""

    def __setstate__(self, state: Any) -> None:
        """Nothing to restore."""


def _empty(*args: Any) -> dict[Any, Any]:
    """Stands for a dictionary, into which torch puts its items."""
    return {}


def _content(path: Path, mmap: bool = False) -> Any:
    """What torch reads without running anything; of a scheduler, placeholders."""
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
    """The functions and classes in a file that torch does not know to be harmless; empty where torch cannot tell."""
    try:
        return set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except _LOADING_ERRORS:
        return set()


def weights_in(checkpoint: dict[str, Any], path: Path) -> dict[str, Any]:
    """The named weights of a checkpoint, or of a file that has nothing else."""
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
    """Whether all numbers of a tensor are in its file: looking at the others may take hours."""
    return value.device.type == "meta" or value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def recorded_flags(checkpoint: Path) -> dict[str, Any]:
    """The args.json that the run wrote beside its checkpoint, or what our own export knows of it; empty for others.

    That of solo-learn 1.0.6, which is nested, is read as the flags that mean the same.
    """
    if checkpoint.suffix == EXPORTED:
        return _exported(checkpoint)
    file = checkpoint.parent / "args.json"
    flags = read_json(file) if file.is_file() else {}
    if not isinstance(flags, dict):
        return {}
    return flat_flags(flags) if is_nested(flags) else flags


def _exported(file: Path) -> dict[str, Any]:
    """What is needed to use the encoder of an exported file."""
    try:
        with safe_open(file, "pt") as content:
            known = content.metadata() or {}
        return {name: json.loads(known[name]) for name in _KNOWN if name in known}
    except RecursionError as error:
        raise UserError(f"{file}: not a readable checkpoint: its metadata are nested too deeply") from error
    except (SafetensorError, OSError, ValueError):  # `load_checkpoint` says so
        return {}


def role_of(flags: Mapping[str, Any]) -> str:
    """What the run of an args.json is; solo-learn's own has no role, and a classifier's names the encoder below it."""
    return flags.get("role") or (EVALUATION if "pretrained_feature_extractor" in flags else PRETRAINING)


def _refusal(error: Exception) -> str:
    """What torch's message means, which advises to load the file regardless."""
    message = str(error).strip()
    code = re.search(r"GLOBAL (\S+)", message)
    if code or "TorchScript" in message:
        what = code.group(1) if code else "a TorchScript program"
        return f"refused, because it carries code or Python objects ({what}) that loading would run; keep tensors only"
    if isinstance(error, pickle.UnpicklingError):
        return "not a readable checkpoint: not in torch's format"
    reason = on_one_line(message.splitlines()[0]) if message else type(error).__name__
    return f"not a readable checkpoint: {reason[:150]}"
