"""`solo-hcsc pretrain --data_dir FOLDER` alone: the method, the folders and whether there are classes are found out."""

import shlex
from pathlib import Path

import pytest
from tiny import SMALL, make_images, only, run_here

from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.encoders.recorded import recorded_flags


def linked(folder, **below):
    """A folder with links to others below it."""
    folder.mkdir()
    for name, target in below.items():
        (folder / name).symlink_to(target)
    return folder


def test_folders_train_and_val_are_found(images, tmp_path):
    flags = parse(["--data_dir", str(linked(tmp_path / "x", train=images / "train", val=images / "val"))])
    assert (flags.method, flags.dataset, flags.no_labels) == ("hcsc", "custom", False)
    assert (flags.train_dir, flags.val_dir) == (Path("train"), Path("val"))


def test_class_folders_right_below_are_classes(images):
    flags = parse(["--data_dir", str(images / "train"), "--method", "byol"])
    assert (flags.method, flags.train_dir, flags.val_dir, flags.no_labels) == ("byol", Path(), None, False)


def test_class_called_train_among_others_is_no_split(images, tmp_path):
    folder = linked(tmp_path / "x", train=images / "train/class 0", bus=images / "train/class 1")
    assert parse(["--data_dir", str(folder)]).train_dir == Path()


@pytest.mark.parametrize("below", ["", "train"])
def test_images_without_class_folders_have_no_labels(below, images, tmp_path):
    folder = images / "flat/class 0"
    folder = linked(tmp_path / "x", train=folder) if below else folder
    flags = parse(["--data_dir", str(folder)])
    assert (flags.train_dir, flags.no_labels) == (Path(below), True)


def test_typed_folders_and_labels_win(images):
    flags = parse(["--data_dir", str(images), "--train_dir", "train", "--no_labels"])
    assert (flags.dataset, flags.train_dir, flags.val_dir, flags.no_labels) == ("custom", Path("train"), None, True)


def test_unlabelled_run_ends_with_a_command_that_explores_it(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = make_images(tmp_path / "photos", classes=1, per_class=24) / "class 0"
    tiny = "--num_prototypes 4 2 --min_cluster_size 0 --queue_size 16 --max_epochs 2 --proto_warmup_epochs 1"
    run_here("pretrain", "--data_dir", photos, *SMALL, *tiny.split())
    out = capfd.readouterr().out
    assert f"without labels: {photos} has no class folders" in out
    assert recorded_flags(only(tmp_path, "*.ckpt"))["no_labels"] is True
    (line,) = (line for line in out.splitlines() if line.startswith("  next "))
    program, command, *words = shlex.split(line.removeprefix("  next "))
    assert (program, command) == ("solo-hcsc", "explore")
    run_here(command, *words, "--num_workers", "0")
    assert only(tmp_path, "index.html").is_file()
