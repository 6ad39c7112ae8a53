"""Runs of solo-learn 1.0.6 in our evaluations, and ours for its scripts."""

import json
import re
import shutil

import pytest
import timm
import torch
from tiny import only, run_here
from untrained import untrained_run

from solo_hcsc.data.sets import download_folder
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.checkpoints import find_checkpoint
from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.encoders.make import make_encoder
from solo_hcsc.encoders.recorded import recorded_flags
from solo_hcsc.errors import UserError
from solo_hcsc.methods.names import METHODS
from solo_hcsc.runs.methods import load_method, load_tree
from solo_hcsc.runs.run import open_run
from solo_hcsc.runs.solo_learn import export_run

CPU = ["--accelerator", "cpu", "--num_workers", "0"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_there_and_back(method, custom, tmp_path):
    run = untrained_run(method, custom, tmp_path / "ours")
    exported = export_run(open_run(run).encoder, open_run(run).content)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "args.json").write_text(exported.record)
    file = tmp_path / "theirs" / exported.name
    file.write_bytes(exported.checkpoint.content)
    state = torch.load(file, weights_only=True)["state_dict"]
    assert not any(name.startswith(("encoder.", "momentum_encoder.")) for name in state)
    ours, theirs = (load_method(find_checkpoint(folder)).state_dict() for folder in (run, file.parent))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, theirs[name]), name


@pytest.fixture(scope="module")
def theirs(hcsc_run, tmp_path_factory):
    """The folder of an HCSC run with its tree, in the layout of solo-learn 1.0.6."""
    folder = tmp_path_factory.mktemp("solo-learn") / "hcsc"
    run_here("export", hcsc_run, "--format", "solo-learn", "--out", folder)
    return folder


def test_the_folder_has_all_that_the_scripts_read(theirs, hcsc_run, capfd):
    assert sorted(file.name for file in theirs.iterdir()) == ["args.json", "hcsc.ckpt", "hcsc.ckpt.md"]
    record = json.loads((theirs / "args.json").read_text())
    assert record["method"] == "hcsc"
    assert record["backbone"] == {"name": "resnet18", "kwargs": {}}
    assert (record["data"]["num_large_crops"], record["data"]["num_small_crops"]) == (2, 1)
    assert [one["crop_size"] for one in record["augmentations"]] == [32, 16]
    assert record["momentum"]["classifier"] is True
    content = torch.load(theirs / "hcsc.ckpt", weights_only=True)
    assert content["hcsc_images"] == 36
    assert content["hcsc_options"] == record["hcsc_options"]
    assert content["hcsc_options"]["num_prototypes"] == [4, 2]
    assert "optimizer_states" not in content
    card = (theirs / "hcsc.ckpt.md").read_text()
    assert "```bash\nsolo-hcsc solo main_knn.py --pretrained_checkpoint_dir FOLDER --dataset custom" in card
    assert "| epochs trained | 2 |" in card
    run_here("export", hcsc_run, "--format", "solo-learn", "--out", theirs)  # takes the place of the earlier one
    assert f"--pretrained_checkpoint_dir {theirs}" in capfd.readouterr().out


def test_features_and_tree_are_the_same(theirs, hcsc_run):
    ours, other = load_encoder(hcsc_run), load_encoder(theirs)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(ours.module.eval()(images), other.module.eval()(images))
    assert (other.epochs, other.warnings) == (ours.epochs, ours.warnings)
    mine, their = load_tree(hcsc_run), load_tree(theirs)
    for level, same in zip(mine.hierarchy.levels, their.hierarchy.levels, strict=True):
        assert torch.equal(torch.as_tensor(level.prototypes), torch.as_tensor(same.prototypes))


@pytest.mark.parametrize(
    "command",
    [
        "knn --pretrained_feature_extractor RUN --k 1",
        "knn --pretrained_feature_extractor RUN --k 1 --features projector",
        "linear --pretrained_feature_extractor RUN --max_epochs 1 --batch_size 8 --checkpoint_dir OUT",
        "clustering --pretrained_feature_extractor RUN",
        "explore RUN --out OUT",
        "embed RUN --out OUT",
        "pick RUN --budget 4 --out OUT.csv",
    ],
)
def test_evaluations_take_it_as_it_is(command, theirs, tmp_path, capfd):
    run = tmp_path / "run"
    shutil.copytree(theirs, run)
    words = command.replace("RUN", str(run)).replace("OUT", str(tmp_path / "out")).split()
    run_here(*words, *CPU)
    out, err = capfd.readouterr()
    assert "error" not in err
    assert "resnet18" in out
    results = [*run.glob("*-*.json")]
    if results:
        assert json.loads(results[0].read_text())["method"] == "hcsc"
        run_here("summary", run, "--wide")
        assert "hcsc multi-crop, 2 epochs" in capfd.readouterr().out


def their_run(folder, backbone, state, method="simclr", **parts):
    """A run of solo-learn 1.0.6 with these weights of its encoder."""
    folder.mkdir(parents=True)
    record = {
        "method": method,
        "backbone": backbone,
        "data": {"dataset": "custom", "train_path": "a/train", "val_path": "a/val", "num_classes": 3},
        "augmentations": [{"crop_size": 32, "num_crops": 2}],
        "method_kwargs": {"proj_hidden_dim": 8, "proj_output_dim": 4, "temperature": 0.2},
        "max_epochs": 3,
    } | parts
    (folder / "args.json").write_text(json.dumps(record))
    torch.save({"state_dict": {f"backbone.{name}": value for name, value in state.items()}}, folder / "x.ckpt")
    return folder


VIT = {"img_size": 32, "patch_size": 4}
ENCODERS = {
    "resnet18 of cifar": ("resnet18", {}, "simclr", {"cifar": True}),
    "vit_tiny": ("vit_tiny", VIT, "simclr", VIT),
    "vit_tiny of 224": ("vit_tiny", {"dynamic_img_size": True}, "simclr", {"dynamic_img_size": True}),
    "vit_tiny of mae": ("vit_tiny", VIT, "mae", VIT | {"num_heads": 12}),
    "vit_tiny of mocov3": ("vit_tiny", VIT, "mocov3", VIT | {"num_heads": 12}),
    "convnext_tiny": ("convnext_tiny", {}, "simclr", {}),
    "swin_tiny": ("swin_tiny", {"img_size": 32, "window_size": 4}, "simclr", {"img_size": 32, "window_size": 4}),
}


@pytest.mark.parametrize("case", ENCODERS)
def test_encoders_give_the_features_that_they_gave_there(case, tmp_path):
    name, kwargs, method, settings = ENCODERS[case]
    torch.manual_seed(0)
    if name.startswith("resnet"):
        module = make_encoder(name, settings)
    else:
        full = {"vit": f"{name}_patch16_224", "swi": f"{name}_patch4_window7_224"}.get(name[:3], name)
        module = timm.create_model(full, num_classes=0, **settings)
    dataset = {"dataset": "cifar10", "train_path": "a"} if "cifar" in case else {"dataset": "custom"}
    run = their_run(tmp_path / "run", {"name": name, "kwargs": kwargs}, module.state_dict(), method, data=dataset)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(load_encoder(run).module.eval()(images), module.eval()(images), atol=1e-6)


@pytest.mark.parametrize("name", ["poolformer_s12", "wide_resnet28w2"])
def test_encoders_without_an_equal_are_refused_by_name(name, tmp_path):
    run = their_run(tmp_path / "run", {"name": name, "kwargs": {}}, {"conv1.weight": torch.zeros(1)})
    for load in (load_encoder, lambda path: load_method(find_checkpoint(path))):
        with pytest.raises(UserError, match=f"trained with solo-learn's {name}, which is not among the encoders here"):
            load(run)


def test_an_encoder_that_lacks_a_weight_is_refused(tmp_path):
    state = make_encoder("resnet18", {"cifar": False}).state_dict()
    del state["layer4.1.bn2.weight"]
    run = their_run(tmp_path / "run", {"name": "resnet18", "kwargs": {}}, state)
    with pytest.raises(UserError, match=r"does not fit resnet18; missing: 1 weight \(layer4.1.bn2.weight\)"):
        load_encoder(run)


def test_a_method_that_is_not_here_lends_its_encoder_only(tmp_path, refused):
    state = make_encoder("resnet18", {"cifar": False}).state_dict()
    their_run(tmp_path / "run", {"name": "resnet18", "kwargs": {}}, state, "all4one")
    assert load_encoder(tmp_path / "run").trained_with["method"] == "all4one"
    assert load_tree(tmp_path / "run") is None
    with pytest.raises(UserError, match=re.escape("has no all4one; only this run's encoder can be used")):
        load_method(tmp_path / "run" / "x.ckpt")


def test_a_linear_run_is_an_evaluation(tmp_path):
    state = make_encoder("resnet18", {"cifar": False}).state_dict()
    backbone = {"name": "resnet18", "kwargs": {}}
    their_run(tmp_path / "runs" / "linear", backbone, state, None, pretrained_feature_extractor="a.ckpt")
    with pytest.raises(UserError, match="no checkpoint"):
        find_checkpoint(tmp_path / "runs")
    assert recorded_flags(tmp_path / "runs" / "linear" / "x.ckpt")["encoder"] == "resnet18"


REFUSED = {
    "timm": ("timm", "solo-learn 1.0.6 has no timm/resnet10t; take timm or onnx"),
    "theirs": ("theirs", "is of solo-learn 1.0.6 already; give its scripts that run"),
    "bare": ("bare", "has no args.json of a pretraining run beside it"),
    "full": ("ours", "has other files in it; give a new or an empty folder"),
    "file": ("ours", "is a file; give a folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_export_refuses(case, custom, theirs, hcsc_run, untrained, tmp_path, refused):
    which, message = REFUSED[case]
    run = {"theirs": theirs, "bare": untrained, "ours": hcsc_run}.get(which)
    if which == "timm":
        run = untrained_run("simclr", custom, tmp_path / "ours", "--encoder", "timm/resnet10t")
    out = tmp_path / "out"
    if case == "full":
        out = tmp_path / "runs"
        shutil.copytree(hcsc_run, out, ignore=shutil.ignore_patterns("*.ckpt"))
    elif case == "file":
        out.write_text("")
    assert message in refused("export", run, "--format", "solo-learn", "--out", out)


def test_downloads_of_the_checkout_are_found(tmp_path):
    source = ImageSource("cifar10", tmp_path, None, None, (32,), (0.5,) * 3, (0.5,) * 3)
    assert download_folder(source, None) is None
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert tmp_path / download_folder(source, None) == tmp_path


def test_files_are_only_written_whole(hcsc_run, tmp_path):
    run_here("export", hcsc_run, "--format", "solo-learn", "--out", tmp_path / "new" / "run")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run"]
    assert only(tmp_path / "new", "args.json")
