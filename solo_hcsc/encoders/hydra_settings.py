"""The args.json of solo-learn 1.0.6, which is its nested config, as the flags of 1.0.2 that mean the same, and back."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.encoders.names import TIMM
from solo_hcsc.solo_version import HYDRA

# Its encoders that neither solo-learn 1.0.2 nor timm has. timm's own PoolFormer takes the weights and gives other
# features: it pools before its last norm.
WITHOUT_EQUAL = ("poolformer_", "wide_resnet28w")
_TRANSFORMERS = ("vit_tiny", "vit_small", "vit_base", "vit_large")
_OWN_TRANSFORMERS = ("mocov3", "mae")  # methods that build them with 12 heads where others have 3 or 6
_HEADS = {"vit_tiny": 12, "vit_small": 12}
_STARTS = ("pretrained", "weights", "progress")  # settings of an encoder that a checkpoint's weights make void
_IN_FOLDERS = ("custom", "imagenet", "imagenet100")
_COLOURS = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}  # of a pipeline that names none
_SMALL = ("cifar10", "cifar100")  # whose ResNets have another stem

# Where a flag stands in the config.
_PLACES = {
    "data": {
        "dataset": "dataset",
        "no_labels": "no_labels",
        "num_classes": "num_classes",
        "num_large_crops": "num_large_crops",
        "num_small_crops": "num_small_crops",
        "num_workers": "num_workers",
    },
    "momentum": {
        "base_tau_momentum": "base_tau",
        "final_tau_momentum": "final_tau",
        "momentum_classifier": "classifier",
    },
    "optimizer": {
        "optimizer": "name",
        "batch_size": "batch_size",
        "lr": "lr",
        "classifier_lr": "classifier_lr",
        "weight_decay": "weight_decay",
        "extra_optimizer_args": "kwargs",
    },
    "scheduler": {
        "scheduler": "name",
        "warmup_epochs": "warmup_epochs",
        "warmup_start_lr": "warmup_start_lr",
        "min_lr": "min_lr",
        "lr_decay_steps": "lr_decay_steps",
    },
    "knn_eval": {"knn_eval": "enabled", "knn_k": "k"},
}
# Where a flag stands in each of the config's augmentation pipelines; the flag has a list of them.
_IN_PIPELINES = {
    "crop_size": ("crop_size",),
    "num_crops_per_aug": ("num_crops",),
    "min_scale": ("rrc", "crop_min_scale"),
    "max_scale": ("rrc", "crop_max_scale"),
    "color_jitter_prob": ("color_jitter", "prob"),
    "brightness": ("color_jitter", "brightness"),
    "contrast": ("color_jitter", "contrast"),
    "saturation": ("color_jitter", "saturation"),
    "hue": ("color_jitter", "hue"),
    "gray_scale_prob": ("grayscale", "prob"),
    "gaussian_prob": ("gaussian_blur", "prob"),
    "solarization_prob": ("solarization", "prob"),
    "horizontal_flip_prob": ("horizontal_flip", "prob"),
}
_AT_THE_TOP = ("name", "method", "max_epochs", "seed", "precision", "accumulate_grad_batches", "hcsc_options")


def is_nested(record: Mapping[str, Any]) -> bool:
    """Return whether an args.json is of solo-learn 1.0.6."""
    return isinstance(_part(record, "backbone").get("name"), str)


def flat_flags(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that mean what a config says; what the config does not have is left out.

    Args:
        record: a config as solo-learn 1.0.6 writes it to args.json.

    Returns:
        Settings as our own runs record them, and `solo_learn`, the version.

    Example:
        >>> flat_flags({"backbone": {"name": "resnet18"}, "data": {"dataset": "cifar10"}, "method": "byol"})["encoder"]
        'resnet18'
    """
    flags = {name: value for name, value in record.items() if not _is_config(value)}
    if "hcsc_options" in record:
        flags["hcsc_options"] = record["hcsc_options"]
    flags |= _part(record, "method_kwargs")
    for part, names in _PLACES.items():
        there = _part(record, part)
        flags |= {flag: there[name] for flag, name in names.items() if name in there}
    flags |= _optimisation(_part(record, "optimizer"))
    flags |= _folders(_part(record, "data"))
    flags |= _augmentations(record.get("augmentations"))
    method = str(record.get("method") or record.get("pretrain_method"))
    flags["encoder"], flags["backbone_args"] = _encoder(method, record["backbone"], flags.get("dataset"))
    return flags | {"solo_learn": HYDRA}


def nested_flags(flags: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Return a run's settings as a config of solo-learn 1.0.6, from which its scripts build the method.

    Args:
        flags: the flags that one of our runs recorded.
        own: names of those that are the method's own.
    """
    record: dict[str, Any] = {name: flags[name] for name in _AT_THE_TOP if name in flags}
    record["method_kwargs"] = {name: flags[name] for name in own if name in flags}
    for part, names in _PLACES.items():
        record[part] = {name: flags[flag] for flag, name in names.items() if flag in flags}
    record["backbone"] = {"name": flags["encoder"], "kwargs": _backbone_kwargs(flags)}
    record["data"] |= _paths(flags)
    lars = {"name": "lars"} if flags.get("lars") else {}
    record["optimizer"] |= {"exclude_bias_n_norm_wd": False, **lars}
    if flags.get("scheduler") == "cosine":  # which it has as this one
        record["scheduler"] |= {"name": "warmup_cosine", "warmup_epochs": 0}
    record["scheduler"]["interval"] = "step"
    record["knn_eval"]["distance_func"] = "euclidean"
    record["augmentations"] = _pipelines(flags)
    return record


def _encoder(method: str, backbone: Mapping[str, Any], dataset: Any) -> tuple[str, dict[str, Any]]:
    """Return the encoder of the same features by our names, and its settings."""
    name, given = backbone["name"], backbone.get("kwargs")
    settings = {key: value for key, value in given.items() if key not in _STARTS} if isinstance(given, dict) else {}
    if name in _TRANSFORMERS and method.lower() in _OWN_TRANSFORMERS:
        heads = {"num_heads": _HEADS[name]} if name in _HEADS else {}
        return f"{TIMM}{name}_patch16_224", heads | settings
    if name.startswith("convnext_"):
        return f"{TIMM}{name}", settings
    return name, settings | ({"cifar": dataset in _SMALL} if name.startswith("resnet") else {})


def _backbone_kwargs(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what builds an encoder of solo-learn 1.0.2 there; the data set decides the stem of its ResNets."""
    kwargs = {name: value for name, value in flags["backbone_args"].items() if name != "cifar" and value is not False}
    if flags["encoder"].startswith("swin") and flags["backbone_args"].get("cifar"):
        kwargs["window_size"] = 4
    return kwargs


def _folders(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return its two paths as a folder and two below it; of data that torchvision downloads, the folder alone."""
    train, val = (data.get(name) for name in ("train_path", "val_path"))
    fraction = data.get("fraction")
    found: dict[str, Any] = {"data_fraction": fraction} if isinstance(fraction, float) and fraction > 0 else {}
    if not isinstance(train, str):
        return found
    if data.get("dataset") not in _IN_FOLDERS:
        return found | {"data_dir": train}
    found |= {"data_dir": str(Path(train).parent), "train_dir": Path(train).name}
    return found | ({"val_dir": os.path.relpath(val, Path(train).parent)} if isinstance(val, str) else {})


def _paths(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data set's name there, and its two paths."""
    dataset, folder = flags["dataset"], Path(flags["data_dir"])
    train, val = (flags.get(name) for name in ("train_dir", "val_dir"))
    return {
        "dataset": "custom" if dataset == "digits" else dataset,
        "train_path": str(folder / (train or Path(dataset, "train"))),
        "val_path": None if val is None and dataset in _IN_FOLDERS else str(folder / (val or Path(dataset, "val"))),
        "format": "image_folder",
        "fraction": flags["data_fraction"] if flags.get("data_fraction", 1) < 1 else -1,
    }


def _optimisation(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return LARS, which wraps SGD here."""
    kwargs = _part(optimizer, "kwargs")
    lars = optimizer.get("name") == "lars"
    flags = {"lars": lars, "exclude_bias_n_norm": bool(kwargs.get("exclude_bias_n_norm", False))}
    return flags | ({"optimizer": "sgd", "eta_lars": kwargs.get("eta", 1e-3)} if lars else {})


def _augmentations(pipelines: Any) -> dict[str, Any]:
    """Return the settings of the pipelines, and the colours of the first one."""
    if not isinstance(pipelines, Sequence) or not pipelines or not all(isinstance(one, Mapping) for one in pipelines):
        return {}
    flags = {flag: [_at(one, place) for one in pipelines] for flag, place in _IN_PIPELINES.items()}
    known = {flag: values for flag, values in flags.items() if None not in values}
    return known | {name: pipelines[0].get(name) or colours for name, colours in _COLOURS.items()}


def _pipelines(flags: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Build a pipeline for each size of crops; a setting with one value holds for all."""
    found = []
    for number in range(len(flags["num_crops_per_aug"])):
        pipeline: dict[str, Any] = {name: flags[name] for name in _COLOURS if name in flags}
        pipeline |= {"rrc": {"enabled": True}, "equalization": {"prob": 0.0}}
        for flag, place in _IN_PIPELINES.items():
            if flag in flags:
                below = pipeline.setdefault(place[0], {}) if len(place) > 1 else pipeline
                below[place[-1]] = flags[flag][min(number, len(flags[flag]) - 1)]
        found.append(pipeline)
    return found


def _at(pipeline: Mapping[str, Any], place: Sequence[str]) -> Any:
    found: Any = pipeline
    for name in place:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _part(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _is_config(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))
