"""Fixes of other people's bugs: each repairs one thing, and has a probe that finds it broken."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fix:
    """A repair, and a probe that tells whether the thing is broken."""

    name: str
    broken: Callable[[], bool]
    apply: Callable[[], Any]


@dataclass(frozen=True)
class Fixes:
    """The fixes of one package, in the order in which they were registered."""

    all: list[Fix] = field(default_factory=list)
    applied: set[str] = field(default_factory=set)

    def of(self, broken: Callable[[], bool]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Register the decorated function as the fix of what `broken` probes for."""

        def register(function: Callable[[], Any]) -> Callable[[], Any]:
            self.all.append(Fix(function.__name__, broken, function))
            return function

        return register

    def apply(self) -> None:
        """Apply every fix that is not applied yet."""
        for fix in self.all:
            if fix.name not in self.applied:
                self.applied.add(fix.name)
                fix.apply()
