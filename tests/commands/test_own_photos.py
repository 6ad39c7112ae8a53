"""What a run says and takes by itself: nested folders, sizes, warm-ups, and what evaluations have of the run."""

import csv
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from PIL import Image
from tiny import SMALL, only, run_here

from solo_hcsc.data.folders import LabelledImages, short_names
from solo_hcsc.encoders.loading import load_encoder

HCSC = "--method hcsc --min_cluster_size 2 --queue_size 16 --limit_val_batches 0".split()
LEAVES = ["Fruit/Apple/Gala", "Fruit/Apple/Pink", "Fruit/Mango", "Milk/Oat/Bio"]


@pytest.fixture(scope="session")
def nested(tmp_path_factory):
    """Folders of different depth with ten pictures each."""
    root = tmp_path_factory.mktemp("nested")
    for split, count in (("train", 10), ("val", 2)):
        for place, name in enumerate(LEAVES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                colour = (60 * place, 5 * number, 200 - 40 * place)
                Image.new("RGB", (40, 40), colour).save(folder / f"{number}.png")
    return root


def flags_of(root, *more):
    return ["--dataset", "custom", "--data_dir", root, "--train_dir", "train", "--val_dir", "val", *more]


# ---- which folder is the class ----


@pytest.mark.parametrize(
    ("level", "classes"),
    [
        (None, ["Fruit", "Milk"]),
        (1, ["Fruit", "Milk"]),
        (2, ["Fruit/Apple", "Fruit/Mango", "Milk/Oat"]),
        (3, LEAVES),
        (9, LEAVES),
        ("leaf", LEAVES),
    ],
)
def test_class_is_the_folder_at_the_level(level, classes, nested):
    dataset = LabelledImages(nested / "train", None, level)
    assert dataset.classes == classes
    for path, label in dataset.samples:
        folders = os.path.relpath(os.path.dirname(path), nested / "train")
        assert folders == classes[label] or folders.startswith(classes[label] + "/")
    assert len(dataset) == 40


def test_short_names_are_the_last_folders_where_these_differ():
    assert short_names(["Fruit/Apple", "Fruit/Mango", "Juice/Apple"]) == ["Fruit/Apple", "Mango", "Juice/Apple"]


def test_nested_folders_are_told_and_chosen(nested, tmp_path, capsys):
    flags = [*flags_of(nested), *SMALL, *HCSC, "--max_epochs", 2, "--checkpoint_dir", tmp_path]
    run_here("pretrain", *flags)
    out = capsys.readouterr().out
    assert "2 classes: Fruit, Milk; below them 4 folders with images: --class_level 2 or leaf" in out
    assert "40 images, 2 classes" in out
    run_here("pretrain", *flags, "--class_level", "leaf")
    out = capsys.readouterr().out
    assert "below them" not in out
    assert "40 images, 4 classes" in out


def test_class_level_that_is_none(refused):
    assert "'0' is neither a number from 1 nor leaf" in refused("knn", "--class_level", "0")


# ---- sizes and warm-ups ----


def recorded(folder):
    return json.loads(only(folder, "args.json").read_text())


def test_size_of_the_tree_follows_the_images(images, tmp_path, capsys):
    flags = flags_of(images, *SMALL, "--checkpoint_dir", tmp_path)
    run_here("pretrain", *flags, *"--method hcsc --queue_size 16 --max_epochs 2 --limit_val_batches 0".split())
    assert "--num_prototypes 2: chosen for 36 images, at least 40 for each prototype" in capsys.readouterr().out
    assert recorded(tmp_path)["num_prototypes"] == recorded(tmp_path)["hcsc_options"]["num_prototypes"] == [2]


def test_numbers_of_neighbours_follow_the_images(hcsc_run, capsys):
    run_here("knn", "--pretrained_feature_extractor", hcsc_run, "--num_workers", 0, "--accelerator", "cpu")
    out = capsys.readouterr().out
    assert "--k 10 20: there are only 36 training images" in out
    assert "top-1 %" in out


def test_too_many_prototypes_are_told(custom, tmp_path, capsys):
    flags = [*custom, *SMALL, *HCSC, "--num_prototypes", 12, 4, "--max_epochs", 2, "--checkpoint_dir", tmp_path]
    run_here("pretrain", *flags)
    assert "--num_prototypes 12: 36 images are 3 for each, and many clusters will be dropped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "lr", "tree"),
    [
        ("--max_epochs 2", 1, 1),
        ("--max_epochs 2 --warmup_epochs 10 --proto_warmup_epochs 0", 10, 0),
        ("--max_epochs 1", 0, 0),
    ],
)
def test_warm_ups_suit_a_short_run_unless_they_are_typed(flags, lr, tree, custom, tmp_path, capsys):
    run_here("pretrain", *custom, *SMALL, *HCSC, "--num_prototypes", 4, 2, *flags.split(), "--checkpoint_dir", tmp_path)
    found = recorded(tmp_path)
    assert found["warmup_epochs"] == lr
    assert found["hcsc_options"]["proto_warmup_epochs"] == tree
    assert ("shorter than usual" in capsys.readouterr().out) == ("--warmup_epochs" not in flags)


def test_longer_run_goes_on_with_what_was_chosen_for_the_short_one(custom, tmp_path, capsys):
    flags = [*custom, *SMALL, *HCSC, "--num_prototypes", 4, 2, "--checkpoint_dir", tmp_path]
    run_here("pretrain", *flags, "--max_epochs", 5)
    checkpoint = only(tmp_path, "*.ckpt")
    run_here("pretrain", *flags, "--max_epochs", 10, "--resume_from_checkpoint", checkpoint)
    assert "epoch 10/10" in capsys.readouterr().err
    (later,) = (file for file in tmp_path.rglob("args.json") if file.parent != checkpoint.parent)
    assert json.loads(later.read_text())["hcsc_options"]["proto_warmup_epochs"] == 1


def test_clustering_that_starts_later_than_the_warm_up_may_last(custom, tmp_path):
    flags = [*custom, *SMALL, *HCSC, "--num_prototypes", 4, 2, "--checkpoint_dir", tmp_path]
    run_here("pretrain", *flags, "--max_epochs", 4, "--clustering_start", 2)
    assert recorded(tmp_path)["hcsc_options"]["proto_warmup_epochs"] == 2


# ---- what evaluations take from the run ----


@pytest.fixture(scope="session")
def leaf_run(nested, tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaf")
    more = [*SMALL, *HCSC, "--num_prototypes", 4, 2, "--max_epochs", 2, "--checkpoint_dir", folder]
    run_here("pretrain", *flags_of(nested), "--class_level", "leaf", "--mean", 0.5, 0.5, 0.5, *more)
    return only(folder, "*.ckpt").parent


def test_evaluation_is_of_the_runs_images_at_their_size(leaf_run, nested, capsys):
    run_here("knn", "--pretrained_feature_extractor", leaf_run, "--num_workers", 0, "--k", 3)
    out = capsys.readouterr().out
    taken = next(line for line in out.splitlines() if line.startswith("as in pretraining:"))
    wanted = f"--dataset custom --crop_size 32 --mean 0.5 0.5 0.5 --data_dir {nested} --class_level leaf"
    assert taken == f"as in pretraining: {wanted} --train_dir train --val_dir val"
    assert re.search(r"best: \d+\.\d\d % of 8 images, with k=3", out)
    data = json.loads(only(leaf_run, "knn-*.json").read_text())["data"]
    assert (data["crop_size"], data["classes"], data["val_images"], data["class_level"]) == (32, 4, 8, "leaf")


def test_typed_flags_come_first(leaf_run, images, capsys):
    typed = [*flags_of(images), "--crop_size", 16, "--class_level", 1]
    run_here("knn", "--pretrained_feature_extractor", leaf_run, *typed, "--num_workers", 0, "--k", 3)
    out = capsys.readouterr().out
    assert "as in pretraining: --mean 0.5 0.5 0.5" in out.splitlines()
    assert "of 9 images" in out


def test_folders_are_the_label_hierarchy(leaf_run, capsys):
    run_here("clustering", "--pretrained_feature_extractor", leaf_run, "--num_workers", 0)
    assert "AMI, 3 groups  AMI, 2 groups" in capsys.readouterr().out


def test_checkpoint_without_a_record_needs_the_data_set(untrained, refused):
    assert "--dataset is missing" in refused("knn", "--pretrained_feature_extractor", untrained)


@pytest.mark.parametrize(
    ("name", "value"),
    [("crop_size", 32), ("crop_size", []), ("mean", 0.5), ("class_level", "two"), ("data_dir", 5), ("dataset", "svhn")],
)
def test_record_that_no_run_wrote_is_named(name, value, leaf_run, tmp_path, refused):
    content = json.loads((leaf_run / "args.json").read_text()) | {name: value}
    (tmp_path / "args.json").write_text(json.dumps(content))
    (tmp_path / "x.ckpt").symlink_to(only(leaf_run, "*.ckpt"))
    error = refused("knn", "--pretrained_feature_extractor", tmp_path / "x.ckpt")
    assert (
        f"args.json beside the checkpoint, or its metadata: {name} is {value!r}, which no run writes; give --{name}"
        in error
    )


def test_zeroshot_takes_no_folder_from_the_run(leaf_run, images, refused):
    flags = ["--pretrained_feature_extractor", leaf_run, "--dataset", "custom", "--data_dir", images]
    assert "needs --val_dir here" in refused("zeroshot", *flags, "--train_dir", "train")


def test_rows_of_a_comparison_have_the_same_classes(nested, refused):
    flags = [*flags_of(nested), *SMALL, "--methods", "simclr", "byol", "--byol", "--class_level 2"]
    assert "--class_level is 2 for byol and None for simclr" in refused("compare", *flags)


@pytest.mark.parametrize(("command", "dataset"), [("pretrain", "cifar100"), ("voc", "voc07")])
def test_class_level_needs_folders(command, dataset, untrained, refused):
    where = ["--method", "simclr"] if command == "pretrain" else ["--pretrained_feature_extractor", untrained]
    error = refused(command, *where, "--dataset", dataset, "--class_level", 2, *SMALL)
    assert error.startswith("error: --class_level: --dataset")


# ---- what was not what it should be ----


def test_record_is_no_checkpoint(leaf_run, refused):
    error = refused("knn", "--pretrained_feature_extractor", leaf_run / "args.json")
    assert "a record, not a checkpoint; give the checkpoint beside it" in error


def test_classifier_is_no_encoder(leaf_run, tmp_path, refused, capfd):
    flags = ["--cache_features", "--max_epochs", 1, "--batch_size", 8, "--num_workers", 0, "--accelerator", "cpu"]
    run_here("linear", "--pretrained_feature_extractor", leaf_run, *flags, "--checkpoint_dir", tmp_path)
    capfd.readouterr()
    error = refused("knn", "--pretrained_feature_extractor", only(tmp_path, "*.ckpt"))
    assert f"the classifier of an evaluation and no encoder; give the encoder's checkpoint, {leaf_run}" in error


def test_every_misspelt_flag_is_named(refused):
    error = refused("pretrain", "--method", "hcsc", "--dataset", "digits", "--lrr", 1, "--bacth_size=3")
    assert "--lrr: did you mean --lr?; unknown flag or stray value --bacth_size: did you mean --batch_size?" in error


def test_two_pipelines_are_shown_as_an_example(custom, refused):
    error = refused("pretrain", *custom, *SMALL, "--method", "hcsc", "--crop_size", 64, 32)
    assert "as in --crop_size 224 96 --num_crops_per_aug 2 6" in error


# ---- warnings, losses, signals ----


def test_warning_goes_with_the_checkpoint_into_results(nested, tmp_path, capsys):
    few = ["--num_prototypes", 10, 9, "--min_cluster_size", 1, "--max_epochs", 2, "--checkpoint_dir", tmp_path]
    run_here("pretrain", *flags_of(nested), *SMALL, *HCSC, *few)
    end = capsys.readouterr().out.partition("done in")[2]
    assert re.search(r"warning +level 2 has \d clusters for \d+ prototypes, and most clusters have one member", end)
    sign = "most clusters of level 2 have one member"
    assert sign in load_encoder(tmp_path).warnings
    run_here("knn", "--pretrained_feature_extractor", tmp_path, "--num_workers", 0, "--k", 3)
    assert f"warning of its run: {sign}" in capsys.readouterr().out
    run_here("summary", tmp_path)
    assert sign in capsys.readouterr().out


@pytest.mark.parametrize("method", ["hcsc", "mocov2plus", "simclr"])
def test_loss_on_the_screen_is_the_methods_own(method, custom, tmp_path, capsys):
    own = {"hcsc": "train_hcsc_loss_epoch", "mocov2plus": "train_nce_loss_epoch", "simclr": "train_nce_loss_epoch"}
    flags = {"hcsc": [*HCSC[2:], "--num_prototypes", 4, 2], "mocov2plus": ["--queue_size", 16], "simclr": []}[method]
    more = ["--max_epochs", 1, "--checkpoint_dir", tmp_path, "--num_sanity_val_steps", 0]
    more += ["--momentum_classifier"] * (method != "simclr")
    run_here("pretrain", *custom, *SMALL, "--method", method, *flags, *more)
    shown = float(re.search(r"epoch 1/1: loss ([\d.]+)", capsys.readouterr().err)[1])
    rows = list(csv.DictReader(only(tmp_path, "metrics.csv").open()))
    logged = next(float(row[own[method]]) for row in rows if row[own[method]])
    assert shown == pytest.approx(logged, abs=2e-3)


def test_loss_of_accumulated_batches_is_whole(custom, tmp_path, capsys):
    more = ["--max_epochs", 1, "--checkpoint_dir", tmp_path, "--accumulate_grad_batches", 2]
    run_here("pretrain", *custom, *SMALL, "--method", "simclr", *more)
    shown = float(re.search(r"epoch 1/1: loss ([\d.]+)", capsys.readouterr().err)[1])
    rows = list(csv.DictReader(only(tmp_path, "metrics.csv").open()))
    logged = next(float(row["train_nce_loss_epoch"]) for row in rows if row["train_nce_loss_epoch"])
    assert shown == pytest.approx(logged, abs=2e-3)


def test_part_of_the_instances_is_shown(custom, tmp_path, capsys):
    run_here(
        "pretrain", *custom, *SMALL, *HCSC, "--num_prototypes", 4, 2, "--max_epochs", 2, "--checkpoint_dir", tmp_path
    )
    shown = [float(found) for found in re.findall(r"\(of instances ([\d.]+)\)", capsys.readouterr().err)]
    rows = list(csv.DictReader(only(tmp_path, "metrics.csv").open()))
    logged = [float(row["instance_loss_0"]) for row in rows if row["instance_loss_0"]]
    assert shown == pytest.approx(logged, abs=2e-3)


def test_signal_that_reaches_the_workers_too_ends_the_run_with_one_line(custom, tmp_path):
    flags = [*custom, *SMALL, *HCSC, "--num_prototypes", 4, 2, "--max_epochs", 10_000, "--num_workers", 2]
    command = [sys.executable, "-m", "solo_hcsc", "pretrain", *flags, "--checkpoint_dir", tmp_path]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True, start_new_session=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("epoch 2/"):
            break
    os.killpg(process.pid, signal.SIGTERM)
    rest = process.stderr.read().splitlines()
    assert process.wait() == 143
    assert [line for line in rest if not line.startswith(("epoch ", "note: "))] == rest[-1:]
    assert rest[-1].startswith("error: terminated; last good checkpoint: ")
    assert torch.load(only(tmp_path, "*.ckpt"), weights_only=True)["epoch"] >= 1
