"""Transforms: how an encoder is shown an image, and what a classifier is trained on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchvision import transforms

from solo_hcsc.data.source import IMAGENET_MEAN, IMAGENET_STD, ImageSource, recorded, was_seen_whole


@dataclass(frozen=True)
class View:
    """How an encoder is shown an image: resized, its centre cut out, normalised.

    Photos are resized so that the centre crop covers 224 of 256 pixels of the shorter side.
    """

    crop_size: int  # side in pixels
    mean: tuple[float, ...] | None  # of each colour; None where it is not known, like `std`
    std: tuple[float, ...] | None
    whole: bool = False  # the whole image instead of its centre, as CIFAR's and STL-10's are looked at

    @property
    def resize(self) -> int | list[int]:
        """Return the new size of the shorter side, or of both sides where the image is looked at as a whole."""
        return [self.crop_size] * 2 if self.whole else round(self.crop_size * 256 / 224)

    @property
    def transform(self) -> transforms.Compose:
        """Return the transform from a PIL image in RGB to a tensor (3, H, W); ImageNet's colours if none are known."""
        cut = [] if self.whole else [transforms.CenterCrop(self.crop_size)]
        normalise = transforms.Normalize(self.mean or IMAGENET_MEAN, self.std or IMAGENET_STD)
        return transforms.Compose([transforms.Resize(self.resize), *cut, transforms.ToTensor(), normalise])

    @property
    def code(self) -> str:
        """Return the same transform as Python to copy."""
        cut = "" if self.whole else f"transforms.CenterCrop({self.crop_size}), "
        mean, std = (list(values) for values in (self.mean or IMAGENET_MEAN, self.std or IMAGENET_STD))
        return (
            "from torchvision import transforms\n"
            "transform = transforms.Compose([\n"
            f"    transforms.Resize({self.resize}), {cut}transforms.ToTensor(),\n"
            f"    transforms.Normalize({mean}, {std}),\n"
            "])"
        )


def view_of(source: ImageSource) -> View:
    """Return the view that evaluations take of these images."""
    return View(source.crop_size[0], *source.colours, source.seen_whole)


def trained_view(trained: Mapping[str, Any], crop_size: int | None = None) -> View:
    """Return the view of a run with these settings; at 224 pixels where neither they nor `crop_size` tell."""
    size = crop_size or (recorded("crop_size", trained["crop_size"])[0] if "crop_size" in trained else 224)
    return View(size, *trained_colours(trained), was_seen_whole(trained))


def trained_colours(trained: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return mean and deviation that a run's images were normalised with; None twice where its settings do not tell."""
    if not {"crop_size", "mean", "std"} <= trained.keys():
        return None, None
    if "dataset" not in trained:  # an exported file
        return recorded("mean", trained["mean"]), recorded("std", trained["std"])
    known = {name: recorded(name, trained[name]) for name in ("dataset", "crop_size", "mean", "std")}
    return ImageSource(data_dir=Path(), train_dir=None, val_dir=None, **known).colours


def evaluation_transforms(source: ImageSource) -> tuple[Callable, Callable]:
    """Build the transforms for training a classifier and for validation: solo-learn's, for any `crop_size`."""
    train = [
        transforms.RandomResizedCrop(source.crop_size[0], scale=(0.08, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(*source.colours),
    ]
    made = transforms.Compose(train), view_of(source).transform
    if source.is_fast:
        from solo_hcsc.data.fast_views import FastView  # an optional package

        return FastView(made[0]), FastView(made[1])
    return made
