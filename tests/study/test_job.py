"""A job's file says all that its process does, and what is wrong with it is one line."""

import subprocess
import sys
from importlib import import_module

import pytest

from solo_hcsc.errors import UserError
from solo_hcsc.study.job import FUNCTIONS, Job, line, plain, read_job


def run_file(file):
    return subprocess.run([sys.executable, "-m", "solo_hcsc.study.job", str(file)], capture_output=True, text=True)


def test_job_is_read_back_from_its_file(tmp_path):
    job = Job("knn", {"k": [3, 5], "features": ["backbone"]}, {"pretrained_feature_extractor": "run"})
    job.write(tmp_path / "jobs" / "knn.json")
    assert read_job(tmp_path / "jobs" / "knn.json") == job


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"function": "knn"}',
        '{"function": "rm", "settings": {}}',
        '{"function": "knn", "settings": []}',
    ],
)
def test_file_that_is_no_job_is_named(content, tmp_path):
    file = tmp_path / "knn.json"
    file.write_text(content)
    with pytest.raises(UserError, match=r"knn\.json: not "):
        read_job(file)


def test_mistake_in_a_job_is_one_line_and_exit_code_2(tmp_path):
    file = tmp_path / "pretrain.json"
    settings = {"method": "hcsc", "dataset": "custom", "data_dir": str(tmp_path), "train_dir": "nowhere"}
    Job("pretrain", settings).write(file)
    ended = run_file(file)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert ended.stderr.startswith("error: ")
    assert "nowhere does not exist" in ended.stderr


def test_settings_that_are_settled_have_defaults_and_keep_what_was_given(images):
    given = {
        "data_dir": str(images),
        "train_dir": "train",
        "num_prototypes": [4, 2],
        "hierarchy": False,
        "max_epochs": 3,
    }
    settings = Job("pretrain", {"method": "hcsc", **given}).settle()
    assert (settings.num_prototypes, settings.hierarchy, settings.max_epochs) == ([4, 2], False, 3)
    assert (settings.dataset, str(settings.train_dir), settings.encoder) == ("custom", "train", "resnet18")
    assert given.keys() <= settings.typed


WORDS = {
    "knn": "--k 3 5 --features backbone projector --crop_size 32 --val_data_path /test",
    "linear": "--config moco --lr_sweep --batch_size 32",
    "clustering": "--k 3 --split val",
    "fewlabels": "--out few --budgets 5 9 --way nearest",
    "analyse": "--points 20 --no_labels --wandb",
}


@pytest.mark.parametrize("function", WORDS)
def test_job_has_the_settings_of_its_command(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "weights.pth"
    weights.touch()
    run = [str(weights)] if function == "fewlabels" else ["--pretrained_feature_extractor", str(weights)]
    command = import_module(f"solo_hcsc.cli.commands.{function}")
    typed = command.parse([*run, *WORDS[function].split()])
    typed = vars(typed).get("as_typed", typed)  # what was typed, before anything was found for it
    given = {name: value for name, value in vars(typed).items() if name in typed.typed}
    settled = Job(function, plain({"pretrained_feature_extractor": weights, **given})).settle()
    assert settled == typed
    assert settled.typed == typed.typed | {"pretrained_feature_extractor"}


def test_no_job_goes_through_the_command_line():
    # import-linter holds that these modules import no command either
    assert [module for module in FUNCTIONS.values() if module.startswith("solo_hcsc.cli")] == []


@pytest.mark.parametrize(
    ("function", "settings", "told"),
    [
        ("knn", {"kk": 3}, "unknown setting `kk`: did you mean k?"),
        ("clustering", {"k": 1}, "`k` 1: must be at least 2"),
        ("fewlabels", {}, "`out` is missing"),
        ("analyse", {"queries": 13}, "`queries` 13: must be from 1 to 12"),
    ],
)
def test_wrong_setting_of_an_evaluation_is_refused_before_its_run_is_looked_for(function, settings, told):
    with pytest.raises(UserError, match=told.replace("?", r"\?")):
        Job(function, {"pretrained_feature_extractor": "nowhere", **settings}).settle()


def test_readers_line_of_a_job_is_text_for_a_shell():
    text = line("pretrain", {"name": "a b", "lr": 0.1, "wandb": True})
    assert text == "solo-hcsc pretrain --name 'a b' --lr 0.1 --wandb"
