"""Let only one process work on a run: it locks the run's folder, and the kernel unlocks it however that process ends.

The locks are POSIX's. A loader's forked workers, which may outlive a killed process by seconds, do not inherit them.
Over NFS they hold between machines, unless it is mounted with `nolock` or `local_lock`.
"""

import atexit
import contextlib
import errno
import fcntl
import os
import platform
from pathlib import Path
from typing import IO

from solo_hcsc.errors import UserError
from solo_hcsc.progress import note

NAME = ".lock"
_TAKEN = (errno.EACCES, errno.EAGAIN)
_held: dict[Path, IO[str]] = {}  # of this process; closing any handle of such a file would unlock it


def hold(folder: Path) -> None:
    """Lock the folder of a run until `let_go` or the end of this process; refuse one that another process has."""
    folder = folder.resolve()
    if folder in _held:
        return
    file = (folder / NAME).open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            with file:
                raise UserError(refusal(folder, _owner(file))) from error
        note(f"{folder}: this file system has no locks ({error.strerror}); nothing keeps two runs apart")
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    _held[folder] = file


def holder(folder: Path) -> str | None:
    """Return which other process has a run's folder, as in "process 12 on node7"; None if there is none."""
    if folder.resolve() in _held or not (folder / NAME).is_file():
        return None
    with (folder / NAME).open(encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                return _owner(file)
    return None


def refusal(folder: Path, owner: str) -> str:
    return f"{folder}: {owner} is training this run; wait until it ends, or end it first"


@atexit.register
def let_go() -> None:
    """Unlock what this process has locked; a folder in which nothing else was written goes too."""
    while _held:
        folder, file = _held.popitem()
        with file, contextlib.suppress(OSError):
            (folder / NAME).unlink()
            folder.rmdir()  # refused as soon as it has anything in it


def _owner(file: IO[str]) -> str:
    file.seek(0)
    return file.read() or "another process"
