"""Files that are never half there, and JSON that may hold anything."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from solo_hcsc.cli.errors import UserError


def write_whole(file: Path, text: str) -> None:
    """Writes a file under another name and renames it, so that it is never half there."""
    part = file.with_name(file.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise UserError(f"{file}: cannot be written ({error.strerror})") from error


def read_json(file: Path) -> Any:
    """A file's content; one line where it is not JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{file}: not readable as JSON ({error}); restore or remove it") from error
