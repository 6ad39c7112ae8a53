"""What is known of a run comes from fields of its files, not from names, places or command lines."""

import json
import os

import pytest

from solo_hcsc.errors import UserError
from solo_hcsc.study.runner import Evaluation, Finished, Variant, finished_runs, read_run

LINEAR = Evaluation("linear", "linear.json", {"k": [3], "val_dir": "val"}, into=("checkpoint_dir", "linear"))


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_settings_of_a_result_are_values_without_places(tmp_path):
    assert LINEAR.settings_of_result(tmp_path) is None, "there is no result"
    job = LINEAR.of(tmp_path)
    assert job.here == {"pretrained_feature_extractor": str(tmp_path), "checkpoint_dir": str(tmp_path / "linear")}
    job.write(tmp_path / "jobs" / "job-linear.json")
    write(tmp_path / "linear" / "x" / "linear.json", {"evaluation": "linear"})
    LINEAR.record(tmp_path)
    assert LINEAR.settings_of_result(tmp_path) == {"val_dir": "val", "k": [3]}, "in whatever order"


def test_result_of_another_hand_has_no_settings(tmp_path):
    old = write(tmp_path / "first" / "linear.json", {"evaluation": "linear"})
    os.utime(old, (1, 1))
    assert LINEAR.settings_of_result(tmp_path) == {}, "there is no record of it"
    LINEAR.record(tmp_path)
    write(tmp_path / "second" / "linear.json", {"evaluation": "linear", "metrics": {}})
    assert LINEAR.settings_of_result(tmp_path) == {}, "a newer one was made with a command"


@pytest.mark.parametrize("content", ["[]", '{"settings": 3}'])
def test_broken_record_of_an_evaluation_is_named(content, tmp_path):
    write(tmp_path / "linear.json", {})
    file = write(tmp_path / "jobs" / "done-linear.json", content)
    with pytest.raises(UserError) as refusal:
        LINEAR.settings_of_result(tmp_path)
    assert str(refusal.value) == f"{file}: not the record of an evaluation; remove it to repeat that"


def test_curves_are_pretrainings_wherever_a_classifier_was_trained(tmp_path):
    """By the role in args.json: the folders of the two are alike, and the classifier's is newer."""
    for age, (place, flags, value) in enumerate(
        [
            ("hcsc/first", {"role": "pretraining"}, 1.0),
            ("hcsc/resumed", {"role": "pretraining"}, 2.0),
            ("linear/other", {"role": "evaluation"}, 3.0),
            ("hcsc/first/mine", {"role": "evaluation"}, 4.0),
            ("semisup/solo-learns", {"pretrained_feature_extractor": "x"}, 5.0),
            ("hcsc/unknown", None, 6.0),
        ]
    ):
        epoch = 1 if place == "hcsc/resumed" else 0
        file = write(tmp_path / place / "metrics.csv", f"epoch,step,val_acc1,loss_step\n{epoch},3,{value},7\n")
        os.utime(file, (age, age))
        if flags is not None:
            write(tmp_path / place / "args.json", flags)
    run = Finished("hcsc", "hcsc", 2, 0, {}, tmp_path)
    assert run.curves == {"val_acc1": [(0, 1.0), (1, 2.0)]}


def test_epochs_that_were_begun_are_the_rows_field(tmp_path):
    variant = Variant("hcsc", {"method": "hcsc"}, 2, "hcsc")
    assert variant.begun_longer(tmp_path) is None
    rows = [
        {"name": "hcsc", "base": "hcsc", "epochs": 2},
        {"name": "any name", "base": "hcsc", "epochs": 7},
        {"name": "hcsc, 5 epochs", "base": "hcsc", "epochs": 5},
        {"name": "hcsc, 9 epochs", "base": "hcsc, 9 epochs", "epochs": 9},  # a row at equal epochs that is called so
        {"name": "swav, 8 epochs", "base": "swav", "epochs": 8},
    ]
    for number, row in enumerate(rows):
        write(tmp_path / f"folder-{number}" / "seed-0" / "row.json", {**row, "settings": {}})
    assert variant.begun_longer(tmp_path) == 7
    file = write(tmp_path / "folder-0" / "seed-1" / "row.json", {"name": "hcsc"})
    with pytest.raises(UserError) as refusal:
        variant.begun_longer(tmp_path)
    assert str(refusal.value).startswith(f"{file}: not a row's record (")


def test_longer_row_says_of_which_it_is(tmp_path):
    longer = Variant("hcsc", {"max_epochs": 2, "lr": 1}, 2, "hcsc").longer(5)
    assert longer == Variant("hcsc, 5 epochs", {"max_epochs": 5, "lr": 1}, 5, "hcsc")


def test_run_is_what_its_record_says(tmp_path):
    facts = {"name": "b", "base": "a", "epochs": 5, "seed": 3, "settings": {"method": "hcsc"}}
    file = write(tmp_path / "any" / "seed-0" / "run.json", facts)
    (run,) = finished_runs(tmp_path)
    assert run == Finished("b", "a", 5, 3, {"method": "hcsc"}, file.parent)
    assert run.command == "solo-hcsc pretrain --method hcsc --seed 3"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"name": "hcsc", "seed": 0, "settings": {}}'])
def test_record_that_is_none_is_named(content, tmp_path):
    file = write(tmp_path / "run.json", content)
    with pytest.raises(UserError) as refusal:
        read_run(file)
    assert str(refusal.value).startswith(f"{file}: not a run's record (")
    assert str(refusal.value).endswith("; remove it to repeat the run")
