"""A help, or a word about a misspelt command, needs none of the heavy packages."""

import os
import shutil
import subprocess
import sys

import pytest

from solo_hcsc.__main__ import COMMANDS, known, main

HEAVY = ("torch", "pytorch_lightning", "solo")
# Prints at the end which of them a command line has imported, after all that the command itself has to say.
CODE = f"""
import atexit, sys
atexit.register(lambda: print("imported:", *(name for name in {HEAVY} if name in sys.modules)))
from solo_hcsc.__main__ import main
main()
"""


def started(*words: str, expect: int = 0) -> tuple[str, str]:
    """What a command line prints in a process of its own, on stdout and stderr, having imported nothing heavy."""
    out = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True)
    assert out.returncode == expect, out.stderr
    *lines, imported = out.stdout.splitlines()
    assert imported.strip() == "imported:"
    return "\n".join(lines), out.stderr


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_overview_names_every_command_with_its_line(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    out, err = started(*words)
    assert out.startswith("usage: solo-hcsc COMMAND [flags]")
    for commands in COMMANDS.values():
        for name, line in commands.items():
            assert f"  {name:<12}{line}" in out.splitlines()
    assert err == ""


@pytest.mark.parametrize("command", known())
def test_help_of_a_command(command):
    out, err = started(command, "--help")
    assert out.startswith(f"usage: solo-hcsc {command} ")
    assert err == ""


def test_version():
    out, _ = started("--version")
    assert out.startswith("solo_hcsc ")


@pytest.mark.parametrize(
    ("word", "hint"), [("pretrian", "did you mean pretrain?"), ("xyzzy", "`solo-hcsc --help` lists them")]
)
def test_misspelt_command_is_refused_with_the_nearest(word, hint):
    out, err = started(word, expect=2)
    assert out == ""
    assert err == f"error: {word}: no such command; {hint}\n"


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["pretrain", "--help"]])
def test_output_whose_reader_has_gone_ends_without_a_word(words, buffered):
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "solo_hcsc", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() in (0, 141)  # argparse passes over what it could not print


def test_broken_pipe_that_is_not_the_output_is_told(monkeypatch):
    def lose_a_worker(words):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("solo_hcsc.__main__.run", lose_a_worker)
    with pytest.raises(BrokenPipeError):
        main()


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", [["--help"], ["pretrain", "--help"]])
def test_help_follows_the_terminals_width(columns, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    out, _ = started(*words)
    lines = [line for line in out.splitlines() if not line.startswith("usage: ")]
    assert columns - 20 < max(map(len, lines)) <= columns


# As above, of packages that KNN of a ResNet has no use for.
KNN = CODE.replace(str(HEAVY), str(("faiss", "pandas", "pytorch_lightning", "sklearn", "solo", "timm", "wandb")))


def test_knn_imports_no_more_than_it_uses(hcsc_run, tmp_path):
    run = shutil.copytree(hcsc_run, tmp_path / "run")
    words = ["knn", "--pretrained_feature_extractor", run, "--num_workers", "0", "--accelerator", "cpu", "--k", "2"]
    out = subprocess.run([sys.executable, "-c", KNN, *words], capture_output=True, text=True)
    assert "best: " in out.stdout, out.stderr
    assert out.stdout.splitlines()[-1].strip() == "imported:"


RUN = "--pretrained_feature_extractor"
CUSTOM = ["--dataset", "custom", "--data_dir"]
REFUSED = {  # words, with {0} for a folder that has train/ and val/, weights.pth and flat/; and what is said
    "no folder to train on": (["pretrain", "--data_dir", "{0}/nowhere"], "nowhere does not exist"),
    "nothing to train on": (["pretrain"], "--data_dir is missing: give a folder of images, or --dataset NAME"),
    "unknown method": (["pretrain", "--data_dir", "{0}", "--method", "hscs"], "did you mean hcsc?"),
    "misspelt flag": (["pretrain", "--data_dir", "{0}", "--epochs", "4"], "unknown flag or stray value --epochs"),
    "no number": (["pretrain", "--data_dir", "{0}", "--batch_size", "many"], "invalid int value: 'many'"),
    "no number for hcsc": (["pretrain", "--data_dir", "{0}", "--num_prototypes", "many"], "invalid int value: 'many'"),
    "no tree": (["pretrain", "--data_dir", "{0}", "--num_prototypes", "3", "4"], "must have fewer than the one below"),
    "no number for a method": (
        ["pretrain", "--data_dir", "{0}", "--method", "byol", "--pred_hidden_dim", "many"],
        "invalid int value: 'many'",
    ),
    "flags apart": (
        ["pretrain", "--data_dir", "{0}", "--scheduler", "step"],
        "--scheduler step needs --lr_decay_steps",
    ),
    "no class folders": (["pretrain", *CUSTOM, "{0}", "--train_dir", "flat"], "one folder per class is expected"),
    "nothing to resume": (
        ["pretrain", "--data_dir", "{0}", "--resume_from_checkpoint", "x.ckpt"],
        "no such checkpoint",
    ),
    "nothing to start from": (["pretrain", "--data_dir", "{0}", "--init_weights", "x.pth"], "no such checkpoint"),
    "a method to compare": (["compare", "--methods", "hcsc", "byol", *CUSTOM, "{0}/x", "--train_dir", "t"], "hcsc: "),
    "a row of a table": (["ablate", "--table", "tree", *CUSTOM, "{0}", "--train_dir", "t"], "tree: --train_dir: "),
    "no test images": (
        ["compare", "--methods", "hcsc", *CUSTOM, "{0}", "--train_dir", "train", "--test_dir", "nowhere"],
        "--test_dir: ",
    ),
    "images for a run": (
        ["knn", RUN, "{0}/train"],
        "it has images: give the folder of a run here, and the images as --data",
    ),
    "KNN in no folder": (
        ["knn", RUN, "{0}/weights.pth", *CUSTOM, "{0}/x", "--train_dir", "t", "--val_dir", "v"],
        "/x/t does",
    ),
    "KNN without classes": (
        ["knn", RUN, "{0}/weights.pth", *CUSTOM, "{0}", "--train_dir", "flat", "--val_dir", "val"],
        "one folder per class is expected",
    ),
    "linear in no folder": (["linear", RUN, "{0}/weights.pth", *CUSTOM, "{0}", "--train_dir", "x"], "needs --val_dir"),
    "semisup": (["semisup", RUN, "{0}/weights.pth", "--label_list", "{0}/x"], "--label_list {0}/x: cannot be read"),
    "clustering": (["clustering", RUN, "{0}/weights.pth", "--label_hierarchy", "{0}/x"], "--label_hierarchy {0}/x: "),
    "zeroshot": (["zeroshot", RUN, "{0}/weights.pth", "--dataset", "cub", "--data_dir", "{0}/x"], "/x does not exist"),
    "voc": (["voc", RUN, "{0}/weights.pth", "--data_dir", "{0}/x"], "/x does not exist"),
    "places": (["places", RUN, "{0}/weights.pth", "--data_dir", "{0}"], "train_places205.csv: cannot be read"),
    "detect": (["detect", "{0}/weights.pth", "--data_dir", "{0}/x"], "/x does not exist"),
    "detect nothing": (["detect", "{0}/x", "--data_dir", "{0}"], "no such checkpoint"),
    "analyse": (["analyse", RUN, "{0}/x"], "no such checkpoint"),
    "explore": (["explore", "{0}/weights.pth", "--data_dir", "{0}/x", "--out", "{0}/page"], "/x does not exist"),
    "embed": (["embed", "{0}/weights.pth", "--data_dir", "{0}/x", "--out", "{0}/table"], "/x does not exist"),
    "pick": (
        ["pick", "{0}/weights.pth", "--data_dir", "{0}", "--budget", "1", "--out", "{0}/y.csv", "--already", "{0}/x"],
        "--already {0}/x: cannot be read",
    ),
    "spread": (
        ["spread", "{0}/weights.pth", "--data_dir", "{0}", "--labels", "{0}/x", "--out", "{0}/y"],
        "--labels {0}/x: cannot be read",
    ),
    "fewlabels": (
        ["fewlabels", "{0}/weights.pth", *CUSTOM, "{0}", "--train_dir", "x", "--val_dir", "val", "--out", "{0}/y"],
        "/x does not exist",
    ),
    "export": (["export", "{0}/x", "--format", "timm", "--out", "{0}/y.pth"], "no such checkpoint"),
    "summary": (["summary", "{0}/x"], "there is no such folder"),
    "report": (["report", "{0}/x"], "{0}/x"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_comes_before_torch(case, images, untrained, tmp_path):
    for name in ("train", "val"):
        (tmp_path / name).symlink_to(images / name)
    (tmp_path / "flat").symlink_to(images / "flat" / "class 0")
    (tmp_path / "weights.pth").symlink_to(untrained)
    words, said = REFUSED[case]
    _, err = started(*(word.format(tmp_path) for word in words), expect=2)
    assert said.format(tmp_path) in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
