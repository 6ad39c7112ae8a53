"""One process and two, talking through gloo, compute the same."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_resume import differences
from tiny import ROOT, only

# No batch norm: its statistics are each process's own on CPUs.
VIT = "--encoder vit_tiny --patch_size 8 --crop_size 32 --num_workers 0 --accelerator cpu --lr 0.03".split()
HCSC = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()


def train(folder: Path, processes: int, *flags: object) -> list[dict]:
    """What every process ends with, started as on a cluster."""
    folder.mkdir()
    launch = ["torch.distributed.run", "--standalone", "--nproc_per_node", processes, ROOT / "tests" / "processes.py"]
    command = [sys.executable, "-m", *launch, *flags, "--batch_size", 8 // processes, "--devices", processes]
    out = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=300)
    assert out.returncode == 0, out.stdout + out.stderr
    assert out.stdout.count("done in") == 1, "only the main process speaks"
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(processes)]


def losses(folder: Path) -> list[float]:
    rows = csv.DictReader(only(folder, "metrics.csv").open())
    return [float(row["train_hcsc_loss_epoch"]) for row in rows if row["train_hcsc_loss_epoch"]]


@pytest.mark.parametrize("features", ["keys", "images"])
def test_two_processes_compute_what_one_does(features, custom, tmp_path):
    start = ["--clustering_start", 0] if features == "images" else []
    flags = [*custom, *VIT, *HCSC, *start, "--clustered_features", features, "--limit_train_batches", 1]
    flags += ["--max_epochs", 4]  # one step each, so that an epoch's mean is a step's loss
    one = train(tmp_path / "one", 1, *flags)[0]
    first, second = train(tmp_path / "two", 2, *flags)
    assert differences(first["coding"], second["coding"]) == [], "queues, keys and prototypes are identical"
    assert differences(first["state"], second["state"]) == []
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    for name, value in one["coding"].items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(first["coding"][name], value, atol=1e-4, rtol=0, msg=name)
    assert first["coding"]["_extra_state"]["kept"] == one["coding"]["_extra_state"]["kept"] == [4, 2]
