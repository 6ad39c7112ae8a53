"""Which weights look at which images, where a command may be given a run, weights, a saved tree, or images alone.

Needs no torch, so that wrong paths are refused before that is imported.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from solo_hcsc.data.source import check_folder
from solo_hcsc.encoders.at_hand import is_auto, weights_at_hand
from solo_hcsc.encoders.hub import is_hub_folder
from solo_hcsc.encoders.recorded import checkpoints_in, is_timm, looks_like_images
from solo_hcsc.errors import UserError
from solo_hcsc.files import read_json, write_whole
from solo_hcsc.progress import say
from solo_hcsc.settings import Settings

RECORD = "tree.json"  # in a saved tree's folder: of which images it is, and what embedded them
_PATHS = ("data_dir", "train_dir", "val_dir")
_RECORDED = (  # settings that embed images as they were for a saved tree
    *("encoder", "encoder_args", "features", "dataset", *_PATHS, "class_level", "image_backend", "no_labels"),
    *("skip_unreadable", "mean", "std", "crop_size", "split"),
)


def is_tree(folder: Path) -> bool:
    """Return whether a folder has a tree that the command `tree` wrote."""
    return (folder / RECORD).is_file()


def resolve(flags: Settings) -> Settings:
    """Return settings with weights and images, whatever `pretrained_feature_extractor` is.

    It may be a run, a file of weights, `timm/NAME`, a folder of images, one that the command `tree` wrote, or nothing
    beside `data_dir`. For images alone the best weights at hand are taken, and said, and images that cannot be read are
    left out. The result also has `saved`, the folder of a saved tree or None, and `as_typed`, the settings as given.
    """
    what, asked = flags.pretrained_feature_extractor, flags
    flags = _with(flags, saved=None, as_typed=flags)
    if what is not None and is_tree(what):
        record = _read_record(what)
        known = {name: value for name, value in record.items() if name not in asked.typed}
        known["pretrained_feature_extractor"] = Path(record["what"])
        return _with(flags.but(**{name: value for name, value in known.items() if name != "what"}), saved=what)
    names_images = bool(asked.typed & {"data_dir", "dataset", "train_dir"})
    if not names_images and what is not None and not is_auto(what) and is_images(what):
        flags, what = flags.but(data_dir=what), None
    elif not names_images and is_auto(what):
        raise UserError("give a folder of images, or what embeds them: a run, a file of weights or timm/NAME")
    if not is_auto(what):
        return flags
    alone = not flags.typed & {"dataset", "train_dir"}
    if alone:
        check_folder("data_dir", flags.data_dir)
    hand = weights_at_hand(flags.data_dir if alone else None)
    say(f"weights: {hand.what} ({hand.why})")
    own = hand.settings | ({"skip_unreadable": True} if alone else {})
    own = {name: value for name, value in own.items() if name not in flags.typed}
    return flags.but(pretrained_feature_extractor=hand.what, **own)


def record_tree(folder: Path, flags: Settings, facts: Mapping[str, Any]) -> None:
    """Write beside a saved tree which settings embed its images, and further facts."""
    what = flags.pretrained_feature_extractor
    kept: dict[str, Any] = {"what": str(what if is_timm(what) else what.resolve())}
    for name in _RECORDED:
        if name in flags.typed:
            value = getattr(flags, name)
            kept[name] = str(value.resolve() if name == "data_dir" else value) if name in _PATHS else value
    write_whole(folder / RECORD, json.dumps({"settings": kept, **facts}, indent=2) + "\n")


def _read_record(folder: Path) -> dict[str, Any]:
    """Return the settings that `record_tree` wrote."""
    record = read_json(folder / RECORD)
    settings = record.get("settings") if isinstance(record, dict) else None
    if not isinstance(settings, dict) or not isinstance(settings.get("what"), str):
        raise UserError(f"{folder / RECORD}: not what the command tree writes; build the tree again")
    return {name: Path(value) if name in _PATHS else value for name, value in settings.items()}


def is_images(folder: Path) -> bool:
    """Return whether this is a folder of images rather than of a run; refuse one that is neither or both."""
    if not folder.is_dir() or is_hub_folder(folder) or (folder / "args.json").is_file():
        return False
    checkpoints = checkpoints_in(folder)
    if any((file.parent / "args.json").is_file() for file in checkpoints):
        return False
    images = looks_like_images(folder)
    if images and checkpoints:
        raise UserError(
            f"{folder}: has images, and weights in {checkpoints[0].name}; give the images as `data_dir`, and the file "
            "itself if you mean these weights"
        )
    if not images and not checkpoints:
        raise UserError(f"{folder}: neither images nor a run is there; give a folder of images, or a run")
    return images


def _with(flags: Settings, **values: Any) -> Settings:
    """Return settings with further values that nobody typed."""
    return Settings(flags.given, flags.typed, **(vars(flags) | values))
