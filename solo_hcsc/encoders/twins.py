"""The encoder's weights under a second name, by which solo-learn 1.0.6 knows them.

Its `main_linear.py` takes what lies below `backbone.`, and says nothing where there is no such weight: it would
evaluate a random encoder. Both names mean one tensor, so a file is hardly larger for them.
"""

import copy
from collections.abc import Mapping
from typing import Any

OURS, THEIRS = "encoder.", "backbone."


def with_twins(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a state dict with a second name for each weight of the encoder.

    Example:
        >>> sorted(with_twins({"encoder.conv1.weight": 1, "projector.0.bias": 2}))
        ['backbone.conv1.weight', 'encoder.conv1.weight', 'projector.0.bias']
    """
    both = copy.copy(state)  # with what torch notes of modules' versions, as an attribute
    both.update({_twin(name): value for name, value in state.items() if str(name).startswith(OURS)})
    return both


def without_twins(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a state dict without the encoder's second names.

    Example:
        >>> sorted(without_twins({"encoder.conv1.weight": 1, "backbone.conv1.weight": 1, "backbone.fc": 2}))
        ['backbone.fc', 'encoder.conv1.weight']
    """
    once = copy.copy(state)
    for name in _twins_in(state):
        del once[name]
    return once


def _twins_in(state: Mapping[str, Any]) -> list[str]:
    return [_twin(name) for name in state if str(name).startswith(OURS) and _twin(name) in state]


def _twin(name: str) -> str:
    return THEIRS + name.removeprefix(OURS)
