"""Settings of a method's class as rows, and all settings as solo-learn's classes take them: by its own setup."""

import copy
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from solo.args.utils import additional_setup_linear, additional_setup_pretrain

from solo_hcsc.data.source import FILES, ImageSource, class_folders
from solo_hcsc.devices import Devices
from solo_hcsc.encoders.make import key_values, timm_settings
from solo_hcsc.encoders.names import TIMM
from solo_hcsc.errors import UserError
from solo_hcsc.methods.settings import OWN
from solo_hcsc.progress import note
from solo_hcsc.settings import Setting, Settings, yes_or_no


def method_rows(method: type, shared: Iterable[Setting]) -> list[Setting]:
    """Return the settings that methods share, with a method's own defaults, and those that only its class declares."""
    parser = ArgumentParser(add_help=False, conflict_handler="resolve")
    method.add_model_specific_args(parser)  # type: ignore[attr-defined]
    rows = [replace(row, default=parser._defaults.get(row.name, row.default)) for row in shared]
    bounds, names = {row.name: row.bound for row in OWN}, {row.name for row in rows}
    for action in parser._actions:
        if action.dest not in names:
            kind = bool if action.nargs == 0 else yes_or_no if action.nargs == "?" else action.choices or action.type
            several = action.nargs in ("+", "*")
            rows.append(Setting(action.dest, kind or str, action.default, bounds.get(action.dest), None, several))
    return rows


def pretraining_settings(
    flags: Settings, source: ImageSource, devices: Devices, dali_device: str | None
) -> dict[str, Any]:
    """Return every setting with what `additional_setup_pretrain` adds: the learning rate of all devices, ..."""
    resolved = _resolved(flags, source, devices, dali_device)
    resolved.dataset = source.framework_name
    if len(resolved.min_scale) == 1:  # 1.0.2 does not count the pipelines that equalise
        resolved.min_scale = resolved.min_scale * len(resolved.num_crops_per_aug)
    additional_setup_pretrain(resolved)
    settings = vars(resolved) | {"dataset": source.dataset}
    if source.is_stored:
        settings["num_classes"] = 1  # counted when the images are opened
    if source.dataset in ("custom", "digits"):
        settings["num_classes"] = 1 if source.no_labels else len(class_folders(source.folder("train")))
    if flags.encoder.startswith(TIMM):
        settings["backbone_args"] = timm_settings(flags.encoder, key_values(flags.encoder_args), source.crop_size)
    return settings


def linear_settings(
    flags: Settings, source: ImageSource, devices: Devices, dali_device: str | None, encoder: str
) -> dict[str, Any]:
    """Return the same for a classifier on an encoder, whose classes are counted elsewhere."""
    resolved = _resolved(flags, source, devices, dali_device)
    resolved.dataset = "imagenet"  # any that it knows
    resolved.encoder = encoder
    additional_setup_linear(resolved)
    return vars(resolved) | {"dataset": source.dataset}


def for_framework(settings: dict[str, Any], source: ImageSource) -> dict[str, Any]:
    """Return the settings with the data set's name as solo-learn knows it."""
    return settings | {"dataset": source.framework_name}


def _resolved(flags: Settings, source: ImageSource, devices: Devices, dali_device: str | None) -> Namespace:
    values = vars(flags) | {
        **{name: getattr(source, name) for name in ("data_dir", "train_dir", "val_dir", "class_level")},
        **{name: list(getattr(source, name)) for name in ("crop_size", "mean", "std")},
        "accelerator": devices.accelerator,
        "gpus": list(devices.indexes),  # by whose length solo-learn scales the learning rate
        "devices": devices.devices,
        "strategy": devices.strategy,
        "precision": devices.precision,
        "sync_batchnorm": devices.sync_batchnorm,
        **({"optimizer": "sgd", "lars": True} if flags.optimizer == "lars" else {}),  # as 1.0.2 calls it
        "dali": dali_device is not None,
        "dali_device": dali_device or flags.dali_device,
    }
    return Namespace(**copy.deepcopy(values))


def resolve_dali(flags: Settings, dataset: str, accelerator: str) -> str | None:
    """Return where DALI works; None without `dali`, which is refused where it cannot work."""
    if not flags.dali:
        return None
    if dataset not in FILES:
        raise UserError(f"`dali` reads folders and lists of images, not `dataset` {dataset}; leave it out")
    try:
        import nvidia.dali  # noqa: F401  an optional package that takes seconds to import
    except ImportError:
        raise UserError(
            "`dali`: NVIDIA DALI is not installed; run: pip install 'solo_hcsc[dali]' "
            "(CUDA 12: 'solo_hcsc[dali-cuda120]')"
        ) from None
    if flags.dali_device not in ("cpu", "gpu"):
        raise UserError(f"`dali_device` {flags.dali_device}: choose cpu or gpu")
    if flags.dali_device == "gpu" and accelerator != "gpu":
        note("`dali_device` gpu needs a GPU; DALI works on the CPU")
        return "cpu"
    return flags.dali_device
