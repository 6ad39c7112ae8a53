"""The configs for the checkout say what our bash files say, value by value."""

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tiny import ROOT

from solo_hcsc.commands.pretrain import parse

CONFIGS = ROOT / "solo_hcsc" / "checkout" / "configs"
SCRIPTS = ROOT / "scripts" / "pretrain"
NAMES = sorted(str(file.relative_to(SCRIPTS).with_suffix("")) for file in SCRIPTS.rglob("hcsc*.sh"))
OPTIONS = ("preset", "num_prototypes", "queue_size", "temperature", "proto_warmup_epochs", "local_selection")
FOLDERS = {"cifar": ["cifar10"], "custom": ["./datasets", "train"]}  # the arguments of a script


def flags_of(script: Path) -> list[str]:
    """The flags that a bash file gives to pretraining, with its arguments filled in."""
    text = re.split(r"\n(?:solo-hcsc|\S+ -m solo_hcsc) pretrain ", script.read_text())[1]
    for number, argument in enumerate(FOLDERS.get(script.parent.name, []), start=1):
        text = text.replace(f"${number}", argument)
    return [word for word in text.replace("\\\n", " ").replace('"', "").split() if not word.startswith("$")]


def as_config(words: list[str]) -> dict[str, Any]:
    """What the flags are in a config of solo-learn 1.0.6."""
    flags = parse(words)
    typed = {name: getattr(flags, name) for name in OPTIONS if name in flags.typed}
    devices = [int(number) for number in str(flags.gpus or 0).split(",")]
    of_folders = flags.dataset not in ("cifar10", "cifar100")
    config = {
        "name": flags.name,
        "method": flags.method,
        "backbone": {"name": flags.encoder},
        "method_kwargs": {"proj_output_dim": flags.proj_output_dim, **typed},
        "momentum": {
            "base_tau": flags.base_tau_momentum,
            "final_tau": flags.final_tau_momentum,
            "classifier": flags.momentum_classifier,
        },
        "data": {
            "dataset": flags.dataset,
            "train_path": f"./{flags.data_dir / flags.train_dir if of_folders else flags.data_dir}",
            "val_path": f"./{flags.data_dir / (flags.val_dir or '') if of_folders else flags.data_dir}",
            "format": "dali" if flags.dali else "image_folder",
            "num_workers": flags.num_workers,
        },
        "augmentations": augmentations(flags),
        "optimizer": {
            "name": flags.optimizer,
            "batch_size": flags.batch_size,
            "lr": flags.lr,
            "classifier_lr": flags.classifier_lr,
            "weight_decay": flags.weight_decay,
        },
        # 1.0.2's cosine is a warm-up of no epochs, one step an epoch.
        "scheduler": {"name": "warmup_cosine", "warmup_epochs": 0, "interval": "epoch"},
        "checkpoint": {"enabled": True, "dir": str(flags.checkpoint_dir), "frequency": flags.checkpoint_frequency},
        "auto_resume": {"enabled": flags.auto_resume},
        "wandb": {"enabled": flags.wandb, "entity": flags.entity, "project": flags.project, "offline": flags.offline},
        "seed": flags.seed,
        "max_epochs": flags.max_epochs,
        "devices": devices,
        "sync_batchnorm": flags.sync_batchnorm,
        "accelerator": "gpu" if flags.gpus else "auto",
        "strategy": "ddp" if len(devices) > 1 else "auto",
        "precision": "16-mixed" if flags.precision == "16" else "32-true",
    }
    assert flags.scheduler == "cosine"
    if flags.val_dir is None and of_folders:
        config["data"]["val_path"] = None
    return config | ({"dali": {"device": "gpu", "encode_indexes_into_labels": True}} if flags.dali else {})


def augmentations(flags: Any) -> list[dict[str, Any]]:
    """One entry for each pipeline; equal ones are one."""
    count = len(flags.num_crops_per_aug)

    def at(name: str, number: int) -> Any:
        values = getattr(flags, name)
        return values[0] if len(values) == 1 else values[number]

    entries: list[dict[str, Any]] = []
    for number in range(count):
        entry = {
            "rrc": {
                "enabled": True,
                "crop_min_scale": at("min_scale", number),
                "crop_max_scale": at("max_scale", number),
            },
            "color_jitter": {
                "prob": at("color_jitter_prob", number),
                **{name: at(name, number) for name in ("brightness", "contrast", "saturation", "hue")},
            },
            "grayscale": {"prob": at("gray_scale_prob", number)},
            "gaussian_blur": {"prob": at("gaussian_prob", number)},
            "solarization": {"prob": at("solarization_prob", number)},
            "equalization": {"prob": 0.0},
            "horizontal_flip": {"prob": at("horizontal_flip_prob", number)},
            "crop_size": at("crop_size", number),
            "num_crops": flags.num_crops_per_aug[number],
        }
        if flags.dataset == "custom":
            entry |= {"mean": flags.mean, "std": flags.std}
        alike = entries and entries[-1] | {"num_crops": 0} == entry | {"num_crops": 0}
        if alike:
            entries[-1]["num_crops"] += entry["num_crops"]
        else:
            entries.append(entry)
    return entries


@pytest.mark.parametrize("name", NAMES)
def test_config_and_bash_file_agree(name):
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml"))
    assert isinstance(config, dict)
    hydra = {"defaults", "hydra"}
    assert {key: value for key, value in config.items() if key not in hydra} == as_config(
        flags_of(SCRIPTS / f"{name}.sh")
    )


def test_every_config_has_its_bash_file():
    assert sorted(str(file.relative_to(CONFIGS).with_suffix("")) for file in CONFIGS.rglob("*.yaml")) == NAMES
    assert {name for name in NAMES if "custom" not in name} == {
        f"{folder}/{name}" for folder in ("cifar", "imagenet-100", "imagenet") for name in ("hcsc", "hcsc_multicrop")
    }
