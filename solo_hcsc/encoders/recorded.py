"""Find a run's checkpoints and read its args.json, without torch: a wrong path is told before that is imported."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from solo_hcsc.encoders.at_hand import known_weights
from solo_hcsc.encoders.hub import CONFIG, WEIGHTS, is_hub_folder, settings_in
from solo_hcsc.encoders.hydra_settings import flat_flags, is_nested
from solo_hcsc.encoders.names import TIMM
from solo_hcsc.errors import UserError
from solo_hcsc.files import read_json

_SUFFIXES = (".ckpt", ".pth", ".pt", ".pth.tar")
_PICTURES = tuple(".jpg .jpeg .png .gif .webp .bmp .tif .tiff .avif .jp2 .ico .ppm .pgm".split())
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


@dataclass(frozen=True)
class RunFiles:
    """The checkpoints of a run, and its args.json: found once, read once."""

    checkpoints: tuple[Path, ...]  # of one folder; `timm/NAME` for weights that timm has
    settings: Mapping[str, Any]  # as our own runs record them; empty for foreign weights

    @property
    def folder(self) -> Path:
        return self.checkpoints[0].parent

    @property
    def is_timm(self) -> bool:
        """Return whether these are weights that timm has."""
        return is_timm(self.checkpoints[0])

    @property
    def is_evaluation(self) -> bool:
        """Return whether it is the run of an evaluation, whose checkpoint may have no encoder."""
        return role_of(self.settings) == EVALUATION


def find_run(path: str | Path) -> RunFiles:
    """Find the newest run below a folder, but for evaluations' runs; or take the checkpoint that is given."""
    path = Path(path)
    if is_timm(path):
        return RunFiles((path,), {})
    if not path.is_dir():
        if not path.exists():
            raise UserError(
                f"{path}: there is no such checkpoint; give a run's folder, its .ckpt file, a file of weights, or "
                f"{TIMM}NAME for those of timm"
            )
        return RunFiles((path,), recorded_flags(path))
    if is_hub_folder(path):
        return RunFiles((path / WEIGHTS,), recorded_flags(path / WEIGHTS))
    files = checkpoints_in(path)
    passed_over = set()
    for newest in sorted(files, key=written_at, reverse=True):
        if newest.parent not in passed_over:
            beside = tuple(file for file in files if file.parent == newest.parent)
            found = RunFiles(beside, recorded_flags(newest))
            if not found.is_evaluation:
                return found
            passed_over.add(newest.parent)
    raise UserError(f"{path}: no checkpoint ({', '.join(_SUFFIXES)}) in this folder; {_instead(path)}")


def is_timm(path: str | Path) -> bool:
    """Return whether this is `timm/NAME`, and no path of a file or folder."""
    return str(path).startswith(TIMM) and not Path(path).exists()


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the files below a folder that are called like checkpoints."""
    return [file for file in folder.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file()]


def newest_checkpoints(path: Path) -> list[Path]:
    """Return the checkpoint itself, or those of the newest run below a folder, but for evaluations' runs."""
    return list(find_run(path).checkpoints)


def _instead(folder: Path) -> str:
    """Say what to give for a folder without a checkpoint, which a folder of images is a common case of."""
    if looks_like_images(folder):
        return f"it has images: give the folder of a run here, and the images as `data_dir` {folder}"
    return "give a run's folder, such as trained_models/hcsc/ID, or a file of weights"


def looks_like_images(folder: Path) -> bool:
    """Return whether some of the first files below a folder are called like images."""
    return any(file.suffix.lower() in _PICTURES for file in _first_files(folder))


def _first_files(folder: Path, most: int = 1000) -> list[Path]:
    """Return some of the files in a folder and in the folders below it, without a walk through millions."""
    return [file for _, file in zip(range(most), folder.rglob("*.*"), strict=False)]


def flags_of_run(path: Path) -> dict[str, Any]:
    """Return the flags of the run that a checkpoint is of, or of the newest run below a folder."""
    return dict(find_run(path).settings)


def written_at(path: Path) -> float:
    """Return a file's modification time."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # a run that still lives has just replaced it
        return 0.0


def recorded_flags(checkpoint: Path) -> dict[str, Any]:
    """Return the args.json that the run wrote beside its checkpoint, or what an exported file tells.

    Of other weights it is what is known of these very bytes; empty for most. The args.json of solo-learn 1.0.6, which
    is nested, is read as the flags that mean the same.
    """
    if checkpoint.suffix == EXPORTED:
        config = checkpoint.with_name(CONFIG)
        of_hub = checkpoint.name == WEIGHTS and config.is_file()
        return _exported(checkpoint) or (settings_in(config) if of_hub else {})
    file = checkpoint.parent / "args.json"
    flags = read_json(file) if file.is_file() else known_weights(checkpoint)
    if not isinstance(flags, dict):
        return {}
    return flat_flags(flags) if is_nested(flags) else flags


def _exported(file: Path) -> dict[str, Any]:
    """Return what it takes to use the encoder of an exported file."""
    try:
        with safe_open(file, "np") as content:
            known = content.metadata() or {}
        return {name: json.loads(known[name]) for name in _KNOWN if name in known}
    except RecursionError as error:
        raise UserError(f"{file}: not a readable checkpoint: its metadata are nested too deeply") from error
    except (SafetensorError, OSError, ValueError):  # `load_checkpoint` says so
        return {}


def role_of(flags: Mapping[str, Any]) -> str:
    """Return what the run of an args.json is; solo-learn's own has no role, and a classifier's names its encoder."""
    return flags.get("role") or (EVALUATION if "pretrained_feature_extractor" in flags else PRETRAINING)
