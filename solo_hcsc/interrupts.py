"""Ctrl-C ends a command wherever it comes.

Python raises KeyboardInterrupt wherever the main thread is. A finaliser swallows it, since no exception leaves one, and
C++ code may make another error of it.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_SOON = 0.02  # seconds, after which the finaliser is over


def raise_again_what_finalisers_swallow() -> None:
    """Raise what a finaliser swallows again, as soon as it is over, from here on."""
    if not isinstance(sys.unraisablehook, _RaisesAgain):
        sys.unraisablehook = _RaisesAgain(sys.unraisablehook)


@dataclass(frozen=True)
class _RaisesAgain:
    """A hook for exceptions that cannot be raised; `others` is the one for any but Ctrl-C."""

    others: Callable[[Any], Any]

    def __call__(self, lost: "sys.UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self.others(lost)
            return
        timer = threading.Timer(_SOON, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # Python is shutting down: there is nothing left to end
            timer.start()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Hold Ctrl-C back until the end of a block that must not be left in the middle, such as one that forks."""
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGINT)):
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is an error, or what it came of."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
