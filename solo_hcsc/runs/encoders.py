"""Taking the encoder, the projector or the whole method out of a checkpoint, of whatever origin."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningModule
from torch import nn
from torchvision.transforms import Compose

from solo_hcsc.data.source import framework_name
from solo_hcsc.encoders.checkpoints import find_checkpoint, finished_epochs, load_checkpoint, weights_in
from solo_hcsc.encoders.hydra_settings import WITHOUT_EQUAL
from solo_hcsc.encoders.names import ENCODERS, TIMM
from solo_hcsc.encoders.recorded import EVALUATION, EXPORTED, recorded_flags, role_of
from solo_hcsc.encoders.twins import OURS, THEIRS
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.health import Health
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.solo102 import load_methods, make_encoder
from solo_hcsc.solo102.datasets import View, trained_view
from solo_hcsc.solo102.encoders import adapted, key_values, tf_twin, timm_settings, timm_weights
from solo_hcsc.solo102.method import HCSC
from solo_hcsc.solo_version import RELEASE


@dataclass(frozen=True)
class Encoder:
    """An encoder with a checkpoint's weights."""

    module: nn.Module
    name: str  # its architecture, one of solo-learn's or `timm/NAME`
    settings: dict[str, Any]  # of its constructor: solo-learn's backbone_args, or what timm.create_model takes
    checkpoint: Path
    taken: str  # a line for the user: what was taken from the checkpoint
    view: View  # how it is shown an image
    epochs: int | None = None  # how long it was pretrained, where the checkpoint tells
    warnings: tuple[str, ...] = ()  # what stood against its run when the checkpoint was written

    @property
    def transform(self) -> Compose:
        """Resize, cut out and normalise a PIL image in RGB as `embed` does: a tensor (3, H, W)."""
        return self.view.transform

    @cached_property
    def trained_with(self) -> dict[str, Any]:
        """The flags of the run that trained it; empty for a foreign checkpoint."""
        return recorded_flags(self.checkpoint)

    @cached_property
    def fingerprint(self) -> str:
        """The checkpoint's SHA-256."""
        digest = sha256()
        with self.checkpoint.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
        return digest.hexdigest()


# Where an encoder's weights lie: in checkpoints of solo-learn, of its releases since 1.0.5 and of our linear and
# semi-supervised runs, of MoCo and the authors' HCSC with and without DataParallel's prefix, of SwAV and the like, and
# in a plain state dict as torchvision and timm write it.
_PLACES = ("encoder.", "backbone.", "module.encoder_q.", "encoder_q.", "module.", "")
# What torchvision, timm, MoCo, SwAV and EfficientNet-PyTorch put on top of the encoder under its own name.
_HEADS = ("fc", "_fc", "head", "heads", "head_dist", "classifier", "projection_head", "prototypes")
_COUNTER = "num_batches_tracked"  # of batch norm; not in weights from before PyTorch 0.4.1, nor used in evaluation
Weights = dict[str, Any]
# What making a model by settings raises that no run writes: of the wrong type, or larger than the memory.
_MAKING_ERRORS = (
    TypeError,
    LookupError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    AssertionError,
)


def load_encoder(
    path: str | Path,
    encoder: str | None = None,
    crop_size: int | None = None,
    encoder_args: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Encoder:
    """The encoder of a checkpoint of any method, of MoCo or the authors' HCSC, or of torchvision or timm.

    Every weight of the encoder must be there: one that stayed random would pass for a trained one.

    Args:
        path: the checkpoint, or a folder whose newest one is taken.
        encoder: its architecture. It may be left out where the run's args.json is beside the checkpoint, or the
            weights are those of a ResNet-18 or ResNet-50.
        crop_size: side of the images in pixels, which a ViT is made for; the run's own if not given.
        encoder_args: settings of a `timm/NAME`, each as `key=value`, where no args.json tells them.
        mean: of each colour, by which `transform` normalises; the run's own if not given, or ImageNet's.
        std: of each colour; the same.

    Returns:
        The encoder on the CPU, as it was saved; `encoder.module(images)` gives features (B, D) of images (B, 3, H, W),
        and `encoder.transform` makes such an image of a photo.

    Example:
        >>> encoder = load_encoder("trained_models/hcsc")  # doctest: +SKIP
        >>> images = encoder.transform(photo).unsqueeze(0)  # doctest: +SKIP
        >>> features = encoder.module.eval()(images)  # doctest: +SKIP
    """
    check_arguments(path=path, encoder=encoder, crop_size=crop_size, encoder_args=encoder_args, mean=mean, std=std)
    path = find_checkpoint(Path(path))
    checkpoint = load_checkpoint(path)
    state = weights_in(checkpoint, path)
    view = trained_view(recorded_flags(path), crop_size)
    typed = {name: tuple(map(float, value)) for name, value in (("mean", mean), ("std", std)) if value is not None}
    view = replace(view, **typed)  # type: ignore[arg-type]
    name = _architecture(path, encoder, state)
    settings = _settings(path, name, encoder_args, view.crop_size, state)
    warnings = tuple(on_one_line(sign.short) for sign in Health.from_dict(checkpoint.get("health")).standing)
    module, taken, place = _filled(name, settings, state, path)
    taken = "\n".join([taken, *(f"warning of its run: {one}" for one in warnings)])
    return Encoder(module, name, settings, path, taken, view, _epochs(checkpoint, place), warnings)


def check_arguments(**given: Any) -> None:
    """Raise `ArgumentError` for the first argument of `load_encoder` or `embed` of a wrong type; None always passes."""
    for name, value in given.items():
        is_right, expected = _EXPECTED[name]
        if value is not None and not is_right(value):
            raise ArgumentError(f"`{name}` is {value!r}: give {expected}")


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _are_colours(value: Any, least: float = -math.inf) -> bool:
    listed = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) and len(value) == 3
    return listed and all(isinstance(one, Real) and least < float(one) < math.inf for one in value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)


# What each argument takes, as a test and in words.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "path": (_is_path, "a path"),
    "run": (_is_path, "a path: of a checkpoint or of a run's folder"),
    "folder": (_is_path, "a path: of a folder of images"),
    "encoder": (lambda value: isinstance(value, str), "the name of an architecture, such as 'resnet18'"),
    "crop_size": (_is_count, "a number of pixels"),
    "encoder_args": (_are_texts, "a list of 'key=value'"),
    "mean": (_are_colours, "three numbers, one for each colour"),
    "std": (lambda value: _are_colours(value, 0), "three numbers above 0, one for each colour"),
    "split": (("train", "val").__contains__, "'train' or 'val'"),
    "features": (("backbone", "projector").__contains__, "'backbone' or 'projector'"),
    "batch_size": (_is_count, "a number of images"),
    "num_workers": (lambda value: _is_count(value, 0), "a number of processes"),
    "accelerator": (("auto", "cpu", "gpu").__contains__, "'auto', 'cpu' or 'gpu'"),
}


def load_initial(what: str, name: str, settings: dict[str, Any]) -> tuple[nn.Module, str]:
    """An encoder with the weights that `--init_weights` means, and a line that says what was taken."""
    if what == "timm":
        if not name.startswith(TIMM):
            raise UserError(f"`init_weights` timm: has weights for `encoder` {TIMM}NAME, such as {TIMM}{name}")
        module, taken, _ = _filled(name, settings, timm_weights(name), Path("timm"))
        return module, taken
    if not what:
        raise UserError("`init_weights`: is empty; give a file, a run, or timm")
    path = find_checkpoint(Path(what))
    recorded = recorded_flags(path).get("encoder")
    if recorded not in (None, name):
        raise UserError(f"`init_weights` {what}: was trained with {recorded}; give `encoder` {recorded}")
    module, taken, _ = _filled(name, settings, weights_in(load_checkpoint(path), path), path)
    return module, taken


def _filled(name: str, settings: dict[str, Any], state: Weights, path: Path) -> tuple[nn.Module, str, str]:
    """An encoder with the weights of a state dict, a line that says what was taken, and under which names they lay."""
    module = make_encoder(name, settings)
    known = module.state_dict()
    place, weights = _find(known, state)
    if not weights and role_of(recorded_flags(path)) == EVALUATION:
        trained = recorded_flags(path).get("pretrained_feature_extractor", "which its args.json names")
        raise UserError(
            f"{path}: has the classifier of an evaluation and no encoder; give the encoder's checkpoint, {trained}"
        )
    how = ""
    if not _fits(known, weights) and name.startswith(TIMM):
        converted = _without_heads(known, adapted(module, _below(place, state)))
        if _fits(known, converted):
            weights, how = converted, ", as timm converts them"
    ordered = path.suffix != EXPORTED  # which sorts names
    if not _fits(known, weights) and ordered and (renamed := _in_order(known, state)):
        weights = {key: state[other] for key, other in renamed.items()}
        how = ", by their order, since their names differ"
        if twin := tf_twin(name):
            how += f" (those that TensorFlow trained, as EfficientNet-PyTorch's, are for {twin})"
    if not weights:
        raise UserError(
            f"{path}: no encoder {name} in it, under none of the names that solo-learn, MoCo, the authors' HCSC, "
            "torchvision and timm use (such as encoder.conv1.weight, module.encoder_q.conv1.weight, conv1.weight)"
            + ("" if ordered else "; a .pth file also tells the order of weights, which may be enough")
        )
    weights |= {key: known[key] for key in known if key.endswith(_COUNTER) and key not in weights}
    unusable = [key for key, value in weights.items() if not _is_plain(value, known.get(key))]
    if unusable:
        raise UserError(f"{path}: no plain tensor for {_some(unusable)} of the encoder; not a pretraining checkpoint")
    unusable = [key for key, value in weights.items() if not value.isfinite().all()]
    if unusable:
        raise UserError(
            f"{path}: NaN or infinite values in {_some(unusable)} of the encoder; take a checkpoint from before that"
        )
    fit(module, weights, f"{path}: does not fit {name}")
    return module, f"encoder: {len(weights)} weights of {name} taken from {path}{how}", place


def _find(known: Weights, state: Weights) -> tuple[str, Weights]:
    """Under which prefix the most of the encoder's names are, and what is there, but for other parts' heads."""
    place = max(_PLACES, key=lambda one: len(known.keys() & _below(one, state).keys()))
    weights = _below(place, state)
    if not known.keys() & weights.keys():
        return "", {}
    # Under a name of its own the encoder has no head.
    return place, weights if place in ("encoder.", "backbone.") else _without_heads(known, weights)


def _without_heads(known: Weights, weights: Weights) -> Weights:
    return {key: value for key, value in weights.items() if key in known or key.split(".")[0] not in _HEADS}


def _below(place: str, state: Weights) -> Weights:
    return {str(key).removeprefix(place): value for key, value in state.items() if str(key).startswith(place)}


def _fits(known: Weights, weights: Weights) -> bool:
    return _shapes(known) == _shapes(weights)


def _shapes(weights: Weights) -> dict[str, Any]:
    return {key: getattr(value, "shape", None) for key, value in weights.items() if not key.endswith(_COUNTER)}


def _in_order(known: Weights, state: Weights) -> dict[str, str]:
    """What the encoder's weights are called elsewhere, if one after the other has the kind and shape of the encoder's.

    So it is with EfficientNet-PyTorch's files and timm's models. On top there may be a head.
    """
    wanted = list(_shapes(known).items())
    there = list(_shapes(state).items())
    if [_kind(*one) for one in wanted] != [_kind(*one) for one in there[: len(wanted)]]:
        return {}
    if any(key.removeprefix("module.").split(".")[0] not in _HEADS for key, _ in there[len(wanted) :]):
        return {}
    return {key: other for (key, _), (other, _) in zip(wanted, there, strict=False)}


def _kind(key: str, shape: Any) -> tuple[str, Any]:
    return key.rpartition(".")[2], shape


def _epochs(checkpoint: dict[str, Any], place: str) -> int | None:
    """How many epochs it was trained for: MoCo's checkpoints say it, those of Lightning in their loops."""
    epoch = checkpoint.get("epoch")
    return epoch if "encoder_q" in place and isinstance(epoch, int) else finished_epochs(checkpoint)


def load_projector(encoder: Encoder) -> nn.Module:
    """What the method put on top of the encoder: its projector, or the `fc` of MoCo's and the authors' checkpoints."""
    path = encoder.checkpoint
    state = weights_in(load_checkpoint(path), path)
    for place in ("module.encoder_q.fc.", "encoder_q.fc."):
        weights = {key.removeprefix(place): value for key, value in state.items() if str(key).startswith(place)}
        if weights:
            head = _moco_projector(weights)
            fit(head, weights, f"{path}: its projector is none of MoCo's")
            return head
    projector = getattr(load_method(path), "projector", None)
    if not isinstance(projector, nn.Module):
        method = recorded_flags(path)["method"]
        raise UserError(f"`features` projector: {method} has none; leave the flag out for the encoder's features")
    return projector


def _moco_projector(weights: dict[str, Any]) -> nn.Module:
    """Of MoCo, one layer; of MoCo v2 and HCSC, two."""
    shapes = [(value.shape[1], value.shape[0]) for value in weights.values() if getattr(value, "ndim", 0) == 2]
    layers = [nn.Linear(*shape) for shape in shapes]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1]) if len(layers) == 2 else (layers or [nn.Linear(1, 1)])[0]


def load_method(path: Path) -> LightningModule:
    """The whole method of a pretraining run, as it was when the checkpoint was written."""
    flags, methods = recorded_flags(path), load_methods()
    method = flags.get("method")
    _check_equal(path, flags)
    if not isinstance(method, str):
        method = None
    if method and method not in methods and "solo_learn" in flags:
        raise UserError(
            f"{path}: solo-learn {RELEASE}, which computes here, has no {method}; only this run's encoder can be used"
        )
    if method not in methods:
        raise UserError(f"{path}: no args.json of a pretraining run beside it, which tells the method and its settings")
    checkpoint = load_checkpoint(path)
    try:
        model = methods[method](**_arguments(flags, checkpoint))
    except _MAKING_ERRORS as error:
        reason = on_one_line((str(error) or type(error).__name__).splitlines()[0])[:150]
        raise UserError(f"{path.parent / 'args.json'}: does not describe a {method} run ({reason})") from error
    model.on_load_checkpoint(checkpoint)  # makes the buffers that SwAV and DeepCluster v2 else make at the start
    try:
        model.load_state_dict(_named_as_ours(weights_in(checkpoint, path)))
    except (RuntimeError, LookupError, TypeError, ValueError) as error:  # the last three: of HCSC's extra state
        reason = on_one_line(str(error).splitlines()[-1])
        raise UserError(f"{path}: does not fit its args.json, or is of an older version; {reason}") from error
    return model


def _arguments(flags: dict[str, Any], checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What the run's method was made with; solo-learn 1.0.6 learns of HCSC's images and options when it starts."""
    options = flags.get("hcsc_options") or checkpoint.get("hcsc_options") or {}  # as resolved: a preset may change
    images = {"num_images": checkpoint["hcsc_images"]} if "hcsc_images" in checkpoint else {}
    sizes = {} if "proj_hidden_dim" in flags else {"proj_hidden_dim": None}
    return sizes | flags | options | images | {"dataset": framework_name(flags["dataset"])}


def _named_as_ours(state: Weights) -> Weights:
    """Weights of solo-learn since 1.0.3 by the names of 1.0.2; of that one, as they are."""
    prefixes = {THEIRS: OURS, f"momentum_{THEIRS}": f"momentum_{OURS}"}
    return {
        next((new + key.removeprefix(old) for old, new in prefixes.items() if key.startswith(old)), key): value
        for key, value in state.items()
    }


@dataclass(frozen=True)
class RunTree:
    """The tree of prototypes that an HCSC run has, and how it embeds an image: what `load_tree` returns."""

    side: nn.Sequential  # encoder and projector whose embeddings were clustered
    coding: SelectiveCoding  # the tree, the run's options and its selection

    @property
    def hierarchy(self) -> Hierarchy:
        """The tree itself."""
        found = self.coding.hierarchy
        assert found is not None, "only made of a run that has clustered"
        return found


def load_tree(path: str | Path) -> RunTree | None:
    """The tree of an HCSC run.

    Args:
        path: the run's checkpoint, or a folder whose newest one is taken.

    Returns:
        The tree with what embeds images for it, `tree.side`; None for another method, or before the first clustering.

    Example:
        >>> tree = load_tree("trained_models/hcsc")  # doctest: +SKIP
        >>> clusters = tree.hierarchy.assign(embeddings)  # doctest: +SKIP
    """
    path = find_checkpoint(Path(path))
    trained = recorded_flags(path)
    method = load_methods().get(str(trained.get("method")), object)
    if role_of(trained) == EVALUATION or not issubclass(method, HCSC) or path.suffix == EXPORTED:
        return None
    model = load_method(path)
    assert isinstance(model, HCSC)
    return None if model.coding.hierarchy is None else RunTree(model.clustered_side, model.coding)


def fit(module: nn.Module, weights: dict[str, Any], complaint: str) -> None:
    """Loads weights that must be exactly the module's."""
    known = module.state_dict()
    missing = [key for key in known if key not in weights]
    unexpected = [key for key in weights if key not in known]
    shapes = [key for key in known if key in weights and known[key].shape != weights[key].shape]
    if missing or unexpected or shapes:
        kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
        differences = "; ".join(f"{kind}: {_some(keys)}" for kind, keys in kinds.items() if keys)
        hint = "; `crop_size` must be the one of pretraining" if "pos_embed" in shapes else ""
        if shapes == ["conv1.weight"]:
            hint = "; solo-learn's ResNets have another stem for `dataset` cifar10 and cifar100 than for others"
        raise UserError(f"{complaint}; {differences}{hint}")
    module.load_state_dict(weights)


def _architecture(path: Path, name: str | None, state: Weights) -> str:
    recorded = recorded_flags(path).get("encoder")
    _check_equal(path, recorded_flags(path))
    if name and recorded and name != recorded:
        raise UserError(f"`encoder` {name}: {path} was trained with {recorded}; leave the flag out")
    name = name or recorded or _recognised(state)
    if not name:
        raise UserError(
            f"{path}: no encoder in it of a known architecture, and there is no args.json beside it; give `encoder`"
        )
    if name not in ENCODERS and not str(name).startswith(TIMM):
        where = path if path.suffix == EXPORTED else path.parent / "args.json"
        raise UserError(f"{where}: unknown encoder {name!r}; restore or remove this file")
    return name


def _check_equal(path: Path, flags: dict[str, Any]) -> None:
    """Refuses an encoder of solo-learn 1.0.6 that cannot be built here."""
    if "solo_learn" in flags and str(flags.get("encoder")).startswith(WITHOUT_EQUAL):
        raise UserError(
            f"{path}: was trained with solo-learn's {flags['encoder']}, which is not among the encoders here"
        )


def _recognised(state: Weights) -> str | None:
    """resnet18 or resnet50, by the blocks in each of its four layers."""
    place = next((place for place in _PLACES if f"{place}conv1.weight" in state), "")
    weights = _below(place, state)
    blocks = [len({key.split(".")[1] for key in weights if key.startswith(f"layer{n}.")}) for n in (1, 2, 3, 4)]
    bottlenecks = "layer1.0.conv3.weight" in weights
    if blocks == [2, 2, 2, 2] and not bottlenecks:
        return "resnet18"
    return "resnet50" if blocks == [3, 4, 6, 3] and bottlenecks else None


def _settings(path: Path, name: str, args: Sequence[str], crop_size: int, state: Weights) -> dict[str, Any]:
    """The constructor's settings: of timm's models as the run recorded them, of others as the weights show."""
    trained = recorded_flags(path)
    recorded = trained.get("backbone_args") if trained.get("encoder") == name else None
    if not name.startswith(TIMM):
        settings = _backbone_args(name, state, crop_size)
        return _as_given(settings, recorded, trained, crop_size) if "solo_learn" in trained else settings
    return timm_settings(name, recorded if isinstance(recorded, dict) else key_values(args), [crop_size])


def _as_given(settings: dict[str, Any], recorded: Any, trained: dict[str, Any], crop_size: int) -> dict[str, Any]:
    """The settings with all others that solo-learn 1.0.6 was given, which takes any."""
    given = recorded if isinstance(recorded, dict) else {}
    as_trained = [crop_size] == trained.get("crop_size", [])[:1]
    # A size that is not the run's is left for `fit` to refuse.
    size = {"img_size": given.get("img_size", 224)} if as_trained and "img_size" in settings else {}
    return given | settings | size


def _is_plain(value: Any, wanted: torch.Tensor | None) -> bool:
    """Whether this is an ordinary tensor, of floating point numbers where the encoder has such."""
    return (
        isinstance(value, torch.Tensor)
        and (wanted is None or value.is_floating_point() == wanted.is_floating_point())
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_complex() or value.is_quantized)
    )


def _some(keys: list[str]) -> str:
    """`119 weights (conv1.weight, bn1.weight, bn1.bias, ...)`."""
    examples = ", ".join([*keys[:3], "..."] if len(keys) > 3 else keys)
    return f"{len(keys)} weight{'s' * (len(keys) > 1)} ({examples})"


def _backbone_args(name: str, state: Weights, crop_size: int) -> dict[str, Any]:
    """The settings of solo-learn's encoders, read off the weights where they show."""
    stem, patches = (_ending(state, key) for key in ("conv1.weight", "patch_embed.proj.weight"))
    if "resnet" in name:
        return {"cifar": stem is not None and stem.ndim == 4 and stem.shape[-1] == 3}
    settings: dict[str, Any] = {"cifar": False, "img_size": crop_size}
    if "vit" in name and patches is not None and patches.ndim == 4 and patches.numel():
        settings["patch_size"] = patches.shape[-1]
    if "swin" in name:
        tables = [v for k, v in state.items() if str(k).endswith("relative_position_bias_table")]
        # A window of side w has (2w - 1)^2 relative positions; 4 is the framework's choice for CIFAR.
        settings["cifar"] = bool(tables) and tables[0].shape[:1] == (49,)
    return settings


def _ending(state: Weights, name: str) -> torch.Tensor | None:
    """The first tensor of this name under one of the known prefixes."""
    found = next((state[place + name] for place in _PLACES if place + name in state), None)
    return found if isinstance(found, torch.Tensor) else None
