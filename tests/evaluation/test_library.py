"""Evaluations that train, called as functions: the command's figures, and not a word on the terminal."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scenes import make_voc
from tiny import run_here

from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation.detection import detect
from solo_hcsc.evaluation.linear import linear, linear_on_images
from solo_hcsc.evaluation.places import places
from solo_hcsc.evaluation.semisup import semisup
from solo_hcsc.progress import Reporter, listen
from solo_hcsc.runs.results import Result
from solo_hcsc.runs.run import open_run

QUICK = {"crop_size": 32, "num_workers": 0, "accelerator": "cpu", "batch_size": 8, "max_epochs": 1}


@pytest.fixture(autouse=True)
def nobody_listens():
    listen(Reporter())


def as_flags(settings: dict) -> list:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def clouds(images: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (N, 16) around a corner for each class, far enough apart for a line between any two."""
    random = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    return (6 * np.eye(16)[labels] + random.normal(size=(images, 16))).astype("float32"), labels


# ---- features in memory ----


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["arrays", "tensors"])
def test_classifier_on_features_finds_the_classes_and_prints_nothing(kind, capsys):
    train, val = (tuple(map(kind, clouds(images, 8, seed))) for images, seed in ((160, 0), (80, 1)))
    before = torch.random.get_rng_state()
    found = linear(train, val, epochs=20)
    assert found.metrics["acc1"] > 95
    assert found.metrics["acc5"] == 100
    assert found.settings["chosen"] == "best of 10 learning rates on 32 held-out training images"
    assert (found.settings["batch_size"], found.data["train_images"], found.data["val_images"]) == (40, 160, 80)
    assert linear(train, val, epochs=20).metrics == found.metrics
    assert torch.equal(torch.random.get_rng_state(), before)
    assert capsys.readouterr() == ("", "")


def test_sweep_on_features_reports_the_best_rate_and_every_row():
    found = linear(clouds(90, 3, 0), clouds(30, 3, 1), lr_sweep=[1e-6, 0.3], epochs=10, batch_size=30)
    assert [row["lr"] for row in found.rows] == [1e-6, 0.3]
    assert found.settings["lr"] == 0.3
    assert found.metrics == {"acc1": found.rows[1]["acc1"]}
    assert found.rows[0]["acc1"] < found.rows[1]["acc1"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lr": -1}, "`lr` -1: must be greater than 0"),
        ({"epochs": 0}, "`epochs` 0: must be"),
        ({"batch_size": 64}, "`batch_size` 64: there are only 30 training images"),
        ({"lr": 0.1, "lr_sweep": [1]}, "`lr` and `lr_sweep` exclude each other"),
    ],
)
def test_classifier_on_features_refuses_by_the_arguments_name(settings, reason):
    with pytest.raises(ArgumentError, match=reason):
        linear(clouds(30, 3, 0), clouds(30, 3, 1), **settings)


# ---- images ----


@pytest.mark.parametrize(
    ("function", "command", "opened", "settings"),
    [(linear_on_images, "linear", open_run, {"lr": 0.1}), (semisup, "semisup", load_encoder, {"label_fraction": 0.5})],
    ids=["linear of a run", "semisup of an encoder"],
)
def test_function_has_the_commands_figures(function, command, opened, settings, images, untrained, tmp_path, capsys):
    given = QUICK | settings
    found = function(opened(untrained), images / "train", images / "val", checkpoint_dir=tmp_path / "function", **given)
    assert capsys.readouterr().out == ""
    written = Result.load(found.origin["run"] / f"{command}.json")
    assert (written.metrics, written.settings) == (found.metrics, json.loads(json.dumps(found.settings)))
    folders = {"data_dir": images, "train_dir": "train", "val_dir": "val", "checkpoint_dir": tmp_path / "command"}
    flags = {"dataset": "custom", "pretrained_feature_extractor": untrained, **folders, **given}
    run_here(command, *as_flags(flags))
    (file,) = tmp_path.glob(f"command/*/*/{command}.json")
    by_command = json.loads(file.read_text())
    assert by_command["metrics"] == found.metrics
    assert by_command["settings"] == written.settings
    assert by_command["command"].startswith(f"solo-hcsc {command} --dataset custom")


def test_detector_is_a_result_with_a_row_for_each_class(untrained, tmp_path, capsys):
    tiny = {"min_size_train": [40, 48], "min_size_test": 40, "max_size": 64, "rois_per_image": 8, "pool_size": 2}
    tiny |= {"anchor_sizes": [12, 16, 24], "warmup_steps": 1, "precise_bn": 1, "num_workers": 0, "accelerator": "cpu"}
    folder = make_voc(tmp_path)
    found = detect(untrained, folder, max_steps=1, batch_size=2, checkpoint_dir=tmp_path / "runs", **tiny)
    assert capsys.readouterr().out == ""
    assert found.rows[-1] == {"class": "mean", **found.metrics}
    assert len(found.rows) == 21
    assert found.settings["pictures"] == {}
    assert Result.load(found.origin["run"] / "detect.json").metrics == found.metrics


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda run: semisup(run, label_fracton=0.1), "unknown setting `label_fracton`: did you mean label_fraction?"),
        (lambda run: semisup(run), "`label_fraction` is missing"),
        (lambda run: semisup(run, label_fraction=2), "`label_fraction` 2: must be above 0 and at most 1"),
        (lambda run: linear_on_images(run, "photos"), "`train` and `val`: give both"),
        (lambda run: linear_on_images(run, lr_sweep=[1, 1]), "`lr_sweep`: a learning rate is given twice"),
        (lambda run: places(run, "x", train_dir="y"), "`train_dir`: `dataset` places205 has no such folder"),
        (lambda run: detect(run, "x", max_epochs=3), "`max_epochs`: detect counts iterations, `max_steps`"),
        (lambda run: detect(None, "x"), "`weights` is None: give a run, an encoder"),
    ],
)
def test_functions_refuse_by_the_arguments_name(call, reason):
    with pytest.raises(ArgumentError, match=reason):
        call(Path("nowhere.pth"))
