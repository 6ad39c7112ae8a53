"""Pretraining from Python: silent, the command's own numbers, and mistakes told by the names of arguments."""

import subprocess
import sys

import pytest
from tiny import only, run_here

import solo_hcsc as sh
from benchmarks.kills import differences
from solo_hcsc.cli.flags import pretraining_parser
from solo_hcsc.encoders.checkpoints import load_checkpoint
from solo_hcsc.errors import ArgumentError
from solo_hcsc.methods.names import METHODS
from solo_hcsc.runs.run import Run
from solo_hcsc.solo102 import load_methods
from solo_hcsc.training.pretraining import pretrain, settled

QUICK = {"crop_size": 16, "num_workers": 0, "accelerator": "cpu", "limit_train_batches": 3, "limit_val_batches": 1}
TREE = {"num_prototypes": (8, 4), "queue_size": 64, "min_cluster_size": 2, "preset": "official"}
CODE = """
import sys
import solo_hcsc as sh
run = sh.pretrain(sys.argv[1], dataset="digits", epochs=2, batch_size=32, out=sys.argv[2], **eval(sys.argv[3]))
assert isinstance(run, sh.Run), run
assert run.tree is not None
assert run.method == "hcsc"
"""


def test_function_prints_nothing_and_computes_what_the_command_does(tmp_path):
    given = QUICK | TREE
    words = [str(word) for word in (tmp_path, tmp_path / "python", given)]
    out = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True)
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")
    values = {name: value if isinstance(value, tuple) else [value] for name, value in given.items()}
    flags = [word for name, words in values.items() for word in (f"--{name}", *words)]
    flags += ["--max_epochs", 2, "--batch_size", 32, "--checkpoint_dir", tmp_path / "command"]
    run_here("pretrain", "--dataset", "digits", "--data_dir", tmp_path, *flags)
    ours, theirs = (load_checkpoint(only(tmp_path / name, "*.ckpt")) for name in ("python", "command"))
    assert differences(ours["state_dict"], theirs["state_dict"]) == []


def test_folder_is_enough_and_a_run_comes_back(images, tmp_path):
    run = pretrain(images / "flat", encoder="resnet18", method="simclr", epochs=1, batch_size=8, out=tmp_path, **QUICK)
    assert isinstance(run, Run)
    assert run.folder.parent == tmp_path / "simclr"
    assert run.settings["no_labels"] is False  # one class folder
    assert run.tree is None
    again = pretrain(images / "flat", method="simclr", epochs=1, batch_size=8, out=tmp_path, auto_resume=True, **QUICK)
    assert again.folder == run.folder


def test_val_is_a_folder_of_its_own(images, tmp_path, monkeypatch):
    monkeypatch.chdir(images)
    run = pretrain("train", "val", method="simclr", epochs=1, batch_size=8, out=tmp_path, **QUICK)
    assert run.settings["val_dir"] == str(images / "val")
    assert "val_acc1" in (run.folder / "metrics.csv").read_text().splitlines()[0]


WRONG = {
    "unknown": ({"learning_rat": 0.1}, "unknown setting `learning_rat`: "),
    "misspelt": ({"batchsize": 8}, "unknown setting `batchsize`: did you mean batch_size?"),
    "bound": ({"lr": -1}, "`lr` -1: must not be negative"),
    "bound of a method": ({"temperature": 0}, "`temperature` 0: must be greater than 0"),
    "bound of several": ({"crop_size": [32, 0]}, "`crop_size` 0: must be at least 1"),
    "type": ({"max_epochs": "many"}, "`epochs` 'many': must be a whole number"),
    "no whole number": ({"max_epochs": 1.5}, "`epochs` 1.5: must be a whole number"),
    "switch": ({"dali": "no"}, "`dali` 'no': must be True or False"),
    "choice": ({"scheduler": "sine"}, "`scheduler` sine: choose from "),
    "several": ({"lr": [1, 2]}, "`lr` [1, 2]: give one value"),
    "encoder": ({"encoder": "resnet19"}, "`encoder`: resnet19: unknown; did you mean resnet18?"),
    "method": ({"method": "hcsk"}, "`method` hcsk: unknown; did you mean hcsc?"),
    "together": ({"scheduler": "step"}, "`scheduler` step needs `lr_decay_steps`"),
    "no folder": ({"data_dir": "nowhere"}, "`train`: nowhere does not exist"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistake_is_an_error_that_names_the_argument(case, images, tmp_path):
    given, told = WRONG[case]
    given = {"train": images / "train", "out": tmp_path, **given}
    with pytest.raises(sh.ArgumentError if case != "no folder" else sh.UserError) as raised:
        pretrain(given.pop("data_dir", given.pop("train")), **given)
    assert str(raised.value).startswith(told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
def test_defaults_are_those_of_the_flags(method):
    flags = pretraining_parser(load_methods()[method]).parse(["--method", method])
    settings = settled({"method": method})
    assert settings == flags
    assert settings.given == flags.given - {"help"}


def test_settings_of_another_kind_become_what_a_flag_gives():
    settings = settled({"encoder": "timm/resnet18", "encoder_args": {"drop_rate": 0.1}, "limit_train_batches": 0.5})
    assert settings.encoder_args == ["drop_rate=0.1"]
    assert settings.limit_train_batches == 0.5
    assert settled({"class_level": 2}).class_level == 2
    with pytest.raises(ArgumentError, match="`class_level`: 'tail' is neither"):
        settled({"class_level": "tail"})
