"""A pair with and without the tree: the same seed, initial weights and crops; and its table, from run to report."""

import json
from contextlib import redirect_stderr, redirect_stdout

import pytest
import torch
from tiny import SMALL, call_here, run_here

from solo_hcsc.solo102.method import HCSC
from solo_hcsc.study import runner
from solo_hcsc.study.job import words
from solo_hcsc.study.tables import NO_TREE

TREE = "--num_prototypes 4 2 --min_cluster_size 2 --queue_size 8 --proto_warmup_epochs 0".split()
IMAGES = ["--clustered_features", "images", "--clustered_space", "encoder"]


def first_steps(monkeypatch, custom, tmp_path, *flags):
    """The weights before the first step, and all crops in their order."""
    weights, crops = [], []
    step = HCSC.training_step

    def spied(self, batch, batch_idx):
        if not weights:
            weights.append({name: value.clone() for name, value in self.named_parameters()})
        crops.append([view.clone() for view in batch[1]])
        return step(self, batch, batch_idx)

    monkeypatch.setattr(HCSC, "training_step", spied)
    common = [*custom, *SMALL, *TREE, *IMAGES, "--max_epochs", 2, "--seed", 3, "--checkpoint_dir", tmp_path / "x"]
    run_here("pretrain", "--method", "hcsc", *common, *flags)
    monkeypatch.setattr(HCSC, "training_step", step)
    return weights[0], crops


def test_pair_has_the_same_initial_weights_and_the_same_crops(monkeypatch, custom, tmp_path):
    weights, crops = first_steps(monkeypatch, custom, tmp_path)
    without, same = first_steps(monkeypatch, custom, tmp_path, *words(NO_TREE))
    oracle, again = first_steps(monkeypatch, custom, tmp_path, "--oracle_labels")
    for others in (without, oracle):
        assert weights.keys() == others.keys()
        assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert len(crops) == len(same) == len(again) == 8
    for ours, *others in zip(crops, same, again, strict=True):
        assert all(torch.equal(view, other) for views in others for view, other in zip(ours, views, strict=True))


@pytest.fixture
def in_this_process(monkeypatch):
    def here(job, folder, lock, stop=None):
        with (folder / "log.txt").open("a") as out, redirect_stdout(out), redirect_stderr(out):
            call_here(job)
        return 1.0

    monkeypatch.setattr(runner, "call", here)


def test_tree_is_seen_against_the_run_without_it_and_the_ceiling_beside_it(in_this_process, custom, tmp_path, capsys):
    flags = ["--out", tmp_path / "out", *custom, *SMALL, *TREE, *IMAGES, "--max_epochs", 1, "--crop_size", 16]
    flags += ["--evaluations", "knn", "--checkpoint_frequency", 100]
    run_here("ablate", "--table", "tree", *flags)
    assert "“with the tree”, against “without the tree”: " in capsys.readouterr().out
    run_here("ablate", "--table", "ceiling", "--rows", 3, *flags)
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert found["reference"] == "without the tree"
    names = ["without the tree", "with the tree", "true labels as the tree (oracle)"]
    assert [row["name"] for row in found["rows"]] == names
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Paired differences" in page
    assert page.count("no clear difference</small>") + page.count("helped</small>") + page.count("harmed</small>") == 2


def test_images_are_made_both_ways_and_seen_against_pillows(in_this_process, custom, tmp_path):
    flags = ["--out", tmp_path / "out", *custom, *SMALL, *TREE, "--max_epochs", 1, "--crop_size", 16, "--seeds", 0, 1]
    run_here("ablate", "--table", "images", *flags, "--evaluations", "knn", "--checkpoint_frequency", 100)
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (found["reference"], [row["name"] for row in found["rows"]]) == ("pil", ["pil", "fast"])
    taken = {
        folder.name: {json.loads(file.read_text())["image_backend"] for file in folder.rglob("args.json")}
        for folder in (tmp_path / "out").iterdir()
        if folder.name in ("pil", "fast")
    }
    assert taken == {"pil": {"pil"}, "fast": {"fast"}}


def test_true_labels_are_no_flag_of_an_ablation(refused, custom):
    line = refused("ablate", "--table", "tree", *custom, *SMALL, *TREE, "--oracle_labels", "true")
    assert "is a row of --table ceiling" in line
