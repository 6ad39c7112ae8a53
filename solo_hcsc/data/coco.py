"""COCO on disk: `annotations/instances_SPLIT.json` and the folder SPLIT with its images."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.data.detection import AnnotatedImage, box_within, objects
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import inside, read_json
from solo_hcsc.progress import note


def read_coco(
    data_dir: Path, split: str, classes: Sequence[str] | None = None
) -> tuple[list[AnnotatedImage], tuple[str, ...]]:
    """Read the images of a split and the classes, each in the order of their ids.

    Args:
        data_dir: the folder that has `annotations` and the images' folders.
        split: `train2017`, `val2017`, or a name of one's own.
        classes: those that the file must have, of the training images; any if not given.
    """
    file = data_dir / "annotations" / f"instances_{split}.json"
    folder = data_dir / split
    if not file.is_file():
        raise UserError(f"`data_dir` {data_dir}: no annotations/instances_{split}.json, which names the images")
    if not folder.is_dir():
        raise UserError(f"`data_dir` {data_dir}: no folder {split}, which has the images")
    content = read_json(file)
    images, annotations, categories = (_listed(content, part, file) for part in ("images", "annotations", "categories"))
    try:
        numbers, names = _classes(categories, file)
        if classes is not None and tuple(classes) != names:
            other = next(iter({*names} ^ {*classes}), "their order")
            raise UserError(f"{file}: its categories are not those of the training images ({on_one_line(other)})")
        each: dict[Any, list[Mapping[str, Any]]] = {image["id"]: [] for image in images}
        for annotation in annotations:
            if annotation["image_id"] not in each:
                raise UserError(
                    f"{file}: annotation {annotation['id']} is of image {annotation['image_id']}, which is not listed"
                )
            each[annotation["image_id"]].append(annotation)
        there = {path.name for path in folder.iterdir()}
        found = [
            _image(image, each[image["id"]], folder, there, numbers, file)
            for image in sorted(images, key=lambda image: image["id"])
        ]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{file}: not annotations as COCO has them ({type(error).__name__}: {error})") from error
    if not any((~image.objects.ignored).any() for image in found):
        raise UserError(f"{file}: no image of {split} shows an object")
    empty = sum(len(each[image["id"]]) for image in images) - sum(len(image.objects) for image in found)
    if empty:
        note(f"{file.name}: {empty} boxes without width or height are left out, as COCO's own tools do")
    return found, names


def _listed(content: Any, part: str, file: Path) -> list[Any]:
    found = content.get(part) if isinstance(content, dict) else None
    if not isinstance(found, list) or (not found and part != "annotations"):
        raise UserError(f"{file}: not annotations as COCO has them (no list of {part})")
    return found


def _classes(categories: list[Any], file: Path) -> tuple[dict[Any, int], tuple[str, ...]]:
    """Number the categories from 0; return the numbers and the names in that order."""
    ordered = sorted(categories, key=lambda category: category["id"])
    numbers = {category["id"]: number for number, category in enumerate(ordered)}
    names = tuple(str(category["name"]) for category in ordered)
    if len(numbers) < len(ordered) or len({*names}) < len(names):
        raise UserError(f"{file}: two categories have the same id or name; rename one")
    return numbers, names


def _image(
    image: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    folder: Path,
    there: set[str],
    numbers: Mapping[Any, int],
    file: Path,
) -> AnnotatedImage:
    width, height, name = image["width"], image["height"], inside(str(image["file_name"]), file)
    if name not in there and not (folder / name).is_file():
        raise UserError(f"{on_one_line(folder / name)}: this image of {file.name} is not there")
    kept, boxes, crowds, areas = [], [], [], []
    for one in annotations:
        where = f"{file}: annotation {one['id']} of {name}"
        if one["category_id"] not in numbers:
            raise UserError(f"{on_one_line(where)}: unknown category {one['category_id']!r}")
        left, top, wide, high = map(float, one["bbox"])
        if wide == 0 or high == 0:  # COCO has a few
            continue
        if not all(map(math.isfinite, (left, top, wide, high))):
            raise UserError(f"{on_one_line(where)}: its bbox {one['bbox']} has no area")
        boxes.append(box_within([left, top, left + wide, top + high], width, height, where))
        kept.append(one)
        crowds.append(bool(one.get("iscrowd", 0)))
        area = float(one.get("area", (boxes[-1][2] - boxes[-1][0]) * (boxes[-1][3] - boxes[-1][1])))
        if not 0 <= area < math.inf:
            raise UserError(f"{on_one_line(where)}: its area {area:g} is no number of pixels")
        areas.append(area)
    outlines = [one["segmentation"] for one in kept if one.get("segmentation")]
    labels = [numbers[one["category_id"]] for one in kept]
    shown = objects(boxes, labels, crowds, crowds, areas, outlines if len(outlines) == len(kept) else ())
    return AnnotatedImage(folder / name, int(width), int(height), shown)
