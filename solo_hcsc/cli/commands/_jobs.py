"""Calls of a job's function through its command, where the function still is one; no command itself."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from solo_hcsc.cli.commands import pretrain
from solo_hcsc.cli.flags import check_labelled
from solo_hcsc.settings import Settings, take
from solo_hcsc.study.job import words
from solo_hcsc.training.settings import Wandb, check_wandb


def settle(function: str, settings: Mapping[str, Any]) -> Settings:
    """Return all settings of a function; refuse wrong ones."""
    flags: Settings = import_module(f"solo_hcsc.cli.commands.{function}").parse(_typed(function, settings))
    if function == "pretrain":
        check_labelled(flags)
        pretrain.check_flags(flags)
        check_wandb(take(Wandb, flags))
    return flags


def call(function: str, settings: Mapping[str, Any]) -> None:
    """Do what the command does."""
    import_module(f"solo_hcsc.cli.commands.{function}").run(_typed(function, settings))


def check_images(flags: Settings, images: int) -> None:
    """Refuse settings of pretraining that do not suit so many images."""
    pretrain.check_images(flags, images)


def _typed(function: str, settings: Mapping[str, Any]) -> list[str]:
    if function != "fewlabels":
        return words(settings)
    others = {name: value for name, value in settings.items() if name != "pretrained_feature_extractor"}
    return [str(settings["pretrained_feature_extractor"]), *words(others)]
