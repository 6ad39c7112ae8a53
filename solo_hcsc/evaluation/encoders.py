"""Taking the encoder, the projector or the whole method out of a checkpoint, of whatever origin."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import nn

from solo_hcsc.cli.errors import UserError, on_one_line
from solo_hcsc.cli.flags import ENCODERS
from solo_hcsc.data.source import framework_name
from solo_hcsc.framework import BaseMethod, load_methods
from solo_hcsc.framework.method import HCSC
from solo_hcsc.framework.repairs.fix import bare_method
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.health import Health
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.training.checkpoints import (
    EVALUATION,
    find_checkpoint,
    load_checkpoint,
    recorded_flags,
    role_of,
    weights_in,
)
from solo_hcsc.training.lightning import finished_epochs


@dataclass(frozen=True)
class Encoder:
    """An encoder with a checkpoint's weights."""

    module: nn.Module
    name: str  # its architecture
    checkpoint: Path
    taken: str  # a line for the user: what was taken from the checkpoint and what not
    epochs: int | None = None  # how long it was pretrained, where the checkpoint tells
    warnings: tuple[str, ...] = ()  # what stood against its run when the checkpoint was written
    settings: dict[str, Any] = field(default_factory=dict)  # of its constructor

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
_FIRST_WEIGHTS = ("conv1.weight", "patch_embed.proj.weight")  # every ResNet, ViT and Swin has one of them
# What torchvision, timm, MoCo and SwAV put on top of the encoder under its own name.
_HEADS = ("fc", "head", "projection_head", "prototypes")
_COUNTER = "num_batches_tracked"  # of batch norm; not in weights from before PyTorch 0.4.1, nor used in evaluation


def load_encoder(path: str | Path, name: str | None = None, crop_size: int | None = None) -> Encoder:
    """The encoder of a checkpoint of any method, of MoCo or the authors' HCSC, or of a torchvision or timm ResNet.

    Every weight of the encoder must be there: one that stayed random would pass for a trained one.

    Args:
        path: the checkpoint, or a folder whose newest one is taken.
        name: its architecture. It may be left out where the run's args.json is beside the checkpoint, or the weights
            are those of a ResNet.
        crop_size: side of the images in pixels, which a ViT is made for; the run's own if not given.

    Returns:
        The encoder on the CPU, as it was saved; `encoder.module(images)` gives features (B, D) of images (B, 3, H, W).

    Example:
        >>> encoder = load_encoder("trained_models/hcsc")  # doctest: +SKIP
        >>> features = encoder.module.eval()(images)  # doctest: +SKIP
    """
    path = find_checkpoint(Path(path))
    checkpoint = load_checkpoint(path)
    if crop_size is None:
        crop_size = next(iter(recorded_flags(path).get("crop_size", [])), 224)
    state = weights_in(checkpoint, path)
    place = next((p for p in _PLACES if any(p + first in state for first in _FIRST_WEIGHTS)), None)
    if place is None and role_of(recorded_flags(path)) == EVALUATION:
        trained = recorded_flags(path).get("pretrained_feature_extractor", "which its args.json names")
        raise UserError(f"{path}: the classifier of an evaluation, without its encoder; give that one, {trained}")
    if place is None:
        raise UserError(
            f"{path}: no encoder in it, under none of the names that solo-learn, MoCo, the authors' HCSC, torchvision "
            "and timm use (such as encoder.conv1.weight, module.encoder_q.conv1.weight, conv1.weight)"
        )
    weights = {str(key).removeprefix(place): value for key, value in state.items() if str(key).startswith(place)}
    name = _architecture(path, name, weights)
    if name not in ENCODERS:
        raise UserError(f"{path.parent / 'args.json'}: unknown encoder {name!r}; restore or remove this file")
    settings = _backbone_args(name, weights, crop_size)
    encoder = bare_method(BaseMethod, encoder=name, backbone_args=settings).encoder
    known = encoder.state_dict()
    if place not in ("encoder.", "backbone."):  # there, the encoder has the name for itself
        weights = {key: value for key, value in weights.items() if key in known or key.partition(".")[0] not in _HEADS}
    weights |= {key: known[key] for key in known if key.endswith(_COUNTER) and key not in weights}
    unusable = [key for key, value in weights.items() if not _is_plain(value, known.get(key))]
    if unusable:
        raise UserError(f"{path}: no plain tensor for {_some(unusable)} of the encoder; not a pretraining checkpoint")
    unusable = [key for key, value in weights.items() if not value.isfinite().all()]
    if unusable:
        raise UserError(
            f"{path}: NaN or infinite values in {_some(unusable)} of the encoder; take a checkpoint from before that"
        )
    fit(encoder, weights, f"{path}: does not fit {name}")
    left = [key for key in state if not str(key).startswith(place) or str(key).removeprefix(place) not in weights]
    unused = Counter(_part(str(key)) for key in left)
    others = f" (not used: {', '.join(f'{part} {n}' for part, n in unused.most_common())})" if unused else ""
    warnings = tuple(on_one_line(sign.short) for sign in Health.from_dict(checkpoint.get("health")).standing)
    taken = f"encoder: {len(weights)} weights of {name} taken from {path}{others}"
    taken = "\n".join([taken, *(f"warning of its run: {one}" for one in warnings)])
    return Encoder(encoder, name, path, taken, _epochs(checkpoint, place), warnings, settings)


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
        raise UserError(f"--features projector: {method} has none; leave the flag out for the encoder's features")
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
    if method not in methods:
        raise UserError(f"{path}: no args.json of a pretraining run beside it, which tells the method and its settings")
    checkpoint = load_checkpoint(path)
    try:
        options = flags.get("hcsc_options") or {}  # as they were resolved: a preset may change
        model = methods[method](**flags | options | {"dataset": framework_name(flags["dataset"])})
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path.parent / 'args.json'}: does not describe a {method} run ({error})") from error
    model.on_load_checkpoint(checkpoint)  # makes the buffers that SwAV and DeepCluster v2 else make at the start
    try:
        model.load_state_dict(weights_in(checkpoint, path))
    except (RuntimeError, LookupError, TypeError, ValueError) as error:  # the last three: of HCSC's extra state
        reason = on_one_line(str(error).splitlines()[-1])
        raise UserError(f"{path}: does not fit its args.json, or is of an older version; {reason}") from error
    return model


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
    if role_of(trained) == EVALUATION or not issubclass(method, HCSC):
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
        hint = "; --crop_size must be the one of pretraining" if "pos_embed" in shapes else ""
        raise UserError(f"{complaint}; {differences}{hint}")
    module.load_state_dict(weights)


def _architecture(path: Path, name: str | None, weights: dict[str, Any]) -> str:
    recorded = recorded_flags(path).get("encoder")
    if name and recorded and name != recorded:
        raise UserError(f"--encoder {name}: {path} was trained with {recorded}; leave the flag out")
    name = name or recorded or _recognised(weights)
    if not name:
        raise UserError(f"{path} has no args.json beside it; say the architecture with --encoder")
    return name


def _recognised(weights: dict[str, Any]) -> str | None:
    """resnet18 or resnet50, by the blocks in each of its four layers."""
    blocks = [len({key.split(".")[1] for key in weights if key.startswith(f"layer{n}.")}) for n in (1, 2, 3, 4)]
    bottlenecks = "layer1.0.conv3.weight" in weights
    if blocks == [2, 2, 2, 2] and not bottlenecks:
        return "resnet18"
    return "resnet50" if blocks == [3, 4, 6, 3] and bottlenecks else None


def _part(key: str) -> str:
    """The part of a model that a weight belongs to: `projector`, `encoder_k`, `encoder_q.fc`."""
    names = key.removeprefix("module.").split(".")
    return ".".join(names[: 2 if names[0] == "encoder_q" else 1])


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


def _backbone_args(name: str, weights: dict[str, Any], crop_size: int) -> dict[str, Any]:
    """The constructor's settings, read off the weights where they show."""
    if "resnet" in name:
        stem = weights.get("conv1.weight")
        return {"cifar": stem is not None and stem.ndim == 4 and stem.shape[-1] == 3}
    settings: dict[str, Any] = {"cifar": False, "img_size": crop_size}
    patches = weights.get("patch_embed.proj.weight")
    if "vit" in name and patches is not None and patches.ndim == 4 and patches.numel():
        settings["patch_size"] = patches.shape[-1]
    if "swin" in name:
        tables = [v for k, v in weights.items() if k.endswith("relative_position_bias_table")]
        # A window of side w has (2w - 1)^2 relative positions; 4 is the framework's choice for CIFAR.
        settings["cifar"] = bool(tables) and tables[0].shape[:1] == (49,)
    return settings
