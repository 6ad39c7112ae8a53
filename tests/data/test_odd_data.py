"""Images and folders as they are found: odd formats, odd names, broken files."""

import json
import os
import shutil
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import SMALL, make_images, only, run, run_here, where

from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.data.folders import ImagesWithoutLabels
from solo_hcsc.data.images import SkipUnreadable, UnreadableFiles, UnreadableImage, list_images, read_image
from solo_hcsc.data.sets import one_split
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import UserError
from solo_hcsc.methods.names import method_names
from solo_hcsc.training.pretraining import Work, prepare, resolve

MOCO = "--method mocov2plus --queue_size 16 --proj_hidden_dim 16 --max_epochs 1".split()
TREE = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()
GREY = np.linspace(0, 255, 40 * 36).reshape(40, 36)


def colours() -> Image.Image:
    return Image.fromarray(np.stack([GREY, GREY[::-1], np.full_like(GREY, 90)], axis=2).astype("uint8"))


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def rgb_png_of_16_bits() -> bytes:
    """Pillow writes none: 2 x 1 pixels, black and (65535, 32768, 256)."""
    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" + struct.pack(">6H", 0, 0, 0, 65535, 32768, 256))
    chunks = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


GREYS = {
    "8 bits": (Image.fromarray(GREY.astype("uint8")), "png"),
    "16 bits": (Image.fromarray((GREY * 257).astype("uint16")), "png"),
    "16-bit tiff": (Image.fromarray((GREY * 257).astype("uint16")), "tif"),
    "16-bit pgm": (Image.fromarray((GREY * 257).astype("int32")), "pgm"),
    "grey and alpha": (Image.fromarray(GREY.astype("uint8")).convert("LA"), "png"),
    "jpeg": (Image.fromarray(GREY.astype("uint8")), "jpg"),
}
COLOURS = {
    "palette": (colours().convert("P"), "png"),
    "rgba": (colours().convert("RGBA"), "png"),
    "cmyk jpeg": (colours().convert("CMYK"), "jpg"),
    "cmyk tiff": (colours().convert("CMYK"), "tiff"),
    "ycbcr": (colours().convert("YCbCr"), "jpg"),
    "webp": (colours(), "webp"),
    "upper case": (colours(), "PNG"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [*GREYS, *COLOURS])
def test_any_mode_is_read_as_8_bit_rgb(kind, tmp_path):
    image, ending = (GREYS | COLOURS)[kind]
    image.save(tmp_path / f"image.{ending}")
    read = read_image(str(tmp_path / f"image.{ending}"))
    assert (read.mode, read.size) == ("RGB", (36, 40))
    expected = np.repeat(GREY[..., None], 3, axis=2) if kind in GREYS else np.asarray(colours(), dtype=float)
    # jpeg, webp and a palette of 256 colours are near it, white is not
    assert np.abs(np.asarray(read, dtype=float) - expected).mean() < (2 if kind in GREYS else 20)


def test_two_colours_and_16_bits_per_colour(tmp_path):
    Image.fromarray(GREY > 100).save(tmp_path / "two.png")
    assert set(np.unique(read_image(str(tmp_path / "two.png")))) == {0, 255}
    (tmp_path / "deep.png").write_bytes(rgb_png_of_16_bits())
    assert read_image(str(tmp_path / "deep.png")).getpixel((1, 0)) == (255, 128, 1)


HIDDEN, SHOWN = (200, 30, 60), (10, 90, 240)


def see_through(kind: str) -> tuple[Image.Image, dict]:
    """Return a picture whose left half is hidden, with what else its file needs."""
    rgba = Image.new("RGBA", (20, 20), (*SHOWN, 255))
    rgba.paste((*HIDDEN, 0), (0, 0, 10, 20))
    if kind == "palette":
        return rgba.convert("RGB").quantize(2), {"transparency": rgba.convert("RGB").quantize(2).getpixel((0, 0))}
    if kind == "colour":
        return rgba.convert("RGB"), {"transparency": HIDDEN}
    if kind == "grey and alpha":
        return rgba.convert("LA"), {}
    if kind == "16-bit grey":
        deep = np.full((20, 20), 256 * 90, dtype=np.uint16)
        deep[:, :10] = 7
        return Image.fromarray(deep), {"transparency": 7}
    return rgba, {}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("kind", "ending"),
    [("rgba", "png"), ("rgba", "webp"), ("rgba", "tif"), ("rgba", "gif"), ("rgba", "ico"), ("palette", "png"),
     ("colour", "png"), ("grey and alpha", "png"), ("16-bit grey", "png")],
)  # fmt: skip
def test_what_transparent_pixels_hide_is_not_seen(kind, ending, tmp_path):
    picture, how = see_through(kind)
    lossless = (
        {"lossless": True, "exact": True} if ending == "webp" else {"sizes": [(20, 20)]} if ending == "ico" else {}
    )
    picture.save(tmp_path / f"x.{ending}", **how, **lossless)
    read = np.asarray(read_image(str(tmp_path / f"x.{ending}"))).astype(int)
    assert (read[:, :9] == 255).all()
    shown = np.asarray(SHOWN if "grey" not in kind else read[0, 19])
    assert np.abs(read[:, 11:] - shown).max() <= 1
    assert (shown < 250).all()


def test_half_transparent_pixels_are_mixed_with_white_and_opaque_ones_stay(tmp_path):
    Image.new("RGBA", (4, 4), (0, 100, 200, 128)).save(tmp_path / "half.png")
    assert read_image(str(tmp_path / "half.png")).getpixel((0, 0)) == (127, 177, 227)
    whole = colours().convert("RGBA")
    whole.save(tmp_path / "whole.png")
    np.testing.assert_array_equal(np.asarray(read_image(str(tmp_path / "whole.png"))), np.asarray(colours()))


def test_every_format_that_pillow_reads_is_listed_and_read_and_other_files_are_named(tmp_path, told, capsys):
    folder = tmp_path / "train" / "one class"
    folder.mkdir(parents=True)
    endings = [
        "jpg",
        "jfif",
        "png",
        "gif",
        "webp",
        "bmp",
        "tif",
        "ppm",
        "pcx",
        "tga",
        "ico",
        "jp2",
        "sgi",
        "dds",
        "XBM",
    ]
    for ending in endings:
        colours().convert("1" if ending == "XBM" else "RGB").save(folder / f"x.{ending}", format=None)
    frames = [Image.new("RGB", (9, 9), grey) for grey in ("black", "white")]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    for name in ("notes.txt", "more.txt", "drawing.svg", "README", "print.eps", ".hidden"):
        (folder / name).write_text("nothing")
    colours().save(tmp_path / "train" / "loose.png")
    found = list_images(folder)
    assert {os.path.basename(path) for path in found.images} == {*(f"x.{ending}" for ending in endings), "moving.gif"}
    assert all(read_image(path).mode == "RGB" for path in found.images)
    assert read_image(str(folder / "moving.gif")).getpixel((0, 0)) == (0, 0, 0)
    source = ImageSource("custom", tmp_path, Path("train"), None, (32,), (0, 0, 0), (1, 1, 1))
    assert len(one_split(source, "train")) == len(found.images)
    said = capsys.readouterr().out
    assert "1 images that are in no class folder are left out; 5 files are not images and left out: .txt 2, " in said
    assert all(kind in said for kind in (".svg 1", "without an ending 1", ".eps 1"))
    assert len(one_split(replace(source, no_labels=True), "train")) == len(found.images) + 1


def broken(folder: Path) -> dict[str, str]:
    """Files that look like images, and what is said of each."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype("uint8"))
    noise.save(folder / "whole.jpg")
    noise.save(folder / "whole.png")
    noise.save(folder / "whole.webp")
    jpg, png, webp = ((folder / f"whole.{ending}").read_bytes() for ending in ("jpg", "png", "webp"))
    files = {
        "empty.png": (b"", "the file is empty"),
        "text.jpg": (b"404 not found", "not an image of a known format"),
        "half.jpg": (jpg[: len(jpg) // 2], "truncated"),
        "end.jpg": (jpg[:-100], "truncated"),
        "half.png": (png[: len(png) // 2], "truncated"),
        "flipped.png": (png[:60] + bytes([png[60] ^ 255]) + png[61:], "broken"),
        "half.webp": (webp[: len(webp) // 2], ""),
        "bomb.png": (png[:16] + struct.pack(">II", 60000, 60000) + png[24:29] + struct.pack(
            ">I", zlib.crc32(png[12:16] + struct.pack(">II", 60000, 60000) + png[24:29])) + png[33:], "exceeds limit"),
    }  # fmt: skip
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    Image.fromarray((GREY / 255).astype("float32")).save(folder / "float.tif")
    Image.fromarray((GREY * 1e6).astype("int32")).save(folder / "deep.tif")
    (folder / "dangling.png").symlink_to(folder / "nowhere")
    said = {name: reason for name, (_, reason) in files.items()}
    return said | {"float.tif": "floating point", "deep.tif": "from 0 to 255000000", "dangling.png": "No such file"}


def test_broken_files_are_named_with_the_reason(tmp_path):
    for name, reason in broken(tmp_path).items():
        with pytest.raises(UnreadableImage) as refused:
            read_image(str(tmp_path / name))
        line = str(refused.value)
        assert line.startswith(f"{tmp_path / name}: cannot be read as an image ("), line
        assert reason in line
        assert line.endswith("; remove or replace it, or add `skip_unreadable`")
        assert "\n" not in line


def test_workers_error_keeps_its_line_only(tmp_path):
    (tmp_path / "a\nb.png").touch()
    with pytest.raises(UnreadableImage) as refused:
        next(iter(torch.utils.data.DataLoader(ImagesWithoutLabels(tmp_path, torch.tensor), num_workers=1)))
    assert str(refused.value) == (
        f"{tmp_path}/a\\nb.png: cannot be read as an image (the file is empty); remove or replace it, "
        "or add `skip_unreadable`"
    )


ODD_NAMES = [
    "with  two spaces",
    "it's",
    'say "hi"',
    "é",
    "日本",
    "🦊",
    "-rf",
    "$HOME;ls",
    "100%",
    "a\nb",
    "[x]*",
    "x.png",
]


def test_odd_names_nested_folders_and_links_are_read_and_hidden_things_are_not(tmp_path, monkeypatch, capsys):
    for split in ("train", "val"):
        for name in (*ODD_NAMES, os.fsdecode(b"\xff\xfe")):
            folder = tmp_path / split / name / name / "deeper"
            folder.mkdir(parents=True)
            colours().save(folder / f"{name}.PNG")
        (tmp_path / split / "link").symlink_to(tmp_path / split / "é")
        (folder / "back").symlink_to(tmp_path)
        (folder / "notes.txt").touch()
        (folder / "._resource fork.png").touch()
        (tmp_path / split / "é" / ".ipynb_checkpoints").mkdir()
        (tmp_path / split / "é" / ".ipynb_checkpoints" / "x-checkpoint.png").touch()
        (tmp_path / split / ".ipynb_checkpoints").mkdir()
        (tmp_path / split / "readme.png").touch()  # beside the classes, not in one
    monkeypatch.chdir(tmp_path)
    flags = [*where(tmp_path), "--val_dir", "val"]
    run_here("pretrain", *flags, *SMALL, *MOCO)
    out = capsys.readouterr().out
    assert "14 images, 14 classes" in out
    knn = "--crop_size 32 --num_workers 0 --k 1 --pretrained_feature_extractor runs".split()
    run_here("knn", *flags[:-4], "--val_dir", "val", *knn)
    assert json.loads(only(tmp_path / "runs", "knn-custom-*.json").read_text())["metrics"]["acc5"] > 0


def test_links_in_circles_end(tmp_path):
    make_images(tmp_path, classes=2, per_class=1)
    (tmp_path / "class 0" / "to 1").symlink_to(tmp_path / "class 1")
    (tmp_path / "class 1" / "to 0").symlink_to(tmp_path / "class 0")
    (tmp_path / "class 1" / "self").symlink_to(tmp_path / "class 1")
    whole, one = list_images(tmp_path).images, list_images(tmp_path / "class 1").images
    # Each once, by its own path if there is one.
    assert [os.path.relpath(path, tmp_path) for path in whole] == ["class 0/0.png", "class 1/0.png"]
    assert [os.path.relpath(path, tmp_path) for path in one] == ["class 1/0.png", "class 1/to 0/0.png"]


def test_folder_that_cannot_be_listed_is_not_passed_over(tmp_path, monkeypatch):
    make_images(tmp_path, classes=2, per_class=1)
    scandir = os.scandir

    def denied(path):
        if "class 1" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(UserError, match="class 1: this folder cannot be read"):
        list_images(tmp_path)


def prepared(*flags: str) -> Work:
    return prepare(resolve(parse(flags)))


@pytest.mark.parametrize("method", method_names())
def test_without_labels_the_classifier_has_one_class(method, images, tmp_path, monkeypatch):
    """`train` has images in sub-folders, `flat/class 0` has none."""
    flags = "--no_labels --queue_size 16 --num_prototypes 4 2" if method == "hcsc" else "--no_labels"
    flags += " --queue_size 16" if method in ("mocov2plus", "ressl", "nnclr", "nnbyol", "nnsiam", "swav") else ""
    flags += " --min_cluster_size 2 --proto_warmup_epochs 1" if method == "hcsc" else ""
    flags += " --whitening_size 8 --proj_output_dim 4" if method == "wmse" else ""
    for train, count in (("train", 36), ("flat/class 0", 20)):
        work = prepared(*where(images, train), *SMALL, "--method", method, "--max_epochs", "2", *flags.split())
        assert (work.images, work.val_set, work.recorded["num_classes"]) == (count, None, 1)
        assert work.model.classifier.out_features == 1


# ---- images that cannot be read ----


@pytest.fixture
def spoilt(tmp_path) -> Path:
    """`train` with 24 images, of which the last of `class 0` and the first two of `class 1` cannot be read."""
    make_images(tmp_path / "train", classes=2, per_class=12)
    (tmp_path / "train" / "class 0" / "9.png").write_bytes(b"")
    (tmp_path / "train" / "class 1" / "0.png").write_text("not an image")
    half = tmp_path / "train" / "class 1" / "1.png"
    half.write_bytes(half.read_bytes()[:300])
    return tmp_path


def test_next_readable_image_stands_in_with_its_index_and_label(spoilt):
    work = prepared(*where(spoilt), *SMALL, *TREE, "--max_epochs", "2", "--skip_unreadable")
    train_set = work.train_set
    assert isinstance(train_set, SkipUnreadable)
    train_set.unreadable.write_to(spoilt / "list.txt")
    names = [os.path.basename(path) for path, _ in train_set.dataset.samples]
    assert (names[11], names[12], names[13]) == ("9.png", "0.png", "1.png")
    assert [(train_set[i][0], train_set[i][2]) for i in (10, 11, 12, 13, 14)] == [(10, 0), *[(14, 1)] * 4]
    (crops,) = work.model.centre_crops([10, 11, 14])
    assert torch.equal(crops[1], crops[2])
    assert not torch.equal(crops[0], crops[2])
    folder = spoilt / "train"
    assert (spoilt / "list.txt").read_text().splitlines() == [
        f"{folder}/class 0/9.png", f"{folder}/class 1/0.png", f"{folder}/class 1/1.png"
    ]  # fmt: skip


def test_last_image_is_replaced_by_the_first_and_too_many_stop(tmp_path):
    make_images(tmp_path, classes=1, per_class=3)
    for name in ("1.png", "2.png"):
        (tmp_path / "class 0" / name).write_bytes(b"")
    unreadable = UnreadableFiles(tmp_path / "list.txt")
    dataset = SkipUnreadable(ImagesWithoutLabels(tmp_path, lambda image: image), unreadable)
    assert [dataset[i][0] for i in range(3)] == [0, 0, 0]
    (tmp_path / "class 0" / "0.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"`skip_unreadable`: .* in a row cannot be read; the last: .*1\.png"):
        dataset[2]


def test_skipped_images_are_counted_once_and_runs_repeat(spoilt, capfd):
    """With workers, whose memory ends with an epoch, over two epochs."""
    ends = []
    for _ in range(2):
        flags = [*where(spoilt), *SMALL, *TREE, "--clustering_start", "0", "--max_epochs", "2", "--num_workers", "2"]
        run_here("pretrain", *flags, "--skip_unreadable")
        err = capfd.readouterr().err
        named = only(spoilt / "runs", "unreadable.txt")
        assert sorted(map(os.path.basename, named.read_text().splitlines())) == ["0.png", "1.png", "9.png"]
        said = f"note: 3 of 24 images could not be read; each is replaced by the next one; named in {named}\n"
        assert err.count(said) == 2  # when they were found, and at the end
        ends.append(torch.load(only(spoilt / "runs", "*.ckpt"), weights_only=True)["state_dict"])
        shutil.rmtree(spoilt / "runs")
    first, second = ends
    assert all(torch.equal(first[k], second[k]) for k in first if isinstance(first[k], torch.Tensor))


def test_validation_images_are_skipped_too_and_whole_data_say_nothing(spoilt, capfd):
    make_images(spoilt / "val", classes=2, per_class=2)
    whole = [*where(spoilt, "val"), *SMALL, *MOCO, "--batch_size", "4", "--skip_unreadable"]
    run_here("pretrain", *whole)
    assert "could not be read" not in capfd.readouterr().err
    assert not list(spoilt.rglob("unreadable.txt"))
    (spoilt / "val" / "class 1" / "1.png").write_bytes(b"")
    run_here("pretrain", *where(spoilt), "--val_dir", "val", *SMALL, *MOCO, "--skip_unreadable")
    assert "4 of 28 images could not be read" in capfd.readouterr().err


def test_unreadable_image_ends_the_run_in_one_line(tmp_path):
    """Also where a loader's worker process of one of two training processes comes across it."""
    make_images(tmp_path / "train", classes=2, per_class=12)
    spoilt = tmp_path / "train" / "class 1" / "it's é.png"
    spoilt.write_bytes(b"")
    flags = [*where(tmp_path), *SMALL, *MOCO, "--max_epochs", "50", "--num_workers", "2", "--devices", "2"]
    out = run("pretrain", *flags, cwd=tmp_path, expect=2)
    (line,) = [line for line in out.stderr.splitlines() if not line.startswith("epoch ")]
    assert line == (
        f"error: {spoilt}: cannot be read as an image (the file is empty); remove or replace it, "
        "or add --skip_unreadable"
    )


def test_evaluation_ends_at_an_unreadable_image(spoilt, capfd, monkeypatch):
    monkeypatch.chdir(spoilt)
    run_here("pretrain", *where(spoilt), *SMALL, *MOCO, "--skip_unreadable")
    for module, flags in {"knn": ["--k", "1"], "linear": ["--max_epochs", "1", "--batch_size", "24"]}.items():
        capfd.readouterr()
        small = [*SMALL, *flags, "--pretrained_feature_extractor", only(spoilt, "*.ckpt")]
        small = small if module == "linear" else [flag for flag in small if flag not in ("--lr", "0.03")]
        with pytest.raises(SystemExit) as stopped:
            run_here(module, *where(spoilt)[:6], "--val_dir", "train", *small)
        assert stopped.value.code == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.endswith("; remove or replace it, or add --skip_unreadable")


def test_evaluation_with_one_validation_image(images, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(images / "train", tmp_path / "train")
    (tmp_path / "val" / "class 1").mkdir(parents=True)
    colours().save(tmp_path / "val" / "class 1" / "one.png")
    run_here("pretrain", *where(tmp_path), *SMALL, *MOCO)
    flags = [*where(tmp_path)[:6], "--val_dir", "val", "--pretrained_feature_extractor", only(tmp_path, "*.ckpt")]
    run_here("linear", *flags, *SMALL, "--max_epochs", "1")
    run_here("knn", *flags, "--crop_size", "32", "--num_workers", "0", "--k", "3")
    out = capsys.readouterr().out
    taken = "encoder: 120 weights of resnet18 taken from "
    assert out.count(taken) == 2
    assert "not used" not in out
