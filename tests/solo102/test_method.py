"""HCSC as a solo-learn method, through the entry point."""

import csv
import json
from pathlib import Path

import pytest
import torch
from tiny import SMALL, make_images, only, run_here

from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.data import images as image_files
from solo_hcsc.data.images import read_image
from solo_hcsc.hcsc import coding, instances
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.queue import KeyMemory
from solo_hcsc.methods import learner
from solo_hcsc.methods.learner import spread
from solo_hcsc.runs.methods import load_method
from solo_hcsc.solo102.method import HCSC
from solo_hcsc.training.pretraining import prepare, resolve

TREE = "--method hcsc --num_prototypes 6 3 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()


def metrics(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(only(folder, "metrics.csv").open()))


def final(folder: Path, name: str) -> float:
    return [float(row[name]) for row in metrics(folder) if row.get(name)][-1]


@pytest.mark.parametrize("preset", ["paper", "official", "recommended"])
def test_preset_trains_and_records_its_options(preset, custom, tmp_path):
    flags = [*TREE, "--preset", preset, "--max_epochs", "2", "--left_out", "removed"]
    run_here("pretrain", *custom, *SMALL, *flags, "--checkpoint_dir", tmp_path)
    recorded = json.loads(only(tmp_path, "args.json").read_text())["hcsc_options"]
    assert recorded["preset"] == preset
    assert recorded["left_out"] == "removed"
    checkpoint = torch.load(only(tmp_path, "*.ckpt"), weights_only=True)
    assert checkpoint["hcsc_options"] == recorded
    clustered = [row["epoch"] for row in metrics(tmp_path) if row["clusters_0"]]
    assert clustered == (["0", "1"] if preset == "paper" else ["1"])


def test_everything_the_paper_follows_is_logged(custom, tmp_path):
    run_here("pretrain", *custom, *SMALL, *TREE, "--max_epochs", "3", "--checkpoint_dir", tmp_path)
    for level in range(2):
        assert final(tmp_path, f"instance_loss_{level}") > 0
        assert final(tmp_path, f"prototype_loss_{level}") > 0
        assert 0 <= final(tmp_path, f"left_out_{level}") <= 1
        assert 0 <= final(tmp_path, f"left_out_precision_{level}") <= 1
        assert 0 <= final(tmp_path, f"left_out_recall_{level}") <= 1
        assert 0 <= final(tmp_path, f"left_out_preservation_{level}") <= 1
        assert 1 <= final(tmp_path, f"clusters_{level}") <= 6
        assert 0 < final(tmp_path, f"temperature_min_{level}") <= final(tmp_path, f"temperature_max_{level}")
    assert final(tmp_path, "clustering_seconds") > 0
    assert final(tmp_path, "queue_age") > 0


def count_passes(monkeypatch, custom, tmp_path, *flags):
    """Forward passes through encoder and momentum encoder in one training step of two views."""
    counts = {"encoder": 0, "momentum_encoder": 0}
    step = HCSC.training_step

    def counted(self, batch, batch_idx):
        hooks = [
            getattr(self, name).register_forward_hook(lambda *_, name=name: counts.update({name: counts[name] + 1}))
            for name in counts
        ]
        loss = step(self, batch, batch_idx)
        for hook in hooks:
            hook.remove()
        return loss

    monkeypatch.setattr(HCSC, "training_step", counted)
    limits = "--max_epochs 2 --limit_train_batches 1 --limit_val_batches 0".split()
    run_here("pretrain", *custom, *SMALL, *TREE, *limits, "--checkpoint_dir", tmp_path, *flags)
    return {name: count // 2 for name, count in counts.items()}


def test_two_views_cost_one_pass_of_each_encoder(monkeypatch, custom, tmp_path):
    assert count_passes(monkeypatch, custom, tmp_path) == {"encoder": 1, "momentum_encoder": 1}


def test_symmetric_makes_both_passes_and_small_crops_one_each(monkeypatch, custom, tmp_path):
    flags = "--symmetric --crop_size 32 16 --num_crops_per_aug 2 2".split()
    assert count_passes(monkeypatch, custom, tmp_path, *flags) == {"encoder": 4, "momentum_encoder": 2}


def test_clustering_reads_no_labels_and_every_image_once(monkeypatch, custom, tmp_path):
    seen = []
    cluster = HCSC.cluster

    def spied(self):
        seen.extend(self.centre_crops(range(36)))
        embeddings, images, _ = self.extract()
        assert images.tolist() == list(range(36))
        assert embeddings.shape == (36, 128)
        torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(36))
        cluster(self)

    monkeypatch.setattr(HCSC, "cluster", spied)
    images = ["--clustered_features", "images"]
    run_here("pretrain", *custom, *SMALL, *TREE, *images, "--max_epochs", "2", "--checkpoint_dir", tmp_path)
    assert [tuple(images.shape) for images in seen] == [(8, 3, 32, 32)] * 4 + [(4, 3, 32, 32)]


def record_clusterings(monkeypatch):
    """What was clustered, epoch by epoch, and how many forward passes it cost."""
    clustered, passes = [], []
    build, extract = coding.build_hierarchy, HCSC.extract

    def built(embeddings, options, seed, features):
        clustered.append(embeddings.clone())
        return build(embeddings, options, seed, features)

    monkeypatch.setattr(coding, "build_hierarchy", built)
    monkeypatch.setattr(HCSC, "extract", lambda self: passes.append(self.current_epoch) or extract(self))
    return clustered, passes


def test_keys_are_clustered_without_a_forward_pass(monkeypatch, custom, tmp_path):
    clustered, passes = record_clusterings(monkeypatch)
    flags = [*TREE, "--max_epochs", "3"]
    run_here("pretrain", *custom, *SMALL, *flags, "--checkpoint_dir", tmp_path)
    assert not passes
    # 36 images are four full batches of 8: each epoch leaves out four images, the second others than the first
    first, second = map(len, clustered)
    assert first == 32 < second <= 36
    for embeddings in clustered:
        torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(len(embeddings)))
    state = torch.load(only(tmp_path, "*.ckpt"), weights_only=True)["state_dict"]
    assert state["coding.memory.averages"].shape == (36 + 1, 128)


def test_images_are_clustered_while_there_are_too_few_keys(monkeypatch, custom, tmp_path):
    clustered, passes = record_clusterings(monkeypatch)
    flags = [*TREE, "--clustering_start", "0", "--max_epochs", "2"]
    run_here("pretrain", *custom, *SMALL, *flags, "--checkpoint_dir", tmp_path)
    assert passes == [0]
    assert [len(embeddings) for embeddings in clustered] == [36, 32]


@pytest.mark.parametrize("symmetric", [True, False])
def test_batch_is_in_the_queue_and_its_keys_are_averaged(symmetric, monkeypatch, custom, tmp_path):
    code, remember, queued = SelectiveCoding.forward, KeyMemory.remember, []

    def coded(self, z, key, index, local, weight, same_image, processes):
        queued.append(self.queue.keys[same_image].clone())  # (B, K, D)
        assert (queued[-1] == key[:, None]).all(dim=2).any(dim=1).all(), "the positive is among its image's keys"
        return code(self, z, key, index, local, weight, same_image, processes)

    def remembered(self, keys, index):
        torch.testing.assert_close(keys, queued[-1].mean(dim=1))
        remember(self, keys, index)

    monkeypatch.setattr(SelectiveCoding, "forward", coded)
    monkeypatch.setattr(KeyMemory, "remember", remembered)
    flags = ["--symmetric", str(symmetric).lower(), "--max_epochs", "2"]
    run_here("pretrain", *custom, *SMALL, *TREE, *flags, "--checkpoint_dir", tmp_path)
    assert len(queued) == 2 * 4 * (1 + symmetric)
    assert {keys.size(1) for keys in queued} == {1 + symmetric}


def test_without_batch_negatives_the_queue_has_older_keys_only(monkeypatch, custom, tmp_path):
    code, steps = SelectiveCoding.forward, []

    def coded(self, z, key, index, local, weight, same_image, processes):
        assert same_image is None
        steps.append(int(self.queue.steps.max()))
        return code(self, z, key, index, local, weight, same_image, processes)

    monkeypatch.setattr(SelectiveCoding, "forward", coded)
    flags = "--batch_negatives false --max_epochs 2".split()
    run_here("pretrain", *custom, *SMALL, *TREE, *flags, "--checkpoint_dir", tmp_path)
    assert steps == [-1, 0, 1, 2, 3, 4, 5, 6]


def test_nothing_is_clustered_for_mocos_loss(monkeypatch, custom, tmp_path):
    clustered, passes = record_clusterings(monkeypatch)
    flags = "--instance_selection false --prototype_loss false --max_epochs 3".split()
    run_here("pretrain", *custom, *SMALL, *TREE, *flags, "--checkpoint_dir", tmp_path)
    assert not clustered
    assert not passes
    assert len(torch.load(only(tmp_path, "*.ckpt"), weights_only=True)["state_dict"]["coding.memory.averages"]) == 0


def test_sample_bounds_what_is_extracted(monkeypatch, custom, tmp_path):
    clustered, passes = record_clusterings(monkeypatch)
    flags = [*TREE, "--clustered_features", "images", "--cluster_sample", "20", "--max_epochs", "3"]
    run_here("pretrain", *custom, *SMALL, *flags, "--checkpoint_dir", tmp_path)
    assert passes == [1, 2]
    assert [len(embeddings) for embeddings in clustered] == [20, 20]


@pytest.mark.parametrize(("images", "sample"), [(36, 20), (1000, 999), (10**9, 5), (7, 1)])
def test_sample_is_even_reproducible_and_each_image_once(images, sample):
    indices = spread(images, sample, 3, 0)
    assert len(set(indices)) == sample
    assert min(indices) >= 0
    assert max(indices) < images
    gaps = [b - a for a, b in zip(indices, [*indices[1:], indices[0] + images], strict=True)]
    assert max(gaps) - min(gaps) <= 1 or sample == 1
    assert spread(images, sample, 3, 0) == indices
    if images > 1000:
        assert spread(images, sample, 4, 0) != indices != spread(images, sample, 3, 1)


def test_no_sample_or_one_of_more_images_than_there_are_is_everything():
    assert spread(9, 0, 1, 0) == spread(9, 9, 1, 0) == spread(9, 20, 1, 0) == range(9)


@pytest.mark.parametrize("per_class", [12, 60])
def test_first_batch_comes_after_reading_no_more_images_than_it_has(per_class, monkeypatch, tmp_path):
    """Nothing at the start grows with the data set, but listing the files."""
    make_images(tmp_path / "train", classes=2, per_class=per_class)
    opened, before = [], []
    monkeypatch.setattr(image_files, "read_image", lambda path: opened.append(path) or read_image(path))
    step = HCSC.training_step
    monkeypatch.setattr(
        HCSC, "training_step", lambda self, batch, i: (before.append(len(opened)), step(self, batch, i))[1]
    )
    where = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "train", "--limit_train_batches", "1"]
    run_here("pretrain", *where, *SMALL, *TREE, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "runs")
    assert 8 <= before[0] <= 2 * 8  # the batch, and one that is fetched ahead


def test_unlabelled_images_train(images, tmp_path):
    where = ["--dataset", "custom", "--data_dir", images, "--train_dir", "flat", "--no_labels"]
    run_here("pretrain", *where, *SMALL, *TREE, "--max_epochs", "2", "--checkpoint_dir", tmp_path)
    assert final(tmp_path, "clusters_0") >= 1
    assert "left_out_precision_0" not in metrics(tmp_path)[0]


def test_resumed_run_uses_the_checkpoints_tree_until_clustering_is_due(monkeypatch, custom, tmp_path):
    clustered = []
    cluster = HCSC.cluster
    monkeypatch.setattr(HCSC, "cluster", lambda self: (clustered.append(self.current_epoch), cluster(self)))
    flags = [*custom, *SMALL, *TREE, "--recluster_every", "2"]
    run_here("pretrain", *flags, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "first")
    checkpoint = only(tmp_path / "first", "*.ckpt")
    resumed = ["--max_epochs", "4", "--checkpoint_dir", tmp_path / "second", "--resume_from_checkpoint", checkpoint]
    run_here("pretrain", *flags, *resumed)
    assert clustered == [1, 3]
    assert final(tmp_path / "second", "left_out_0") > 0, "epoch 2 selects with the tree of epoch 1"


def test_swin_and_vit_train(custom, tmp_path):
    for encoder in ("vit_tiny --patch_size 8", "swin_tiny"):
        size = "64" if "swin" in encoder else "32"
        flags = (
            f"--encoder {encoder} --optimizer adamw --max_epochs 2 --limit_train_batches 1 --crop_size {size}".split()
        )
        run_here("pretrain", *custom, *SMALL, *TREE, *flags, "--checkpoint_dir", tmp_path / encoder[:4])


def test_loss_that_is_not_finite_names_the_term(custom, tmp_path, monkeypatch, capsys):
    original = instances.info_nce
    monkeypatch.setattr(instances, "info_nce", lambda *args: original(*args) * float("nan"))
    with pytest.raises(SystemExit) as stopped:
        run_here("pretrain", *custom, *SMALL, *TREE, "--max_epochs", "2", "--checkpoint_dir", tmp_path)
    assert stopped.value.code == 2
    assert "the loss (instance_loss_0) became nan at step 0 of epoch 1" in capsys.readouterr().err


def last_line_of_a_run(name, spoiled, custom, tmp_path, monkeypatch, capsys):
    """Of one in whose second epoch the momentum projector has a NaN from the call of a method of HCSC on."""
    original = getattr(HCSC, name)

    def spoil(self, *args):
        if self.current_epoch == 1:
            self.momentum_projector[-1].bias.data[0] = float("nan")
        return original(self, *args)

    monkeypatch.setattr(HCSC, name, spoil)
    with pytest.raises(SystemExit) as stopped:
        run_here("pretrain", *custom, *SMALL, *TREE, *spoiled, "--max_epochs", "3", "--checkpoint_dir", tmp_path)
    assert stopped.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"last good checkpoint: {only(tmp_path, '*ep=0.ckpt')}" in error
    return error


def test_clustering_of_embeddings_that_are_not_finite_names_the_last_checkpoint(custom, tmp_path, monkeypatch, capsys):
    flags = ["--clustered_features", "images"]
    error = last_line_of_a_run("cluster", flags, custom, tmp_path, monkeypatch, capsys)
    assert error.startswith("error: the embeddings of 36 of 36 images to cluster are NaN or infinite; last good")


@pytest.mark.parametrize("preset", ["recommended", "official"])
def test_keys_that_are_not_finite_are_named(preset, custom, tmp_path, monkeypatch, capsys):
    flags = ["--preset", preset]
    error = last_line_of_a_run("training_step", flags, custom, tmp_path, monkeypatch, capsys)
    assert error.startswith("error: the loss (keys, ")
    assert "became nan at step 4 of epoch 2" in error


BAD = {
    "preset": (["--preset", "best"], "--preset best: choose from"),
    "no prototypes": (["--num_prototypes", "0"], "--num_prototypes 0: every level needs at least 1"),
    "growing levels": (["--num_prototypes", "3", "6"], "each level must have fewer"),
    "too many": (["--num_prototypes", "30", "6"], "needs 60 images (--min_cluster_size 2 each) and there are 36"),
    "temperature": (["--temperature", "0"], "--temperature 0: must be greater than 0"),
    "queue": (["--queue_size", "4"], "--queue_size 4: smaller than the 8 keys of a batch"),
    "queue of both views": (
        ["--queue_size", "15", "--symmetric"],
        "--queue_size 15: smaller than the 16 keys of a batch",
    ),
    "queue of two processes": (
        "--queue_size 15 --devices 2 --strategy ddp --accelerator cpu".split(),
        "--queue_size 15: smaller than the 16 keys of a batch over all processes",
    ),
    "warm-up": (["--max_epochs", "1"], "--proto_warmup_epochs 1: must be shorter"),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses_before_anything_is_written(case, custom, tmp_path, capsys):
    flags, reason = BAD[case]
    with pytest.raises(SystemExit) as stopped:
        run_here("pretrain", *custom, *SMALL, *TREE, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "runs", *flags)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert reason in lines[0]
    assert not (tmp_path / "runs").exists()


def test_images_of_one_class_train(tmp_path):
    make_images(tmp_path / "train", classes=1, per_class=16)
    where = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "train"]
    run_here("pretrain", *where, *SMALL, *TREE, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "runs")


def test_large_memory_of_images_is_announced(monkeypatch, custom, tmp_path, told, capsys):
    monkeypatch.setattr(learner, "LARGE", 37 * 128 * 4 + 2 * 36 * 8 - 1)
    prepare(resolve(parse([*custom, *SMALL, *TREE, "--max_epochs", "2"])))
    assert "what HCSC keeps of 36 images takes 0.0 GB in every process and checkpoint" in capsys.readouterr().err
    prepare(resolve(parse([*custom, *SMALL, *TREE, "--max_epochs", "2", "--cluster_sample", "20"])))
    assert not capsys.readouterr().err


def test_run_loads_with_the_options_it_was_trained_with(custom, tmp_path):
    """A flag that was not given is recorded as such, and what its preset makes of it may change."""
    run_here(
        "pretrain",
        *custom,
        *SMALL,
        *TREE,
        "--query_cluster",
        "cosine",
        "--max_epochs",
        "2",
        "--checkpoint_dir",
        tmp_path,
    )
    file = only(tmp_path, "args.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"query_cluster": None}))
    model = load_method(only(tmp_path, "*.ckpt"))
    assert model.options.query_cluster == "cosine"
    assert model.coding.tree.assignments.shape == (0, 2)
