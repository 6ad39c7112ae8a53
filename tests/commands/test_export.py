"""`solo-hcsc export` on a real run: files, cards, and what it refuses."""

import json
import re
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tiny import only, run_here

import solo_hcsc
from solo_hcsc import load_encoder
from solo_hcsc.encoders.formats import EXPORTS


@pytest.fixture(scope="module")
def evaluated(hcsc_run, images, tmp_path_factory):
    """A copy of the run whose last checkpoint has a KNN result."""
    folder = tmp_path_factory.mktemp("run") / "hcsc"
    shutil.copytree(hcsc_run, folder, ignore=shutil.ignore_patterns("knn-*", "linear-*", "clustering-*"))
    flags = ["--dataset", "custom", "--data_dir", images, "--train_dir", "train", "--val_dir", "val", "--k", "3"]
    run_here("knn", "--pretrained_feature_extractor", folder, *flags, "--accelerator", "cpu", "--num_workers", "0")
    return folder


def code_in(card: str, heading: str = "Loading") -> str:
    return re.search(rf"## {heading}\n.*?```python\n(.*?)```", card, re.DOTALL)[1]


@pytest.mark.parametrize("kind", EXPORTS)
def test_export_writes_a_file_and_a_card_that_tells_all_of_it(kind, evaluated, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"encoder{EXPORTS[kind][0]}"
    run_here("export", evaluated, "--format", kind, "--out", file.name, "--data_license", "CC BY 4.0")
    out, err = capfd.readouterr()
    card = (tmp_path / f"{file.name}.md").read_text()
    assert sorted(tmp_path.iterdir()) == [file, tmp_path / f"{file.name}.md"]
    assert err == ""
    assert f"{kind}: {file.name} (" in out
    assert f"model card: {file.name}.md" in out
    assert re.sub(r"^    ", "", out.partition("load it with:\n\n")[2], flags=re.MULTILINE) == code_in(card)

    result = json.loads(only(evaluated, "knn-*.json").read_text())
    for fact in (
        *("| method | hcsc |", "| preset | recommended |", "| epochs trained | 2 |", "| crop size | 32 x 32 pixels"),
        *("| mean | 0.485, 0.456, 0.406 |", "| standard deviation | 0.228, 0.224, 0.225 |"),
        *(
            "| licence of the data | CC BY 4.0 |",
            "| features | 512 per image |",
            "| encoder | resnet18 (cifar=False) |",
        ),
        f"| SHA-256 | {sha256(file.read_bytes()).hexdigest()} |",
        f"| top-1 | {result['metrics']['acc1']:.2f} |",
    ):
        assert fact in card
    assert str(evaluated.parent) not in card  # nor any other folder of this machine

    images = torch.randn(3, 3, 64, 64)  # other than in training, where convolutions on the CPU are trimmed for 32
    with torch.no_grad():
        expected = load_encoder(evaluated).module.eval()(images)
        names = {"images": images.numpy()}
        if kind in ("timm", "torchvision"):
            exec(code_in(card), names)
            assert torch.allclose(names["model"](images), expected, atol=1e-4)
        elif kind == "onnx":
            exec(code_in(card), names)
            assert torch.allclose(torch.from_numpy(names["features"]), expected, atol=1e-4)
        elif kind == "safetensors":
            exec(code_in(card), names)
            saved = load_encoder(evaluated).module.state_dict()
            assert names["weights"].keys() == saved.keys()
            assert all(torch.equal(names["weights"][name], saved[name]) for name in saved)


@pytest.mark.parametrize("kind", ["timm", "onnx"])
def test_card_code_gives_the_features_of_embed(kind, evaluated, tmp_path, monkeypatch):
    """On photos that are larger than the crops, not square, and transparent in part."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (6, 9, 4), dtype=np.uint8)
    photos = [Image.fromarray(np.roll(pixels, roll, axis=1)).resize((150, 100)) for roll in range(3)]
    (tmp_path / "photos").mkdir()
    for number, photo in enumerate(photos):
        photo.save(f"photos/{number}.png")
    run_here("export", evaluated, "--format", kind, "--out", f"encoder{EXPORTS[kind][0]}")
    card = Path(f"encoder{EXPORTS[kind][0]}.md").read_text()
    white = Image.new("RGBA", photos[0].size, "white")
    names: dict = {}
    exec(code_in(card, "Images"), names)
    rgb = [Image.alpha_composite(white, photo).convert("RGB") for photo in photos]
    names["images"] = torch.stack([names["transform"](photo) for photo in rgb]).numpy()
    exec(code_in(card), names)
    features = names["features"] if kind == "onnx" else names["model"](torch.from_numpy(names["images"])).detach()
    found = solo_hcsc.embed(evaluated, "photos", accelerator="cpu").vectors
    np.testing.assert_allclose(np.asarray(features), found, rtol=1e-3, atol=1e-3)
    encoder = load_encoder(evaluated)
    with torch.no_grad():
        own = encoder.module.eval()(torch.stack([encoder.transform(photo) for photo in rgb]))
    np.testing.assert_allclose(own.numpy(), found, rtol=1e-4, atol=1e-4)
    again = solo_hcsc.embed(f"encoder{EXPORTS[kind][0]}", "photos", accelerator="cpu") if kind == "timm" else None
    if again is not None:
        np.testing.assert_allclose(again.vectors, found, rtol=1e-4, atol=1e-4)


def test_export_for_the_hub_writes_a_folder_that_every_command_reads(evaluated, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second takes the place of the first
        run_here("export", evaluated, "--format", "hub", "--out", "mine")
    assert "hub: mine (README.md, config.json, model.safetensors; " in capfd.readouterr().out
    front, card = Path("mine/README.md").read_text().removeprefix("---\n").split("\n---\n")
    assert yaml.safe_load(front)["library_name"] == "timm"
    assert yaml.safe_load(front)["tags"] == ["timm", "solo-learn", "hcsc"]
    assert f"| SHA-256 | {sha256(Path('mine/model.safetensors').read_bytes()).hexdigest()} |" in card
    names: dict = {}
    exec(code_in(card), names)
    images = torch.randn(3, 3, 32, 32)
    assert torch.allclose(names["model"](images), load_encoder(evaluated)(images), atol=1e-4)
    assert torch.equal(load_encoder("mine")(images), load_encoder(evaluated)(images))
    assert solo_hcsc.open_run("mine").method == "hcsc"


def test_card_has_no_figures_of_another_checkpoint(evaluated, tmp_path):
    first = only(evaluated, "*ep=0.ckpt")
    run_here("export", first, "--format", "safetensors", "--out", tmp_path / "x.safetensors")
    card = (tmp_path / "x.safetensors.md").read_text()
    assert "No evaluation of this checkpoint was found." in card
    assert "| epochs trained | 1 of 2 |" in card
    assert "| licence of the data | not given |" in card


def test_foreign_weights_are_exported_with_what_is_known(untrained, tmp_path):
    run_here(
        "export", untrained, "--format", "timm", "--out", tmp_path / "x.pth", "--method", "moco", "--crop_size", 64
    )
    card = (tmp_path / "x.pth.md").read_text()
    for fact in ("| method | moco |", "| mean | not known |", "| epochs trained | not known |", "64 x 64"):
        assert fact in card


REFUSED = {
    "unknown format": ("--format tflite --out x.tflite", "invalid choice: 'tflite'"),
    "no such run": ("nowhere --format onnx --out x.onnx", "nowhere: there is no such checkpoint"),
    "folder": ("--format timm --out .", "--out .: is a folder; give a file"),
    "other files there": ("--format hub --out .", "has other files in it; give a new or an empty folder"),
    "file for the hub": ("--format hub --out own.pth", "own.pth is a file; give a folder"),
    "other suffix": ("--format timm --out x.bin", "a file for --format timm ends in .safetensors or .pth"),
    "suffix of another format": ("--format onnx --out x.pth", "a file for --format onnx ends in .onnx"),
    "no folder": ("--format timm --out no/x.pth", "no/x.pth: cannot be written (No such file or directory); give an"),
    "file for a folder": ("--format timm --out own.pth/x.pth", "cannot be written (Not a directory)"),
    "folder for the card": ("--format timm --out taken.pth", "taken.pth.md: is a folder"),
    "the checkpoint itself": ("own.pth --format timm --out own.pth", "is the checkpoint itself; give another file"),
    "evaluation": (
        "probe --format timm --out x.pth",
        "the checkpoint of an evaluation; give that of pretraining, a.ck",
    ),
    "no model of torchvision": (
        "vit.pth --encoder vit_tiny --crop_size 32 --format torchvision --out x.pth",
        "no model with the weights of vit_tiny; take timm, safetensors or onnx",
    ),
    "small stem": ("small.pth --crop_size 32 --format detectron2 --out x.pkl", "not resnet18 with the stem for small"),
    "unknown architecture": ("vit.pth --format timm --out x.pth", "give --encoder"),
    "missing package": (
        "own.pth --format onnx --out x.onnx",
        "onnx is not installed; run: pip install 'solo_hcsc[onnx]'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_export_refuses(case, untrained, tmp_path, refused, monkeypatch):
    words, message = REFUSED[case]
    weights = torch.load(untrained, weights_only=True)
    torch.save(weights, tmp_path / "own.pth")
    (tmp_path / "taken.pth.md").mkdir()
    if case == "evaluation":
        (tmp_path / "probe").mkdir()
        torch.save({f"backbone.{name}": value for name, value in weights.items()}, tmp_path / "probe" / "x.ckpt")
        flags = {"role": "evaluation", "pretrained_feature_extractor": "a.ckpt"}
        (tmp_path / "probe" / "args.json").write_text(json.dumps(flags))
        words = words.replace("probe", "probe/x.ckpt")
    elif case == "small stem":
        torch.save(weights | {"conv1.weight": torch.randn(64, 3, 3, 3)}, tmp_path / "small.pth")
    elif "vit.pth" in words:
        import timm

        model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0)
        torch.save(model.state_dict(), tmp_path / "vit.pth")
    elif case == "missing package":
        monkeypatch.setitem(sys.modules, "onnx", None)
    run = [] if not words.startswith("--") else ["own.pth"]
    assert message in refused("export", *run, *words.split())
