"""One process and two, talking through gloo, compute the same; and they start as on a cluster."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import pretrain_and_keep
from tiny import ROOT, SMALL, only

from benchmarks.kills import differences
from solo_hcsc.runs.results import JUDGED

# No batch norm: its statistics are each process's own on CPUs.
VIT = "--encoder vit_tiny --patch_size 8 --crop_size 32 --num_workers 0 --accelerator cpu --lr 0.03".split()
HCSC = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()


def logged(folder: Path, name: str) -> list[float]:
    rows = csv.DictReader(only(folder, "metrics.csv").open())
    return [float(row[name]) for row in rows if row[name]]


def test_two_processes_compute_what_one_does(custom, tmp_path, monkeypatch):
    """Images are clustered before the first epoch, and keys before the later ones."""
    flags = [*custom, *VIT, *HCSC, "--clustering_start", 0, "--limit_val_batches", 0]
    flags += ["--limit_train_batches", 1, "--max_epochs", 4]  # one step each, so that an epoch's mean is a step's loss
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    pretrain_and_keep(*flags, "--batch_size", 8)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2]
    command = [*launch, ROOT / "tests" / "processes.py", *flags, "--batch_size", 4, "--devices", 2]
    out = subprocess.run([*map(str, command)], cwd=tmp_path / "two", capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    assert out.stdout.count("done in") == 1, "only the main process speaks"

    one = torch.load(tmp_path / "one" / "0.pt", weights_only=True)
    first, second = (torch.load(tmp_path / "two" / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert differences(first, second) == [], "weights, queues, keys and prototypes are identical"
    for name in ("train_hcsc_loss_epoch", *JUDGED):
        two, alone = logged(tmp_path / "two", name), logged(tmp_path / "one", name)
        assert len(two) == 4
        assert two == pytest.approx(alone, abs=1e-5 if "loss" in name else 1e-3), name
    assert first["coding._extra_state"]["tree"]["kept"] == one["coding._extra_state"]["tree"]["kept"] == [4, 2]
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(first[name], value, atol=1e-4, rtol=0, msg=name)


SRUN = """#!/bin/bash
# What srun does on one machine: as many processes as tasks, each told which one it is.
while [ "${1#--}" != "$1" ]; do shift; done
for task in $(seq 0 $((SLURM_NTASKS - 1))); do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & done
wait
"""


@pytest.mark.parametrize("launcher", ["slurm", "torchrun"])
def test_cluster_script_trains_with_two_processes(launcher, custom, tmp_path):
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm = {"SLURM_NNODES": "1", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NODELIST": "localhost"}
    slurm |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NAME": "train", "SLURM_NODEID": "0"}
    slurm |= {"SLURM_SUBMIT_DIR": str(ROOT)}
    torchrun = {"NODES": "1", "GPUS": "2", "HEAD": "localhost:0"}
    environment = os.environ | {"PATH": path} | (slurm if launcher == "slurm" else torchrun)
    tiny = [*SMALL, *HCSC, *custom, "--encoder", "resnet18", "--batch_size", "4", "--devices", "2", "--max_epochs", "2"]
    tiny += ["--limit_train_batches", "1", "--limit_val_batches", "0", "--checkpoint_every_n_steps", "1"]
    command = ["bash", ROOT / "scripts" / "pretrain" / "imagenet" / f"{launcher}.sh", "hcsc.sh", *tiny]
    out = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    assert "2 CPU processes" in out.stdout
    assert out.stdout.count("done in") == 1
    assert torch.load(only(tmp_path, "*.ckpt"), weights_only=True)["global_step"] == 2
