"""Settings as values that nothing changes: rows that declare them, and `settle`, which checks what a caller gives."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from typing import Any, NoReturn, TypeVar

from solo_hcsc.errors import ArgumentError

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


def at_least(lowest: float) -> Bound:
    return Bound(lambda value: value >= lowest, f"must be at least {lowest}")


def at_most(highest: float) -> Bound:
    return Bound(lambda value: value <= highest, f"must be at most {highest}")


def below(limit: int) -> Bound:
    return Bound(lambda value: 0 <= value < limit, f"must be from 0 to {limit - 1}")


ONE = at_least(1)


def yes_or_no(text: str) -> bool:
    """Parse `true`, `yes`, `1` and their opposites."""
    answer = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in answer:
        raise ArgumentError(f"{text!r} is neither true nor false")
    return answer[text.lower()]


def count_or_share(text: str) -> int | float:
    """Parse `10` batches, or `0.1` of them."""
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise ArgumentError(f"{text!r} is not a number") from None


_LONGEST = 64  # characters of choices that stand beside their flag
HIDDEN = ""  # the help of a setting that no help shows


@dataclass(frozen=True)
class Setting:
    """A setting: a keyword argument of the library and a flag of the command line.

    Args:
        name: what it is called.
        kind: `int`, `float`, `str` or `Path`; `bool` for a switch; `yes_or_no` for a switch that may be followed by its
            value; a tuple of choices; or a function that parses a text and raises `ArgumentError`.
        default: its value where none is given; a list if it has several.
        bound: what its numbers may be.
        help: a line for the user; `HIDDEN` where no help shows the setting.
        several: whether it has several values though its default is no list.
    """

    name: str
    kind: Any = str
    default: Any = None
    bound: Bound | None = None
    help: str | None = None
    several: bool = False

    @property
    def is_list(self) -> bool:
        """Return whether the setting has several values."""
        return self.several or isinstance(self.default, list)

    def value(self, given: Any) -> Any:
        """Return a value of Python as the flag of the same name would have it; raise `ArgumentError`.

        Example:
            >>> Setting("size", int, [224], ONE).value(96), Setting("data_dir", Path).value("photos")
            ([96], PosixPath('photos'))
        """
        if isinstance(given, Mapping):
            given = [f"{name}={value}" for name, value in given.items()]
        several = list(given) if isinstance(given, Iterable) and not isinstance(given, str | PathLike) else [given]
        if not several or (len(several) > 1 and not self.is_list):
            raise ArgumentError(f"`{self.name}` {given!r}: give {'a value' if not several else 'one value'}")
        found = [self._one(value) for value in several]
        check_bound(self.name, found, self.bound)
        return found if self.is_list else found[0]

    def _one(self, value: Any) -> Any:
        if self.kind in (bool, yes_or_no):
            if value not in (True, False):
                raise ArgumentError(f"`{self.name}` {value!r}: must be True or False")
            return bool(value)
        text = fspath(value) if isinstance(value, PathLike) else str(value)
        if isinstance(self.kind, tuple):
            if text not in self.kind:
                raise ArgumentError(f"`{self.name}` {text}: choose from {_listed(self.kind)}")
            return text
        try:
            return self.kind(text)
        except ArgumentError as error:
            raise ArgumentError(f"`{self.name}`: {error}") from None
        except ValueError:
            raise ArgumentError(f"`{self.name}` {value!r}: must be {_NOUNS.get(self.kind, 'another value')}") from None


Groups = dict[str, tuple[Setting, ...]]  # by their titles


def changed(groups: Groups, changes: Mapping[str, Mapping[str, Any]]) -> Groups:
    """Return settings with changes of their rows, by the settings' names."""
    return {title: tuple(replace(row, **changes.get(row.name, {})) for row in rows) for title, rows in groups.items()}


_NOUNS: Mapping[Any, str] = {int: "a whole number", float: "a number"}


def check_bound(name: str, value: Any, bound: Bound | None) -> None:
    """Refuse a number, or one of several, that its bound does not allow."""
    for number in value if isinstance(value, Sequence) else [value]:
        if bound is None or not isinstance(number, int | float):
            continue
        if not (math.isfinite(number) and bound.allows(number)):
            shown = f"{number:g}" if isinstance(number, float) else number
            meaning = bound.meaning if math.isfinite(number) else f"{bound.meaning} and finite"
            raise ArgumentError(f"`{name}` {shown}: {meaning}")


def arguments(row: Setting) -> dict[str, Any]:
    """Return what argparse's `add_argument` takes of a setting beside the flag."""
    told: dict[str, Any] = {"default": row.default, "help": row.help}
    if row.kind is bool:
        return told | {"action": "store_true"}
    if row.kind is yes_or_no:
        told |= {"nargs": "?", "const": True}
    if row.is_list:
        told |= {"nargs": "+"}
    if not isinstance(row.kind, tuple):
        return told | {"type": row.kind}
    if len(choices := _listed(row.kind)) > _LONGEST and row.help != HIDDEN:  # which no help breaks into lines
        told |= {"metavar": "NAME", "help": f"{row.help}; one of {choices}"}
    return told | {"type": str, "choices": row.kind}


class Settings:
    """Settings as attributes that nothing changes.

    Args:
        given: names of those whose value is not their default.
        typed: names of those that a caller gave.
        **values: all settings by name.

    Example:
        >>> settings = Settings(typed=["lr"], lr=0.1, seed=5)
        >>> settings.lr, "seed" in settings, settings.but(seed=6).seed
        (0.1, True, 6)
    """

    given: frozenset[str]
    typed: frozenset[str]
    __slots__ = ("__dict__", "given", "typed")

    def __init__(self, given: Iterable[str] = (), typed: Iterable[str] = (), **values: Any) -> None:
        object.__setattr__(self, "given", frozenset(given))
        object.__setattr__(self, "typed", frozenset(typed))
        self.__dict__.update(values)

    def but(self, **values: Any) -> "Settings":
        """Return the same settings with some others, as if the caller had given these too."""
        return Settings(self.given | values.keys(), self.typed | values.keys(), **(vars(self) | values))

    def __contains__(self, name: str) -> bool:
        return name in vars(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __getattr__(self, name: str) -> Any:  # for type checkers: which names there are depends on the rows
        raise AttributeError(f"there is no setting `{name}`")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"`{name}` was given; make a value of its own instead of changing it")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)


def settle(rows: Iterable[Setting], given: Mapping[str, Any]) -> Settings:
    """Check settings that a caller gives by name, and fill in the defaults of the others.

    Args:
        rows: the settings that there are.
        given: some of them; None stands for the default.

    Raises:
        ArgumentError: for an unknown name, which is told with the nearest known one, and for a value of the wrong type,
            outside its bound or not among the choices.

    Example:
        >>> rows = Setting("lr", float, 0.3, POSITIVE), Setting("crop_size", int, [224], ONE)
        >>> settle(rows, {"crop_size": 96})
        Settings(lr=0.3, crop_size=[96])
    """
    known = {row.name: row for row in rows}
    for name in given:
        if name not in known:
            raise ArgumentError(f"unknown setting `{name}`: {nearest(name, known) or 'there is none like it'}")
    settled = {name: known[name].value(value) for name, value in given.items() if value is not None}
    values = {name: row.default for name, row in known.items()} | settled
    return Settings([name for name, row in known.items() if values[name] != row.default], settled, **values)


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `did you mean X?`, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {prefix}{near[0]}?" if near else ""


def take(kind: type[Kind], settings: Any, **others: Any) -> Kind:
    """Build a dataclass from the settings of the same names and from `others`; lists become tuples."""
    values = {
        item.name: others[item.name] if item.name in others else getattr(settings, item.name)
        for item in fields(kind)  # type: ignore[arg-type]
        if item.name in others or hasattr(settings, item.name)
    }
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def rows_of(kind: type, presets: Iterable[str]) -> tuple[Setting, ...]:
    """Return a row for each field of a dataclass of options, whose `metadata` has default, bounds, choices and help."""
    rows = [Setting("preset", str, "recommended", None, f"a set of the options below: {_listed(presets)}")]
    for item in fields(kind):
        if item.name == "preset":
            continue
        default, several = item.metadata["default"], isinstance(item.metadata["default"], tuple)
        own = int if several else yes_or_no if isinstance(default, bool) else type(default)
        shown = " ".join(map(str, default)) if several else default
        told = f"{item.metadata['help']} (recommended: {shown})"
        rows.append(Setting(item.name, item.metadata["choices"] or own, None, _bound(item.metadata), told, several))
    return tuple(rows)


def _bound(facts: Mapping[str, Any]) -> Bound | None:
    above, least = facts.get("above"), facts.get("least")
    if above is not None:
        return Bound(lambda value: value > above, f"must be greater than {above}")
    return None if least is None else NOT_NEGATIVE if least == 0 else at_least(least)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
