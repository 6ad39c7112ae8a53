"""Features of a frozen encoder: which checkpoint, which images, on which device."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource, class_folders
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.progress import note, say, watch
from solo_hcsc.runs.encoders import Encoder, load_encoder, load_projector

Module = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Features:
    """Feature vectors `x (N, D)` and labels `y (N,)` of a data set's images, in its order, on the CPU."""

    x: torch.Tensor
    y: torch.Tensor
    skipped: tuple[Skipped, ...] = ()  # images that could not be read and are not among them


@dataclass(frozen=True)
class FeatureSettings:
    """Which features of which checkpoint, and where they are computed."""

    pretrained_feature_extractor: Path
    encoder: str | None
    encoder_args: tuple[str, ...]
    method: str | None
    features: str  # backbone or projector
    accelerator: str


def choose_labels(source: ImageSource, flags: Namespace, trained: Mapping[str, Any]) -> ImageSource:
    """The images of the split, without labels where there are none or none are wanted; says so."""
    located = source.with_split(flags.split)
    if flags.no_labels and not located.in_folders:
        raise UserError(f"`no_labels`: `dataset` {source.dataset} is not read from folders; leave it out")
    if flags.no_labels and flags.class_level is not None:
        raise UserError("`no_labels`: `class_level` says which folders are the classes; leave one of the two out")
    if flags.no_labels:
        why = "--no_labels"
    elif "class_level" in flags.typed or not located.in_folders:
        return located
    elif not class_folders(located.folder(flags.split)):
        why = f"{located.folder(flags.split)} has no class folders"
    elif trained.get("no_labels") and same_data(source, trained, f"{flags.split}_dir"):
        why = "the run was pretrained with `no_labels`; `class_level` 1 takes the folders for classes"
    else:
        return located
    say(f"without labels: {why}")
    return replace(located, no_labels=True)


def same_data(source: ImageSource, trained: Mapping[str, Any], *settings: str) -> bool:
    """Whether the images are the run's, and as in its flags also in further settings."""
    return (
        source.dataset == trained.get("dataset")
        and source.data_dir.resolve() == Path(str(trained.get("data_dir"))).resolve()
        and all(str(getattr(source, setting)) == str(trained.get(setting)) for setting in settings)
    )


class Frozen:
    """A checkpoint's encoder, or its encoder and projector, on the device that the flags ask for."""

    def __init__(self, settings: FeatureSettings, crop_size: int) -> None:
        self.device = choose_device(settings.accelerator)
        self.encoder: Encoder = load_encoder(
            settings.pretrained_feature_extractor, settings.encoder, crop_size, settings.encoder_args
        )
        module = self.encoder.module
        if settings.features == "projector":
            module = nn.Sequential(module, load_projector(self.encoder))
        self.module = module.eval().to(self.device)

    def of(self, dataset: Dataset, loading: Loading, title: str) -> Features:
        return extract(self.module, dataset, loading, title, self.device)

    def head(self, kind: str) -> Callable[[Features], Features]:
        """From the encoder's features to those of a kind: `backbone`, themselves, or `projector`."""
        if kind == "backbone":
            return lambda features: features
        projector = load_projector(self.encoder).eval().to(self.device)

        def project(features: Features) -> Features:
            x = features_of(lambda part: projector(part.to(self.device)), features.x)
            check_finite(x, kind)
            return Features(x, features.y, features.skipped)

        return project


@torch.no_grad()
def extract(module: Module, dataset: Dataset, loading: Loading, title: str, device: torch.device) -> Features:
    """Every image once, through a module in evaluation mode."""
    images, done = len(dataset), 0  # type: ignore[arg-type]
    x, y = torch.empty(0), torch.empty(0)
    skipped: list[Skipped] = []
    for batch, labels in watch(loading.readable(dataset, skipped), images, title):
        out = module(batch.to(device, non_blocking=True)).float().cpu()
        if not done:  # written in place: collecting and joining would take the memory twice
            x, y = out.new_empty(images, *out.shape[1:]), labels.new_empty(images, *labels.shape[1:])
        x[done : done + len(out)] = out
        y[done : done + len(out)] = labels
        done += len(out)
    x, y = x[:done], y[:done]
    check_finite(x, title)
    return Features(x, y, tuple(skipped))


def tell_skipped(skipped: Sequence[Skipped], images: int, most: int = 20) -> None:
    """List the images that could not be read, of so many; nothing where all could."""
    if skipped:
        more = [f"... and {len(skipped) - most} more"] * (len(skipped) > most)
        paths = [on_one_line(one.path) for one in skipped[:most]]
        lines = "\n".join(f"  {line}" for line in [*paths, *more])
        note(f"{len(skipped)} of {images} images could not be read and are left out:\n{lines}")


def check_finite(x: torch.Tensor, title: str) -> None:
    if not x.isfinite().all():
        raise UserError(f"{title}: the encoder's output has NaN or infinite values; take a checkpoint from before that")


@torch.no_grad()
def features_of(module: Module, images: torch.Tensor, batch_size: int = 256) -> torch.Tensor:
    """Features of images that are in memory.

    Args:
        module: an encoder in evaluation mode, such as `load_encoder(path).module.eval()`.
        images: (N, 3, H, W), normalised as in training.
        batch_size: images per forward pass.

    Returns:
        Features (N, D) on the CPU.

    Example:
        >>> features_of(torch.nn.Flatten(), torch.zeros(5, 3, 2, 2)).shape
        torch.Size([5, 12])
    """
    return torch.cat([module(part).float().cpu() for part in images.split(batch_size)])


def choose_device(accelerator: str) -> torch.device:
    gpu = torch.cuda.is_available()
    if accelerator == "gpu" and not gpu:
        raise UserError("`accelerator` gpu: there is no GPU here; use `accelerator` cpu")
    return torch.device("cuda" if gpu and accelerator != "cpu" else "cpu")
