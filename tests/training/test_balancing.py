"""`--balance tree`: images are drawn evenly over a tree, the same in every run, also in one that was resumed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import ROOT, SMALL, make_images, only, run_here
from untrained import OWN

from benchmarks.kills import differences
from solo_hcsc.data.loaders import BalancedSampler, RepeatableImages, occurrences
from solo_hcsc.training.balancing import shares_of
from solo_hcsc.trees.building import build_tree

TREE = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()


class Numbers(torch.utils.data.Dataset):
    """Each image is its number and what was drawn for it."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(torch.rand(()))

    def __len__(self) -> int:
        return 50


def uneven() -> np.ndarray:
    return np.repeat([0, 1, 2], (40, 7, 3))[:, None]


def test_epochs_are_even_over_the_tree_and_follow_from_the_seed_and_the_epoch():
    sampler = BalancedSampler(RepeatableImages(Numbers(), seed=0), 0, shards=False)
    assert sorted(sampler) == [(0, index) for index in range(50)]
    sampler.balance(shares_of(uneven(), 1.0))
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    assert epochs[0] == epochs[2] != epochs[1]
    clusters = np.bincount([uneven()[place[1], 0] for place in epochs[0]])
    assert clusters.min() >= 16
    assert clusters.sum() == 50
    sampler.skip(20)
    assert list(sampler) == epochs[0][20:]


def test_an_image_drawn_again_in_an_epoch_is_seen_otherwise():
    images = RepeatableImages(Numbers(), seed=0)
    sampler = BalancedSampler(images, 0, shards=False)
    sampler.balance(shares_of(uneven(), 1.0))
    places = [place for place in sampler if place[1] == 49]
    assert len(places) > 3
    assert [place[2:] for place in sorted(places)] == [(), *((time,) for time in range(1, len(places)))]
    assert len({images[place] for place in places}) == len(places)


def test_processes_share_what_one_would_draw(monkeypatch):
    sampler = BalancedSampler(RepeatableImages(Numbers(), seed=0), 0, shards=True)
    sampler.balance(shares_of(uneven(), 1.0))
    whole = list(sampler)
    for processes in (2, 3):
        parts = []
        for rank in range(processes):
            monkeypatch.setattr(sampler, "_place", lambda rank=rank, processes=processes: (rank, processes))
            parts.append(list(sampler))
        assert len({*map(len, parts)}) == 1
        together = [place for batch in zip(*parts, strict=True) for place in batch]
        assert together == whole[: len(together)]
        assert len(together) > 50 - processes


@pytest.fixture(scope="module")
def tail(tmp_path_factory) -> Path:
    """24, 8 and 4 images of three classes."""
    root = tmp_path_factory.mktemp("tail")
    make_images(root / "all", classes=3, per_class=24)
    for label, count in enumerate((24, 8, 4)):
        for number in range(count):
            target = root / "train" / f"class {label}" / f"{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            (root / "all" / f"class {label}" / f"{number}.png").rename(target)
    return root


def flags_for(tail: Path, folder: Path, *more: object) -> list[object]:
    where = ["--dataset", "custom", "--data_dir", tail, "--train_dir", "train", "--checkpoint_dir", folder]
    return [*SMALL, *where, "--balance", "tree", "--keep_checkpoints", 9, *more]


def last(folder: Path, epoch: int) -> dict:
    return torch.load(only(folder, f"*ep={epoch}.ckpt"), weights_only=True)


@pytest.mark.parametrize("method", ["hcsc", "mocov2plus"])
def test_resuming_after_and_within_an_epoch_changes_no_bit(method, tail, tmp_path):
    own = TREE if method == "hcsc" else ["--method", method, *OWN[method].split()]
    epochs = [*own, "--max_epochs", 3]
    run_here("pretrain", *flags_for(tail, tmp_path / "whole", *epochs))
    whole = last(tmp_path / "whole", 2)
    shares = whole["callbacks"]["BalanceByTree"]
    assert shares["weights"].std() > 0
    begun = only(tmp_path / "whole", "*ep=1.ckpt")
    run_here("pretrain", *flags_for(tail, tmp_path / "after", *epochs, "--resume_from_checkpoint", begun))
    run_here("pretrain", *flags_for(tail, tmp_path / "part", *epochs, "--max_steps", 10))
    within = only(tmp_path / "part", "*step=10.ckpt")
    run_here("pretrain", *flags_for(tail, tmp_path / "within", *epochs, "--resume_from_checkpoint", within))
    for name in ("after", "within"):
        found = last(tmp_path / name, 2)
        assert differences(found["state_dict"], whole["state_dict"]) == [], name
        assert differences(found["callbacks"]["BalanceByTree"], shares) == [], name


@pytest.mark.parametrize("method", ["deepclusterv2"])  # which keeps what it saw of each image
def test_any_method_can_be_balanced(method, tail, tmp_path, told, capsys):
    own = ["--method", method, *OWN.get(method, "").split(), "--max_epochs", 3]
    run_here("pretrain", *flags_for(tail, tmp_path, *own))
    out = capsys.readouterr().out
    assert "--balance tree: renewed after epoch 1" in out
    assert "renewed after epoch 2" in out
    assert "nan" not in only(tmp_path, "metrics.csv").read_text()


def test_a_given_tree_is_kept_to(tail, tmp_path):
    names = sorted(str(file.relative_to(tail / "train")) for file in (tail / "train").rglob("*.png"))
    label = np.array([int(name[6]) for name in names])
    points = 5 * np.eye(8)[label] + np.random.default_rng(0).normal(size=(len(names), 8))
    build_tree(points, levels=(3,), keys=names).save(tmp_path / "tree")
    given = ["--method", "simclr", "--max_epochs", 1, "--balance_tree", tmp_path / "tree"]
    run_here("pretrain", *flags_for(tail, tmp_path / "run", *given))
    last_row = only(tmp_path / "run", "metrics.csv").read_text()
    assert "balance_most" in last_row
    record = last(tmp_path / "run", 0)["callbacks"].get("BalanceByTree", {})
    assert record == {}, "what is given is not kept again"


def test_two_processes_draw_what_one_does(tail, tmp_path):
    flags = flags_for(
        tail, tmp_path / "two", "--method", "simclr", "--max_epochs", 2, "--batch_size", 4, "--devices", 2
    )
    command = [sys.executable, "-m", "solo_hcsc", "pretrain", *map(str, flags)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    shares = last(tmp_path / "two", 0)["callbacks"]["BalanceByTree"]
    assert shares["weights"].sum() == pytest.approx(36, abs=1e-3)


REFUSED = {
    "strength alone": (["--balance", "none", "--balance_strength", 0.5], "--balance_strength: is for --balance tree"),
    "strength": (["--balance_strength", 2], "--balance_strength 2: must be between 0 and 1"),
    "no tree": (["--balance_tree", "nowhere"], "--balance_tree nowhere: no tree.safetensors there"),
    "dali": (["--dali"], "--balance tree: --dali draws each image once"),
    "overfit": (["--overfit_batches", 1], "--overfit_batches takes the same images in each epoch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(case, tail, tmp_path, refused):
    flags, said = REFUSED[case]
    assert said in refused("pretrain", *flags_for(tail, tmp_path / "new", "--method", "simclr", *flags))


def test_a_tree_of_other_images_is_refused(tail, tmp_path, refused):
    build_tree(np.eye(4), levels=(2,), keys=["a.jpg", "b.jpg", "c.jpg", "d.jpg"]).save(tmp_path / "tree")
    given = ["--method", "simclr", "--balance_tree", tmp_path / "tree"]
    assert "its tree has 4 images, but not 36 of these 36" in refused("pretrain", *flags_for(tail, "new", *given))


def test_occurrences_count_from_none():
    assert occurrences(np.array([2, 2, 1, 2, 1])).tolist() == [0, 1, 0, 2, 1]
