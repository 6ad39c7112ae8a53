"""Calls of a job's function through its command, where the function still is one; no command itself."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from solo_hcsc.settings import Settings
from solo_hcsc.study.job import words


def settle(function: str, settings: Mapping[str, Any]) -> Settings:
    """Return all settings of a function; refuse wrong ones."""
    flags: Settings = import_module(f"solo_hcsc.cli.commands.{function}").parse(_typed(function, settings))
    return flags


def call(function: str, settings: Mapping[str, Any]) -> None:
    """Do what the command does."""
    import_module(f"solo_hcsc.cli.commands.{function}").run(_typed(function, settings))


def _typed(function: str, settings: Mapping[str, Any]) -> list[str]:
    if function != "fewlabels":
        return words(settings)
    others = {name: value for name, value in settings.items() if name != "pretrained_feature_extractor"}
    return [str(settings["pretrained_feature_extractor"]), *words(others)]
