"""A folder as the Hugging Face hub keeps a model of timm: config.json, model.safetensors and a card; needs no torch."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.encoders.names import NOT_TAKEN, TIMM
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.files import read_json

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
_REPOSITORY = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def is_hub_folder(folder: Path) -> bool:
    """Return whether a folder has a configuration and weights under the hub's names."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()


def config_text(
    architecture: str,
    settings: Mapping[str, Any],
    num_features: int,
    crop_size: int,
    resize: int | list[int],
    mean: Sequence[float],
    std: Sequence[float],
) -> str:
    """Write config.json as timm reads it: it builds the same model, and shows it images in the same way.

    Args:
        architecture: the model's name in timm.
        settings: further arguments of `timm.create_model`.
        num_features: size of a feature vector.
        crop_size: side of the images in pixels.
        resize: new size of the shorter side before the crop, or of both.
        mean: of each colour.
        std: of each colour.
    """
    whole = isinstance(resize, list)
    # timm resizes to floor(crop_size / crop_pct); the half pixel keeps rounding errors away from the next number.
    share = 1.0 if isinstance(resize, list) else crop_size / (resize + 0.5)
    config = {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": num_features,
        "model_args": dict(settings),
        "pretrained_cfg": {
            "input_size": [3, crop_size, crop_size],
            "interpolation": "bilinear",
            "crop_pct": share,
            "crop_mode": "squash" if whole else "center",
            "mean": list(mean),
            "std": list(std),
            "num_classes": 0,
        },
    }
    return json.dumps(config, indent=2) + "\n"


def settings_in(config: Path) -> dict[str, Any]:
    """Return what a config.json of timm tells of its encoder, under the names of args.json."""
    content = read_json(config)
    known = content if isinstance(content, dict) else {}
    architecture, arguments = known.get("architecture"), known.get("model_args", {})
    trained = known.get("pretrained_cfg", known)  # older repositories have all in one
    if not (isinstance(architecture, str) and isinstance(arguments, dict) and isinstance(trained, dict)):
        raise UserError(f"{config}: not the configuration of a model of timm: names no `architecture`")
    settings = {name: value for name, value in arguments.items() if name not in NOT_TAKEN}
    found: dict[str, Any] = {"encoder": f"{TIMM}{architecture}", "backbone_args": settings}
    if isinstance(size := trained.get("input_size"), list):
        found |= {"crop_size": size[-1:]}
    return found | {name: trained[name] for name in ("mean", "std") if name in trained}


def fetch(repository: str) -> Path:
    """Return the folder of the hub's cache that has a repository's model, which is downloaded once.

    Args:
        repository: `USER/NAME`, or `USER/NAME@REVISION`.
    """
    from huggingface_hub import snapshot_download  # takes a moment, and most work does without

    asked = _REPOSITORY.fullmatch(repository)
    if asked is None:
        raise ArgumentError(f"`source` {repository}: there is no such folder; a repository of the hub is USER/NAME")
    try:
        found = snapshot_download(asked["repository"], revision=asked["revision"], allow_patterns=[CONFIG, WEIGHTS])
    except Exception as error:  # of the hub's client, of the network below it, or of a broken cache
        reason = on_one_line((str(error).strip() or type(error).__name__).splitlines()[0])[:150]
        raise UserError(f"`source` {repository}: cannot be fetched from the hub ({reason})") from error
    if not is_hub_folder(folder := Path(found)):
        raise UserError(f"`source` {repository}: has no {CONFIG} and {WEIGHTS}, which a model of timm has there")
    return folder
