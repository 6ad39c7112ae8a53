"""Which of several processes this is, before torch.distributed knows, and how one ends."""

import os
import sys
from typing import NoReturn


def stop(message: str, code: int, alone: bool = False) -> NoReturn:
    """End this process with one line on stderr, which only the main process prints unless it is `alone`."""
    if alone or is_main_process():
        print(f"error: {' '.join(line.strip() for line in message.splitlines())}", file=sys.stderr)
    sys.exit(code)


def refuse(message: str, alone: bool = False) -> NoReturn:
    """End with `stop` and the exit code for a mistake in what was asked for."""
    # Lightning kills the main process as soon as one that it started ends with another code than 0.
    stop(message, 0 if started_by_lightning() else 2, alone)


def is_main_process() -> bool:
    """Return whether this is the first process on the first node, before torch.distributed knows."""
    if "RANK" in os.environ:  # torchrun's, which may count otherwise than the SLURM job it runs in
        return os.environ["RANK"] == "0"
    return all(os.environ.get(rank, "0") == "0" for rank in ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def started_by_lightning() -> bool:
    """Return whether Lightning started this process for another one, as it does where torchrun and SLURM do not."""
    return os.environ.get("LOCAL_RANK", "0") != "0" and not {"RANK", "SLURM_PROCID"} & os.environ.keys()
