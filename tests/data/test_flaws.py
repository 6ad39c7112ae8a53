"""What is wrong with image files by themselves."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter
from tiny import make_images

from solo_hcsc.data.flaws import Look, duplicates_among, find_flaws, flaws_in


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Twelve pictures with details, and planted flaws, each named for its own."""
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for number in range(12):
        pixels = draw.integers(256, size=(30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((320, 240)).save(folder / f"good {number:02d}.png")
    one = Image.open(folder / "good 00.png")
    one.filter(ImageFilter.GaussianBlur(6)).save(folder / "blurred.png")
    one.point(lambda value: value * 0.1).save(folder / "dark.png")
    one.resize((24, 18)).save(folder / "tiny.png")
    one.resize((2400, 60)).save(folder / "odd size.png")
    Image.new("RGB", (320, 240), (90, 90, 90)).save(folder / "blank.png")
    (folder / "cannot be read.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    return folder


def test_planted_flaws_are_found_and_no_others(photos):
    files = sorted(photos.iterdir())
    found = find_flaws(files)
    assert {files[number].stem: words for number, words in found.items()} == {
        name: (name,) for name in ("blurred", "dark", "tiny", "odd size", "blank", "cannot be read")
    }


def test_small_pictures_among_their_like_are_not_tiny():
    looks = [Look(8, 8, 60.0, 250.0, 0.1)] * 20
    assert flaws_in(looks) == {}


def test_duplicates_keep_their_numbers_where_files_cannot_be_read(photos, tmp_path):
    make_images(tmp_path / "more", classes=1, per_class=2)
    files = [str(photos / "cannot be read.png"), *map(str, sorted((tmp_path / "more").rglob("*.png")))]
    (tmp_path / "copy.png").write_bytes(Path(files[2]).read_bytes())
    groups = duplicates_among([*files, str(tmp_path / "copy.png")], None, leave=[0]).groups
    assert [(group.keep, group.others, group.exact) for group in groups] == [(2, (3,), True)]
