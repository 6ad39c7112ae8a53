"""`--train_list`: the training images that a list names, in every command that reads training images."""

import json

import pandas
import pytest
import torch
from tiny import SMALL, only, run_here
from untrained import OWN

from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.data.folders import files_and_labels
from solo_hcsc.training.pretraining import prepare, resolve

EMBED = ["--crop_size", 32, "--accelerator", "cpu", "--num_workers", 0, "--batch_size", 8]
NAMES = [f"class {label}/{number}.png" for label in (0, 2) for number in range(2, 9)]


@pytest.fixture
def listed(tmp_path):
    file = tmp_path / "kept.txt"
    file.write_text("".join(f"{name}\n" for name in reversed(NAMES)))
    return file


def prepared(method, *flags):
    words = [*SMALL, "--method", method, *OWN.get(method, "").split(), "--max_epochs", 2, *flags]
    return prepare(resolve(parse([str(word) for word in words])))


@pytest.mark.parametrize("method", ["hcsc", "mocov2plus"])
def test_pretraining_reads_the_images_of_the_list_alone(method, custom, images, listed, tmp_path):
    work = prepared(method, *custom, "--train_list", listed, "--checkpoint_dir", tmp_path)
    files, labels = files_and_labels(work.train_set)  # which DALI reads too
    assert [file.removeprefix(f"{images}/train/") for file in files] == NAMES
    assert {*labels} == {0, 2}
    assert work.recorded["num_classes"] == 3  # as validation images have
    assert work.recorded["train_list"] == listed
    index, views, label = work.train_set[len(NAMES) - 1]
    assert (index, label) == (len(NAMES) - 1, 2)
    assert all(isinstance(view, torch.Tensor) for view in views)


def test_paths_may_be_below_data_dir_or_whole_and_images_without_labels(images, tmp_path):
    file = tmp_path / "kept.txt"
    names = [f"class 0/{number}.png" for number in range(10)]
    for root in ("", "flat/", f"{images}/flat/"):
        file.write_text("".join(f"{root}{name}\n" for name in names))
        where = ["--dataset", "custom", "--data_dir", images, "--train_dir", "flat", "--no_labels"]
        work = prepared("simclr", *where, "--train_list", file, "--checkpoint_dir", tmp_path)
        assert [path.removeprefix(f"{images}/flat/") for path in work.train_set.images] == names


def test_runs_on_a_list_train_and_are_evaluated_on_it(custom, listed, tmp_path):
    flags = [*SMALL, *custom, "--train_list", listed, "--checkpoint_dir", tmp_path / "run"]
    run_here("pretrain", "--method", "simclr", *flags, "--max_epochs", 1, "--num_sanity_val_steps", 0)
    run = only(tmp_path, "*.ckpt")
    run_here("knn", "--pretrained_feature_extractor", run, "--train_list", listed, "--k", 3, *EMBED)
    data = json.loads(only(tmp_path, "knn-*.json").read_text())["data"]
    assert (data["train_images"], data["val_images"], data["train_list"]) == (14, 9, str(listed))
    given = ["--train_list", listed, "--cache_features", "--lr", 0.1, "--max_epochs", 1]
    linear = ["--checkpoint_dir", tmp_path / "linear", *given, *EMBED]
    run_here("linear", "--pretrained_feature_extractor", run, *linear)
    record = json.loads(only(tmp_path, "linear.json").read_text())
    assert record["data"]["train_images"] == 14


def test_embed_and_explore_take_the_list(hcsc_run, images, listed, tmp_path):
    where = [hcsc_run, "--data_dir", images / "train", "--train_list", listed, *EMBED]
    run_here("embed", *where, "--out", tmp_path / "table")
    assert pandas.read_parquet(tmp_path / "table" / "embeddings.parquet").path.tolist() == NAMES
    run_here("explore", *where, "--out", tmp_path / "page")
    assert (tmp_path / "page" / "index.html").is_file()


REFUSED = {
    "missing": (["nowhere.txt"], "--train_list nowhere.txt: cannot be read"),
    "empty": (["EMPTY"], "is empty; each line is to have the path of an image"),
    "other folder": (["OTHER"], "1 of its 2 images are not in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_lists(case, custom, tmp_path, refused):
    (words,), said = REFUSED[case]
    (tmp_path / "EMPTY").write_text("\n")
    (tmp_path / "OTHER").write_text("class 0/1.png\nclass 9/1.png\n")
    assert said in refused("pretrain", "--method", "simclr", *SMALL, *custom, "--train_list", words)


def test_a_list_is_for_folders(tmp_path, refused):
    (tmp_path / "a.txt").write_text("x\n")
    flags = ["--dataset", "stl10", "--data_dir", tmp_path, "--train_list", tmp_path / "a.txt"]
    assert "--train_list: --dataset stl10 is not in folders" in refused("pretrain", *flags)
