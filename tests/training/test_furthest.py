"""Which checkpoint goes on or is evaluated: the one that got furthest, whatever the files' times say."""

import json
import os

import pytest
import torch
from tiny import SMALL, make_images, only, run_here, where

from solo_hcsc.encoders.checkpoints import find_checkpoint, load_checkpoint
from solo_hcsc.errors import UserError

FLAGS = ["--method", "mocov2plus", "--queue_size", "16", *SMALL, "--limit_train_batches", "1"]


@pytest.fixture
def data(tmp_path):
    make_images(tmp_path / "train", classes=2, per_class=8)
    return where(tmp_path)


def set_clock_back(folder) -> None:
    """Gives the files of later epochs earlier times."""
    for file in folder.rglob("*.ckpt"):
        epoch = int(file.stem.rpartition("=")[2])
        os.utime(file, (0, file.stat().st_mtime - 1000 * epoch))


def test_clock_that_was_set_back_does_not_decide(data, tmp_path, capsys):
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 3, "--keep_checkpoints", 3)
    set_clock_back(tmp_path / "runs")
    run = only(tmp_path / "runs", "args.json").parent
    assert find_checkpoint(run).name.endswith("ep=2.ckpt")
    assert find_checkpoint(tmp_path / "runs").name.endswith("ep=2.ckpt")
    for file in run.glob("*ep=2.ckpt"):
        file.unlink()
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 3, "--auto_resume")
    assert "-ep=1.ckpt" in capsys.readouterr().out.partition("resuming from ")[2].splitlines()[0]


def test_of_two_runs_with_the_same_flags_the_further_one_goes_on(data, tmp_path, capsys):
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 4, "--max_steps", 2)
    further = only(tmp_path / "runs", "*.ckpt")
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 4, "--max_steps", 1)
    capsys.readouterr()
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 4, "--auto_resume")
    assert f"resuming from {further}" in capsys.readouterr().out


def test_broken_checkpoint_is_named_and_not_passed_over(tmp_path):
    torch.save({"state_dict": {"a": torch.zeros(1)}, "global_step": 5}, tmp_path / "a.ckpt")
    (tmp_path / "b.ckpt").write_bytes(b"half a checkpoint")
    found = find_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"b\.ckpt: not a readable checkpoint"):
        load_checkpoint(found)


def test_flag_that_an_older_version_did_not_have_is_no_difference(data, tmp_path, capsys):
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 3, "--max_steps", 1)
    file = only(tmp_path / "runs", "args.json")
    recorded = json.loads(file.read_text())
    for name in ("skip_unreadable", "role", "images"):
        del recorded[name]
    file.write_text(json.dumps(recorded))
    capsys.readouterr()
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 3, "--auto_resume")
    assert "resuming from" in capsys.readouterr().out


def test_flag_that_was_asked_for_is_a_difference_to_a_run_that_did_not_have_it(data, tmp_path, capsys):
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 3, "--max_steps", 1)
    file = only(tmp_path / "runs", "args.json")
    recorded = json.loads(file.read_text())
    del recorded["skip_unreadable"]
    file.write_text(json.dumps(recorded))
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 3, "--auto_resume", "--skip_unreadable")
    err = capsys.readouterr().err
    assert "which had --skip_unreadable None" in err
    assert "starting anew" in err


@pytest.mark.parametrize("how", ["--auto_resume", "--resume_from_checkpoint"])
def test_changed_image_is_noted(how, data, tmp_path, capsys):
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 3, "--max_steps", 1)
    checkpoint = only(tmp_path / "runs", "*.ckpt")
    changed, other = (tmp_path / "train" / folder / "0.png" for folder in ("class 0", "class 1"))
    changed.write_bytes(other.read_bytes() + b"x")
    words = [how] if how == "--auto_resume" else [how, checkpoint]
    run_here("pretrain", *data, *FLAGS, "--max_epochs", 3, *words)
    out, err = capsys.readouterr()
    assert f"resuming from {checkpoint}" in out
    assert f"note: the training images are not those that {checkpoint} was trained on" in err
