"""Labels of images: in CSV files as `pick` writes them and people fill them in, and in other tools' exports.

Needs no torch, so that a wrong file is refused before that is imported.
"""

import csv
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from solo_hcsc.cells import from_cell
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.files import check_folder_to_write, check_replaceable, write_whole
from solo_hcsc.trees.exports import ANY, Row, in_json, in_xml
from solo_hcsc.trees.names import ENDINGS

UNLABELLED = "_unlabeled"  # the folder of images without a class, as FiftyOne calls it
SELECTION = "selection.csv"  # beside class folders that were handed over: which image is which
MARK = ".handover.json"  # in a folder that was handed over: by what it is known that nobody changed it
_TABLES = ("metadata.csv", "labels.csv")  # in a folder of Hugging Face's, and of `spread`
_PATHS, _LABELS = ("path", "file_name", "image"), ("label", "choice")
_TAKEN = (
    "a CSV with columns path and label, an export of Label Studio, COCO, CVAT or FiftyOne, a folder with metadata.csv, "
    "or class folders"
)


def read_labels(
    files: str | Path | Sequence[str | Path], paths: Sequence[str], argument: str = "labels"
) -> dict[str, str]:
    """Read labels that people gave, in our own tables or in other tools' files.

    Args:
        files: one or several: CSV files with columns path and label, exports of Label Studio (JSON, JSON-MIN, CSV),
            COCO, CVAT (XML) or FiftyOne (JSON), or folders with metadata.csv or class folders.
        paths: of all images, as `Embeddings` has them.
        argument: what the caller's argument is called, for messages.

    Returns:
        The label of each image that the files name, by its path; "" for one without.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "min.json").write_text('[{"image": "http://host/photos/cats/1.jpg", "label": "cat"}]')
        ...     read_labels(f"{folder}/min.json", ["cats/1.jpg", "dogs/1.jpg"])
        {'cats/1.jpg': 'cat'}
    """
    files = [files] if isinstance(files, str | Path) else files
    known = {os.path.splitext(path)[0] + ANY: path for path in paths} | {path: path for path in paths}
    found: dict[str, str] = {}
    for file in map(Path, files):
        for path, label in _matched(_rows(file, argument), known, f"`{argument}` {file}"):
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
        raise UserError(f"{told}: no label is filled in; give at least two images their classes")
    if len({*labels.values()}) == 1:
        one = min(labels.values())
        raise UserError(f"{told}: all {len(labels)} labels are {one!r}; give at least two classes")


def _matched(rows: Sequence[Row], known: Mapping[str, str], told: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each row among the known ones, and its label.

    Other tools put an address or a folder before paths: one may be taken away if it is before all of them.
    """
    exact = [next((known[name] for name in row.names if name in known), None) for row in rows]
    if None not in exact:
        yield from zip(exact, (row.label for row in rows), strict=True)
        return
    before = [{name[:cut] for name in row.names for cut in _cuts(name) if name[cut:] in known} for row in rows]
    shared = set.intersection(*before)
    if not shared:
        lost = next((row for row, own in zip(rows, before, strict=True) if not own), rows[exact.index(None)])
        raise UserError(
            f"{told}: {on_one_line(lost.names[0])} is none of the {len({*known.values()})} images; give the images "
            "of the command that wrote the file"
        )
    prefix = min(shared, key=len)
    for row in rows:
        rest = (name[len(prefix) :] for name in row.names if name.startswith(prefix))
        yield next(known[name] for name in rest if name in known), row.label


def _cuts(name: str) -> list[int]:
    """Return where a path may begin in a name: at its beginning, and after each slash."""
    return [0, *(place + 1 for place, letter in enumerate(name) if letter == "/")]


def _rows(file: Path, argument: str) -> list[Row]:
    """Return what each row, task or image of a file may be called, and its label."""
    told = f"`{argument}` {file}"
    if file.suffix.lower() == ".zip":
        raise UserError(f"{told}: an archive; unpack it, and give what is in it")
    try:
        if file.is_dir():
            rows = _in_folder(file, told)
        else:
            reader = {".json": in_json, ".xml": in_xml}.get(file.suffix.lower(), _in_csv)
            rows = reader(file, told)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a CSV file"
        raise UserError(f"{told}: cannot be read ({reason}); give a file as `pick` writes it") from error
    return [Row((*row.names, *(on_one_line(name) for name in row.names)), row.label.strip()) for row in rows]


def _in_csv(file: Path, told: str) -> list[Row]:
    """Read our own tables, Hugging Face's metadata.csv, and Label Studio's CSV."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        names = reader.fieldnames or ()
        path, label = (next((one for one in some if one in names), None) for some in (_PATHS, _LABELS))
        if path is None or label is None:
            missing = "label" if label is None else "path"
            raise UserError(f"{told}: no column {missing}; it takes {_TAKEN}")
        return [Row((from_cell(row[path] or ""),), from_cell(row[label] or "")) for row in reader]


def _in_folder(folder: Path, told: str) -> list[Row]:
    """Read a folder that has one of the files, or class folders."""
    for name in _TABLES:
        if (folder / name).is_file():
            return _in_csv(folder / name, told)
    for name, reader in {"labels.json": in_json, "samples.json": in_json, "annotations.xml": in_xml}.items():
        if (folder / name).is_file():
            return reader(folder / name, told)
    labels, paths = _handed_over(folder)
    below = [one for one in sorted(folder.iterdir()) if one.is_dir() and not one.name.startswith(".")]
    rows = [row for one in below for row in _in_class(one, labels.get(one.name, one.name), paths)]
    if not rows:
        raise UserError(f"{told}: no labels in this folder; it takes {_TAKEN}")
    return rows


def _handed_over(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the class of each folder, and the path of each file by its own name, where class folders came from us."""
    labels, paths = {UNLABELLED: ""}, {}
    if (folder / SELECTION).is_file():
        with (folder / SELECTION).open(encoding="utf-8-sig", newline="") as lines:
            for row in csv.DictReader(lines):
                name, _, file = from_cell(row.get("file") or "").partition("/")
                labels[name], paths[file] = from_cell(row.get("label") or ""), from_cell(row.get("path") or "")
    return labels, paths


def _in_class(folder: Path, label: str, paths: Mapping[str, str]) -> list[Row]:
    """Return the images in the folder of a class; a link is the image that it leads to."""
    rows = []
    for top, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(name for name in names if not name.startswith(".")):
            file = Path(top, name)
            if name in paths:
                rows.append(Row((paths[name],), label))
            elif file.is_symlink():
                rows.append(Row((os.path.abspath(os.path.join(top, os.readlink(file))),), label))
            else:
                rows.append(Row(tuple(file.relative_to(root).as_posix() for root in (folder.parent, folder)), label))
    return rows


# ---- places that are written ----


def check_unfilled(file: Path, format: str = "csv") -> None:
    """Refuse a place for a list of images to label that cannot be written, or that has somebody's labels."""
    if format != "csv":
        check_place(file, format)
    elif file.is_dir():
        raise UserError(f"`out` {file}: is a folder; give a file in it, such as {file / 'labels.csv'}")
    check_folder_to_write(file.parent)
    if file.is_dir():
        return
    try:
        filled = any(row.label for row in _rows(file, "out"))
    except UserError:
        return
    if filled:
        raise UserError(f"`out` {file}: has labels in it; give another name, and `already` {file} to go on from them")


def check_place(out: Path, format: str) -> None:
    """Refuse a place that cannot be written in a format, or a folder in which others are or somebody has worked."""
    ending = ENDINGS[format]
    if ending == "":
        check_folder_to_write(out)
        check_replaceable(out, is_untouched)
    elif out.suffix != ending:
        raise ArgumentError(f"`out` {out}: `format` {format} is a file such as {out.with_suffix(ending)}; give one")
    elif out.is_dir():
        raise ArgumentError(f"`out` {out}: is a folder; give a file in it, such as {out / f'images{ending}'}")
    else:
        check_folder_to_write(out.parent)


def leave_mark(folder: Path) -> None:
    """Write into a folder what `is_untouched` compares."""
    write_whole(folder / MARK, json.dumps({"content": _content(folder)}) + "\n")


def is_untouched(folder: Path) -> bool:
    """Return whether a folder was handed over and is as it was then: nothing moved, added, or filled in."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return isinstance(mark, dict) and mark.get("content") == _content(folder)
    except (OSError, ValueError):
        return False


def _content(folder: Path) -> str:
    """Return a digest of the names below a folder, where its links lead, and what its files have in them."""
    found = hashlib.sha256()
    for top, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted({*names} - {MARK}):
            file = Path(top, name)
            content = os.fsencode(os.readlink(file)) if file.is_symlink() else file.read_bytes()
            found.update(os.fsencode(file.relative_to(folder)) + b"\0" + hashlib.sha256(content).digest())
    return found.hexdigest()
