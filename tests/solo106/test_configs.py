"""The configs for the checkout say what our bash files say, value by value."""

import re
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tiny import ROOT

from solo_hcsc.cli.commands import linear
from solo_hcsc.cli.commands.pretrain import parse

CONFIGS = ROOT / "solo_hcsc" / "solo106" / "configs"
PRETRAIN, LINEAR = CONFIGS / "pretrain", CONFIGS / "linear"
SCRIPTS = ROOT / "scripts" / "pretrain"
NAMES = sorted(str(file.relative_to(SCRIPTS).with_suffix("")) for file in SCRIPTS.rglob("hcsc*.sh"))
PAPERS = {"hcsc": "pcl", "hcsc_adco": "adco", "hcsc_moco": "moco"}  # its three linear evaluations
OPTIONS = ("preset", "num_prototypes", "queue_size", "temperature", "proto_warmup_epochs", "local_selection")
ARGUMENTS = {  # of a script
    "pretrain": {"cifar": ["cifar10"], "custom": ["./datasets", "train"]},
    "linear": {"cifar": ["cifar10", "x"], "custom": ["./datasets", "train", "val", "x"]},
}


def flags_of(script: Path) -> list[str]:
    """The flags that a bash file gives to its command, with its arguments filled in."""
    text = re.split(r"\n(?:solo-hcsc|\S+ -m solo_hcsc) (?:pretrain|linear) ", script.read_text())[1]
    arguments = ARGUMENTS[script.parent.parent.name].get(script.parent.name, ["x"])
    for number, argument in enumerate(arguments, start=1):
        text = text.replace(f"${number}", argument)
    return [word for word in text.replace("\\\n", " ").replace('"', "").split() if not word.startswith("$")]


def as_config(words: list[str]) -> dict[str, Any]:
    """What the flags are in a config of solo-learn 1.0.6."""
    flags = parse(words)
    typed = {name: getattr(flags, name) for name in OPTIONS if name in flags.typed}
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
        "auto_resume": {"enabled": True},  # as in solo-learn's own files
        "wandb": {"enabled": flags.wandb, "entity": flags.entity, "project": flags.project, "offline": flags.offline},
        "seed": flags.seed,
        "max_epochs": flags.max_epochs,
        "sync_batchnorm": flags.sync_batchnorm,
        **trainer(flags),
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


def trainer(flags: Any) -> dict[str, Any]:
    devices = [int(number) for number in str(flags.gpus).split(",")] if flags.gpus else "1"
    return {
        "devices": devices,
        "accelerator": "gpu" if flags.gpus else "auto",
        "strategy": "ddp" if len(devices) > 1 else "auto",
        "precision": "16-mixed" if flags.precision == "16" else "32-true",
    }


def as_linear_config(words: list[str]) -> dict[str, Any]:
    """What the flags of a linear evaluation are in a config of solo-learn 1.0.6; without names and the encoder."""
    flags = linear.parse(words)
    of_folders = flags.dataset not in ("cifar10", "cifar100")
    step = {"name": "step", "lr_decay_steps": flags.lr_decay_steps}
    cosine = {"name": "warmup_cosine", "warmup_epochs": 0, "interval": "epoch"}
    return {
        "pretrained_feature_extractor": None,
        "pretrain_method": "hcsc",
        "data": {
            "dataset": flags.dataset,
            "train_path": f"./{flags.data_dir / flags.train_dir if of_folders else flags.data_dir}",
            "val_path": f"./{flags.data_dir / flags.val_dir if of_folders else flags.data_dir}",
            "format": "dali" if flags.dali else "image_folder",
            "num_workers": flags.num_workers,
        },
        "optimizer": {
            "name": flags.optimizer,
            "batch_size": flags.batch_size,
            "lr": flags.lr,
            "weight_decay": flags.weight_decay,
        },
        "scheduler": cosine if flags.scheduler == "cosine" else step,
        "checkpoint": {"enabled": True, "dir": str(flags.checkpoint_dir), "frequency": flags.checkpoint_frequency},
        "auto_resume": {"enabled": True},
        "wandb": {"enabled": flags.wandb, "entity": flags.entity, "project": flags.project, "offline": flags.offline},
        "max_epochs": flags.max_epochs,
        "sync_batchnorm": False,
        **trainer(flags),
    }


def composed(file: Path, *overrides: str) -> dict[str, Any]:
    """The config as Hydra composes it, with our shared groups on its search path."""
    with initialize_config_dir(str(file.parent), version_base="1.2"):
        shared = f"hydra.searchpath=[file://{CONFIGS / 'shared'}]"
        config = OmegaConf.to_container(compose(file.stem, [shared, *overrides]))
    assert isinstance(config, dict)
    return config


@pytest.mark.parametrize("name", NAMES)
def test_config_and_bash_file_agree(name):
    assert composed(PRETRAIN / f"{name}.yaml") == as_config(flags_of(SCRIPTS / f"{name}.sh"))


def test_every_config_has_its_bash_file():
    assert sorted(str(file.relative_to(PRETRAIN).with_suffix("")) for file in PRETRAIN.rglob("*.yaml")) == NAMES
    assert {name for name in NAMES if "custom" not in name} == {
        f"{folder}/{name}" for folder in ("cifar", "imagenet-100", "imagenet") for name in ("hcsc", "hcsc_multicrop")
    }


@pytest.mark.parametrize("file", sorted(LINEAR.rglob("*.yaml")), ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_linear_config_is_the_bash_file_in_one_of_the_papers_three_configurations(file):
    words = flags_of(ROOT / "scripts" / "linear" / file.parent.name / "linear.sh")
    if "--config" in words:
        words[words.index("--config") + 1] = PAPERS[file.stem]
    config = composed(file)
    assert config.pop("name")
    assert config.pop("backbone")
    assert config == as_linear_config(words)


def test_linear_configs_are_there_for_every_data_set():
    found = {(file.parent.name, file.stem) for file in LINEAR.rglob("*.yaml")}
    of_the_paper = {(folder, name) for folder in ("imagenet", "imagenet-100") for name in PAPERS}
    assert found == of_the_paper | {("cifar", "hcsc"), ("custom", "hcsc")}


def test_groups_are_chosen_as_in_solo_learns_own_files():
    file = PRETRAIN / "cifar" / "hcsc.yaml"
    config = composed(file, "augmentations=hcsc_32_multicrop", "wandb=private", "++wandb.offline=True")
    assert [entry["crop_size"] for entry in config["augmentations"]] == [32, 18]
    assert (config["wandb"]["enabled"], config["wandb"]["offline"]) == (True, True)
