"""Files that are never half there, and JSON that may hold anything."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from solo_hcsc.cli.errors import UserError


def write_whole(file: Path, content: str | bytes) -> None:
    """Writes a file under another name and renames it, so that it is never half there."""
    part = file.with_name(file.name + ".part")
    try:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(part, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise UserError(f"{file}: cannot be written ({error.strerror})") from error


def try_writing(file: Path, instead: str) -> None:
    """Refuses a place that cannot be written to, before the work; `instead` says what to do."""
    part = file.with_name(file.name + ".part")
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror}); {instead}") from error
    if file.is_dir():
        raise UserError(f"{file}: is a folder, where the result is to go; remove it")


def read_json(file: Path) -> Any:
    """A file's content; one line where it is not JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{file}: not readable as JSON ({error}); restore or remove it") from error
