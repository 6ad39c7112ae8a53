"""What long work tells while it runs: nothing in a library; a command line sets a `Reporter` that shows it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from solo_hcsc import launch


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

    moves = False  # whether progress is shown by what moves on a line, such as a bar

    def say(self, line: str) -> None:
        """Take a line about what is being done."""

    def note(self, line: str) -> None:
        """Take a line about what is understood or done otherwise than it reads."""

    def epoch(self, line: str) -> None:
        """Take a line about an epoch that has ended."""

    def last_words(self, line: str) -> None:
        """Take the line on which this process ends at once, since another one that it needs was lost."""
        launch.last_words(line)

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


def moves() -> bool:
    """Return whether progress is shown by what moves on a line, such as a bar."""
    return _reporter.moves


def say(line: str) -> None:
    """Tell a line about what is being done."""
    _reporter.say(line)


def note(line: str) -> None:
    """Tell that something is understood or done otherwise than it reads."""
    _reporter.note(line)


def epoch(line: str) -> None:
    """Tell how an epoch went."""
    _reporter.epoch(line)


def last_words(line: str) -> None:
    """Tell why this process ends at once."""
    _reporter.last_words(line)


def watch(batches: Iterable[Any], images: int, title: str) -> Iterator[Any]:
    """Pass batches of images on and tell how far that is."""
    yield from _reporter.watch(batches, images, title)
