"""Tiny folders of images with boxes, in exactly the layouts of PASCAL VOC and COCO."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"cat": 0, "dog": 1, "person": 2}


def picture(random: np.random.Generator, width: int, height: int, count: int) -> tuple[Image.Image, list]:
    """Coloured boxes on noise: the picture, and (class, left, top, right, bottom) of each."""
    pixels = random.integers(0, 90, (height, width, 3)).astype("uint8")
    shown = []
    for _ in range(count):
        label = list(COLOURS)[random.integers(3)]
        wide, high = random.integers(10, 20, 2)
        left, top = int(random.integers(0, width - wide)), int(random.integers(0, height - high))
        pixels[top : top + high, left : left + wide] = 40
        pixels[top : top + high, left : left + wide, COLOURS[label]] = 230
        shown.append((label, left, top, left + int(wide), top + int(high)))
    return Image.fromarray(pixels), shown


def annotate(folder: Path, name: str, size: tuple[int, int], shown: list, difficult: int = 0) -> None:
    """An annotation as the benchmark has them; the last `difficult` objects are so."""
    items = ""
    for place, (label, left, top, right, bottom) in enumerate(shown):
        hard = int(place >= len(shown) - difficult)
        items += (
            f"<object><name>{label}</name><pose>Left</pose><truncated>0</truncated><difficult>{hard}</difficult><bndbox>"
            f"<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox>"
            "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
            "</object>"
        )
    size_text = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    (folder / "Annotations" / f"{name}.xml").write_text(
        f"<annotation><folder>{folder.name}</folder><filename>{name}.jpg</filename>{size_text}{items}</annotation>"
    )


def make_voc(root: Path, years: tuple[str, ...] = ("VOC2007", "VOC2012"), trainval: int = 4, test: int = 3) -> Path:
    """A VOCdevkit; every third image has a difficult object, and the second of each year shows none."""
    random = np.random.default_rng(0)
    for year in years:
        folder = root / "VOCdevkit" / year
        for part in ("ImageSets/Main", "Annotations", "JPEGImages"):
            (folder / part).mkdir(parents=True)
        splits = {"trainval": trainval} | ({"test": test} if year == "VOC2007" else {})
        number = 0
        for split, count in splits.items():
            names = []
            for _ in range(count):
                name = f"{year[3:]}_{number:06}"
                size = (60, 48) if number % 2 else (48, 60)
                image, shown = picture(random, *size, count=0 if number == 1 else 2)
                image.save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
                annotate(folder, name, size, shown, difficult=int(number % 3 == 2))
                names.append(name)
                number += 1
            (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
    return root / "VOCdevkit"


def make_coco(root: Path, train: int = 4, val: int = 3) -> Path:
    """COCO's folders; category ids have gaps, the second image is empty, the third has a crowd."""
    random = np.random.default_rng(1)
    folder = root / "coco"
    (folder / "annotations").mkdir(parents=True)
    categories = [{"id": 10 * (n + 1), "name": name, "supercategory": "x"} for name, n in COLOURS.items()]
    for split, count in (("train2017", train), ("val2017", val)):
        (folder / split).mkdir()
        images, annotations = [], []
        for number in range(count):
            width, height = (60, 48) if number % 2 else (48, 60)
            image, shown = picture(random, width, height, count=0 if number == 1 else 2)
            name = f"{number:012}.jpg"
            image.save(folder / split / name, quality=95)
            images.append({"id": 100 + number, "file_name": name, "width": width, "height": height})
            for label, left, top, right, bottom in shown:
                crowd = int(number == 2 and bool(annotations) and annotations[-1]["image_id"] == 100 + number)
                mask = np.zeros((height, width), dtype=bool)
                mask[top:bottom, left:right] = True
                outline = [[left, top, right, top, right, bottom, left, bottom]]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": 100 + number,
                        "category_id": 10 * (COLOURS[label] + 1),
                        "bbox": [left, top, right - left, bottom - top],
                        "area": (right - left) * (bottom - top),
                        "iscrowd": crowd,
                        "segmentation": run_lengths(mask) if crowd else outline,
                    }
                )
        content = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return folder


def run_lengths(mask: np.ndarray) -> dict:
    """COCO's uncompressed kind, column by column, the background first."""
    flat = mask.flatten(order="F").astype(int)
    changes = np.flatnonzero(np.diff(flat, prepend=0))
    counts = np.diff([0, *changes, len(flat)]).tolist()
    return {"counts": counts, "size": list(mask.shape)}
