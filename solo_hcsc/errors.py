"""How a command ends when its user asked for something that cannot be done."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn


class UserError(Exception):
    """One line that names what is wrong and what to do about it."""


class LocalError(UserError):
    """A UserError that one of several processes meets alone: that one prints it, whichever it is."""


def command(run: Callable[[Sequence[str]], None]) -> Callable[[], None]:
    """Makes a console entry point of `run(argv)`: a UserError becomes one line on stderr and exit code 2."""

    @functools.wraps(run)
    def main() -> None:
        try:
            run(sys.argv[1:])
        except UserError as error:
            stop(str(error), 2, local=isinstance(error, LocalError))
        except KeyboardInterrupt:
            stop("interrupted", 130)

    return main


def stop(message: str, code: int, local: bool = False) -> NoReturn:
    if local or is_main_process():
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def note(message: str) -> None:
    """Tells the user that a flag was understood otherwise than it reads."""
    if is_main_process():
        print(f"note: {message}", file=sys.stderr)


def is_main_process() -> bool:
    """Whether this is the first process on the first node, before torch.distributed knows."""
    ranks = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
    return all(os.environ.get(rank, "0") == "0" for rank in ranks)
