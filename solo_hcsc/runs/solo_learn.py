"""A whole run in a folder that the scripts of solo-learn 1.0.6 read: its config and its checkpoint."""

import inspect
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule

from solo_hcsc.encoders.checkpoints import Checkpoint
from solo_hcsc.encoders.export import Exported
from solo_hcsc.encoders.hydra_settings import nested_flags
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.names import TIMM
from solo_hcsc.encoders.recorded import EXPORTED
from solo_hcsc.encoders.twins import OURS, THEIRS
from solo_hcsc.errors import UserError
from solo_hcsc.methods.names import METHODS
from solo_hcsc.runs.methods import method_in
from solo_hcsc.solo102.method import HCSC
from solo_hcsc.solo_version import HYDRA

RECORD = "args.json"
# What a checkpoint has besides the weights that says where training was; optimisers differ between the versions.
_KEPT = ("epoch", "global_step", "pytorch-lightning_version", "loops", "hcsc_options", "health")
_COMMANDS = Path(__file__).with_name("solo_learn.txt")  # that read the folder


@dataclass(frozen=True)
class ExportedRun:
    """What goes into the folder, and the checkpoint with the commands that read it."""

    record: str  # the text of args.json
    name: str  # of the checkpoint
    checkpoint: Exported


def export_run(encoder: Encoder, checkpoint: Checkpoint) -> ExportedRun:
    """Write one of our runs as one of solo-learn 1.0.6; refuse what that has not.

    Args:
        encoder: its encoder.
        checkpoint: its checkpoint, of which method, projector and tree are read.
    """
    flags = checkpoint.recorded
    _check(checkpoint.path, flags, encoder.name)
    model = method_in(checkpoint)
    name = f"{flags['method']}.ckpt"  # without the = of our own names, which Hydra's command line would want quoted
    commands = (
        _COMMANDS.read_text(encoding="utf-8")
        .rstrip()
        .format(
            dataset=flags["dataset"].replace("digits", "custom"),
            encoder=encoder.name,
            method=flags["method"],
            file=name,
        )
    )
    content = io.BytesIO()
    torch.save(_checkpoint(model, checkpoint.content), content)
    record = json.dumps(_record(model, flags), indent=2) + "\n"
    return ExportedRun(record, name, Exported(content.getvalue(), commands, "bash"))


def _check(path: Path, flags: Mapping[str, Any], encoder: str) -> None:
    if "solo_learn" in flags:
        raise UserError(f"`format` solo-learn: {path} is of solo-learn {HYDRA} already; give its scripts that run")
    if path.suffix == EXPORTED or "dataset" not in flags:
        raise UserError(f"`format` solo-learn: {path} has no args.json of a pretraining run beside it")
    if encoder.startswith(TIMM):
        raise UserError(f"`format` solo-learn: solo-learn {HYDRA} has no {encoder}; take timm or onnx")
    if flags.get("method") not in METHODS:
        raise UserError(f"`format` solo-learn: solo-learn {HYDRA} has no method {flags.get('method')}; take another")


def _record(model: LightningModule, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config, with HCSC's options as they were resolved."""
    own = [name for name in inspect.signature(type(model).__init__).parameters if name in flags]
    if not isinstance(model, HCSC):
        return nested_flags(flags, own)
    options = model.options.as_dict()
    projector = [name for name in own if name.startswith("proj_")]
    return nested_flags({**flags, **options, "hcsc_options": options}, [*projector, *options])


def _checkpoint(model: LightningModule, saved: Mapping[str, Any]) -> dict[str, Any]:
    state = {_their_name(name): value for name, value in model.state_dict().items()}
    images = {"hcsc_images": model.num_images} if isinstance(model, HCSC) else {}
    return {name: saved[name] for name in _KEPT if name in saved} | images | {"state_dict": state}


def _their_name(name: str) -> str:
    for ours in (OURS, f"momentum_{OURS}"):
        if name.startswith(ours):
            return ours.replace(OURS, THEIRS) + name.removeprefix(ours)
    return name
