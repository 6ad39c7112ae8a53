"""What long work tells while it runs: nothing in a library; a command line sets a `Reporter` that shows it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class Reporter:
    """Hears what long work tells; this one keeps it to itself.

    Example:
        >>> class Loud(Reporter):
        ...     def say(self, line):
        ...         print(line)
        >>> listen(Loud())
        >>> say("10 images")
        10 images
        >>> listen(Reporter())
    """

    def say(self, line: str) -> None:
        """Take a line about what is being done."""

    def note(self, line: str) -> None:
        """Take a line about what is understood or done otherwise than it reads."""

    def watch(self, batches: Iterable[Any], images: int, title: str) -> Iterator[Any]:
        """Pass batches on, whose last item has a row for each image; show how many of all `images` are done."""
        yield from batches


_reporter = Reporter()


def listen(reporter: Reporter) -> None:
    """Send what long work tells to a reporter from now on."""
    global _reporter
    _reporter = reporter


@contextmanager
def unheard() -> Iterator[None]:
    """Keep what is told in a block to oneself."""
    before = _reporter
    listen(Reporter())
    try:
        yield
    finally:
        listen(before)


def say(line: str) -> None:
    """Tell a line about what is being done."""
    _reporter.say(line)


def note(line: str) -> None:
    """Tell that something is understood or done otherwise than it reads."""
    _reporter.note(line)


def watch(batches: Iterable[Any], images: int, title: str) -> Iterator[Any]:
    """Pass batches of images on and tell how far that is."""
    yield from _reporter.watch(batches, images, title)
