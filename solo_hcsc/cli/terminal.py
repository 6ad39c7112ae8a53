"""What a command shows on a terminal: lines, notes, progress, and arguments as the flags that a user types."""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from solo_hcsc.cli.parser import FLAGS
from solo_hcsc.launch import is_main_process
from solo_hcsc.progress import Reporter
from solo_hcsc.tables import clock, pace


def in_flags(text: str) -> str:
    """Return the library's text, which names arguments as `name`, with the flags --name of the command line.

    Only names that are flags of a parser of this process are changed: other words in backticks are commands.
    """
    return re.sub(r"`(\w+)`", lambda found: f"--{found[1]}" if found[1] in FLAGS else found[0], text)


class Terminal(Reporter):
    """Prints lines to stdout, notes to stderr, and progress as a bar, or elsewhere as a line every half minute."""

    def __init__(self, every: float = 30.0) -> None:
        self.every = every

    def say(self, line: str) -> None:
        if is_main_process():
            print(in_flags(line), flush=True)

    def note(self, line: str) -> None:
        if is_main_process():
            print(f"note: {in_flags(line)}", file=sys.stderr)

    def watch(self, batches: Iterable[Any], images: int, title: str) -> Iterator[Any]:
        if not is_main_process():
            yield from batches
            return
        if sys.stderr.isatty():
            with tqdm(total=images, desc=title, unit="image", leave=False) as bar:
                for batch in batches:
                    yield batch
                    bar.update(len(batch[-1]))
            return
        done, started = 0, time.monotonic()
        said = started
        for batch in batches:
            yield batch
            done += len(batch[-1])
            now = time.monotonic()
            if now - said > self.every and done < images:
                said, left = now, (now - started) / done * (images - done)
                rate = pace(done / (now - started))
                print(f"{title}: {done} of {images} images, {rate}; {clock(left)} left", file=sys.stderr, flush=True)
