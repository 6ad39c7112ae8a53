"""An encoder as a file for other libraries, with the code that loads it; nothing in such a file can run."""

import io
import json
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

import safetensors.torch
import torch
import torchvision
from torch import nn

from solo_hcsc.data.source import IMAGENET_MEAN, IMAGENET_STD
from solo_hcsc.data.views import View
from solo_hcsc.encoders.adapter import Adapted
from solo_hcsc.encoders.formats import HUB
from solo_hcsc.encoders.hub import CONFIG, config_text
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.make import as_timm, timm
from solo_hcsc.errors import MissingPackage, UserError, on_one_line
from solo_hcsc.quiet import muted

_TOLERANCE = 1e-4  # of features, as a share of the largest
_LARGEST_GRAPH = 2**31  # bytes, of a protocol buffer
_STEM = [  # solo-learn's for small images
    "model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=2, bias=False)",
    "model.maxpool = torch.nn.Identity()",
]
# Where the names of torchvision's weights are those of timm and solo-learn; some others need memory to be built.
_TORCHVISION = ("*resne*", "densenet*")


@dataclass(frozen=True)
class Exportable:
    """An encoder with what a file of it tells."""

    encoder: Encoder
    method: str | None  # what trained it

    @property
    def view(self) -> View:
        """Return how it is shown an image."""
        return self.encoder.view

    @property
    def metadata(self) -> dict[str, str]:
        """Return what it takes to build and to feed the encoder, as JSON under the names of args.json; where known."""
        facts = {
            "encoder": self.encoder.name,
            "backbone_args": self.encoder.settings,
            "crop_size": [self.view.crop_size],
            "resize": self.view.resize,
            "interpolation": "bilinear",
            "mean": self.view.mean,
            "std": self.view.std,
            "method": self.method,
            "init_weights": self.encoder.trained_with.get("init_weights"),
            "epochs": self.encoder.epochs,
        }
        known = {name: json.dumps(value) for name, value in facts.items() if value is not None}
        return {"format": "pt"} | known  # the first is what readers of safetensors expect

    @property
    def small_stem(self) -> bool:
        """Return whether it is a ResNet with solo-learn's stem for small images."""
        return self.encoder.name.startswith("resnet") and bool(self.encoder.settings.get("cifar"))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights, each in memory of its own, as safetensors wants them."""
        state = self.encoder.module.state_dict()
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in state.items()}

    @cached_property
    def images(self) -> torch.Tensor:
        """Return random images (2, 3, H, W) to compare features by."""
        side = self.view.crop_size
        return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))

    @cached_property
    def features(self) -> torch.Tensor:
        """Return the features (2, D) of `images`."""
        try:
            with torch.no_grad():
                return self.encoder.module.eval()(self.images)
        except RuntimeError as error:
            reason = on_one_line(str(error).strip().splitlines()[0])[:150]
            raise UserError(
                f"`crop_size` {self.view.crop_size}: the encoder cannot take such images ({reason})"
            ) from error

    def matches(self, features: torch.Tensor) -> bool:
        """Return whether these are the features that the encoder makes of `images`."""
        same_shape = features.shape == self.features.shape
        return same_shape and bool((features - self.features).abs().max() <= _TOLERANCE * self.features.abs().max())

    def equals(self, model: nn.Module) -> bool:
        """Return whether a model takes exactly these weights, and makes the same features with them."""
        try:
            model.load_state_dict(self.weights)
            with torch.no_grad():
                return self.matches(model.eval()(self.images))
        except RuntimeError:  # other names or shapes of weights or features
            return False


@dataclass(frozen=True)
class Exported:
    """A file's content, and the code that loads it, where FILE stands for its name."""

    content: bytes
    code: str
    language: str = "python"
    beside: Mapping[str, str] = field(default_factory=dict)  # texts of other files in its folder, by their names

    def code_for(self, file: str | Path) -> str:
        return self.code.replace("FILE", repr(str(file)))


def export(given: Exportable, kind: str, suffix: str) -> Exported:
    """Write an encoder in one of the formats `EXPORTS`, or `hub`; refuse those that cannot hold it.

    Args:
        given: The encoder; the file gives the same features.
        kind: The format's name.
        suffix: How the file's name ends.
    """
    _ = given.features  # refuses images that the encoder cannot take, before a format is blamed
    if isinstance(given.encoder.module, Adapted) and kind not in _WITH_ADAPTERS:
        raise UserError(f"`format` {kind}: has no place for an adapter; take {' or '.join(_WITH_ADAPTERS)}")
    return _FORMATS[kind](given, suffix)


def _timm(given: Exportable, suffix: str) -> Exported:
    name, settings = as_timm(given.encoder.name, given.encoder.settings)
    model = timm().create_model(name, num_classes=0, **settings)
    if not given.equals(_with_stem_of(given, model)):
        raise UserError(f"`format` timm: timm's {name} is not this {given.encoder.name}; take safetensors or onnx")
    arguments = ", ".join([repr(name), "num_classes=0", *(f"{key}={value!r}" for key, value in settings.items())])
    lines = [
        "import timm",
        f"model = timm.create_model({arguments})",
        "timm.models.load_checkpoint(model.eval(), FILE)",
    ]
    if given.small_stem:
        lines = ["import timm, torch", lines[1], *_STEM, lines[2]]
    return Exported(_weights_file(given, suffix), "\n".join(lines))


def _hub(given: Exportable, _: str) -> Exported:
    if given.small_stem:
        raise UserError(
            f"`format` hub: timm cannot make {given.encoder.name} with the stem for small images; take timm or "
            "safetensors"
        )
    name, settings = as_timm(given.encoder.name, given.encoder.settings)
    view, colours = given.view, (given.view.mean or IMAGENET_MEAN, given.view.std or IMAGENET_STD)
    config = config_text(name, settings, given.features.shape[1], view.crop_size, view.resize, *colours)
    code = 'import timm\nmodel = timm.create_model("local-dir:" + FILE, pretrained=True).eval()'
    return replace(_timm(given, ".safetensors"), code=code, beside={CONFIG: config})


def _torchvision(given: Exportable, suffix: str) -> Exported:
    name, head = _torchvision_model(given) or ("", "")
    if not name:
        raise UserError(
            f"`format` torchvision: it has no model with the weights of {given.encoder.name}; take timm, safetensors "
            "or onnx"
        )
    lines = [f"model = torchvision.models.get_model({name!r})", f"model.{head} = torch.nn.Identity()"]
    reading = "torch.load(FILE, weights_only=True)" if suffix == ".pth" else "safetensors.torch.load_file(FILE)"
    imports = "import torch, torchvision" + (", safetensors.torch" if suffix != ".pth" else "")
    lines = [imports, *lines, *(_STEM if given.small_stem else []), f"model.eval().load_state_dict({reading})"]
    return Exported(_weights_file(given, suffix), "\n".join(lines))


def _torchvision_model(given: Exportable) -> tuple[str, str] | None:
    """Return the name of torchvision's model that is this encoder with a classifier, and the classifier's."""
    shapes = {name: value.shape for name, value in given.encoder.module.state_dict().items()}
    stem = {"conv1.weight": shapes["conv1.weight"]} if given.small_stem else {}
    for name, theirs in _torchvision_shapes().items():
        known = theirs | stem
        heads = {key.partition(".")[0] for key in known.keys() - shapes.keys()}
        if len(heads) == 1 and all(known.get(key) == shape for key, shape in shapes.items()):
            model = _with_stem_of(given, torchvision.models.get_model(name))
            model.add_module(head := heads.pop(), nn.Identity())
            if given.equals(model):
                return name, head
    return None


@cache
def _torchvision_shapes() -> dict[str, dict[str, torch.Size]]:
    """Return the shapes of each model's weights."""
    names = torchvision.models.list_models(torchvision.models, include=_TORCHVISION)
    with torch.device("meta"):  # takes neither memory nor random numbers
        models = {name: torchvision.models.get_model(name) for name in names}
    return {name: {key: value.shape for key, value in model.state_dict().items()} for name, model in models.items()}


def _with_stem_of(given: Exportable, model: nn.Module) -> nn.Module:
    """Give a model the encoder's stem for small images if it has that: what `_STEM` says."""
    if given.small_stem:
        model.add_module("conv1", nn.Conv2d(3, 64, 3, padding=2, bias=False))
        model.add_module("maxpool", nn.Identity())
    return model


def _safetensors(given: Exportable, suffix: str) -> Exported:
    code = "from safetensors.torch import load_file\nweights = load_file(FILE)"
    return Exported(_weights_file(given, suffix), code)


def _weights_file(given: Exportable, suffix: str) -> bytes:
    if suffix != ".pth":
        return safetensors.torch.save(given.weights, given.metadata)
    buffer = io.BytesIO()
    torch.save(given.weights, buffer)
    return buffer.getvalue()


def _onnx(given: Exportable, _: str) -> Exported:
    if find_spec("onnx") is None:
        raise MissingPackage("`format` onnx: onnx is not installed; run: pip install 'solo_hcsc[onnx]'")
    import onnx

    size = sum(value.nbytes for value in given.weights.values())
    if size >= _LARGEST_GRAPH:
        raise UserError(f"`format` onnx: holds up to 2 GB, these weights are {size / 1e9:.1f}; take safetensors")
    graph = onnx.load_from_string(_traced(given))
    onnx.helper.set_model_props(graph, given.metadata)
    onnx.checker.check_model(graph)
    content = graph.SerializeToString()
    if find_spec("onnxruntime") is not None:
        _check_graph(given, content)
    lines = ["import onnxruntime", "session = onnxruntime.InferenceSession(FILE)"]
    return Exported(content, "\n".join([*lines, 'features = session.run(None, {"images": images})[0]']))


def _traced(given: Exportable) -> bytes:
    """Trace the encoder as an ONNX graph for any number of images, of any size for solo-learn's ResNets.

    The newer exporter (`dynamo=True`) fails in torch 2.6, takes several times as long, and writes
    tracebacks with this machine's paths into the file.
    """
    module, buffer = given.encoder.module.eval(), io.BytesIO()
    sizes = {2: "height", 3: "width"} if isinstance(module, torchvision.models.ResNet) else {}
    try:
        with muted():  # on an error it prints the whole graph
            torch.onnx.export(
                module,
                (given.images,),
                buffer,  # type: ignore[arg-type]  # which this exporter takes too
                dynamo=False,
                input_names=["images"],
                output_names=["features"],
                dynamic_axes={"images": {0: "batch"} | sizes, "features": {0: "batch"}},
            )
    except torch.onnx.OnnxExporterError as error:
        reason = on_one_line(str(error).strip().splitlines()[0])
        raise UserError(f"`format` onnx: torch cannot export {given.encoder.name} ({reason})") from error
    return buffer.getvalue()


def _check_graph(given: Exportable, content: bytes) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    one_by_one = (session.run(None, {"images": image.numpy()})[0] for image in given.images.split(1))
    if not given.matches(torch.cat([torch.from_numpy(found) for found in one_by_one])):
        raise UserError(f"`format` onnx: the graph of {given.encoder.name} gives other features; take safetensors")


def _detectron2(given: Exportable, _: str) -> Exported:
    name = re.fullmatch(r"resnet(\d+)", (_torchvision_model(given) or ("",))[0])
    if name is None or given.small_stem:
        shown = given.encoder.name + (" with the stem for small images" if given.small_stem else "")
        raise UserError(f"`format` detectron2: it has ResNets with the ImageNet stem only, not {shown}; take another")
    weights = {_detectron2_name(key): value.numpy() for key, value in given.weights.items()}
    content = {"model": weights, "__author__": "solo_hcsc", "matching_heuristics": True}
    depth = int(name[1])
    lines = [
        "cfg.MODEL.WEIGHTS = FILE",
        f'cfg.MODEL.RESNETS.DEPTH, cfg.MODEL.RESNETS.STRIDE_IN_1X1, cfg.INPUT.FORMAT = {depth}, False, "RGB"',
    ]
    if given.view.mean and given.view.std:
        colours = (given.view.mean, given.view.std)
        mean, std = ([round(255 * value, 3) for value in values] for values in colours)
        lines.append(f"cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD = {mean}, {std}")
    if depth < 50:
        lines.append("cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = 64")
    # NumPy 1, which detectron2 is often installed with, knows its module by the old name only; NumPy 2 knows both.
    pickled = pickle.dumps(content, protocol=3).replace(b"cnumpy._core.", b"cnumpy.core.", 1)
    return Exported(pickled, "\n".join(lines))


def _detectron2_name(key: str) -> str:
    """Rename `layer1.0.bn2.weight` to `res2.0.conv2.norm.weight`, `conv1.weight` to `stem.conv1.weight`."""
    key = re.sub(r"^layer(\d)", lambda stage: f"res{int(stage[1]) + 1}", key)
    key = key if key.startswith("res") else f"stem.{key}"
    key = re.sub(r"bn(\d)", r"conv\1.norm", key)
    return key.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")


_WITH_ADAPTERS = ("safetensors", "onnx")
_FORMATS: dict[str, Callable[[Exportable, str], Exported]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "safetensors": _safetensors,
    "onnx": _onnx,
    "detectron2": _detectron2,
    HUB: _hub,
}
