"""Settings of a run or an evaluation as values that nothing changes, and what a number among them may be."""

import argparse
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeVar

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Bound:
    """What a number may be."""

    allows: Callable[[float], bool]
    meaning: str


POSITIVE = Bound(lambda value: value > 0, "must be greater than 0")
NOT_NEGATIVE = Bound(lambda value: value >= 0, "must not be negative")
SHARE = Bound(lambda value: 0 <= value <= 1, "must be between 0 and 1")
POSITIVE_SHARE = Bound(lambda value: 0 < value <= 1, "must be above 0 and at most 1")


def at_least(lowest: int) -> Bound:
    return Bound(lambda value: value >= lowest, f"must be at least {lowest}")


def at_most(highest: float) -> Bound:
    return Bound(lambda value: value <= highest, f"must be at most {highest}")


def below(limit: int) -> Bound:
    return Bound(lambda value: 0 <= value < limit, f"must be from 0 to {limit - 1}")


class Settings(argparse.Namespace):
    """What was typed, which nothing changes later.

    `typed` names the flags that were, `given` those whose value is not their default.
    """

    __slots__ = ("given", "typed")
    given: frozenset[str]
    typed: frozenset[str]

    def __init__(self, given: Iterable[str] = (), typed: Iterable[str] = (), **values: Any) -> None:
        object.__setattr__(self, "given", frozenset(given))
        object.__setattr__(self, "typed", frozenset(typed))
        self.__dict__.update(values)

    def but(self, **values: Any) -> "Settings":
        """Return the same flags with some others, as if these had been typed too."""
        return Settings(self.given | values.keys(), self.typed | values.keys(), **(vars(self) | values))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"`{name}` was given; make a value of its own instead of changing it")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `did you mean X?`, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {prefix}{near[0]}?" if near else ""


def take(kind: type[Kind], flags: argparse.Namespace, **others: Any) -> Kind:
    """Build a settings dataclass from the flags of the same names and from `others`; lists become tuples."""
    values = {
        item.name: others[item.name] if item.name in others else getattr(flags, item.name)
        for item in fields(kind)  # type: ignore[arg-type]
        if item.name in others or hasattr(flags, item.name)
    }
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def yes_or_no(text: str) -> bool:
    answer = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in answer:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return answer[text.lower()]


def add_fields(group: Any, kind: type, presets: Iterable[str]) -> None:
    """Add a flag for each field of a dataclass of options, whose `metadata` has its default, choices and help."""
    group.add_argument("--preset", default="recommended", help=f"a set of the options below: {', '.join(presets)}")
    for item in fields(kind):
        if item.name == "preset":
            continue
        default = item.metadata["default"]
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        settings: dict[str, Any] = {"help": f"{item.metadata['help']} (recommended: {shown})", "default": None}
        if isinstance(default, tuple):
            settings |= {"type": int, "nargs": "+"}
        elif isinstance(default, bool):
            settings |= {"type": yes_or_no, "nargs": "?", "const": True}
        else:
            settings |= {"type": type(default)}
        if item.metadata["choices"]:
            settings["choices"] = item.metadata["choices"]
        group.add_argument(f"--{item.name}", **settings)
