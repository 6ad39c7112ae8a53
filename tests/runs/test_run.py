"""A run as a value: what it says, what it writes, and that a command reads each of its files once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import make_images, only, run_here

from solo_hcsc import ArgumentError, embed, load_tree, open_run
from solo_hcsc.encoders import checkpoints
from solo_hcsc.errors import UserError
from solo_hcsc.runs.results import Result

LIGHT = ["--accelerator", "cpu", "--num_workers", 0]


@pytest.fixture
def reads(monkeypatch):
    """Counts what is read of runs: args.json, and the search for a checkpoint below a folder."""
    counts = {"args.json": 0, "searches": 0, "checkpoints": 0}

    def counted(name, original, is_one):
        def count(*args, **kwargs):
            counts[name] += is_one(*args)
            return original(*args, **kwargs)

        return count

    of_record = counted("args.json", Path.read_text, lambda self, *_: self.name == "args.json")
    monkeypatch.setattr(Path, "read_text", of_record)
    monkeypatch.setattr(Path, "rglob", counted("searches", Path.rglob, lambda self, *_: any(self.glob("*.ckpt"))))
    whole = counted("checkpoints", checkpoints.load_checkpoint, lambda *_: True)
    monkeypatch.setattr(checkpoints, "load_checkpoint", whole)
    return counts


@pytest.mark.parametrize(
    "command",
    [
        "embed RUN --out OUT/table",
        "export RUN --format safetensors --out OUT/x.safetensors",
        "explore RUN --out OUT/page",
        "pick RUN --budget 3 --out OUT/labels.csv",
        "knn --pretrained_feature_extractor RUN --k 5 --features backbone projector",
        "clustering --pretrained_feature_extractor RUN",
    ],
)
def test_command_reads_each_file_of_a_run_once(command, hcsc_run, tmp_path, reads):
    run = shutil.copytree(hcsc_run, tmp_path / "run")
    name, *flags = command.replace("OUT", str(tmp_path)).replace("RUN", str(run)).split()
    run_here(name, *flags, *(LIGHT if name != "export" else []))
    assert reads == {"args.json": 1, "searches": 1, "checkpoints": 1}


def test_run_in_the_library_reads_each_file_once(hcsc_run, images, reads):
    run = open_run(hcsc_run)
    train, val = run.embed(accelerator="cpu"), run.embed(split="val", accelerator="cpu")
    assert (len(train), len(val), run.tree.hierarchy.num_levels, run.warnings) == (36, 9, 2, run.encoder.warnings)
    assert reads == {"args.json": 1, "searches": 1, "checkpoints": 1}


def test_run_tells_what_it_recorded(hcsc_run):
    run = open_run(hcsc_run)
    assert run.folder == hcsc_run
    assert run.checkpoint == only(hcsc_run, "*ep=1.ckpt")
    assert (run.method, run.settings["crop_size"], run.encoder.crop_size) == ("hcsc", [32, 16], 32)
    assert torch.equal(run.tree.coding.tree.prototypes_0, load_tree(hcsc_run).coding.tree.prototypes_0)
    assert "train_hcsc_loss_epoch" in run.curves().columns
    assert run.curves().index.tolist() == [0, 1]


def test_newest_run_is_taken_and_evaluations_are_passed_over(untrained, tmp_path, reads):
    """Only the records that are needed are read: those of the newest folders."""
    for number, role in enumerate(("pretraining", "pretraining", "evaluation")):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(untrained, folder / "x.ckpt")
        (folder / "args.json").write_text(json.dumps({"role": role, "method": str(number)}))
        os.utime(folder / "x.ckpt", (1e9 + number, 1e9 + number))
    assert open_run(tmp_path).method == "1"
    assert reads["args.json"] == 2


def test_result_is_saved_beside_the_checkpoint_and_found_again(hcsc_run, tmp_path):
    run = open_run(shutil.copytree(hcsc_run, tmp_path / "run"))
    result = Result("knn", {"acc1": 50.0}, {"k": 5}, {"name": "custom", "data_dir": "somewhere/photos"})
    file = run.save(result)
    assert file == run.folder / f"knn-custom-photos-{run.checkpoint.stem}.json"
    assert run.save(result, "knn-projector").name.startswith("knn-projector-custom-photos-")
    found = run.results()
    assert found.acc1.tolist() == [50.0, 50.0]
    assert str(file) in found.file.tolist()


def test_export_writes_a_file_that_gives_the_same_features(hcsc_run, images, tmp_path):
    run = open_run(hcsc_run)
    file = run.export(tmp_path / "encoder.safetensors", format="timm")
    assert load_file(file).keys() == run.encoder.module.state_dict().keys()
    again = embed(file, images / "val", accelerator="cpu")
    np.testing.assert_allclose(again.vectors, run.embed(images / "val", accelerator="cpu").vectors, atol=1e-5)
    assert [one.name for one in tmp_path.iterdir()] == ["encoder.safetensors"]
    with pytest.raises(ArgumentError, match=r"^`format` tflite: choose from timm, "):
        run.export(tmp_path / "x", format="tflite")


def test_weights_of_no_run_have_no_images_and_no_curves(untrained):
    run = open_run(untrained, crop_size=32)
    assert (run.method, run.settings, run.tree) == (None, {}, None)
    with pytest.raises(ArgumentError, match=r"^`images`: give them"):
        run.embed()
    with pytest.raises(UserError, match=r"no metrics\.csv there"):
        run.curves()
    with pytest.raises(UserError, match=r"no args\.json of a pretraining run beside it"):
        run.embed(torch.zeros(2, 3, 32, 32), features="projector")


WITHOUT_FRAMEWORKS = """
import sys
for name in ("solo", "pytorch_lightning", "lightning", "lightning_fabric", "pl_bolts"):
    sys.modules[name] = None
import torch
import solo_hcsc as sh
folder, weights, hcsc = sys.argv[1:]
made = sh.Encoder.timm("test_efficientnet", crop_size=32, pretrained=False)
loaded = sh.load_encoder(weights, crop_size=32)
for encoder in (made, loaded):
    found = sh.embed(encoder, folder, accelerator="cpu")
    assert found.vectors.shape == (len(found), encoder.module.num_features if encoder is made else 512)
    assert found.classes == ("class 0", "class 1")
run = sh.open_run(weights, crop_size=32)
assert len(run.embed(folder, accelerator="cpu")) == 6
assert run.tree is None
run.export(folder + "/encoder.safetensors")
found.save(folder + "/table")
assert len(sh.Embeddings.load(folder + "/table")) == 6
of_run = sh.load_encoder(hcsc)
assert of_run.trained_with["method"] == "hcsc"
assert of_run(torch.zeros(1, 3, 32, 32)).shape == (1, 512)
"""


def test_embedding_needs_neither_solo_learn_nor_lightning(untrained, hcsc_run, tmp_path):
    make_images(tmp_path / "photos", classes=2, per_class=3)
    words = [sys.executable, "-c", WITHOUT_FRAMEWORKS, tmp_path / "photos", untrained, hcsc_run]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
