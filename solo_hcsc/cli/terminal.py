"""What a command shows on a terminal: lines, notes, progress, and arguments as the flags that a user types."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from solo_hcsc.cli.parser import in_flags
from solo_hcsc.launch import is_main_process
from solo_hcsc.progress import Reporter
from solo_hcsc.tables import clock, pace


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

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return sys.stderr.isatty()

    def epoch(self, line: str) -> None:
        if is_main_process():
            print(line, file=sys.stderr, flush=True)

    def last_words(self, line: str) -> None:
        super().last_words(in_flags(line))

    def watch(self, batches: Iterable[Any], images: int, title: str) -> Iterator[Any]:
        if not is_main_process():
            yield from batches
            return
        if self.moves:
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
