"""Labels of images in CSV files with columns `path` and `label`, as `pick` writes them and people fill them in."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from solo_hcsc.cells import from_cell
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import check_folder_to_write


def read_labels(files: Sequence[Path], paths: Sequence[str], argument: str = "labels") -> dict[str, str]:
    """Return the label of each image that the files name, "" for one without.

    Args:
        files: CSV files.
        paths: of all images.
        argument: what the caller's argument is called, for messages.
    """
    known, found = {*paths}, dict[str, str]()
    for file in files:
        for path, label in _rows(file, argument):
            if path not in known:
                raise UserError(
                    f"`{argument}` {file}: {on_one_line(path)} is none of the {len(paths)} images; give the images of "
                    "the command that wrote the file"
                )
            before = found.get(path)
            if before and label and before != label:
                raise UserError(f"`{argument}` {file}: {on_one_line(path)} is {before!r} and {label!r}; keep one")
            found[path] = label or before or ""
    return found


def check_labels(files: Sequence[Path], argument: str = "labels") -> None:
    """Refuse files that `read_labels` could not read."""
    for file in files:
        _rows(file, argument)


def check_enough(labels: Mapping[str, str], files: Sequence[Path], argument: str = "labels") -> None:
    """Refuse labels that are missing or all the same."""
    told = f"`{argument}` {' '.join(map(str, files))}"
    if not labels:
        raise UserError(f"{told}: no label is filled in; write classes into its column label")
    if len({*labels.values()}) == 1:
        one = min(labels.values())
        raise UserError(f"{told}: all {len(labels)} labels are {one!r}; give at least two classes")


def _rows(file: Path, argument: str) -> list[tuple[str, str]]:
    """Return the path and the label of each row."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = {"path", "label"} - {*(reader.fieldnames or ())}
            if missing:
                needed = "it takes a CSV with columns path and label"
                raise UserError(f"`{argument}` {file}: no column {min(missing)}; {needed}")
            return [(from_cell(row["path"] or ""), from_cell(row["label"] or "").strip()) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a CSV file"
        raise UserError(f"`{argument}` {file}: cannot be read ({reason}); give a file as `pick` writes it") from error


def check_unfilled(file: Path) -> None:
    """Refuse a place for a list of images to label that cannot be written, or that has somebody's labels."""
    if file.is_dir():
        raise UserError(f"`out` {file}: is a folder; give a file in it, such as {file / 'labels.csv'}")
    check_folder_to_write(file.parent)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            filled = any(row.get("label") for row in csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error):
        return
    if filled:
        raise UserError(f"`out` {file}: has labels in it; give another name, and `already` {file} to go on from them")
