"""The embedded data set: scikit-learn's handwritten digits, as images and as an image folder."""

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

SIDE = 32  # pixels; the originals have 8


class Digit(NamedTuple):
    """One of scikit-learn's 1,797 digits."""

    number: int  # among all of them
    label: int
    image: Image.Image  # in grey


def read_digits() -> dict[str, list[Digit]]:
    """Return the digits of `train`, 1,437, and `val`, 360."""
    from sklearn.datasets import load_digits  # takes a second to import, and most commands do without
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train, val = train_test_split(range(len(digits.target)), test_size=0.2, stratify=digits.target, random_state=0)

    def digit(index: int) -> Digit:
        grey = (digits.images[index] * 255 / 16).astype("uint8")
        image = Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        return Digit(index, int(digits.target[index]), image)

    return {split: [digit(index) for index in indexes] for split, indexes in (("train", train), ("val", val))}


def lay_out_digits(data_dir: Path) -> Path:
    """Write `digits/{train,val}/CLASS/INDEX.png` below `data_dir`, unless it is there: 1,437 and 360 images."""
    folder = data_dir / "digits"
    if folder.is_dir():
        return folder
    data_dir.mkdir(parents=True, exist_ok=True)
    # Made beside its place and renamed, so that neither a kill nor a second process leaves half a folder.
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".digits-") as unfinished:
        for split, digits in read_digits().items():
            for digit in digits:
                target = Path(unfinished, "digits", split, str(digit.label))
                target.mkdir(parents=True, exist_ok=True)
                digit.image.convert("RGB").save(target / f"{digit.number:04d}.png")
        try:
            os.rename(Path(unfinished, "digits"), folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
    return folder
