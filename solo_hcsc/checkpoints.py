"""Reading checkpoints, and taking the encoder out of one."""

import json
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch import nn

from solo_hcsc.errors import UserError, on_one_line

_SUFFIXES = (".ckpt", ".pth", ".pt")
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
)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint itself, or the newest one below a folder."""
    if path.is_dir():
        found = [file for suffix in _SUFFIXES for file in path.rglob(f"*{suffix}") if file.is_file()]
        if not found:
            raise UserError(f"{path}: no checkpoint ({', '.join(_SUFFIXES)}) in this folder")
        return max(found, key=lambda file: file.stat().st_mtime)
    if not path.exists():
        raise UserError(f"{path}: there is no such checkpoint")
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's contents, on the CPU; nothing in it is executed."""
    if not path.is_file():
        raise UserError(f"{path}: {'a folder; give a file' if path.is_dir() else 'there is no such checkpoint'}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except _LOADING_ERRORS as error:
        raise UserError(f"{path}: {_refusal(error)}") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(f"{path}: not a checkpoint of a training run (it has no state_dict)")
    return checkpoint


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


def recorded_args(checkpoint: Path) -> dict[str, Any]:
    """The arguments that the run wrote beside its checkpoint; empty if there are none."""
    file = checkpoint.parent / "args.json"
    if not file.is_file():
        return {}
    try:
        args = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file}: not readable as JSON ({error}); restore or remove it") from error
    return args if isinstance(args, dict) else {}


def load_encoder(path: Path, name: str | None, crop_size: int) -> tuple[nn.Module, str, str]:
    """The encoder of any method's checkpoint, its architecture, and a line that says what was taken and what not.

    `name` may be left out where the run's args.json is beside the checkpoint. Every weight of the encoder must
    be there: one that stayed random would pass for a trained one.
    """
    from solo.methods.base import BaseMethod

    from solo_hcsc.compat.fix import bare_method

    prefix = "encoder."
    state = load_checkpoint(path)["state_dict"]
    weights = {k.removeprefix(prefix): v for k, v in state.items() if str(k).startswith(prefix)}
    if not weights:
        raise UserError(f"{path}: no weight named encoder.*; not a pretraining checkpoint")
    unusable = [key for key, value in weights.items() if not _is_plain(value)]
    if unusable:
        raise UserError(f"{path}: no plain tensor for {_some(unusable)} of the encoder; not a pretraining checkpoint")
    unusable = [key for key, value in weights.items() if not value.isfinite().all()]
    if unusable:
        raise UserError(
            f"{path}: NaN or infinite values in {_some(unusable)} of the encoder; take a checkpoint from before that"
        )

    recorded = recorded_args(path).get("encoder")
    if name and recorded and name != recorded:
        raise UserError(f"--encoder {name}: {path} was trained with {recorded}; leave the flag out")
    name = name or recorded
    if not name:
        raise UserError(f"{path} has no args.json beside it; say the architecture with --encoder")
    if name not in BaseMethod._SUPPORTED_ENCODERS:
        raise UserError(f"{path.parent / 'args.json'}: unknown encoder {name!r}; restore or remove this file")

    encoder = bare_method(BaseMethod, encoder=name, backbone_args=_backbone_args(name, weights, crop_size)).encoder
    own = encoder.state_dict()
    missing = [key for key in own if key not in weights]
    unexpected = [key for key in weights if key not in own]
    shapes = [key for key in own if key in weights and own[key].shape != weights[key].shape]
    if missing or unexpected or shapes:
        kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
        differences = "; ".join(f"{kind}: {_some(keys)}" for kind, keys in kinds.items() if keys)
        hint = "; --crop_size must be the one of pretraining" if "pos_embed" in shapes else ""
        raise UserError(f"{path}: does not fit {name}; {differences}{hint}")
    encoder.load_state_dict(weights)
    unused = Counter(str(key).partition(".")[0] for key in state if not str(key).startswith(prefix))
    others = f" (not used: {', '.join(f'{part} {n}' for part, n in unused.most_common())})" if unused else ""
    return encoder, name, f"encoder: {len(weights)} weights of {name} taken from {path}{others}"


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_complex() or value.is_quantized)
    )


def _some(keys: list[str]) -> str:
    """`119 weights (conv1.weight, bn1.weight, bn1.bias, ...)`."""
    examples = ", ".join([*keys[:3], "..."] if len(keys) > 3 else keys)
    return f"{len(keys)} weight{'s' * (len(keys) > 1)} ({examples})"


def _backbone_args(name: str, weights: dict[str, Any], crop_size: int) -> dict[str, Any]:
    """The constructor's settings, read off the weights where they show."""
    if "resnet" in name:
        stem = weights.get("conv1.weight")
        return {"cifar": stem is not None and stem.ndim == 4 and stem.shape[-1] == 3}
    settings: dict[str, Any] = {"cifar": False, "img_size": crop_size}
    patches = weights.get("patch_embed.proj.weight")
    if "vit" in name and patches is not None and patches.ndim == 4 and patches.numel():
        settings["patch_size"] = patches.shape[-1]
    if "swin" in name:
        tables = [v for k, v in weights.items() if k.endswith("relative_position_bias_table")]
        # A window of side w has (2w - 1)^2 relative positions; 4 is the framework's choice for CIFAR.
        settings["cifar"] = bool(tables) and tables[0].shape[:1] == (49,)
    return settings
