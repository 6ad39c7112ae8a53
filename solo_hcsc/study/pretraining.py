"""Pretraining as a job: its settings are checked for a study, where each run is evaluated on labels."""

from collections.abc import Mapping
from typing import Any

from solo_hcsc.errors import ArgumentError
from solo_hcsc.progress import say
from solo_hcsc.settings import Settings, take
from solo_hcsc.training.loggers import Logging, check_logging
from solo_hcsc.training.pretraining import check, pretrain_as, settled
from solo_hcsc.training.request import check_early, completed


def settle(_: str, given: Mapping[str, Any]) -> Settings:
    """Return all settings; refuse wrong ones."""
    settings = completed(settled(given))
    if settings.no_labels:
        raise ArgumentError("`no_labels`: an evaluation needs labels; leave it out")
    check_early(settings)
    check(settings)
    check_logging(take(Logging, settings))
    return settings


def call(_: str, given: Mapping[str, Any]) -> None:
    """Train, and tell what stands against the run."""
    for text in pretrain_as(settled(given)).warnings:
        say(f"warning: {text}")
