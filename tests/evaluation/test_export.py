"""Exported encoders: each file is loaded by its own library and gives the features of the run's encoder."""

import io
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import ROOT
from torch import nn

from solo_hcsc import Encoder, load_encoder, open_run
from solo_hcsc.data.views import View
from solo_hcsc.encoders import export as exporting
from solo_hcsc.encoders.export import Exportable, export
from solo_hcsc.encoders.formats import EXPORTS
from solo_hcsc.encoders.hub import config_text
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.report.card import write_card
from solo_hcsc.solo102 import BaseMethod
from solo_hcsc.solo102.repairs.fix import bare_method

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
ENCODERS = {
    "resnet18": ("resnet18", 64, {"cifar": False}),
    "resnet18 for small images": ("resnet18", 32, {"cifar": True}),
    "resnet50": ("resnet50", 32, {"cifar": False}),
    "vit_tiny": ("vit_tiny", 32, {"cifar": False, "img_size": 32, "patch_size": 8}),
    "swin_tiny": ("swin_tiny", 32, {"cifar": True, "img_size": 32}),
    "timm/resnet34": ("timm/resnet34", 64, {}),
    "timm/densenet121": ("timm/densenet121", 64, {}),
    "timm/efficientnet_lite0": ("timm/efficientnet_lite0", 64, {}),
    "timm/vit with settings": ("timm/vit_tiny_patch16_224", 48, {"img_size": 48, "depth": 2, "global_pool": "avg"}),
}


def make(case: str) -> Exportable:
    """An encoder whose batch norms have seen images, so that none of its weights is a 0 or a 1 by default."""
    name, size, settings = ENCODERS[case]
    torch.manual_seed(1)
    if name.startswith("timm/"):
        module = timm.create_model(name.removeprefix("timm/"), num_classes=0, **settings)
    else:
        module = bare_method(BaseMethod, encoder=name, backbone_args=settings).encoder
    with torch.no_grad():
        module.train()(torch.randn(4, 3, size, size))
    view = View(size, MEAN, STD)
    return Exportable(Encoder(module.eval(), name, settings, Path("x.ckpt"), "", view, epochs=3), "hcsc")


def written(subject: Exportable, kind: str, folder: Path, suffix: str | None = None) -> tuple[Path, str]:
    """The file, and the code that the card has for it."""
    suffix = suffix or EXPORTS[kind][0]
    exported = export(subject, kind, suffix)
    file = folder / f"encoder{suffix}"
    file.write_bytes(exported.content)
    return file, exported.code_for(file)


def loaded(code: str) -> nn.Module:
    """What the card's code makes, as a reader runs it."""
    names: dict = {}
    exec(code, names)
    return names["model"]


def same(model, subject: Exportable, batch: int = 3, size: int | None = None) -> bool:
    size = size or subject.view.crop_size
    images = torch.randn(batch, 3, size, size)
    with torch.no_grad():
        expected = subject.encoder.module(images)
        return torch.allclose(model(images), expected, rtol=0, atol=1e-4 * min(1, float(expected.abs().max())))


# ---- timm and torchvision ----


@pytest.mark.parametrize(
    ("case", "suffix"), [*((case, ".safetensors") for case in ENCODERS if case != "resnet50"), ("resnet18", ".pth")]
)
def test_timm_loads_every_encoder_strictly(case, suffix, tmp_path):
    subject = make(case)
    _, code = written(subject, "timm", tmp_path, suffix)
    assert len(code.splitlines()) == (5 if case.startswith("resnet18 for") else 3)
    assert same(loaded(code), subject)


def test_timm_takes_the_file_as_its_checkpoint_path(tmp_path):
    subject = make("vit_tiny")
    file, _ = written(subject, "timm", tmp_path)
    settings = {"img_size": 32, "patch_size": 8}
    model = timm.create_model("vit_tiny_patch16_224", checkpoint_path=str(file), num_classes=0, **settings)
    assert same(model.eval(), subject)


@pytest.mark.parametrize(
    ("case", "suffix"),
    [
        *(("resnet18", suffix) for suffix in EXPORTS["torchvision"]),
        *((case, ".pth") for case in ("resnet18 for small images", "timm/resnet34", "timm/densenet121")),
    ],
)
def test_torchvision_loads_its_own_models_strictly(case, suffix, tmp_path):
    subject = make(case)
    _, code = written(subject, "torchvision", tmp_path, suffix)
    model = loaded(code)
    assert type(model).__module__.startswith("torchvision.models")
    assert same(model, subject)


def test_pth_holds_nothing_but_tensors(tmp_path):
    subject = make("resnet18")
    file, _ = written(subject, "timm", tmp_path, ".pth")
    content = torch.load(file, weights_only=True)
    assert content.keys() == subject.encoder.module.state_dict().keys()
    assert all(type(value) is torch.Tensor for value in content.values())


@pytest.mark.parametrize("case", ["vit_tiny", "timm/efficientnet_lite0"])
def test_torchvision_names_the_formats_that_fit_instead(case):
    subject = make(case)
    with pytest.raises(UserError, match=r"no model with the weights of .*; take timm, safetensors or onnx"):
        export(subject, "torchvision", ".pth")


@pytest.mark.parametrize("kind", ["timm", "torchvision"])
def test_same_weights_that_mean_other_features_are_refused(kind):
    subject = make("timm/resnet34")
    other = timm.create_model("resnet34", num_classes=0, act_layer="gelu")
    encoder = replace(subject.encoder, module=other)
    with pytest.raises(UserError, match="resnet34"):
        export(replace(subject, encoder=encoder), kind, ".pth")


# ---- safetensors ----


@pytest.mark.parametrize("case", ["resnet18 for small images", "vit_tiny"])
def test_safetensors_tell_all_that_builds_the_encoder(case, tmp_path):
    subject = make(case)
    file, _ = written(subject, "safetensors", tmp_path)
    with safe_open(file, "pt") as content:
        weights = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  it is no dict
        facts = content.metadata()
    assert facts.pop("format") == "pt"
    facts = {name: json.loads(value) for name, value in facts.items()}
    assert facts["mean"] == list(MEAN)
    assert facts["std"] == list(STD)
    assert facts["crop_size"] == [subject.view.crop_size]
    assert (facts["method"], facts["epochs"]) == ("hcsc", 3)
    model = bare_method(BaseMethod, encoder=facts["encoder"], backbone_args=facts["backbone_args"]).encoder.eval()
    model.load_state_dict(weights)
    assert same(model, subject)
    found = load_encoder(file)  # without a flag
    assert (found.name, found.settings) == (subject.encoder.name, subject.encoder.settings)
    assert same(found.module.eval(), subject)


# ---- ONNX ----


@pytest.mark.parametrize("case", ["resnet18 for small images", "timm/vit with settings", "timm/efficientnet_lite0"])
def test_onnxruntime_gives_the_same_features_for_any_batch(case, tmp_path, capfd):
    subject = make(case)
    file, code = written(subject, "onnx", tmp_path)
    names = {"images": torch.randn(5, 3, *[subject.view.crop_size] * 2).numpy()}
    exec(code, names)
    session = names["session"]

    def model(images: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    assert names["features"].shape == (5, subject.features.shape[1])
    assert all(same(model, subject, batch) for batch in (1, 2, 5))
    if case.startswith("resnet"):
        assert same(model, subject, 2, size=40)
    assert capfd.readouterr() == ("", "")
    graph = onnx.load(file)
    onnx.checker.check_model(graph, full_check=True)
    assert {operators.domain for operators in graph.opset_import} == {""}  # no operators of anybody's own
    assert not graph.functions
    assert json.loads(session.get_modelmeta().custom_metadata_map["mean"]) == list(MEAN)
    for path in (str(ROOT), sys.prefix, "site-packages"):
        assert path.encode() not in file.read_bytes()

    other = replace(subject)
    other.__dict__["features"] = subject.features + 0.01
    with pytest.raises(UserError, match="other features"):
        exporting._check_graph(other, file.read_bytes())


# ---- detectron2 ----


class ArraysOnly(pickle.Unpickler):
    """Reads a pickle that may hold NumPy's arrays; any other name in it would be code to run."""

    ALLOWED = (("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"))

    def find_class(self, module: str, name: str):
        assert (module, name) in self.ALLOWED
        return super().find_class(module, name)


class Normed(nn.Conv2d):
    """detectron2's convolution: its norm is a part of it, as in `conv1.weight` and `conv1.norm.weight`."""

    def __init__(self, *sizes: int, stride: int = 1) -> None:
        super().__init__(*sizes, stride=stride, padding=sizes[2] // 2, bias=False)
        self.norm = nn.BatchNorm2d(sizes[1])

    def forward(self, x):
        return self.norm(super().forward(x))


class Block(nn.Module):
    """detectron2's block: conv1, conv2 and in a bottleneck conv3, and a shortcut; STRIDE_IN_1X1 is False."""

    def __init__(self, before: int, inner: int, after: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.shortcut = Normed(before, after, 1, stride=stride) if (before, stride) != (after, 1) else nn.Identity()
        if bottleneck:
            self.conv1, self.conv2 = Normed(before, inner, 1), Normed(inner, inner, 3, stride=stride)
            self.conv3 = Normed(inner, after, 1)
        else:
            self.conv1, self.conv2 = Normed(before, inner, 3, stride=stride), Normed(inner, after, 3)

    def forward(self, x):
        out = self.conv2(F.relu(self.conv1(x)))
        if hasattr(self, "conv3"):
            out = self.conv3(F.relu(out))
        return F.relu(out + self.shortcut(x))


class Detectron2ResNet(nn.Module):
    """The layout that detectron2's `build_resnet_backbone` has: a stem, and stages res2 to res5."""

    def __init__(self, blocks: tuple[int, ...], bottleneck: bool) -> None:
        super().__init__()
        self.stem = nn.ModuleDict({"conv1": Normed(3, 64, 7, stride=2)})
        before = 64
        for stage, count in enumerate(blocks):
            inner = 64 * 2**stage
            after = inner * (4 if bottleneck else 1)
            strides = [1 if stage == 0 else 2, *[1] * (count - 1)]
            places = [before, *[after] * (count - 1)]
            made = [
                Block(*sizes, bottleneck)
                for sizes in zip(places, [inner] * count, [after] * count, strides, strict=True)
            ]
            self.add_module(f"res{stage + 2}", nn.Sequential(*made))
            before = after

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem["conv1"](x)), 3, stride=2, padding=1)
        for stage in (self.res2, self.res3, self.res4, self.res5):
            x = stage(x)
        return x.mean((2, 3))


@pytest.mark.parametrize(
    ("case", "blocks", "bottleneck"),
    [("resnet18", (2, 2, 2, 2), False), ("resnet50", (3, 4, 6, 3), True)],
)
def test_detectron2_layout_takes_every_array_and_gives_the_same_features(case, blocks, bottleneck, tmp_path):
    subject = make(case)
    file, code = written(subject, "detectron2", tmp_path)
    assert f"STRIDE_IN_1X1, cfg.INPUT.FORMAT = {50 if bottleneck else 18}, False" in code
    assert "PIXEL_MEAN, cfg.MODEL.PIXEL_STD = [127.5, 102.0, 76.5], [51.0, 63.75, 76.5]" in code
    content = ArraysOnly(io.BytesIO(file.read_bytes())).load()
    assert content.keys() == {"model", "__author__", "matching_heuristics"}
    assert content["matching_heuristics"] is True
    assert content["__author__"] != "Caffe2"  # whose names it would convert once more
    assert all(type(value) is np.ndarray for value in content["model"].values())
    model = Detectron2ResNet(blocks, bottleneck).eval()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in content["model"].items()})
    assert same(model, subject)


@pytest.mark.parametrize("case", ["resnet18 for small images", "vit_tiny"])
def test_detectron2_has_no_other_encoders(case):
    subject = make(case)
    with pytest.raises(UserError, match="ResNets with the ImageNet stem only, not"):
        export(subject, "detectron2", ".pkl")


# ---- facts ----


@pytest.mark.parametrize(("dataset", "mean"), [("custom", [0.1, 0.2, 0.3]), ("cifar10", [0.4914, 0.4822, 0.4465])])
def test_normalisation_is_what_the_run_really_used(dataset, mean, tmp_path, untrained):
    """solo-learn has CIFAR's own colours, whatever the flags in args.json say."""
    (tmp_path / "x.pth").write_bytes(untrained.read_bytes())
    flags = {"dataset": dataset, "crop_size": [32, 16], "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}
    (tmp_path / "args.json").write_text(json.dumps(flags))
    found = open_run(tmp_path).encoder
    assert list(found.view.mean) == mean
    assert found.view.crop_size == 32
    assert found.view.whole == (dataset == "cifar10")


def test_card_has_warnings_and_shows_text_as_it_is(tmp_path):
    subject = make("resnet18")
    file = tmp_path / "x.ckpt"
    file.write_bytes(b"")
    encoder = replace(subject.encoder, checkpoint=file, warnings=("few clusters | <b>bad</b>",))
    one = replace(subject, encoder=encoder)
    card = write_card(one, export(one, "safetensors", ".safetensors"), "safetensors", "e.safetensors", "CC\nBY <x>")
    assert "- few clusters \\| &lt;b&gt;bad&lt;/b&gt;" in card
    assert "| licence of the data | CC\\\\nBY &lt;x&gt; |" in card
    assert "No evaluation of this checkpoint was found." in card
    assert "load_file('e.safetensors')" in card


# ---- the hub ----


def hub_folder(subject: Exportable, folder: Path) -> str:
    """A folder as `export --format hub` fills it; returns the code of its card."""
    exported = export(subject, "hub", ".safetensors")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(exported.content)
    (folder / "config.json").write_text(exported.beside["config.json"])
    return exported.code_for(folder)


@pytest.mark.parametrize("case", ["resnet18", "vit_tiny", "swin_tiny", "timm/vit with settings"])
def test_timm_and_encoder_read_a_folder_of_the_hub(case, tmp_path):
    subject = make(case)
    model = loaded(hub_folder(subject, tmp_path / "hub"))
    assert same(model, subject)
    found = Encoder.from_pretrained(tmp_path / "hub")
    assert same(found.module.eval(), subject)
    assert (found.name, found.crop_size) == (subject.encoder.name, subject.view.crop_size)
    assert (found.mean, found.std) == ([*MEAN], [*STD])
    photo = Image.effect_noise((150, 100), 90).convert("RGB")
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    assert torch.equal(transform(photo), found.transform(photo))


@pytest.mark.parametrize("size", [16, 32, 96, 224])
@pytest.mark.parametrize("whole", [True, False])
def test_timm_resizes_images_to_the_pixel(size, whole, tmp_path):
    view = View(size, MEAN, STD, whole)
    text = config_text("resnet18", {}, 512, size, view.resize, MEAN, STD)
    config = json.loads(text)["pretrained_cfg"]
    transform = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=config))
    photo = Image.effect_noise((150, 100), 90).convert("RGB")
    assert torch.equal(transform(photo), view.transform(photo))


def test_repositories_of_timm_are_read_without_our_own_facts(tmp_path):
    """As timm saves them: a classifier, and no metadata in the weights."""
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=7)
    timm.models.save_for_hf(model, tmp_path, model_args={"img_size": 32, "depth": 2}, safe_serialization=True)
    found = Encoder.from_pretrained(tmp_path)
    assert (found.name, found.crop_size) == ("timm/vit_tiny_patch16_224", 32)
    assert tuple(found.mean) == model.pretrained_cfg["mean"]
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(found(images), model.eval().forward_head(model.forward_features(images), pre_logits=True))


FROM_CACHE = """
import timm, torch
from solo_hcsc import Encoder
images = torch.randn(2, 3, 64, 64)
ours, theirs = Encoder.from_pretrained("me/mine"), timm.create_model("hf_hub:me/mine", pretrained=True)
assert torch.allclose(ours(images), theirs.eval()(images), atol=1e-5)
try:
    Encoder.from_pretrained("me/other")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_repository_is_read_through_the_hubs_own_client(tmp_path):
    """From its cache, where a download would put it; the rest of the hub cannot be reached."""
    repository = tmp_path / "models--me--mine"
    hub_folder(make("resnet18"), repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    surroundings = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    out = subprocess.run([sys.executable, "-c", FROM_CACHE], env=surroundings, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("UserError `source` me/other: cannot be fetched from the hub (")


def test_small_stem_is_not_for_the_hub(tmp_path):
    with pytest.raises(UserError, match="timm cannot make resnet18 with the stem for small images; take timm or safe"):
        export(make("resnet18 for small images"), "hub", ".safetensors")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"architectures": ["ViTModel"]}', "names no `architecture`"),
        ("[]", "names no `architecture`"),
        ('{"architecture": "resnet18", "model_args": 7}', "not the configuration of a model of timm"),
        ('{"architecture": "resnet18", "pretrained_cfg": {"input_size": []}}', r"crop_size is \[\], which no run"),
        ('{"architecture": "resnet17"}', "timm/resnet17: timm .* has no such model"),
        ('{"architecture": "vit_tiny_patch16_224"}', "no encoder timm/vit_tiny_patch16_224 in it"),
    ],
)
def test_folder_that_is_not_timms_is_refused(config, message, tmp_path):
    hub_folder(make("resnet18"), tmp_path / "hub")
    save_file(load_file(tmp_path / "hub" / "model.safetensors"), tmp_path / "hub" / "model.safetensors")
    (tmp_path / "hub" / "config.json").write_text(config)
    with pytest.raises(UserError, match=message):
        Encoder.from_pretrained(tmp_path / "hub")


@pytest.mark.parametrize("source", ["nowhere", "a/b/c", "x/y z"])
def test_source_that_is_no_folder_and_no_repository_is_refused(source):
    with pytest.raises(
        ArgumentError, match=r"`source` .*there is no such folder; a repository of the hub is USER/NAME"
    ):
        Encoder.from_pretrained(source)
