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
from pathlib import Path

from solo_hcsc.cli.errors import UserError, stop
from solo_hcsc.cli.parser import Parser

ADDRESS = "https://github.com/marcusklasson/GroceryStoreDataset/archive/HEAD.zip"
IMAGES = {"train": 2640, "val": 296, "test": 2485}
HIERARCHY = "label_hierarchy.txt"


def main() -> None:
    """What a user can mend becomes one line on stderr and exit code 2."""
    try:
        run(sys.argv[1:])
    except UserError as error:
        stop(str(error), 2)
    except KeyboardInterrupt:
        stop("interrupted", 130)


def run(argv: Sequence[str]) -> None:
    args = parse(argv)
    folder = args.data_dir / "grocery"
    if not folder.is_dir():
        try:
            args.data_dir.mkdir(parents=True, exist_ok=True)
            # Made beside its place and renamed, so that a kill leaves no half of it.
            with tempfile.TemporaryDirectory(dir=args.data_dir, prefix=".grocery-") as unfinished:
                made = Path(unfinished, "grocery")
                lay_out(find(args.source, Path(unfinished)), made)
                os.rename(made, folder)
        except OSError as error:
            raise UserError(f"--data_dir {args.data_dir}: cannot write there ({error.strerror or error})") from error
    counts = {split: sum(1 for _ in (folder / split).glob("*/*.jpg")) for split in IMAGES}
    if counts != IMAGES:
        raise UserError(f"{folder}: {_told(counts)}, not {_told(IMAGES)}; remove it to make it anew")
    print(
        f"the Grocery Store data set is in {folder}: {_told(counts)}; train on it with\n"
        f"    --dataset custom --data_dir {folder} --train_dir train --val_dir val\n"
        f"and evaluate with --label_hierarchy {folder / HIERARCHY}"
    )


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser("grocery", "Lays the Grocery Store data set out: train, val and test with a folder for each class.")
    parser.prog = "scripts/data/grocery.py"
    source = "a clone of its repository or an archive of one (tar, zip); downloaded from GitHub if not given (120 MB)"
    parser.add_argument("source", type=Path, nargs="?", metavar="FOLDER|ARCHIVE", help=source)
    parser.add_argument("--data_dir", type=Path, default=Path("datasets"), help="grocery/ is made below it")
    return parser.parse(argv)


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} images in {split}" for split, count in counts.items())


def find(source: Path | None, unfinished: Path) -> Path:
    """The folder with the lists of the data set, unpacked if need be."""
    if source is None:
        source = download(unfinished / "grocery.zip")
    if not source.exists():
        raise UserError(f"{source}: does not exist; give a clone or an archive of the data set, or nothing")
    if source.is_file():
        source = unpack(source, unfinished / "unpacked")
    lists = sorted(source.glob("**/classes.csv"))
    if not lists:
        raise UserError(f"{source}: has no classes.csv; give a clone or an archive of the Grocery Store data set")
    return lists[0].parent


def download(file: Path) -> Path:
    print("getting the Grocery Store data set from GitHub (about 120 MB)", flush=True)
    try:
        with urllib.request.urlopen(ADDRESS, timeout=60) as answer, file.open("wb") as out:
            shutil.copyfileobj(answer, out)
    except OSError as error:
        raise UserError(
            f"{ADDRESS}: cannot be downloaded ({error}); is the network reachable? A clone or an archive of the "
            "repository can be given instead"
        ) from error
    return file


def unpack(archive: Path, folder: Path) -> Path:
    try:
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        else:
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{archive}: not a whole tar or zip archive ({error}); get it again") from error
    return folder


def lay_out(data: Path, folder: Path) -> None:
    """Writes `SPLIT/CLASS/NAME.jpg` and the classes' hierarchy."""
    try:
        with (data / "classes.csv").open(encoding="utf-8", newline="") as file:
            classes = {row[1]: (row[0], row[2]) for row in list(csv.reader(file))[1:]}  # names, fine and coarse
        parents: dict[str, str] = {}
        for split in IMAGES:
            for line in (data / f"{split}.txt").read_text(encoding="utf-8").splitlines():
                path, number = (part.strip() for part in line.split(",")[:2])
                fine, coarse = classes[number]
                target = folder / split / fine / Path(path).name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(data / path, target)
                # A coarse class of one fine class may have its name: then there is nothing between it and the top.
                parents |= {coarse: Path(path).parts[1]} | ({fine: coarse} if fine != coarse else {})
    except FileNotFoundError as error:
        raise UserError(f"{error.filename}: is missing in the data set; get it again") from error
    except (LookupError, ValueError) as error:
        raise UserError(f"{data}: its lists cannot be read ({error!r}); get the data set again") from error
    lines = [f"{child}: {parent}\n" for child, parent in sorted(parents.items())]
    (folder / HIERARCHY).write_text("# The Grocery Store data set's classes and their groups.\n" + "".join(lines))


if __name__ == "__main__":
    main()
