"""What other tools' files say of images: exports of Label Studio, COCO and FiftyOne in JSON, and of CVAT in XML."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import read_json

_UPLOADED = re.compile(r".*/data/upload/\d+/[0-9a-f]{8}-")  # what Label Studio puts before the name of an uploaded file
ANY = ".*"  # in place of an ending that is not known
_PREFERRED = ("label", "choice", "ground_truth")  # of several fields that may be the label


class Row(NamedTuple):
    """What an image may be called, the likeliest name first, and its label, "" for none."""

    names: tuple[str, ...]
    label: str


def in_json(file: Path, told: str) -> list[Row]:
    """Read an export of Label Studio (JSON or JSON-MIN), COCO or FiftyOne; `told` names the file in messages."""
    try:
        value = read_json(file)
    except UserError as error:
        raise UserError(f"{told}: not readable as JSON; export it again") from error
    layouts: dict[str, tuple[bool, Callable[[Any, Path, str], list[Row]]]] = {
        "Label Studio": (isinstance(value, list), _label_studio),
        "COCO": (isinstance(value, dict) and {"images", "annotations"} <= {*value}, _coco),
        "FiftyOneImageClassificationDataset": (isinstance(value, dict) and "labels" in value, _fiftyone_labels),
        "FiftyOneDataset": (isinstance(value, dict) and "samples" in value, _fiftyone_samples),
    }
    for name, (fits, reader) in layouts.items():
        if fits:
            try:
                return reader(value, file, told)
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                what = f"{type(error).__name__}: {error}"
                raise UserError(f"{told}: not as {name} has it ({what}); export it again") from error
    raise UserError(f"{told}: none of the JSON files of Label Studio, COCO and FiftyOne; export it as one of these")


def in_xml(file: Path, told: str) -> list[Row]:
    """Read the tags of CVAT for images 1.1."""
    try:
        root = ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise UserError(f"{told}: not readable as XML ({error}); export it again") from error
    images = root.findall("image")
    if root.tag != "annotations" or not images:
        raise UserError(f"{told}: no images in it; export `CVAT for images 1.1`, and give its annotations.xml")
    rows = []
    for image in images:
        name, labels = image.get("name"), [tag.get("label") for tag in image.findall("tag")]
        if name is None or None in labels:
            raise UserError(f"{told}: an image without a name or a tag without a label; export it again")
        rows.append(Row((name,), _one([*map(str, labels)], name, told)))
    return rows


def _one(labels: list[str], name: str, told: str) -> str:
    """Return the one class that labels have, "" for none."""
    if len({*labels}) > 1:
        both = " and ".join(map(repr, dict.fromkeys(labels)))
        raise UserError(f"{told}: {on_one_line(name)} is {both}; keep one")
    return labels[0] if labels else ""


def _chosen(fields: Mapping[str, Any], told: str) -> str | None:
    """Return which field has the label."""
    if len(fields) < 2:
        return next(iter(fields), None)
    found = next((name for name in _PREFERRED if name in fields), None)
    if found is None:
        raise UserError(f"{told}: which of {', '.join(sorted(fields))} is the label? Rename that one to label")
    return found


# ---- Label Studio ----


def _label_studio(tasks: list[Any], file: Path, told: str) -> list[Row]:
    full = all(isinstance(task.get("data"), dict) for task in tasks)
    if not full and not any(name in task for task in tasks for name in _PREFERRED):
        raise UserError(f"{told}: no field label in its tasks; name the choices of the labelling config so")
    rows = [_task(task, told) if full else _small_task(task, told) for task in tasks]
    return [Row(names, _one(labels, names[0], told)) for names, labels in rows]


def _task(task: Mapping[str, Any], told: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of a task's image and what people chose; predictions are no labels."""
    found: dict[str, list[str]] = {}
    for annotation in task.get("annotations") or ():
        results = () if annotation.get("was_cancelled") else annotation["result"]
        for result in (result for result in results if result.get("type") == "choices"):
            found.setdefault(result["from_name"], []).extend(_texts(result["value"]["choices"], told))
    field = _chosen(found, told)
    return _addresses(task["data"], told), found[field] if field is not None else []


def _small_task(task: Mapping[str, Any], told: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the names and the choices of a task of JSON-MIN, which has data and results side by side."""
    field = next((name for name in _PREFERRED if name in task), None)
    if field is None:
        return _addresses(task, told), []
    value = task[field]
    choices = value["choices"] if isinstance(value, dict) else value
    return _addresses(task, told), _texts(choices if isinstance(choices, list) else [choices], told)


def _texts(values: list[Any], told: str) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"{told}: {on_one_line(values)[:60]} is no list of classes; export it again")
    return values


def _addresses(data: Mapping[str, Any], told: str) -> tuple[str, ...]:
    """Return what the image of a task may be called: the path that was handed over, or a part of its address."""
    values = [data[name] for name in ("path", "image", "img", "url") if isinstance(data.get(name), str)]
    found = []
    for value in values:
        served = parse_qs(urlsplit(value).query).get("d") if "/local-files/" in value else None
        found += [*(served or ()), _UPLOADED.sub("", value), unquote(value)]
    if not found:
        raise UserError(f"{told}: a task without an image; its data has {', '.join(sorted(data))[:60] or 'nothing'}")
    return tuple(found)


# ---- COCO and FiftyOne ----


def _coco(value: Mapping[str, Any], file: Path, told: str) -> list[Row]:
    names = {category["id"]: str(category["name"]) for category in value["categories"]}
    labels: dict[Any, list[str]] = {image["id"]: [] for image in value["images"]}
    for annotation in value["annotations"]:
        labels[annotation["image_id"]].append(names[annotation["category_id"]])
    files = {image["id"]: str(image["file_name"]) for image in value["images"]}
    return [Row((files[image],), _one(own, files[image], told)) for image, own in labels.items()]


def _fiftyone_labels(value: Mapping[str, Any], file: Path, told: str) -> list[Row]:
    """Read labels.json; files without their endings are found in data.json or data/ beside it, if these are there."""
    classes, rows = value.get("classes"), []
    there = _media(file.parent)
    for name, target in value["labels"].items():
        targets = target if isinstance(target, list) else [target]
        labels = [one["label"] if isinstance(one, dict) else one for one in targets if one is not None]
        texts = [str(classes[one]) if classes and isinstance(one, int) else str(one) for one in labels]
        rows.append(Row((name, *there.get(name, ()), f"{name}{ANY}"), _one(texts, name, told)))
    return rows


def _media(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the files that names without an ending stand for."""
    if (folder / "data.json").is_file():
        return {os.path.splitext(name)[0]: (str(path),) for name, path in read_json(folder / "data.json").items()}
    data = folder / "data"
    files = [file for file in sorted(data.rglob("*")) if file.is_file()] if data.is_dir() else []
    return {str(file.relative_to(data).with_suffix("")): (file.relative_to(data).as_posix(),) for file in files}


def _fiftyone_samples(value: Mapping[str, Any], file: Path, told: str) -> list[Row]:
    rows = []
    for sample in value["samples"]:
        fields = {
            name: field
            for name, field in sample.items()
            if isinstance(field, dict) and field.get("_cls") == "Classification"
        }
        name = _chosen(fields, told)
        rows.append(Row((sample["filepath"],), "" if name is None else str(fields[name]["label"])))
    return rows
