"""metrics.csv: whole rows whenever the run is killed, before the checkpoint of their epoch, with all of the history."""

import csv
import os
import platform
import subprocess

import pytest
from tiny import SMALL, only, run_here, where

from solo_hcsc.training import saving
from solo_hcsc.training.metrics import MetricsFile

MOCO = ["--method", "mocov2plus", "--queue_size", "16"]


def rows(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_kill_while_a_new_column_comes_in_keeps_every_row(tmp_path, monkeypatch):
    metrics = MetricsFile(tmp_path)
    metrics.log_metrics({"epoch": 0, "loss": 1.0}, step=3)
    metrics.save()
    before = metrics.file.read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    metrics.log_metrics({"epoch": 1, "loss": 0.5, "clusters": 4}, step=7)
    with pytest.raises(KeyboardInterrupt):
        metrics.save()
    assert metrics.file.read_bytes() == before
    monkeypatch.undo()
    metrics.save()
    assert [(row["epoch"], row["loss"], row["clusters"]) for row in rows(metrics.file)] == [
        ("0", "1.0", ""),
        ("1", "0.5", "4"),
    ]


def test_rows_are_appended_and_the_same_one_counts_once(tmp_path):
    metrics = MetricsFile(tmp_path)
    for step in range(3):
        metrics.log_metrics({"epoch": 0, "loss": float(step)}, step=step)
        metrics.save()
    inode = metrics.file.stat().st_ino
    metrics.log_metrics({"epoch": 0, "loss": 2.0}, step=2)  # as Lightning logs it after the checkpoint
    metrics.save()
    assert metrics.file.stat().st_ino == inode, "nothing new: the file was not written again"
    metrics.log_metrics({"epoch": 0, "loss": 2.5}, step=2)
    metrics.save()
    assert [row["loss"] for row in rows(metrics.file)] == ["0.0", "1.0", "2.5"]


def test_row_of_an_epoch_is_there_when_its_checkpoint_is_written(images, tmp_path, monkeypatch):
    seen = []
    save = saving.WholeFiles.save_checkpoint

    def look_and_save(self, checkpoint, path, storage_options=None):
        found = rows(only(tmp_path, "metrics.csv"))
        seen.append(
            [row["epoch"] for row in found if row["epoch_seconds"] and row["rankme"] and row["train_acc1_epoch"]]
        )
        save(self, checkpoint, path, storage_options)

    monkeypatch.setattr(saving.WholeFiles, "save_checkpoint", look_and_save)
    data = ["--dataset", "custom", "--data_dir", images, "--train_dir", "train", "--checkpoint_dir", tmp_path]
    run_here("pretrain", *data, *SMALL, *MOCO, "--max_epochs", 3)
    assert seen == [["0"], ["0", "1"], ["0", "1", "2"]]
    assert len([row for row in rows(only(tmp_path, "metrics.csv")) if row["epoch_seconds"]]) == 3


def test_resumed_runs_file_has_the_whole_history(images, tmp_path):
    data = ["--dataset", "custom", "--data_dir", images, "--train_dir", "train"]
    flags = [*data, *SMALL, *MOCO, "--max_epochs", 3, "--log_every_n_steps", 1]
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "whole")
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "first", "--max_steps", 6)
    within = only(tmp_path / "first", "*step=6.ckpt")
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "second", "--resume_from_checkpoint", within)
    kept = ("epoch", "step", "train_loss", "train_acc1_step", "train_acc1_epoch")
    whole, resumed = (
        [tuple(row.get(name) for name in kept) for row in rows(only(tmp_path / folder, "metrics.csv"))]
        for folder in ("whole", "second")
    )
    of_half_an_epoch = ("1", "5")  # which the run that was stopped there logged; the whole epoch's follows
    assert {row[:2] for row in resumed} == {row[:2] for row in whole} | {of_half_an_epoch}
    assert resumed[-1] == whole[-1]


def test_file_without_rows_is_not_made(tmp_path):
    MetricsFile(tmp_path).save()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_runs_go_when_the_next_one_begins(tmp_path, images):
    folder = tmp_path / "runs" / "mocov2plus" / "dead"
    folder.mkdir(parents=True)
    with subprocess.Popen(["true"]) as ended:
        pass
    dead, alive = (f"@{platform.node()}.part", f".{os.getppid()}@{platform.node()}.part")
    for name in (f".x-ep=0.ckpt.{ended.pid}{dead}", f".metrics.csv.{ended.pid}{dead}", f".x-ep=1.ckpt{alive}"):
        (folder / name).touch()
    (folder / "film.mkv.part").touch()
    data = ["--dataset", "custom", "--data_dir", images, "--train_dir", "train"]
    flags = [*where(tmp_path)[-2:], *data, *SMALL, *MOCO, "--max_epochs", 1, "--limit_train_batches", 1]
    run_here("pretrain", *flags)
    assert {file.name for file in folder.iterdir()} == {f".x-ep=1.ckpt{alive}", "film.mkv.part"}
