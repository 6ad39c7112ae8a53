"""Refuse arguments of a wrong type in a line that names them, told by a function's annotations."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from solo_hcsc.errors import ArgumentError, UserError

Function = TypeVar("Function", bound=Callable[..., Any])
_NOUNS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    PathLike: "a path",
    Mapping: "a mapping",
}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "names", str | PathLike[str]: "paths"}
_NUMBERS: dict[Any, Any] = {int: Integral, float: Real}


def typed(function: Function) -> Function:
    """Make a function raise `ArgumentError` for an argument that is not of its annotated type.

    Numbers of NumPy count as numbers, arrays and ranges as several. What is annotated in a way that is not known here,
    such as `Any`, may be anything.

    Example:
        >>> @typed
        ... def cut(k: int | None = None, levels: Sequence[int] = ()) -> None: ...
        >>> cut(3, levels=range(2))
        >>> cut("3")
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: `k` is '3': give a whole number
        >>> cut(levels=3)
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: `levels` is 3: give several whole numbers
    """
    signature = inspect.signature(function)
    kinds = {
        name: one.annotation
        for name, one in signature.parameters.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) and one.annotation is not one.empty
    }

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # which Python says better
            return function(*args, **kwargs)
        for name, value in given.items():
            if name in kinds and not _fits(value, kinds[name]):
                shown = repr(value) if isinstance(value, str | Real | list | tuple) else type(value).__name__
                raise ArgumentError(f"`{name}` is {shown[:60]}: give {_noun(kinds[name])}")
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


@contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Have errors of a block name arguments as its caller knows them: `renamed(data_dir="train")`.

    Example:
        >>> with renamed(data_dir="train"):
        ...     raise ArgumentError("`data_dir` x: no such folder")
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: `train` x: no such folder
    """
    try:
        yield
    except UserError as error:
        text = str(error)
        for name, new in names.items():
            text = text.replace(f"`{name}`", f"`{new}`")
        error.args = (text,)
        raise


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated type, as far as that is known here."""
    return any(_is_of(value, one) for one in _alternatives(kind))


def _is_of(value: Any, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Sequence:
        return (
            isinstance(value, Collection)
            and not isinstance(value, str | bytes | Mapping)
            and all(_fits(one, get_args(kind)[0]) for one in value)
        )
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin is not None:  # what it holds is not looked at
        return not isinstance(origin, type) or isinstance(value, origin)
    if kind in (Any, bool) or not isinstance(kind, type):  # anything is true or false
        return True
    return isinstance(value, _NUMBERS.get(kind, kind))


def _noun(kind: Any) -> str:
    """Name a type as a user would."""
    kinds = [get_origin(one) or one for one in _alternatives(kind)]
    wider: dict[Any, set[Any]] = {str: {Path, PathLike}, int: {float}, NoneType: {*kinds}}
    found = []
    for one, origin in zip(_alternatives(kind), kinds, strict=True):
        if origin is Sequence:
            found.append(f"several {_SEVERAL.get(get_args(one)[0], 'values')}")
        elif origin is Literal:
            found.append(f"one of {', '.join(get_args(one))}")
        elif not wider.get(origin, set()) & {*kinds}:
            found.append(_NOUNS.get(origin, f"`{getattr(origin, '__name__', origin)}`"))
    return " or ".join(dict.fromkeys(found))
