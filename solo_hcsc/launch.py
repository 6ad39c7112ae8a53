"""Which of several processes this is, before torch.distributed knows, and what the end of one looks like."""

import os
import sys

from solo_hcsc.errors import Ended, UserError


def last_words(message: str) -> None:
    """Write the line that a process ends with to stderr."""
    print(f"error: {' '.join(line.strip() for line in message.splitlines())}", file=sys.stderr, flush=True)


def end_of(error: UserError, message: str) -> int:
    """Write an error's line, which only the main process does unless the others go on; return the exit code.

    Args:
        error: what ends this process.
        message: its line in the words of the command line.
    """
    if message and (error.in_one_process or is_main_process()):
        last_words(message)
    # Lightning kills the main process as soon as one that it started ends with another code than 0.
    return 0 if started_by_lightning() and not isinstance(error, Ended) else error.code


def is_main_process() -> bool:
    """Return whether this is the first process on the first node, before torch.distributed knows."""
    if "RANK" in os.environ:  # torchrun's, which may count otherwise than the SLURM job it runs in
        return os.environ["RANK"] == "0"
    return all(os.environ.get(rank, "0") == "0" for rank in ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def started_by_lightning() -> bool:
    """Return whether Lightning started this process for another one, as it does where torchrun and SLURM do not."""
    return os.environ.get("LOCAL_RANK", "0") != "0" and not {"RANK", "SLURM_PROCID"} & os.environ.keys()
