"""Kills, full disks and folders that vanish: what a run had is still there."""

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from tiny import ROOT, SMALL, only, run_here
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from solo_hcsc import launch
from solo_hcsc.errors import UserError
from solo_hcsc.solo102.method import HCSC as Method
from solo_hcsc.training import saving, session

HCSC = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()


def test_twenty_kills_lose_no_finished_epoch_and_change_no_bit(tmp_path):
    command = [sys.executable, "-m", "benchmarks.kills", "--kills", "20", "--epochs", "6", "--out", str(tmp_path)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    (result,) = json.loads((tmp_path / "kills.json").read_text())["rows"]
    assert result["kills survived"] == result["kills made"] == 20
    assert result["finished epochs lost"] == 0
    assert result["of them bit-identical"] == result["runs that came to their end"] >= 1
    assert result["of them with all rows"] == result["runs that came to their end"]


def test_disk_that_fills_up_ends_the_run_with_the_last_checkpoint_intact(custom, tmp_path):
    flags = [*custom, *SMALL, *HCSC, "--max_epochs", "100", "--checkpoint_dir", tmp_path / "runs"]
    command = [sys.executable, "-m", "solo_hcsc", "pretrain", *map(str, flags)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.rglob("*.ckpt")):
            assert process.poll() is None
            time.sleep(0.05)
        # From here on the system lets it write no more than 1 MB to a file.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2**20, 2**20))
        errors = [line for line in process.stderr if not line.startswith(("epoch", "note"))]
    assert process.returncode == 2
    checkpoint = only(tmp_path, "*.ckpt")
    assert len(errors) == 1
    assert "cannot be written: File too large" in errors[0]
    assert f"last good checkpoint: {checkpoint}" in errors[0]
    assert torch.load(checkpoint, weights_only=True)["state_dict"]
    assert not list(tmp_path.rglob("*.part"))


def test_too_little_space_is_found_before_training(custom, tmp_path, monkeypatch, capsys):
    usage = saving.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda folder: usage._replace(free=10**8))
    with pytest.raises(SystemExit) as stopped:
        run_here("pretrain", *custom, *SMALL, *HCSC, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "runs")
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "100 MB are free and the checkpoints take 27" in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.rglob("*.*"))


def test_estimate_of_a_checkpoints_size_is_right(custom, tmp_path, monkeypatch):
    estimates = []

    def estimate(folder, model, records, optimizer):
        estimates.append(saving.checkpoint_bytes(model, optimizer))

    monkeypatch.setattr(session, "check_space", estimate)
    flags = [*custom, *SMALL, *HCSC, "--max_epochs", "2", "--limit_train_batches", "1"]
    for optimizer in ("sgd", "adam"):
        run_here("pretrain", *flags, "--optimizer", optimizer, "--checkpoint_dir", tmp_path / optimizer)
        size = only(tmp_path / optimizer, "*.ckpt").stat().st_size
        assert estimates.pop() == pytest.approx(size, rel=0.02)


def test_folder_that_vanishes_ends_the_run_in_one_line(custom, tmp_path, capsys, monkeypatch):
    runs = tmp_path / "runs"
    step = Method.training_step

    def vanish(self, batch, batch_idx):
        if self.current_epoch == 1:
            shutil.rmtree(runs, ignore_errors=True)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Method, "training_step", vanish)
    with pytest.raises(SystemExit) as stopped:
        run_here("pretrain", *custom, *SMALL, *HCSC, "--max_epochs", "3", "--checkpoint_dir", runs)
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "metrics.csv: No such file or directory; no checkpoint is left: " in last
    assert last.endswith("ep=0.ckpt is gone")


def test_rescue_names_the_newest_checkpoint_that_is_left(tmp_path):
    resumed, first, second = (tmp_path / f"ep={epoch}.ckpt" for epoch in range(3))
    checkpoints = saving.Checkpoints(None, tmp_path, {}, resumed, None)
    checkpoints._of_epochs, checkpoints.last = [first, second], second
    for path in (resumed, first, second):
        path.touch()
    for path in (second, first, resumed):
        assert checkpoints.rescue().startswith(f"last good checkpoint: {path}; ")
        path.unlink()
    assert checkpoints.rescue() == f"no checkpoint is left: {second} is gone"


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_signal_ends_the_run_with_a_line_and_a_code_of_its_own(
    number, code, word, custom, tmp_path, capsys, monkeypatch
):
    step = Method.training_step

    def signalled(self, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 1:
            os.kill(os.getpid(), number)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Method, "training_step", signalled)
    try:
        with pytest.raises(SystemExit) as stopped:
            run_here("pretrain", *custom, *SMALL, *HCSC, "--max_epochs", "3", "--checkpoint_dir", tmp_path / "runs")
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning leaves it ignored
    assert stopped.value.code == 128 + number
    word = "terminated" if number == signal.SIGTERM else "interrupted"
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {word}; last good checkpoint: {only(tmp_path, '*ep=0.ckpt')}")


def test_interrupt_in_a_finaliser_of_a_loader_ends_the_run(custom, tmp_path, capfd, monkeypatch):
    """Python swallows it there; it does not come by chance that an epoch's end, where workers are joined, is hit."""
    finalise = _MultiProcessingDataLoaderIter.__del__
    hit = []

    def interrupted(self):
        if not hit and list(tmp_path.rglob("*.ckpt")):
            hit.append(1)
            os.kill(os.getpid(), signal.SIGINT)
        finalise(self)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "__del__", interrupted)
    flags = [*custom, *SMALL, *HCSC, "--num_workers", "1", "--max_epochs", "100", "--checkpoint_dir", tmp_path / "runs"]
    try:
        with pytest.raises(SystemExit) as stopped:
            run_here("pretrain", *flags)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning leaves it ignored
    assert stopped.value.code == 130
    error = capfd.readouterr().err
    assert error.splitlines()[-1].startswith("error: interrupted; last good checkpoint: ")
    assert "Exception ignored" not in error


def test_interrupt_while_a_checkpoint_is_written_waits_for_it(custom, tmp_path, capsys, monkeypatch):
    """torch writes in C++, which would make a RuntimeError of it."""
    save = torch.save

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        save(*args)

    monkeypatch.setattr(saving.torch, "save", interrupted)
    try:
        with pytest.raises(SystemExit) as stopped:
            run_here("pretrain", *custom, *SMALL, *HCSC, "--max_epochs", "3", "--checkpoint_dir", tmp_path / "runs")
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning leaves it ignored
    assert stopped.value.code == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: interrupted; last good checkpoint: {only(tmp_path, '*ep=0.ckpt')}")


def test_last_k_and_the_best_are_kept(custom, tmp_path):
    flags = [*custom, *SMALL, *HCSC, "--max_epochs", "4", "--checkpoint_dir", tmp_path / "runs"]
    run_here("pretrain", *flags, "--keep_checkpoints", "2", "--keep_best", "val_acc1")
    names = sorted(path.name.partition("-custom-")[2][9:] for path in (tmp_path / "runs").rglob("*.ckpt"))
    assert names == ["best.ckpt", "ep=2.ckpt", "ep=3.ckpt"]
    rows = list(csv.DictReader(only(tmp_path, "metrics.csv").open()))
    accuracy = {int(row["epoch"]): float(row["val_acc1"]) for row in rows if row["val_acc1"]}
    best = torch.load(only(tmp_path, "*best.ckpt"), weights_only=True)
    assert accuracy[best["epoch"]] == max(accuracy.values())
    assert best["epoch"] == min(epoch for epoch, value in accuracy.items() if value == max(accuracy.values()))


def test_resumed_run_has_the_best_of_before(custom, tmp_path):
    flags = [*custom, *SMALL, *HCSC, "--max_epochs", "3", "--keep_best", "val_acc1"]
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "first", "--keep_checkpoints", "3")
    before = torch.load(only(tmp_path / "first", "*best.ckpt"), weights_only=True)
    last = only(tmp_path / "first", "*ep=1.ckpt")
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "second", "--resume_from_checkpoint", last)
    best = torch.load(only(tmp_path / "second", "*best.ckpt"), weights_only=True)
    assert best["epoch"] == before["epoch"]


def test_processes_that_would_go_on_from_different_steps_stop(tmp_path, monkeypatch):
    def gather(steps, own):
        steps[:] = [own, 0]

    monkeypatch.setattr(saving.dist, "all_gather_object", gather)
    strategy = SimpleNamespace(broadcast=lambda value: value)
    trainer = SimpleNamespace(strategy=strategy, global_step=8, world_size=2)
    with pytest.raises(UserError, match=r"different steps \(8 0\); `checkpoint_dir` must be a folder that all"):
        saving.Checkpoints(None, tmp_path, {}, None, None).on_train_start(trainer, None)


@pytest.mark.parametrize(
    ("environment", "main", "by_lightning"),
    [
        ({}, True, False),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, False, True),
        ({"NODE_RANK": "1"}, False, False),
        ({"RANK": "3", "LOCAL_RANK": "0"}, False, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}, True, False),
        ({"SLURM_PROCID": "2"}, False, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, False, False),
    ],
)
def test_main_process_is_known_however_processes_were_started(environment, main, by_lightning, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launch.is_main_process() == main
    assert launch.started_by_lightning() == by_lightning


def test_best_is_saved_also_where_its_epoch_is_not(custom, tmp_path):
    flags = [*custom, *SMALL, *HCSC, "--max_epochs", "3", "--checkpoint_dir", tmp_path / "runs"]
    run_here("pretrain", *flags, "--checkpoint_frequency", "9", "--keep_best", "val_acc1")
    names = {path.name.partition("-custom-")[2][9:] for path in (tmp_path / "runs").rglob("*.ckpt")}
    assert names == {"best.ckpt", "ep=2.ckpt"}


def test_checkpoint_within_an_epoch_goes_when_the_epochs_own_is_there(custom, tmp_path):
    flags = [*custom, *SMALL, *HCSC, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "runs"]
    run_here("pretrain", *flags, "--checkpoint_every_n_steps", "3")
    assert only(tmp_path, "*.ckpt").name.endswith("-ep=1.ckpt")
