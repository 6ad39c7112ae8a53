"""Settings that choose an encoder, and the weights that it starts from."""

from pathlib import Path

from solo_hcsc.data.settings import EVALUATED_SIZE, IMAGES, TRAIN_LIST, WORKERS
from solo_hcsc.encoders.names import ENCODERS, TIMM
from solo_hcsc.errors import ArgumentError
from solo_hcsc.settings import ONE, Setting, nearest

_LATER = {"poolformer": "1.0.3", "convnext": "1.0.4", "wide_resnet": "1.0.4"}  # what names begin with, and the release


def came_later(name: str, release: str) -> str:
    """Return why solo-learn 1.0.2 does not know a name of a later release."""
    return f"solo-learn 1.0.2 does not have {name}; it came with {release}"


def encoder(text: str) -> str:
    """Accept a name of solo-learn's, or `timm/` and a name that is looked up later: timm takes seconds to import."""
    for family, release in _LATER.items():
        if text.startswith(family):
            hint = "" if family == "wide_resnet" else f"; {TIMM}{text} is timm's"
            raise ArgumentError(came_later(text, release) + hint)
    if text not in ENCODERS and not text.startswith(TIMM):
        near = nearest(text, ENCODERS)
        raise ArgumentError(
            f"{text}: unknown; {near + ' Or ' if near else ''}choose from {', '.join(ENCODERS)}, or any model of timm "
            f"as timm/NAME: {TIMM}{text} if it has that"
        )
    return text


def key_value(text: str) -> str:
    """Accept `key=value`."""
    if not text.partition("=")[0].isidentifier() or "=" not in text:
        raise ArgumentError(f"{text!r} is not of the form key=value")
    return text


_ARGS = "settings of a timm/NAME, as key=value: what timm.create_model takes, e.g. drop_path_rate=0.1"
_WEIGHTS = (
    "weights that the encoder starts from: a run or checkpoint of ours, a file of torchvision, timm, MoCo, HCSC or "
    "EfficientNet-PyTorch (.pth, .safetensors), or `timm` for those that timm has of a timm/NAME"
)
ENCODER = (
    Setting(
        "encoder", encoder, "resnet18", None, f"architecture: {', '.join(ENCODERS)}, or any of timm's as timm/NAME"
    ),
    Setting("encoder_args", key_value, [], None, _ARGS),
    Setting("init_weights", str, None, None, _WEIGHTS),
    Setting("zero_init_residual", bool, False, None, "start each residual block of a ResNet as the identity"),
    Setting("patch_size", int, 16, ONE, "side of a ViT's patches"),
)
# Of weights whose encoder may be told by an args.json beside them.
FOREIGN = (
    Setting("encoder", encoder, None, None, "architecture of a checkpoint without args.json"),
    Setting("encoder_args", key_value, [], None, f"{_ARGS}; for a checkpoint without args.json"),
)
_FEATURES = "the encoder's features, or what the method's projector makes of them"
# Of what embeds images: the encoder and where it computes, and which images it reads.
EMBEDDER = (
    *FOREIGN,
    Setting("features", ("backbone", "projector"), "backbone", None, _FEATURES),
    Setting("accelerator", ("auto", "cpu", "gpu"), "auto", None, "where to compute features"),
)
READER = (
    *IMAGES,
    TRAIN_LIST,
    EVALUATED_SIZE,
    Setting("batch_size", int, 128, ONE, "images per forward pass"),
    WORKERS,
)
CACHE = (
    Setting(
        "cache",
        Path,
        None,
        None,
        "folder that keeps what was embedded, so that no unchanged image is embedded again; solo_hcsc/features below "
        "$XDG_CACHE_HOME or ~/.cache if not given, where at most 5 GB are kept",
    ),
    Setting("no_cache", bool, False, None, "embed all images, and keep nothing"),
)
