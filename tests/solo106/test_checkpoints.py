"""Checkpoints between our commands and the real solo-learn 1.0.6, where SOLO_LEARN names a checkout."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import only, run, run_here
from untrained import untrained_run

from solo_hcsc.encoders.checkpoints import find_checkpoint
from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.errors import UserError
from solo_hcsc.methods.names import METHODS
from solo_hcsc.runs.methods import load_method, load_projector, load_tree

pytestmark = pytest.mark.checkout
CPU = "devices='1' strategy=auto accelerator=cpu precision=32-true ++sync_batchnorm=False data.num_workers=0"
COMMON = f"{CPU} optimizer.batch_size=8 data.format=image_folder max_epochs=1 ++wandb.enabled=False"
COMMON += " ++checkpoint.enabled=True ++auto_resume.enabled=False"
COLOURS = ["--mean", "0.485", "0.456", "0.406", "--std", "0.229", "0.224", "0.225"]  # which 1.0.6 evaluates with


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """Images that no encoder tells apart for sure, so that a KNN accuracy says which encoder it was."""
    root, random = tmp_path_factory.mktemp("noise"), np.random.default_rng(0)
    for part, count in (("train", 16), ("val", 16)):
        for label in range(3):
            (root / part / f"class{label}").mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (8, 8, 3)) * 0.9 + 8 * label
                image = Image.fromarray(pixels.astype("uint8")).resize((40, 40))
                image.save(root / part / f"class{label}" / f"{number}.png")
    return root


@pytest.fixture
def flags(noise):
    return ["--dataset", "custom", "--data_dir", str(noise), "--train_dir", "train", "--val_dir", "val"]


def where(noise):
    return f"data.dataset=custom data.train_path={noise / 'train'} data.val_path={noise / 'val'}"


READ = """
import json, sys, torch
from pathlib import Path
from omegaconf import OmegaConf
from solo_hcsc.solo106.register import register
from solo.methods import METHODS
register()
images = torch.load(sys.argv[1])
for folder in map(Path, sys.argv[2:]):
    cfg = OmegaConf.create(json.loads((folder / "args.json").read_text()))
    file = next(folder.glob("*.ckpt"))
    model = METHODS[cfg.method].load_from_checkpoint(file, strict=False, cfg=cfg, map_location="cpu").eval()
    saved = torch.load(file, weights_only=True)["state_dict"]
    known = model.state_dict()
    assert not known.keys() - saved.keys(), sorted(known.keys() - saved.keys())[:3]
    extra = {name for name in saved.keys() - known.keys() if not name.startswith(("queue", "local_memory"))}
    assert not extra, sorted(extra)[:3]
    with torch.no_grad():
        out = {"feats": model.backbone(images)}
        out["z"] = model.projector(out["feats"]) if hasattr(model, "projector") else torch.zeros(1)
    torch.save(out, folder / "features.pt")
"""


def test_every_method_of_ours_is_built_and_filled_there(checkout, python, flags, tmp_path):
    images = torch.randn(4, 3, 32, 32)
    torch.save(images, tmp_path / "images.pt")
    for method in METHODS:
        untrained_run(method, flags, tmp_path / "ours" / method)
        out = tmp_path / "theirs" / method
        run_here("export", tmp_path / "ours" / method, "--format", "solo-learn", "--out", out)
    python(checkout, "-c", READ, tmp_path / "images.pt", *(tmp_path / "theirs" / method for method in METHODS))
    for method in METHODS:
        theirs = torch.load(tmp_path / "theirs" / method / "features.pt", weights_only=True)
        encoder = load_encoder(tmp_path / "ours" / method)
        with torch.no_grad():
            ours = encoder.module.eval()(images)
            assert torch.allclose(ours, theirs["feats"], atol=1e-6), method
            if method != "dino":  # which has a head instead
                assert torch.allclose(load_projector(encoder).eval()(ours), theirs["z"], atol=1e-5), method


def test_knn_of_an_exported_run_is_our_own(checkout, flags, noise, tmp_path, capfd):
    own = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 16 --proto_warmup_epochs 1"
    small = "--crop_size 32 --batch_size 8 --max_epochs 2 --accelerator cpu --num_workers 0"
    run_here("pretrain", *flags, *own.split(), *small.split(), "--checkpoint_dir", tmp_path / "ours")
    run_here("export", tmp_path / "ours", "--format", "solo-learn", "--out", tmp_path / "theirs")
    words = f"{checkout / 'main_knn.py'} --pretrained_checkpoint_dir {tmp_path / 'theirs'} --dataset custom"
    words += f" --train_data_path {noise / 'train'} --val_data_path {noise / 'val'} --k 1 5 --temperature 0.1"
    words += " --distance_function cosine --feature_type backbone projector --batch_size 8 --num_workers 0"
    printed = run("solo", *words.split(), cwd=tmp_path).stdout
    theirs = [round(float(found), 2) for found in re.findall(r"acc@1=([\d.]+)", printed)]
    capfd.readouterr()
    ours = []
    for features in ("backbone", "projector"):
        more = f"--features {features} --crop_size 224 --k 1 5 --temperature 0.1 --accelerator cpu --num_workers 0"
        run_here("knn", "--pretrained_feature_extractor", tmp_path / "ours", *more.split(), *COLOURS)
        table = capfd.readouterr().out.partition("top-1 %")[2]
        ours += [float(found) for found in re.findall(r"^\d+ +([\d.]+)$", table, re.MULTILINE)]
    assert ours == theirs
    assert len(ours) == 4
    assert max(ours) < 100


@pytest.mark.parametrize("exported", [False, True])
def test_main_linear_takes_our_encoder_whole(exported, checkout, python, flags, noise, tmp_path, capfd):
    ours = untrained_run("simclr", flags, tmp_path / "ours")
    small = f"max_epochs=1 optimizer.batch_size=8 data.num_workers=0 checkpoint.dir={tmp_path / 'linear'}".split()
    if exported:  # by the command that the export prints
        run_here("export", ours, "--format", "solo-learn", "--out", tmp_path / "theirs")
        printed = capfd.readouterr().out.partition("python main_linear.py ")[2].replace("\\\n", " ")
        words = printed.replace("TRAIN", str(noise / "train")).replace("VAL", str(noise / "val")).split()
    else:
        words = f"--config-path scripts/linear --config-name hcsc.yaml {where(noise)} pretrain_method=simclr".split()
        words.append(f"pretrained_feature_extractor='{only(ours, '*.ckpt')}'")
    python(checkout, "main_linear.py", *words, *small)
    linear = only(tmp_path / "linear", "*.ckpt")
    trained = torch.load(linear, weights_only=True)["state_dict"]
    encoder = load_encoder(ours).module.state_dict()
    for name, value in encoder.items():
        assert torch.equal(trained[f"backbone.{name}"], value), name
    with pytest.raises(UserError, match="no checkpoint"):  # it is an evaluation
        find_checkpoint(tmp_path / "linear")


MADE = """
import json, sys, torch
from pathlib import Path
import solo.backbones as backbones
images = torch.load(sys.argv[1])
for number, (name, method, dataset, kwargs) in enumerate(json.loads(sys.argv[3])):
    torch.manual_seed(number)
    module = getattr(backbones, name)(method, **kwargs).eval()
    if name.startswith("resnet"):
        module.fc = torch.nn.Identity()
    folder = Path(sys.argv[2]) / str(number)
    folder.mkdir(parents=True)
    record = {"method": method, "backbone": {"name": name, "kwargs": kwargs}, "data": {"dataset": dataset}}
    record["augmentations"] = [{"crop_size": 32, "num_crops": 2}]
    (folder / "args.json").write_text(json.dumps(record))
    state = {f"backbone.{key}": value for key, value in module.state_dict().items()}
    torch.save({"state_dict": state}, folder / "x.ckpt")
    with torch.no_grad():
        torch.save(module(images), folder / "features.bin")
"""
VIT = {"img_size": 32, "patch_size": 4}


def test_encoders_give_the_same_features_here(checkout, python, tmp_path):
    images = torch.randn(4, 3, 32, 32)
    torch.save(images, tmp_path / "images.pt")
    made = [
        ("resnet18", "byol", "custom", {}),
        *(("vit_tiny", method, "custom", VIT) for method in ("dino", "mae", "mocov3")),
        *(("vit_small", method, "custom", VIT | {"drop_path_rate": 0.1}) for method in ("dino", "mocov3")),
        ("vit_base", "mae", "custom", VIT),
        ("swin_tiny", "byol", "cifar10", {"img_size": 32, "window_size": 4}),
        ("convnext_tiny", "byol", "custom", {}),
    ]
    python(checkout, "-c", MADE, tmp_path / "images.pt", tmp_path, json.dumps(made))
    for number, which in enumerate(made):
        theirs = torch.load(tmp_path / str(number) / "features.bin", weights_only=True)
        with torch.no_grad():
            ours = load_encoder(tmp_path / str(number)).module.eval()(images)
        # MAE shuffles the patches, which changes the order of sums.
        assert torch.allclose(ours, theirs, atol=1e-5 if which[1] == "mae" else 1e-6), which


RUNS = {
    **{"all4one": "", "supcon": "", "vibcreg": "", "simsiam": "", "nnsiam": ""},
    "dino": "method_kwargs.num_prototypes=8",
    "swav": "method_kwargs.num_prototypes=8",
    "deepclusterv2": "method_kwargs.num_prototypes=[4,4]",
}


@pytest.mark.parametrize("method", RUNS)
def test_runs_of_theirs_are_evaluated_here(method, checkout, python, noise, tmp_path, capfd):
    words = f"{COMMON} {where(noise)} augmentations.0.crop_size=32 name=x checkpoint.dir={tmp_path / 'runs'}"
    config = ["--config-path", "scripts/pretrain/cifar", "--config-name", f"{method}.yaml"]
    python(checkout, "main_pretrain.py", *config, *words.split(), *RUNS[method].split())
    run_here("knn", *f"--pretrained_feature_extractor {tmp_path / 'runs'} --k 1 --accelerator cpu".split())
    assert "120 weights of resnet18 taken" in capfd.readouterr().out
    assert json.loads(only(tmp_path / "runs", "knn-*.json").read_text())["method"] == method
    file = only(tmp_path / "runs", "*.ckpt")
    if method in METHODS:
        load_method(file)
    else:
        with pytest.raises(UserError, match=f"has no {method}"):
            load_method(file)


def test_a_tree_of_theirs_is_read_here(checkout, python, noise, tmp_path):
    words = f"{COMMON} {where(noise)} augmentations.0.crop_size=32 name=x checkpoint.dir={tmp_path / 'runs'}"
    words += " method_kwargs.num_prototypes=[4,2] ++method_kwargs.min_cluster_size=2 method_kwargs.queue_size=16"
    config = ["--config-path", "scripts/pretrain/cifar", "--config-name", "hcsc.yaml"]
    words = words.replace("max_epochs=1", "max_epochs=2") + " method_kwargs.proto_warmup_epochs=1"
    python(checkout, "main_pretrain.py", *config, *words.split())
    tree = load_tree(tmp_path / "runs")
    assert tree is not None
    assert len(tree.hierarchy.levels) == 2
    run_here("explore", Path(tmp_path / "runs"), "--out", tmp_path / "page", *"--accelerator cpu".split())
    assert (tmp_path / "page" / "index.html").is_file()
