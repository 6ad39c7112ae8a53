"""Files that are never half there, folders for them, archives, and JSON that may hold anything."""

import contextlib
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.errors import UserError, on_one_line

# What a process writes under before it renames it, or what it replaces until then.
_UNFINISHED = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)@(?P<host>.+)\.(?P<what>part|old)", re.DOTALL)
_HOST = platform.node() or "localhost"


@contextlib.contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """Hand out a name to write a file under; renamed to `file` when all is written and on the disk, removed otherwise.

    The name is this process's own, so that several may write one file. What killed ones left of it is removed.
    """
    part = _unfinished(file)
    remove_abandoned(file.parent, file.name)
    try:
        yield part
        _flush(part)
        part.replace(file)
        _flush(file.parent)
    except OSError as error:
        named = (error.filename, error.filename2)
        error.filename, error.filename2 = (str(file) if name == str(part) else name for name in named)
        raise
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes were writing into a folder, or as its `name`; an earlier one gets its name back."""
    with contextlib.suppress(OSError):  # another process was faster
        for path in list(folder.iterdir()):
            unfinished = _UNFINISHED.fullmatch(path.name)
            if unfinished is None or name not in (None, unfinished["name"]) or not _is_abandoned(path, unfinished):
                continue
            if unfinished["what"] == "old" and not path.with_name(unfinished["name"]).exists():
                path.rename(path.with_name(unfinished["name"]))
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _unfinished(path: Path, what: str = "part") -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}@{_HOST}.{what}")


def _is_abandoned(path: Path, unfinished: re.Match[str]) -> bool:
    """Return whether the process is gone; of one on another machine, whether it has written nothing for a day."""
    if unfinished["host"] != _HOST:
        return time.time() - path.stat().st_mtime > 24 * 3600
    try:
        os.kill(int(unfinished["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    return False


def _flush(path: Path) -> None:
    """Wait until the disk has a file, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(file: Path, text: str) -> None:
    """Write a text that is never half there."""
    try:
        with written_whole(file) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror})") from error


def check_folder_to_write(folder: Path, flag: str = "`out`") -> None:
    """Refuse a folder that cannot be written; make none yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"{flag} {folder}: {there} is a file; give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{flag} {folder}: {there} cannot be written; give another folder")


def check_readable(file: Path, name: object, instead: str) -> None:
    """Refuse a file that cannot be read; `name` is what to call it, `instead` says what to do."""
    try:
        file.open("rb").close()
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror}); {instead}") from error


@contextlib.contextmanager
def written_together(folder: Path, names: Sequence[str]) -> Iterator[list[Path]]:
    """Hand out files of a folder for `out` that replace earlier ones when all are written, or none of them.

    They are written under the names that this hands out. What fails leaves neither these nor a folder that was new.
    """
    for name in names:
        if (folder / name).is_dir():
            raise UserError(f"`out` {folder}: {name} in it is a folder; remove it")
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            yield [files.enter_context(written_whole(folder / name)) for name in names]
    except OSError as error:
        raise UserError(
            f"`out` {folder}: cannot be written ({error.strerror or error}); give another folder"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()  # refused as soon as one has anything in it


def try_writing(file: Path, instead: str) -> None:
    """Refuse a place that cannot be written to, before the work; `instead` says what to do."""
    part = _unfinished(file)
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror}); {instead}") from error
    if file.is_dir():
        raise UserError(f"{file}: is a folder, and the result goes there; remove it")


def check_replaceable(folder: Path, is_earlier: Callable[[Path], bool], argument: str = "out") -> None:
    """Refuse a folder that has other files in it than those of an earlier run."""
    if folder.exists() and any(folder.iterdir()) and not is_earlier(folder):
        raise UserError(f"`{argument}` {folder.absolute()}: has other files in it; give a new or an empty folder")


@contextlib.contextmanager
def folder_written_whole(folder: Path, is_earlier: Callable[[Path], bool], argument: str = "out") -> Iterator[Path]:
    """Hand out a folder for an argument that appears when all of it is written, in place of an earlier one.

    It is written under the name that this hands out. What fails leaves neither that nor a parent that was new.
    `is_earlier`: whether a folder that is not empty is one that this may replace.
    """
    folder = folder.absolute()
    check_replaceable(folder, is_earlier, argument)
    new = [path for path in folder.parents if not path.exists()]
    part, old = _unfinished(folder), _unfinished(folder, "old")
    remove_abandoned(folder.parent, folder.name)
    try:
        part.mkdir(parents=True)
        yield part
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
    except OSError as error:
        raise UserError(
            f"`{argument}` {folder}: cannot be written ({error.strerror or error}); give another folder"
        ) from error
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for path in (part, old):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()  # refused as soon as one has anything in it


def inside(name: str, where: object) -> str:
    """Return a path that an archive or a list brings; refuse one that leads out of the folder it is relative to."""
    if os.path.isabs(name) or os.path.splitdrive(name)[0] or ".." in name.replace(os.sep, "/").split("/"):
        raise UserError(f"{where}: {on_one_line(name)!r} leads out of its folder; correct or remove it")
    return name


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of a tar or zip archive below a folder, or none if one would lie outside; leave out links.

    Python's own filters for tar do this from 3.10.12 and 3.11.4 on, which not every system has.
    """
    if not tarfile.is_tarfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                inside(name, archive)
            zipped.extractall(folder)
        return
    with tarfile.open(archive) as tar:
        for member in (files := [member for member in tar.getmembers() if member.isfile()]):
            inside(member.name, archive)
        for member in files:
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as content, target.open("wb") as out:  # type: ignore[union-attr]
                shutil.copyfileobj(content, out)


def read_json(file: Path) -> Any:
    """Return a file's content; refuse one that is not JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"), parse_int=_whole)
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{file}: not readable as JSON ({error}); restore or remove it") from error


def _whole(digits: str) -> int:
    """Parse a number of a JSON file; refuse one that no float can hold, on which a sum or a `:.2f` would fail."""
    if len(digits) > sys.float_info.max_10_exp:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)
