"""A run that was stopped and resumed ends as one that never stopped, to the bit."""

import csv
import re
from pathlib import Path

import pytest
import torch
from tiny import SMALL, only, run_here

HCSC = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1"
METHODS = {
    "keys": f"{HCSC} --base_tau_momentum 0.9 --momentum_classifier --knn_eval",
    "images": f"{HCSC} --clustered_features images --clustering_start 0 --accumulate_grad_batches 2",
    "swav": "--method swav --lars --num_prototypes 8 --queue_size 16 --epoch_queue_starts 1 --proj_hidden_dim 32",
    "vit": "--method byol --encoder vit_tiny --patch_size 8 --optimizer adam --proj_hidden_dim 16 --pred_hidden_dim 8",
}
EPOCHS = 3


def final_state(folder: Path) -> dict:
    """The last checkpoint of a run, without what names its files."""
    found = ((re.search(r"-ep=(\d+)\.ckpt", path.name), path) for path in folder.rglob("*.ckpt"))
    files = {int(name[1]): path for name, path in found if name}
    return torch.load(files[max(files)], weights_only=True)


def differences(one, other, where="") -> list[str]:
    """Where two checkpoints differ in any bit."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [where]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{where}: {one.keys() ^ other.keys()}"]
        return [found for key in one for found in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, (list, tuple)):
        pairs = zip(one, other, strict=True)
        return [found for i, (a, b) in enumerate(pairs) for found in differences(a, b, f"{where}/{i}")]
    return [] if one == other else [f"{where}: {one} {other}"]


def logged(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of metrics.csv that have a loss or a figure of an epoch; seconds are another thing."""
    rows = list(csv.DictReader(only(folder, "metrics.csv").open()))
    return {
        (row["step"], str("val_acc1" in row and bool(row["val_acc1"]))): {
            name: value for name, value in row.items() if value and "seconds" not in name
        }
        for row in rows
    }


@pytest.mark.parametrize(
    ("method", "workers"), [("keys", 0), ("keys", 2), ("images", 0), ("images", 2), ("swav", 0), ("vit", 0)]
)
def test_resuming_after_any_epoch_changes_no_bit(method, workers, custom, tmp_path):
    flags = [*custom, *SMALL, *METHODS[method].split(), "--max_epochs", EPOCHS, "--num_workers", workers]
    flags += ["--log_every_n_steps", 1]
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "whole", "--keep_checkpoints", EPOCHS)
    whole = final_state(tmp_path / "whole")
    rows = logged(tmp_path / "whole")
    for epoch in range(EPOCHS - 1):
        checkpoint = only(tmp_path / "whole", f"*ep={epoch}.ckpt")
        folder = tmp_path / f"from {epoch}"
        run_here("pretrain", *flags, "--checkpoint_dir", folder, "--resume_from_checkpoint", checkpoint)
        assert differences(whole, final_state(folder)) == []
        for key, row in logged(folder).items():
            assert row == rows[key]


@pytest.mark.parametrize("method", ["keys", "images", "swav"])
def test_resuming_within_an_epoch_goes_on_with_the_batches_that_were_left(method, custom, tmp_path, monkeypatch):
    flags = [*custom, *SMALL, *METHODS[method].split(), "--max_epochs", 2, "--log_every_n_steps", 1]
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "whole")
    monkeypatch.setattr(Path, "unlink", lambda *args, **kwargs: None)  # keep every checkpoint
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "steps", "--checkpoint_every_n_steps", 1)
    monkeypatch.undo()
    whole, steps = final_state(tmp_path / "whole"), final_state(tmp_path / "steps")
    assert differences(whole, steps) == []
    within = sorted((tmp_path / "steps").rglob("*step=*.ckpt"))
    assert len(within) == whole["global_step"] - 2
    for checkpoint in within:
        folder = tmp_path / f"from {checkpoint.name}"
        run_here("pretrain", *flags, "--checkpoint_dir", folder, "--resume_from_checkpoint", checkpoint)
        assert differences(whole, final_state(folder)) == []
