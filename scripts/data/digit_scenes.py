"""Writes pictures of handwritten digits on textures, with exact boxes, in the layout of PASCAL VOC; no download.

    python scripts/data/digit_scenes.py datasets/digit-scenes
    solo-hcsc detect RUN --dataset voc --data_dir datasets/digit-scenes ...

Each picture is a texture of noise and waves with one to five of scikit-learn's digits on it, at random places, sizes
and shades. Training pictures show digits of `solo-hcsc digits`' training images, test pictures those of its validation
images.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.digits import Digit, read_digits
from solo_hcsc.errors import UserError
from solo_hcsc.files import folder_written_whole
from solo_hcsc.launch import last_words
from solo_hcsc.settings import NOT_NEGATIVE, at_least

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STROKE = 0.35  # share of full ink from which on a pixel belongs to its digit


def texture(random: np.random.Generator, side: int) -> np.ndarray:
    """(side, side, 3) from 0 to 0.55: smooth noise in two colours, with waves over it."""
    colours = random.uniform(0.0, 0.45, (2, 3))
    blend = np.zeros((side, side))
    for cells in (4, 8, 16, 32):
        grey = Image.fromarray(random.uniform(0, 255, (cells, cells)).astype("uint8"))
        blend += np.asarray(grey.resize((side, side), Image.Resampling.BICUBIC)) / 255 / 4
    across, down = np.meshgrid(np.arange(side), np.arange(side))
    angle, length = random.uniform(0, np.pi), random.uniform(4, 20)
    waves = np.sin((across * np.cos(angle) + down * np.sin(angle)) * 2 * np.pi / length)
    shade = colours[0] + blend[..., None] * (colours[1] - colours[0])
    return np.clip(shade + 0.06 * waves[..., None] + random.normal(0, 0.02, (side, side, 1)), 0, 0.55)


def scene(
    random: np.random.Generator, digits: Sequence[Digit], side: int
) -> tuple[Image.Image, list[tuple[int, tuple[int, int, int, int]]]]:
    """A picture, and each digit with its box: the first and the last pixel that it inks, counted from 1."""
    pixels, shown = texture(random, side), []
    free = np.ones((side, side), dtype=bool)
    for _ in range(random.integers(1, 6)):
        digit = digits[random.integers(len(digits))]
        size = int(random.integers(side // 5, side * 2 // 5))
        place = _free_place(random, free, size)
        if place is None:
            continue
        ink = np.asarray(digit.image.resize((size, size), Image.Resampling.BICUBIC)) / 255.0
        left, top = place[1].start, place[0].start
        free[place] = False
        light = random.uniform(0.8, 1.0, 3)
        pixels[place] = pixels[place] * (1 - ink[..., None]) + light * ink[..., None]
        rows, columns = (np.flatnonzero((ink > STROKE).any(axis=axis)) for axis in (1, 0))
        shown.append(
            (digit.label, (left + columns[0] + 1, top + rows[0] + 1, left + columns[-1] + 1, top + rows[-1] + 1))
        )
    return Image.fromarray((pixels * 255).astype("uint8")), shown


def _free_place(random: np.random.Generator, free: np.ndarray, size: int) -> tuple[slice, slice] | None:
    """Rows and columns of a square without another digit, if a few tries find one."""
    for _ in range(20):
        left, top = (int(place) for place in random.integers(0, len(free) - size + 1, 2))
        place = slice(top, top + size), slice(left, left + size)
        if free[place].all():
            return place
    return None


def annotation(name: str, side: int, shown: list[tuple[int, tuple[int, int, int, int]]]) -> str:
    """As PASCAL VOC has it."""
    items = "".join(
        f"<object><name>{NAMES[label]}</name><difficult>0</difficult><bndbox>"
        + "".join(f"<{key}>{corner}</{key}>" for key, corner in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
        + "</bndbox></object>\n"
        for label, box in shown
    )
    size = f"<size><width>{side}</width><height>{side}</height><depth>3</depth></size>"
    return f"<annotation><filename>{name}.jpg</filename>{size}\n{items}</annotation>\n"


def write(folder: Path, counts: dict[str, int], side: int, seed: int) -> None:
    """Writes so many pictures of each split."""
    for part in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (folder / part).mkdir(parents=True)
    for number, ((split, count), digits) in enumerate(zip(counts.items(), read_digits().values(), strict=True)):
        random = np.random.default_rng([seed, number])
        names = [f"{number}{place:05}" for place in range(count)]
        for name in names:
            picture, shown = scene(random, digits, side)
            picture.save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
            (folder / "Annotations" / f"{name}.xml").write_text(annotation(name, side, shown))
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")


def main() -> None:
    """What a user can mend becomes one line on stderr and exit code 2."""
    try:
        run(sys.argv[1:])
    except UserError as error:
        last_words(str(error))
        sys.exit(2)


def run(argv: Sequence[str]) -> None:
    parser = Parser("digit_scenes", "Writes pictures of digits on textures, with boxes, in the layout of PASCAL VOC.")
    parser.add_argument("folder", type=Path, help="where to write them; it must not be there yet")
    parser.add_argument("--train", type=int, default=240, bound=at_least(1), help="training pictures")
    parser.add_argument("--test", type=int, default=60, bound=at_least(1), help="test pictures")
    parser.add_argument("--side", type=int, default=128, bound=at_least(32), help="of a picture in pixels")
    parser.add_argument("--seed", type=int, default=0, bound=NOT_NEGATIVE, help="of places, sizes, shades and textures")
    flags = parser.parse(argv)
    if flags.folder.exists():
        raise UserError(f"{flags.folder}: is there already; remove it, or give another folder")
    with folder_written_whole(flags.folder, lambda _: False) as part:
        write(part, {"trainval": flags.train, "test": flags.test}, flags.side, flags.seed)
    print(f"{flags.train} training and {flags.test} test pictures in {flags.folder}")


if __name__ == "__main__":
    main()
