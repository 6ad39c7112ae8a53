"""The flags are solo-learn's, apart from what a table here names, and every one is explained."""

from argparse import Action, ArgumentParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import solo.methods
from solo.args import dataset
from solo.methods.base import BaseMethod
from solo.utils.auto_resumer import AutoResumer
from solo.utils.checkpointer import Checkpointer
from tiny import run_here

from solo_hcsc.__main__ import known
from solo_hcsc.cli.devices import Devices, resolve_devices
from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.flags import DATASETS, ENCODERS, METHODS, encoder, method_names
from solo_hcsc.cli.parser import Parser
from solo_hcsc.commands.pretrain import build_parser, parse, resolve
from solo_hcsc.framework import LinearModel, load_methods

REQUIRED = ["--dataset", "custom"]


def parser_of(command: str, monkeypatch: pytest.MonkeyPatch) -> Parser:
    """The one that shows a command's help."""
    parsers: list[Parser] = []
    with monkeypatch.context() as patch:
        patch.setattr(Parser, "print_help", lambda self: parsers.append(self))
        with pytest.raises(SystemExit):
            run_here(command, "--help")
    (parser,) = parsers
    return parser


# ---- help ----


def unexplained(parser: Parser) -> list[list[str]]:
    return [action.option_strings or [action.dest] for action in parser._actions if not action.help]


@pytest.mark.parametrize("method", method_names())
def test_every_flag_of_a_method_is_explained(method):
    assert unexplained(build_parser(load_methods()[method])) == []


@pytest.mark.parametrize("command", known())
def test_every_flag_of_a_command_is_explained(command, monkeypatch):
    assert unexplained(parser_of(command, monkeypatch)) == []


def test_help_has_each_flag_of_a_method_in_a_group_whose_title_says_something():
    groups = build_parser(load_methods()["byol"])._action_groups
    titles = {action.dest: group.title for group in groups for action in group._group_actions}
    assert titles["momentum_classifier"] == titles["encoder"] == "encoder, optimiser and online evaluation"
    assert titles["pred_hidden_dim"] == "byol"
    assert "base" not in titles.values()


# ---- solo-learn's own parsers ----

OPTIONAL = {
    "dataset": {"choices": list(DATASETS), "required": False},  # with digits; told by the folder or the run
    "data_dir": {"required": False, "default": Path("datasets")},
    "optimizer": {"required": False, "default": "sgd", "choices": ["sgd", "lars", "adam"]},  # with 1.0.4's lars
    "project": {"default": "solo-learn"},
}
OF_EVALUATION = OPTIONAL | {
    "lr": {"default": None},  # chosen on held-out training images
    "encoder": {"type": encoder, "choices": None},
}
OF_PRETRAINING = OPTIONAL | {
    "brightness": {"required": False, "default": [0.4]},
    "contrast": {"required": False, "default": [0.4]},
    "saturation": {"required": False, "default": [0.4]},
    "hue": {"required": False, "default": [0.1]},
    "encoder": {"default": "resnet18", "type": encoder, "choices": None},  # with timm's
    "optimizer": {"required": False, "default": "sgd", "choices": ["sgd", "lars", "adam", "adamw"]},
    "scheduler": {"default": "warmup_cosine"},  # solo-learn's `reduce` raises in pretraining
}


def facts(action: Action) -> dict[str, Any]:
    """What decides how a flag is parsed."""
    return {
        "flags": action.option_strings,
        "action": type(action),
        "type": action.type or str,
        "nargs": action.nargs,
        "const": action.const,
        "default": action.default,
        "choices": action.choices and list(action.choices),
        "required": action.required,
    }


def flags_of(parser: ArgumentParser) -> dict[str, dict[str, Any]]:
    return {action.dest: facts(action) for action in parser._actions if action.dest != "help"}


def differences(ours: ArgumentParser, theirs: ArgumentParser) -> dict[str, dict[str, Any]]:
    """What ours has otherwise, by flag; a flag that ours lacks is an error."""
    found, expected = flags_of(ours), flags_of(theirs)
    assert expected.keys() - found.keys() == set(), "flags that are missing"
    changed = {
        name: {key: value for key, value in found[name].items() if value != expected[name][key]} for name in expected
    }
    return {name: changes for name, changes in changed.items() if changes}


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"hcsc"}))
def test_flags_of_pretraining_are_solo_learns(method):
    theirs = ArgumentParser()
    for add in (dataset.dataset_args, dataset.augmentations_args, dataset.custom_dataset_args):
        add(theirs)
    solo.methods.METHODS[method].add_model_specific_args(theirs)
    Checkpointer.add_checkpointer_args(theirs)
    AutoResumer.add_autoresumer_args(theirs)
    assert differences(build_parser(load_methods()[method]), theirs) == OF_PRETRAINING


def test_flags_of_linear_evaluation_are_solo_learns(monkeypatch):
    theirs = ArgumentParser()
    for add in (dataset.dataset_args, dataset.linear_augmentations_args, dataset.custom_dataset_args):
        add(theirs)
    LinearModel.add_model_specific_args(theirs)
    Checkpointer.add_checkpointer_args(theirs)
    assert differences(parser_of("linear", monkeypatch), theirs) == OF_EVALUATION


@pytest.mark.skipif(find_spec("umap") is None, reason="needs the extra umap")
def test_flags_of_umap_pictures_are_solo_learns():
    from solo.utils.auto_umap import AutoUMAP

    theirs = AutoUMAP.add_auto_umap_args(ArgumentParser())
    assert differences(build_parser(None), theirs) == {}


def test_methods_and_encoders_are_solo_learns():
    assert set(METHODS) == solo.methods.METHODS.keys() - {"base", "linear"}
    assert list(ENCODERS) == BaseMethod._SUPPORTED_ENCODERS


# ---- devices ----


def devices(*flags: str) -> Devices:
    return resolve_devices(parse([*REQUIRED, "--method", "mocov2plus", *flags]), gpus=8)


def test_solo_learns_gpus_are_indexes():
    found = devices("--gpus", "2,3", "--accelerator", "ddp", "--precision", "16")
    assert (found.accelerator, found.devices, found.indexes) == ("gpu", [2, 3], (2, 3))
    assert (found.strategy, found.precision) == ("ddp_find_unused_parameters_true", "16-mixed")
    assert devices("--gpus", "0").devices == [0]
    assert len(devices("--gpus", "-1").indexes) == 8
    with pytest.raises(UserError, match="the GPUs here are 0 to 7"):
        devices("--gpus", "8")


def test_lightning_2s_devices_are_a_number():
    assert devices("--devices", "3").devices == [0, 1, 2]
    assert devices("--devices", "1,5").devices == [1, 5]
    assert devices().devices == [0]
    assert devices("--accelerator", "cpu", "--devices", "2").devices == 2
    assert devices("--accelerator", "gpu", "--devices", "0").devices == [0]  # as solo-learn 1.0.4 has it: an index
    with pytest.raises(UserError, match="only 8 GPUs"):
        devices("--devices", "9")


def test_a_later_accelerator_cpu_overrides_a_scripts_gpus():
    found = devices("--gpus", "0,1", "--accelerator", "ddp", "--sync_batchnorm", "--accelerator", "cpu")
    assert (found.accelerator, found.devices, found.strategy) == ("cpu", 1, "auto")
    assert not found.sync_batchnorm


@pytest.mark.parametrize("indexes", ["0", "0,1"])
def test_a_later_accelerator_cpu_overrides_a_scripts_indexes_of_gpus(indexes):
    found = devices("--devices", indexes, "--accelerator", "gpu", "--strategy", "ddp", "--accelerator", "cpu")
    assert (found.accelerator, found.devices) == ("cpu", 1)


def test_learning_rate_grows_with_the_devices(images):
    flags = ["--data_dir", str(images), "--train_dir", "train", "--batch_size", "8", "--queue_size", "64", "--lr", "1"]
    flags += ["--method", "mocov2plus", "--accelerator", "cpu", "--devices", "2"]
    settings = resolve(parse([*REQUIRED, *flags])).settings
    assert settings["lr"] == pytest.approx(1 * 8 * 2 / 256)
    assert settings["num_classes"] == 3
