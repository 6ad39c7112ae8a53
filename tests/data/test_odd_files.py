"""Files that are no images though named so, photographs that lie on their side, folders that cannot be read."""

import os

import numpy as np
import pytest
from PIL import Image, ImageOps
from tiny import SMALL, make_images, where

from solo_hcsc.data.images import UnreadableImage, list_images, read_image
from solo_hcsc.data.source import check_folder, class_folders
from solo_hcsc.errors import UserError

MOCO = ["--method", "mocov2plus", "--queue_size", "16", "--max_epochs", "1"]
# How each orientation is turned to stand upright, written from the EXIF standard.
UPRIGHT = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1],
    7: lambda pixels: pixels.swapaxes(0, 1)[::-1, ::-1],
    8: lambda pixels: pixels.swapaxes(0, 1)[::-1],
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_photograph_is_read_upright(orientation, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (6, 4, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(np.asarray(read_image(str(tmp_path / "x.png"))), UPRIGHT[orientation](pixels))


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientation_that_is_none_changes_nothing(orientation, tmp_path):
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(np.asarray(read_image(str(tmp_path / "x.png"))), np.asarray(image))


def test_orientation_agrees_with_pillow(tmp_path):
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (5, 9, 3), dtype=np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "x.jpg", exif=exif, quality=95)
    expected = ImageOps.exif_transpose(Image.open(tmp_path / "x.jpg"))
    np.testing.assert_array_equal(np.asarray(read_image(str(tmp_path / "x.jpg"))), np.asarray(expected))


def test_pipe_is_refused_instead_of_waited_for(tmp_path, refused):
    make_images(tmp_path / "train", classes=2, per_class=8)
    os.mkfifo(tmp_path / "train" / "class 0" / "x.png")
    line = refused("pretrain", *where(tmp_path), *SMALL, *MOCO)
    assert "x.png: not a file but a pipe or a device; remove it" in line
    with pytest.raises(UnreadableImage, match="not a file but a pipe"):
        read_image(str(tmp_path / "train" / "class 0" / "x.png"))


def test_link_to_nowhere_is_listed_and_named_when_read(tmp_path):
    (tmp_path / "x.png").symlink_to(tmp_path / "gone.png")
    assert list_images(tmp_path).images == [str(tmp_path / "x.png")]
    with pytest.raises(UnreadableImage, match="No such file"):
        read_image(str(tmp_path / "x.png"))


@pytest.mark.parametrize("size", [(300_000, 1), (1, 300_000)])
def test_image_that_resizing_would_make_huge_is_refused(size, tmp_path):
    Image.new("L", size).save(tmp_path / "x.png")
    with pytest.raises(UnreadableImage, match=r"its sides are .*; cut it"):
        read_image(str(tmp_path / "x.png"))


def test_unreadable_folder_is_one_line(tmp_path, monkeypatch):
    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", forbidden)
    for ask in (class_folders, list_images):
        with pytest.raises(UserError, match=r"this folder cannot be read \(Permission denied\)"):
            ask(tmp_path)
    monkeypatch.setattr(type(tmp_path), "iterdir", forbidden)
    with pytest.raises(UserError, match=r"`train_dir`: .* cannot be read \(Permission denied\)"):
        check_folder("train_dir", tmp_path)
