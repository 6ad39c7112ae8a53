"""The configs for the checkout, and that they and the bash files come from one source."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tiny import ROOT

CONFIGS = ROOT / "solo_hcsc" / "solo106" / "configs"
PRETRAIN, LINEAR = CONFIGS / "pretrain", CONFIGS / "linear"


def composed(file: Path, *overrides: str) -> dict[str, Any]:
    """The config as Hydra composes it, with our shared groups on its search path."""
    with initialize_config_dir(str(file.parent), version_base="1.2"):
        shared = f"hydra.searchpath=[file://{CONFIGS / 'shared'}]"
        config = OmegaConf.to_container(compose(file.stem, [shared, *overrides]))
    assert isinstance(config, dict)
    return config


def test_scripts_and_configs_are_written_from_one_source():
    """`python scripts/write_experiments.py` after a change of scripts/experiments.yaml."""
    spec = spec_from_file_location("write_experiments", ROOT / "scripts" / "write_experiments.py")
    writer = module_from_spec(spec)
    spec.loader.exec_module(writer)
    written = dict(writer.files())
    assert [str(path) for path, text in written.items() if (ROOT / path).read_text() != text] == []
    configs = {path for path in written if path.suffix == ".yaml"}
    assert configs == {path.relative_to(ROOT) for path in CONFIGS.rglob("*.yaml")}


def test_configs_are_there_for_every_data_set():
    pretraining = {(file.parent.name, file.stem) for file in PRETRAIN.rglob("*.yaml")}
    folders = ("cifar", "imagenet-100", "imagenet")
    both = {(folder, name) for folder in folders for name in ("hcsc", "hcsc_multicrop")}
    assert pretraining == both | {("custom", "hcsc")}
    linear = {(file.parent.name, file.stem) for file in LINEAR.rglob("*.yaml")}
    of_the_paper = {(folder, name) for folder in folders[1:] for name in ("hcsc", "hcsc_adco", "hcsc_moco")}
    assert linear == of_the_paper | {("cifar", "hcsc"), ("custom", "hcsc")}


def test_config_has_the_flags_of_its_script():
    config = composed(PRETRAIN / "imagenet" / "hcsc_multicrop.yaml")
    assert config["method_kwargs"]["num_prototypes"] == [3000, 2000, 1000]
    assert config["optimizer"] == {
        "name": "sgd",
        "batch_size": 32,
        "lr": 0.03,
        "classifier_lr": 0.3,
        "weight_decay": 1e-4,
    }
    assert [entry["crop_size"] for entry in config["augmentations"]] == [224, 192, 160, 128, 96]
    assert [entry["num_crops"] for entry in config["augmentations"]] == [2, 1, 1, 1, 1]
    adco = composed(LINEAR / "imagenet" / "hcsc_adco.yaml")
    assert (adco["optimizer"]["lr"], adco["scheduler"]["name"], adco["max_epochs"]) == (10.0, "warmup_cosine", 100)


def test_groups_are_chosen_as_in_solo_learns_own_files():
    file = PRETRAIN / "cifar" / "hcsc.yaml"
    config = composed(file, "augmentations=hcsc_32_multicrop", "wandb=private", "++wandb.offline=True")
    assert [entry["crop_size"] for entry in config["augmentations"]] == [32, 18]
    assert (config["wandb"]["enabled"], config["wandb"]["offline"]) == (True, True)
