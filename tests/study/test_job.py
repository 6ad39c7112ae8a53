"""A job's file says all that its process does, and what is wrong with it is one line."""

import subprocess
import sys

import pytest

from solo_hcsc.errors import UserError
from solo_hcsc.study.job import Job, line, read_job


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


def test_readers_line_of_a_job_is_text_for_a_shell():
    text = line("pretrain", {"name": "a b", "lr": 0.1, "wandb": True})
    assert text == "solo-hcsc pretrain --name 'a b' --lr 0.1 --wandb"
