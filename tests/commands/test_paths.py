"""Paths that no file can have, links that lead back to themselves, and pipes: one line, whatever flag they come by."""

import os

import pytest
from tiny import SMALL, make_images

from solo_hcsc.data.images import list_images

NAME, WHOLE = "x" * 300, "/".join(["x" * 200] * 30)  # longer than a name and a path may be
MOCO = ["--method", "mocov2plus", "--queue_size", "16", "--max_epochs", "1", *SMALL]
FOLDER = ["--dataset", "custom", "--train_dir", "train", "--data_dir"]
COMMANDS = {
    "summary": ["{}"],
    "report": ["{}"],
    "report, page": ["x", "--out", "{}"],
    "export": ["{}", "--format", "timm", "--out", "x"],
    "export, file": ["x", "--format", "timm", "--out", "{}"],
    "embed": ["{}", "--out", "x"],
    "explore": ["x", "--out", "{}"],
    "pick": ["x", "--budget", "1", "--out", "{}"],
    "pick, labels": ["x", "--budget", "1", "--out", "y.csv", "--already", "y", "{}"],
    "spread": ["x", "--labels", "{}", "--out", "y"],
    "fewlabels": ["x", "--out", "{}"],
    "detect": ["x", "--data_dir", "{}"],
    "digits": ["--data_dir", "{}"],
    "knn": ["--pretrained_feature_extractor", "{}"],
    "linear": ["--pretrained_feature_extractor", "x", "--dataset", "custom", "--checkpoint_dir", "{}"],
    "semisup": ["--pretrained_feature_extractor", "x", "--dataset", "custom", "--label_list", "{}"],
    "places": ["--pretrained_feature_extractor", "x", "--train_list", "{}"],
    "clustering": ["--pretrained_feature_extractor", "x", "--label_hierarchy", "{}"],
    "compare": ["--methods", "hcsc", "--out", "{}"],
    "solo": ["{}"],
    "pretrain": [*MOCO, *FOLDER, "{}"],
    "pretrain, folder": [*MOCO, *FOLDER, ".", "--checkpoint_dir", "{}"],
    "pretrain, weights": [*MOCO, *FOLDER, ".", "--init_weights", "{}"],
}


@pytest.mark.parametrize("path", [NAME, WHOLE], ids=["name", "whole"])
@pytest.mark.parametrize("case", COMMANDS)
def test_path_that_is_too_long_is_refused_in_one_line(case, path, tmp_path, refused):
    make_images(tmp_path / "train", classes=2, per_class=8)
    line = refused(case.split(",")[0], *(word.format(path) for word in COMMANDS[case]))
    assert len(line) < 200
    assert line.endswith(": this path is too long; give another one")


@pytest.mark.parametrize("case", [case for case in COMMANDS if case not in ("solo", "pretrain, weights")])
def test_link_to_itself_is_refused_in_one_line(case, tmp_path, refused):
    os.symlink("loop", tmp_path / "loop")
    line = refused(case.split(",")[0], *(word.format("loop") for word in COMMANDS[case]))
    assert line.endswith("loop: a link that leads back to itself; give another one")


def test_flags_that_make_a_path_too_long_together_are_refused(tmp_path, refused):
    half = "/".join(["x"] * 1500)
    line = refused("pretrain", *MOCO, "--dataset", "custom", "--data_dir", half, "--train_dir", half)
    assert line.endswith("x: this path is too long; give another one")


def test_labels_from_a_pipe_are_refused_instead_of_waited_for(tmp_path, refused):
    os.mkfifo(tmp_path / "pipe")
    said = "pipe: is a pipe or a socket; give a file or a folder"
    assert f"--labels {said}" in refused("spread", "x", "--labels", "pipe", "--out", "y")
    assert f"--already {said}" in refused("pick", "x", "--budget", "1", "--out", "y", "--already", "pipe")


def test_each_folder_of_a_tree_of_links_is_looked_at_once(tmp_path):
    """17 folders, each with two links to the next one: 131,072 ways to the last."""
    for depth in range(17):
        (tmp_path / "tree" / f"{depth:02}").mkdir(parents=True)
        (tmp_path / "tree" / f"{depth:02}" / "x.png").touch()
        for name in ("a", "b"):
            os.symlink(f"../{depth + 1:02}", tmp_path / "tree" / f"{depth:02}" / name)
    below = [f"{tmp_path}/tree/{depth:02}/x.png" for depth in range(17)]
    assert list_images(tmp_path).images == below
    by_links = list_images(tmp_path / "tree" / "00").images
    assert sorted(map(os.path.realpath, by_links)) == below  # each by one of its ways


def test_links_to_themselves_among_images_are_named(tmp_path):
    (tmp_path / "x.png").touch()
    os.symlink("loop", tmp_path / "loop")
    os.symlink("y.png", tmp_path / "y.png")
    listing = list_images(tmp_path)
    assert [os.path.basename(path) for path in listing.images] == ["x.png", "y.png"]  # which reading refuses
    assert "without an ending 1" in listing.left_out()
