"""How a command ends when its user asked for something that cannot be done."""

import errno
import os
import re
import sys
from typing import NoReturn


class UserError(Exception):
    """One line that names what is wrong and what to do about it."""

    alone = False  # whether one of several processes may raise it while the others go on

    def __init__(self, message: str) -> None:
        # From a loader's worker only the traceback comes back, as the message of a new exception: its last line is
        # `module.Class: message`.
        if message.startswith("Caught ") and "\nOriginal Traceback" in message:
            message = message.strip().splitlines()[-1].partition(": ")[2]
        super().__init__(message)


def on_one_line(text: object) -> str:
    """Return text for a message or a list: as it is, or with escapes where it has line breaks or invalid Unicode."""
    text = str(text)
    return text if text.isprintable() else repr(text)[1:-1]


UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.ELOOP)  # what no other error of a path is like: nothing can be there


def told_path(error: OSError, path: object = None) -> str:
    """Return the line for an error of `UNUSABLE_PATH`; the path is that of the error if not given."""
    shown = on_one_line(error.filename if path is None else path)
    shown = shown if len(shown) <= 100 else f"{shown[:50]}...{shown[-40:]}"
    reason = "a link that leads back to itself" if error.errno == errno.ELOOP else "this path is too long"
    return f"{shown}: {reason}; give another one"


def in_flags(text: str) -> str:
    """Rewrite the library's text, which names its arguments as `name`, with the flags --name of the command line."""
    return re.sub(r"`(\w+)`", r"--\1", text)


def stop(message: str, code: int, alone: bool = False) -> NoReturn:
    """End this process with one line on stderr, which only the main process prints unless it is `alone`."""
    if alone or is_main_process():
        print(f"error: {' '.join(line.strip() for line in message.splitlines())}", file=sys.stderr)
    sys.exit(code)


def refuse(message: str, alone: bool = False) -> NoReturn:
    """End with `stop` and the exit code for a mistake in what was asked for."""
    # Lightning kills the main process as soon as one that it started ends with another code than 0.
    stop(message, 0 if started_by_lightning() else 2, alone)


def note(message: str) -> None:
    """Tell the user that something is done otherwise than it reads."""
    if is_main_process():
        print(f"note: {message}", file=sys.stderr)


def is_main_process() -> bool:
    """Return whether this is the first process on the first node, before torch.distributed knows."""
    if "RANK" in os.environ:  # torchrun's, which may count otherwise than the SLURM job it runs in
        return os.environ["RANK"] == "0"
    return all(os.environ.get(rank, "0") == "0" for rank in ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def started_by_lightning() -> bool:
    """Return whether Lightning started this process for another one, as it does where torchrun and SLURM do not."""
    return os.environ.get("LOCAL_RANK", "0") != "0" and not {"RANK", "SLURM_PROCID"} & os.environ.keys()
