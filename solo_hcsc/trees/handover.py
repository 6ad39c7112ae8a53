"""Images that were chosen, written as other tools read them: annotation files, and folders of links.

Each writer follows the documented layout of its tool; docs/handover.md names these. `label_files` reads them back.
"""

import csv
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote
from xml.etree import ElementTree

from PIL import Image

from solo_hcsc.cells import as_cell, from_cell
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.files import folder_written_whole, written_together
from solo_hcsc.progress import watch
from solo_hcsc.trees.label_files import SELECTION, UNLABELLED, check_place, is_untouched, leave_mark
from solo_hcsc.trees.names import ENDINGS

Images = str | Path | Mapping[str, str] | None  # the folder that paths are below, or the file of each path
COLUMNS = ("path", "label", "confidence", "given", "reason", "cluster")
MODEL = "solo_hcsc"  # what Label Studio calls the version of a model
CONTROL = "label"  # the name of the choice in a labelling config of Label Studio
_ORIENTATION = 0x0112  # in EXIF; from 5 on width and height change places
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Chosen:
    """An image to hand over.

    Args:
        path: below the folder of images.
        label: its class; None for none.
        confidence: in the label, from 0 to 1; None where there is none.
        given: whether somebody gave the label.
        reason: why it was chosen.
        cluster: at the bottom of a tree; None without one.
    """

    path: str
    label: str | None = None
    confidence: float | None = None
    given: bool = False
    reason: str = ""
    cluster: int | None = None

    def facts(self) -> dict[str, Any]:
        """Return reason and cluster, if there are any."""
        found = {"reason": self.reason or None, "cluster": self.cluster}
        return {name: value for name, value in found.items() if value is not None}


class _Item(NamedTuple):
    """An image to hand over, its file, and the file's name below the folder of images."""

    row: Chosen
    file: str
    name: str


class Choice(Protocol):
    """What `pick`, `spread` and `curate` return."""

    def chosen(self) -> Sequence[Chosen]:
        """Return the images to hand over."""


def hand_over(
    choice: Choice | Sequence[Chosen] | str | Path,
    out: str | Path,
    format: str,
    images: Images = None,
) -> Path:
    """Write images that were chosen as another tool reads them.

    Args:
        choice: what `pick`, `spread` or `curate` returned, or a CSV file that they, or the page of `explore`, wrote.
        out: the file, or the folder for `imagefolder` and `folders`, which is new, empty, or as an earlier call left
            it.
        format: `label-studio`, `coco`, `cvat`, `fiftyone` (its FiftyOneImageClassificationDataset), `imagefolder` (of
            Hugging Face, with metadata.csv), or `folders`, one for each class. The last two have links to the images.
        images: the folder that paths are below, or the file of each path; if not given, paths are absolute, below the
            current folder, or URLs.

    Returns:
        `out`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     os.mkdir(f"{folder}/cats")
        ...     Image.new("RGB", (4, 3)).save(f"{folder}/cats/1.png")
        ...     some = [Chosen("cats/1.png", "cat", 0.9)]
        ...     json.loads(hand_over(some, f"{folder}/a.json", "coco", images=folder).read_text())["categories"]
        [{'id': 1, 'name': 'cat', 'supercategory': ''}]
    """
    if format not in ENDINGS:
        raise ArgumentError(f"`format` is {format!r}: give one of {', '.join(ENDINGS)}")
    out = Path(out)
    check_place(out, format)
    rows = read_chosen(Path(choice)) if isinstance(choice, str | Path) else _rows(choice)
    items = _items(rows, images, format)
    if format in _WRITERS:
        text = _WRITERS[format](items)
        with written_together(out.parent, [out.name]) as (part,):
            part.write_text(text, encoding="utf-8")
    else:
        with folder_written_whole(out, is_untouched) as part:
            _LINKERS[format](items, part)
            leave_mark(part)
    return out


def read_chosen(file: Path) -> list[Chosen]:
    """Read the rows of a CSV file with a column path, and some of `COLUMNS`; without those that are not kept."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a CSV file"
        raise UserError(f"`choice` {file}: cannot be read ({reason}); give a CSV file with a column path") from error
    if not rows or "path" not in rows[0]:
        raise UserError(f"`choice` {file}: no {'column path' if rows else 'rows'}; give a CSV file as `pick` writes it")
    try:
        return [_from_cells(row) for row in rows if (row.get("kept") or "").lower() != "false"]
    except ValueError as error:
        raise UserError(f"`choice` {file}: {error}; confidence and cluster are numbers") from error


def _from_cells(row: Mapping[str, str | None]) -> Chosen:
    cells = {name: row.get(name) or "" for name in COLUMNS}
    label, cluster = from_cell(cells["label"]).strip(), cells["cluster"] or row.get("cluster_1")
    return Chosen(
        from_cell(cells["path"]),
        label or None,
        float(cells["confidence"]) if cells["confidence"] else None,
        bool(label) and cells["given"].lower() != "false",
        from_cell(cells["reason"]),
        int(cluster) if cluster else None,
    )


def _rows(choice: Choice | Sequence[Chosen]) -> list[Chosen]:
    rows = [*(choice.chosen() if hasattr(choice, "chosen") else choice)]
    if not rows or not all(isinstance(row, Chosen) for row in rows):
        raise ArgumentError("`choice`: give what pick, spread or curate returned, of at least one image, or a CSV file")
    return rows


def _items(rows: Sequence[Chosen], images: Images, format: str) -> list[_Item]:
    """Find the image files; URLs stay as they are where a format takes them."""
    if isinstance(images, Mapping):
        files = {path: os.path.abspath(file) for path, file in images.items()}
        ends = (file[: -len(path)] for path, file in files.items() if file.endswith(os.sep + path))
        root = os.path.abspath(next(ends, os.path.dirname(next(iter(files.values()), ""))))
    else:
        files, root = {}, os.path.abspath(images or "")
    found = []
    for row in rows:
        if "://" in row.path and format in ("label-studio", "fiftyone"):
            found.append(_Item(row, row.path, row.path))
            continue
        file = files.get(row.path) or os.path.join(root, row.path)
        if not os.path.isfile(file):
            what = "the current folder" if images is None else root
            raise ArgumentError(f"`images`: {on_one_line(row.path)} is not in {what}; give the folder of the images")
        found.append(_Item(row, file, row.path if os.path.isabs(row.path) else os.path.relpath(file, root)))
    return found


def _classes(items: Iterable[_Item]) -> list[str]:
    return sorted({item.row.label for item in items if item.row.label is not None})


def _sizes(items: Sequence[_Item]) -> list[tuple[int, int]]:
    """Return width and height of image files, as viewers show them."""
    found = []
    for ((_, file, _),) in watch((([item]) for item in items), len(items), "sizes of images"):
        try:
            with Image.open(file) as image:
                turned = image.getexif().get(_ORIENTATION, 1) >= 5
                found.append(image.size[::-1] if turned else image.size)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"{on_one_line(file)}: cannot be read as an image; leave it out") from error
    return found


# ---- files ----


def _label_studio(items: Sequence[_Item]) -> str:
    """Return tasks with what was given as annotations, and what was found as predictions with scores."""
    tasks = []
    for row, file, name in items:
        task: dict[str, Any] = {"data": {"image": _served(file, name), "path": row.path, **row.facts()}}
        if row.label is not None:
            choice = {"from_name": CONTROL, "to_name": "image", "type": "choices", "value": {"choices": [row.label]}}
            if row.given:
                task["annotations"] = [{"result": [choice]}]
            else:
                score = {} if row.confidence is None else {"score": row.confidence}
                task["predictions"] = [{"model_version": MODEL, **score, "result": [choice]}]
        tasks.append(task)
    return _json(tasks)


def _served(file: str, name: str) -> str:
    """Return the address that Label Studio serves a file at, if it serves the parent of the folder of images."""
    if "://" in name:
        return name
    above = "/" if os.path.isabs(name) else os.path.dirname(file[: -len(name)].rstrip(os.sep))
    return f"/data/local-files/?d={quote(os.fsencode(os.path.relpath(file, above)))}"


def _coco(items: Sequence[_Item]) -> str:
    """Return images, categories, and for each label an annotation whose box is the whole image."""
    numbers = {name: number for number, name in enumerate(_classes(items), 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, ((row, _, name), (width, height)) in enumerate(zip(items, _sizes(items), strict=True), 1):
        images.append({"id": number, "file_name": name, "width": width, "height": height, **row.facts()})
        if row.label is not None:
            score = {} if row.confidence is None else {"score": row.confidence}
            box = {"bbox": [0, 0, width, height], "area": width * height, "iscrowd": 0}
            label = {"id": len(annotations) + 1, "image_id": number, "category_id": numbers[row.label]}
            annotations.append({**label, **box, **score})
    categories = [{"id": number, "name": name, "supercategory": ""} for name, number in numbers.items()]
    return _json({"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories})


def _cvat(items: Sequence[_Item]) -> str:
    """Return CVAT for images 1.1: a tag for each label."""
    root = ElementTree.Element("annotations")
    _below(root, "version", "1.1")
    labels = _below(_below(_below(root, "meta"), "task"), "labels")
    for name in _classes(items):
        label = _below(labels, "label")
        _below(label, "name", name)
        _below(label, "type", "tag")
        attribute = _below(_below(label, "attributes"), "attribute")
        told = {"name": "confidence", "mutable": "False", "input_type": "text", "default_value": "", "values": ""}
        for key, text in told.items():
            _below(attribute, key, text)
    for number, ((row, _, name), (width, height)) in enumerate(zip(items, _sizes(items), strict=True)):
        image = _below(root, "image", id=str(number), name=name, width=str(width), height=str(height))
        if row.label is not None:
            tag = _below(image, "tag", label=row.label, source="manual" if row.given else "auto")
            if row.confidence is not None:
                _below(tag, "attribute", str(row.confidence), name="confidence")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _below(parent: ElementTree.Element, tag: str, text: str | None = None, **attributes: str) -> ElementTree.Element:
    found = ElementTree.SubElement(parent, tag, {key: _xml(value) for key, value in attributes.items()})
    found.text = None if text is None else _xml(text)
    return found


def _xml(text: str) -> str:
    """Refuse text that XML cannot have."""
    if _NOT_IN_XML.search(text):
        raise UserError(f"{on_one_line(text)!r} has characters that XML cannot have; rename it, or take another format")
    return text


def _fiftyone(items: Sequence[_Item]) -> str:
    """Return labels by the images' absolute paths, which FiftyOne takes without a folder of data."""
    numbers = {name: number for number, name in enumerate(_classes(items))}
    labels: dict[str, Any] = {}
    for row, file, _ in items:
        labels[file] = None
        if row.label is not None:
            score = {} if row.confidence is None else {"confidence": row.confidence}
            facts = row.facts() | {"given": row.given}
            labels[file] = {"label": numbers[row.label], **score, "attributes": facts}
    return _json({"classes": [*numbers], "labels": labels})


def _json(value: Any) -> str:
    """Return JSON in ASCII, in which also names that are no valid Unicode can stand."""
    return json.dumps(value, indent=1) + "\n"


# ---- folders of links ----


def _image_folder(items: Sequence[_Item], folder: Path) -> None:
    """Write links in images/, by number since names such as test_1.jpg would make splits, and metadata.csv."""
    names = [f"images/{_number(place, items)}{_ending(item)}" for place, item in enumerate(items)]
    _link(folder, names, items)
    _write_table(folder / "metadata.csv", "file_name", names, items)


def _class_folders(items: Sequence[_Item], folder: Path) -> None:
    """Write links in a folder for each class, in order, and a table of them."""
    below = _folder_names(_classes(items)) | {None: UNLABELLED}
    names = []
    for place, item in enumerate(items):
        stem = os.fsencode(Path(item.file).stem)[:100].decode("utf-8", "ignore")
        names.append(f"{below[item.row.label]}/{_number(place, items)}-{stem}{_ending(item)}")
    _link(folder, names, items)
    _write_table(folder / SELECTION, "file", names, items)


def _link(folder: Path, names: Sequence[str], items: Sequence[_Item]) -> None:
    for name, item in zip(names, items, strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(item.file)


def _folder_names(classes: Sequence[str]) -> dict[str | None, str]:
    """Return a name for the folder of each class, no two the same, without what a file system may not have."""
    found: dict[str | None, str] = {}
    taken = {UNLABELLED}
    for name in classes:
        safe = "".join("_" if letter in '/\\:*?"<>|' or not letter.isprintable() else letter for letter in name)
        safe = safe.encode("utf-8", "replace")[:100].decode("utf-8", "ignore").strip(" .") or "_"
        tries = (f"{safe}{'' if again == 1 else f'-{again}'}" for again in range(1, len(classes) + 3))
        found[name] = next(one for one in tries if one.lower() not in taken)
        taken.add(found[name].lower())
    return found


def _number(place: int, items: Sequence[_Item]) -> str:
    return f"{place + 1:0{max(4, len(str(len(items))))}d}"


def _ending(item: _Item) -> str:
    return os.path.splitext(item.file)[1].lower()


def _write_table(table: Path, first: str, names: Sequence[str], items: Sequence[_Item]) -> None:
    """Write the links' names and the columns that have anything in them."""
    rows = []
    for name, (row, _, _) in zip(names, items, strict=True):
        given = None if row.label is None else row.given
        texts = {"path": as_cell(row.path), "label": as_cell(row.label or ""), "reason": as_cell(row.reason)}
        others = {"confidence": row.confidence, "given": given, "cluster": row.cluster}
        rows.append({first: as_cell(name)} | texts | others)
    filled = {name for row in rows for name, value in row.items() if value not in (None, "")} | {"label"}
    with table.open("w", encoding="utf-8", errors="surrogateescape", newline="") as lines:
        out = csv.DictWriter(lines, [name for name in (first, *COLUMNS) if name in filled], extrasaction="ignore")
        out.writeheader()
        out.writerows(rows)


_WRITERS = {"label-studio": _label_studio, "coco": _coco, "cvat": _cvat, "fiftyone": _fiftyone}
_LINKERS = {"imagefolder": _image_folder, "folders": _class_folders}
