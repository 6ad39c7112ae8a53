"""A run that was stopped and resumed ends as one that never stopped, to the bit."""

import csv
import os
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import Timer
from tiny import SMALL, only, run_here

from benchmarks.kills import differences
from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.settings import take
from solo_hcsc.solo102.method import HCSC
from solo_hcsc.training.pretraining import prepare, resolve
from solo_hcsc.training.resume import find_resume
from solo_hcsc.training.settings import Resume

TREE = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1"
METHODS = {
    "keys": f"{TREE} --base_tau_momentum 0.9 --momentum_classifier --knn_eval --val_check_interval 2",
    "images": f"{TREE} --clustered_features images --clustering_start 0 --accumulate_grad_batches 2",
    "swav": "--method swav --lars --num_prototypes 8 --queue_size 16 --epoch_queue_starts 1 --proj_hidden_dim 32",
    "vit": "--method byol --encoder vit_tiny --patch_size 8 --optimizer adam --proj_hidden_dim 16 --pred_hidden_dim 8",
}
EPOCHS = 3


def final_state(folder: Path) -> dict:
    """The last checkpoint of a run, without what names its files."""
    found = ((re.search(r"-ep=(\d+)\.ckpt", path.name), path) for path in folder.rglob("*.ckpt"))
    files = {int(name[1]): path for name, path in found if name}
    return torch.load(files[max(files)], weights_only=True)


def logged(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of metrics.csv that have a loss or a figure of an epoch; what it cost is another thing."""
    rows = list(csv.DictReader(only(folder, "metrics.csv").open()))
    return {
        (row["step"], str("val_acc1" in row and bool(row["val_acc1"]))): {
            name: value for name, value in row.items() if value and "second" not in name and "memory" not in name
        }
        for row in rows
    }


@pytest.fixture(autouse=True)
def noise(monkeypatch):
    """HCSC's steps draw from every generator, as layers with dropout would."""
    step = HCSC.training_step

    def noisy(self, batch, batch_idx):
        draws = torch.rand(()) + random.random() + np.random.rand()
        self.log("draws", draws)
        return step(self, batch, batch_idx) * (1 + draws)

    monkeypatch.setattr(HCSC, "training_step", noisy)


@pytest.mark.parametrize(("method", "workers"), [("keys", 0), ("images", 2), ("swav", 0), ("vit", 0)])
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


@pytest.mark.parametrize("method", ["keys", "images"])
def test_resuming_within_an_epoch_goes_on_with_the_batches_that_were_left(method, custom, tmp_path, monkeypatch):
    flags = [*custom, *SMALL, *METHODS[method].split(), "--max_epochs", 2, "--log_every_n_steps", 1]
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *args, **kwargs: None)  # keep every checkpoint
        run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "steps", "--checkpoint_every_n_steps", 1)
    whole, steps = final_state(tmp_path / "whole"), final_state(tmp_path / "steps")
    assert differences(whole, steps) == []
    within = sorted((tmp_path / "steps").rglob("*step=*.ckpt"))
    assert len(within) == whole["global_step"] - 2
    for checkpoint in within[1::2]:
        folder = tmp_path / f"from {checkpoint.name}"
        run_here("pretrain", *flags, "--checkpoint_dir", folder, "--resume_from_checkpoint", checkpoint)
        assert differences(whole, final_state(folder)) == []


@pytest.mark.parametrize("limit", ["--max_steps", "--max_time"])
def test_run_that_was_to_stop_within_an_epoch_goes_on_there(limit, custom, tmp_path, monkeypatch):
    flags = [*custom, *SMALL, *METHODS["images"].split(), "--max_epochs", 4]
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "whole")
    with monkeypatch.context() as patch:
        times_up = lambda self, trainer: vars(trainer).update(should_stop=trainer.global_step >= 5)  # noqa: E731
        patch.setattr(Timer, "_check_time_remaining", times_up)  # so that it is at a known step
        value = 5 if limit == "--max_steps" else "00:01:00:00"
        run_here("pretrain", *flags, limit, value, "--checkpoint_dir", tmp_path / "limited")
    newest = max((tmp_path / "limited").rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    assert newest.name.endswith("-ep=2-step=5.ckpt")
    # steps count from the start; time is each run's own
    more = ["--max_steps", 100] if limit == "--max_steps" else ["--max_time", "00:01:00:00"]
    resumed = ["--resume_from_checkpoint", newest, "--checkpoint_dir", tmp_path / "resumed"]
    run_here("pretrain", *flags, *more, *resumed)
    assert "Timer" not in str(torch.load(newest, weights_only=True)["callbacks"])
    whole, state = final_state(tmp_path / "whole"), final_state(tmp_path / "resumed")
    assert differences(whole, state) == []


def test_linear_evaluation_resumes_exactly_with_a_scheduler_that_watches_the_loss(custom, tmp_path):
    run_here("pretrain", *custom, *SMALL, *TREE.split(), "--max_epochs", 2, "--checkpoint_dir", tmp_path / "pretrained")
    encoder = ["--pretrained_feature_extractor", tmp_path / "pretrained", "--scheduler", "reduce", "--max_epochs", 3]
    flags = [*custom, *SMALL, *encoder, "--keep_checkpoints", 3]
    run_here("linear", *flags, "--checkpoint_dir", tmp_path / "whole")
    checkpoint = only(tmp_path / "whole", "*ep=0.ckpt")
    run_here("linear", *flags, "--checkpoint_dir", tmp_path / "second", "--resume_from_checkpoint", checkpoint)
    assert differences(final_state(tmp_path / "whole"), final_state(tmp_path / "second")) == []


@pytest.fixture(scope="module")
def stopped(images, tmp_path_factory):
    """The flags of a run that stopped after one of three epochs, and its checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    flags = ["--dataset", "custom", "--data_dir", images, "--train_dir", "train", *SMALL, *TREE.split()]
    flags += ["--max_epochs", 3, "--checkpoint_dir", folder]
    run_here("pretrain", *flags, "--max_steps", 4)
    return [*map(str, flags), "--auto_resume"], only(folder, "*.ckpt")


def found(flags: list[str]) -> Path | None:
    """What `--auto_resume` goes on from."""
    job = resolve(parse(flags))
    work = prepare(job)
    return find_resume(take(Resume, job.asked, recorded=work.recorded), job.folder.parent, job.loop, work.model)


def test_auto_resume_finds_its_own_run_whatever_is_only_shown_or_written_elsewhere(stopped):
    flags, checkpoint = stopped
    assert found(flags) == checkpoint
    other = "--num_workers 2 --log_every_n_steps 3 --keep_checkpoints 4 --checkpoint_every_n_steps 2".split()
    assert found([*flags, *other]) == checkpoint


@pytest.mark.parametrize(
    ("other", "named"),
    {
        "--preset paper": "--preset recommended",
        "--seed 6": "--seed 5",
        "--num_prototypes 5 2": "--num_prototypes 4 2",
        "--queue_size 24": "--queue_size 20",
        "--kmeans plain": "--kmeans fast",
        "--lr 0.02": "--lr 0.0",
        "--max_epochs 4": "--max_epochs 3",
        "--encoder resnet50": "--encoder resnet18",
        "--train_dir val": "--train_dir train",
        "--data_fraction 0.9": "--data_fraction 1.0",
        "--brightness 0.3": "--brightness 0.4",
    }.items(),
)
def test_auto_resume_leaves_another_run_alone_and_says_why(stopped, other, named, told, capsys):
    flags, checkpoint = stopped
    assert found([*flags, *other.split()]) is None
    said = capsys.readouterr().err
    assert f"leaving {checkpoint.parent} alone, which had {named}" in said, said
    assert "starting anew" in said


def test_auto_resume_takes_no_other_methods_checkpoint(stopped):
    flags, _ = stopped
    method = flags.index("hcsc")
    moco = [*flags[:method], "mocov2plus", *SMALL, "--queue_size", "32", "--max_epochs", "3", *flags[-3:]]
    assert found(moco) is None


def test_auto_resume_falls_back_to_an_older_one_if_the_newest_is_broken(stopped, told, capsys):
    flags, checkpoint = stopped
    broken = checkpoint.with_name("broken-ep=1.ckpt")
    broken.write_bytes(checkpoint.read_bytes()[:1000])
    later = time.time() + 10
    os.utime(broken, (later, later))
    assert found(flags) == checkpoint
    assert "not a readable checkpoint" in capsys.readouterr().err
    broken.unlink()


def test_auto_resume_forgets_what_is_too_old(stopped, told, capsys):
    flags, checkpoint = stopped
    then = time.time() - 37 * 3600
    os.utime(checkpoint, (then, then))
    assert found(flags) is None
    assert f"{checkpoint} is older than --auto_resumer_max_hours 36" in capsys.readouterr().err
    assert found([*flags, "--auto_resumer_max_hours", "40"]) == checkpoint
    os.utime(checkpoint)


def test_unreadable_record_of_a_run_is_left_alone(stopped, told, capsys):
    flags, checkpoint = stopped
    record = checkpoint.parent / "args.json"
    text = record.read_text()
    record.write_text(text[:100])
    assert found(flags) is None
    assert "args.json cannot be read" in capsys.readouterr().err
    record.write_text(text)


def test_number_of_workers_changes_nothing(custom, tmp_path):
    flags = [*custom, *SMALL, *METHODS["keys"].split(), "--max_epochs", 2]
    for workers in (0, 2):
        run_here("pretrain", *flags, "--num_workers", workers, "--checkpoint_dir", tmp_path / str(workers))
    assert differences(final_state(tmp_path / "0"), final_state(tmp_path / "2")) == []
