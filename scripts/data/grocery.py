"""`python scripts/data/grocery.py [FOLDER|ARCHIVE]`: lays the Grocery Store data set out as folders of images.

Klasson, Zhang and Kjellström, "A Hierarchical Grocery Store Image Dataset with Visual and Semantic Labels", WACV 2019;
MIT licence. Its lists say which class a photo has: the folders differ between the splits.
"""

import csv
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

from PIL import Image

from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.files import inside, unpack
from solo_hcsc.launch import last_words
from solo_hcsc.settings import at_least

COMMIT = "fc80ba90f803d79d0383df52c5a4ac5de99ff6fc"
ADDRESS = f"https://github.com/marcusklasson/GroceryStoreDataset/archive/{COMMIT}.zip"
IMAGES = {"train": 2640, "val": 296, "test": 2485}
HIERARCHY = "label_hierarchy.txt"


def main() -> None:
    """What a user can mend becomes one line on stderr and exit code 2."""
    try:
        run(sys.argv[1:])
    except UserError as error:
        last_words(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        last_words("interrupted")
        sys.exit(130)


def run(argv: Sequence[str]) -> None:
    args = parse(argv)
    folder = args.data_dir / (f"grocery-{args.side}" if args.side else "grocery")
    if folder.is_dir():
        check(folder, "remove it to make it anew")
    else:
        make(args.source, folder, args.side)
    print(
        f"the Grocery Store data set is in {folder}: {_told(IMAGES)}; train on it with\n"
        f"    --dataset custom --data_dir {folder} --train_dir train --val_dir val\n"
        f"and evaluate with --label_hierarchy {folder / HIERARCHY}"
    )


def make(source: Path | None, folder: Path, side: int | None = None) -> None:
    """Makes the folder, as a whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".grocery-") as unfinished:
            data = find(source, Path(unfinished))
            made = Path(unfinished, "grocery")
            lay_out(data, made)
            check(made, "get the data set again", source)
            if side is not None:
                shrink(made, side)
            os.rename(made, folder)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be read or written ({error.strerror or error})") from error


def shrink(folder: Path, side: int) -> None:
    """Replaces the photos below a folder by smaller ones."""
    for file in folder.glob("*/*/*.jpg"):
        with Image.open(file) as photo:
            scale = side / min(photo.size)
            size = (max(side, round(photo.width * scale)), max(side, round(photo.height * scale)))
            small = photo.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        small.save(file, quality=95)


def check(folder: Path, otherwise: str, name: Path | None = None) -> None:
    """Refuses another number of images than the data set has; `name` is what the user calls it."""
    counts = {split: sum(1 for _ in (folder / split).glob("*/*.jpg")) for split in IMAGES}
    if counts != IMAGES:
        raise UserError(f"{name or folder}: has {_told(counts)}, not {_told(IMAGES)}; {otherwise}")


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser("grocery", "Lays the Grocery Store data set out: train, val and test with a folder for each class.")
    parser.prog = "scripts/data/grocery.py"
    source = "a clone of its repository or an archive of one (tar, zip); downloaded from GitHub if not given (120 MB)"
    parser.add_argument("source", type=Path, nargs="?", metavar="FOLDER|ARCHIVE", help=source)
    parser.add_argument("--data_dir", type=Path, default=Path("datasets"), help="grocery/ is made below it")
    parser.add_argument(
        "--side",
        type=int,
        bound=at_least(16),
        help="shrink the photos to so many pixels on their shorter side, into grocery-N: small runs need not decode "
        "large ones",
    )
    args = parser.parse(argv)
    if args.source is not None and not args.source.exists():
        raise UserError(f"{args.source}: does not exist; give a clone or an archive of the data set, or nothing")
    return args


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} images in {split}" for split, count in counts.items())


def find(source: Path | None, unfinished: Path) -> Path:
    """The folder with the lists of the data set, unpacked if need be."""
    found = source or download(unfinished / "grocery.zip")
    if found.is_file():
        archive, found = found, unfinished / "unpacked"
        try:
            unpack(archive, found)
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise UserError(f"{archive}: not a whole tar or zip archive ({error}); get it again") from error
    lists = sorted(found.glob("**/classes.csv"))
    if not lists:
        raise UserError(f"{source or ADDRESS}: has no classes.csv; give a clone or an archive of the data set")
    return lists[0].parent


def download(file: Path) -> Path:
    print("getting the Grocery Store data set from GitHub (about 120 MB)", flush=True)
    try:
        with urllib.request.urlopen(ADDRESS, timeout=60) as answer, file.open("wb") as out:
            shutil.copyfileobj(answer, out)
    except (OSError, HTTPException) as error:
        raise UserError(
            f"{ADDRESS}: cannot be downloaded ({error}); is the network reachable? A clone or an archive of the "
            "repository can be given instead"
        ) from error
    return file


def lay_out(data: Path, folder: Path) -> None:
    """Writes `SPLIT/CLASS/NAME.jpg` and the classes' hierarchy."""
    try:
        with (data / "classes.csv").open(encoding="utf-8", newline="") as file:
            classes = {row[1]: (row[0], row[2]) for row in list(csv.reader(file))[1:]}  # names, fine and coarse
        parents: dict[str, str] = {}
        photos: dict[Path, Path] = {}  # where each goes, and where it is
        for split in IMAGES:
            for line in (data / f"{split}.txt").read_text(encoding="utf-8").splitlines():
                path, number = (part.strip() for part in line.split(",")[:2])
                fine, coarse = classes[number]
                photo = data / inside(path, f"{split}.txt")
                photos[folder / split / inside(fine, "classes.csv") / photo.name] = photo
                # A coarse class of one fine class may have its name: then there is nothing between it and the top.
                parents |= {coarse: Path(path).parts[1]} | ({fine: coarse} if fine != coarse else {})
        for target, photo in photos.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(photo, target)
    except FileNotFoundError as error:
        missing = os.path.relpath(error.filename, data)
        raise UserError(f"{missing}: is missing in the data set; get it again") from error
    except (LookupError, ValueError) as error:
        raise UserError(f"the data set's lists cannot be read ({error!r}); get it again") from error
    lines = [f"{child}: {parent}\n" for child, parent in sorted(parents.items())]
    (folder / HIERARCHY).write_text("# The Grocery Store data set's classes and their groups.\n" + "".join(lines))


if __name__ == "__main__":
    main()
