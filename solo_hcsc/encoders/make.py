"""Encoders: solo-learn's ten, and as `timm/NAME` every model of timm that makes one feature vector of an image."""

from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torchvision.models import get_model

from solo_hcsc.encoders.names import ENCODERS, NOT_TAKEN, TIMM
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.settings import nearest

# What makes a model with position embeddings take another image size than its own, and then images of several sizes.
# Other models, convolutions for one, know neither.
_SIZES: tuple[Callable[[int], dict[str, Any]], ...] = (
    lambda size: {"img_size": size},
    lambda size: {"img_size": size, "dynamic_img_size": True},
    lambda size: {},
)
_SOLO_LEARNS = tuple(name for name in ENCODERS if not name.startswith("resnet"))  # which it registers with timm


def timm() -> Any:
    """Return timm, which takes a second to import and which solo-learn's ResNets do without."""
    return import_module("timm")


def make_encoder(name: str, settings: Mapping[str, Any]) -> nn.Module:
    """Make an encoder with random weights: `encoder(images)` gives features (B, D) of images (B, 3, H, W).

    Args:
        name: one of solo-learn's ten, or `timm/NAME`.
        settings: solo-learn's `backbone_args`, or for timm's models the keyword arguments of `timm.create_model`.
    """
    if name.startswith("resnet"):
        sizes = {key: value for key, value in settings.items() if key != "cifar"}
        return _resnet(name, bool(settings.get("cifar")), sizes)
    name, known = as_timm(name, settings)
    return timm_encoder(name, **known)


def as_timm(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of an encoder in timm, where solo-learn's have other names."""
    if name.startswith(TIMM):
        return name.removeprefix(TIMM), dict(settings)
    if name.startswith("resnet"):
        return name, {}
    sizes = {key: value for key, value in settings.items() if key != "cifar"}
    if name.startswith("swin"):
        return f"{name}_patch4_window7_224", sizes | ({"window_size": 4} if settings.get("cifar") else {})
    return f"{name}_patch16_224", sizes


def _resnet(name: str, small: bool, settings: Mapping[str, Any]) -> nn.Module:
    """Make torchvision's ResNet without its classifier, with solo-learn's stem for small images if `small`."""
    model: Any = get_model(name, weights=None, **settings)
    model.fc = nn.Identity()
    if small:
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=2, bias=False)
        model.maxpool = nn.Identity()
    module: nn.Module = model
    return module


def timm_encoder(name: str, **settings: Any) -> nn.Module:
    """Make one of timm's models without its classifier."""
    model = timm().create_model(name.removeprefix(TIMM), num_classes=0, **settings)
    # solo-learn takes the width of its projectors from here; timm's own may be that of the layer below the last one.
    model.num_features = getattr(model, "head_hidden_size", None) or model.num_features
    return model


def timm_settings(name: str, given: Mapping[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """Return what `timm.create_model` takes to make a vector of images of each size (in pixels).

    The model is tried on torch's meta device, which computes shapes only: neither weights nor data are needed.
    """
    short = name.removeprefix(TIMM)
    if not timm().is_model(short) or short in _SOLO_LEARNS:
        near = nearest(short.partition(".")[0], sorted({*timm().list_models()} - {*_SOLO_LEARNS}), TIMM)
        told = near or "see its list_models"
        raise UserError(f"`encoder` {name}: timm {timm().__version__} has no such model; {told}")
    if refused := [key for key in NOT_TAKEN if key in given]:
        raise UserError(f"`encoder_args` {refused[0]}: not taken; `init_weights` gives an encoder its weights")
    why_not, unmade = "", ""
    for size in _SIZES:
        settings = size(sizes[0]) | dict(given)
        try:
            with torch.device("meta"):
                model = timm_encoder(name, **settings).eval()
        except Exception as error:  # of any of timm's thousand models
            unmade = f"timm cannot make it ({_first_line(error)})"
            continue
        found = next(filter(None, (_refusal(model, side) for side in sizes)), None)
        if found is None:
            return settings
        why_not = why_not or found
    shown = f" `encoder_args` {' '.join(f'{key}={value}' for key, value in given.items())}" if given else ""
    raise UserError(f"`encoder` {name}{shown}: {why_not or unmade}")


def _refusal(model: nn.Module, side: int) -> str | None:
    """Say why the model on the meta device makes no vector of an image of this size; None if it does."""
    try:
        with torch.no_grad():
            out = model(torch.empty(2, 3, side, side, device="meta"))
    except Exception as error:
        reason = _first_line(error)
        return f"fails on images of {side} px ({reason}); choose another `crop_size`, `encoder` or `encoder_args`"
    if isinstance(out, torch.Tensor) and out.shape == (2, model.num_features):
        return None
    found = f"features of shape {tuple(out.shape[1:])}" if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
    return f"makes {found} of an image, not one vector; choose another model, or the default of its global_pool"


def _first_line(error: Exception) -> str:
    return on_one_line((str(error).strip() or type(error).__name__).splitlines()[0])[:150]


def key_values(args: Sequence[str]) -> dict[str, Any]:
    """Return `drop_path_rate=0.1 act_layer=relu` as Python values; what is no literal is a word."""
    found = {}
    for key, _, value in (arg.partition("=") for arg in args):
        try:
            found[key] = literal_eval(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            found[key] = value
    return found


def timm_weights(name: str, start: str = "", instead: str = "give a file of them") -> dict[str, torch.Tensor]:
    """Return timm's own pretrained weights of a model, from its cache or hub.

    `start`, `instead`: the beginning of a message that there are none, and what to do about it.
    """
    short = name.removeprefix(TIMM)
    if not timm().is_model_pretrained(short):
        raise UserError(f"{start}timm {timm().__version__} has no weights of {short}; {instead}")
    try:
        return dict(timm().create_model(short, pretrained=True).state_dict())
    except Exception as error:  # of the hub's client, of the network below it, or of a broken cache
        reason = _first_line(error)
        raise UserError(f"{start}the weights of {short} cannot be fetched ({reason}); {instead}") from error


def timm_side(name: str) -> int:
    """Return the side in pixels of the images that a model of timm's was made for."""
    config = timm().get_pretrained_cfg(name.removeprefix(TIMM))
    return 224 if config is None else int(config.input_size[-1])


def timm_colours(name: str) -> dict[str, tuple[float, ...]]:
    """Return the mean and std with which timm's own weights of a model were trained."""
    config = timm().get_pretrained_cfg(name.removeprefix(TIMM))
    return {} if config is None else {"mean": tuple(config.mean), "std": tuple(config.std)}


def tf_twin(name: str) -> str | None:
    """Return timm's model of the same weights with TensorFlow's padding and batch norm, as `timm/NAME`, or None."""
    twin = f"tf_{name.removeprefix(TIMM)}"
    return f"{TIMM}{twin}" if name.startswith(TIMM) and timm().is_model(twin) else None


def adapted(model: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """Convert a timm model's weights as timm does when it loads them: names, position embeddings."""
    convert = getattr(import_module(type(model).__module__), "checkpoint_filter_fn", None)
    if convert is None:
        return weights
    try:
        return dict(convert(dict(weights), model))
    except Exception:  # weights of something else
        return weights
