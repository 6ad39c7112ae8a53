"""solo-learn's data sets, augmentations and transforms, with what its functions leave open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import ImageOps
from solo.utils import classification_dataloader, pretrain_dataloader
from torch.utils.data import Dataset, Subset
from torchvision import transforms

from solo_hcsc.data.folders import (
    BareImages,
    CentreCrops,
    ImagesWithoutLabels,
    LabelledImages,
    fraction,
    refuse_single_class,
    tell_listing,
    with_classes_of,
)
from solo_hcsc.data.images import SkipUnreadable
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import IMAGENET_MEAN, IMAGENET_STD, ImageSource, recorded, was_seen_whole
from solo_hcsc.errors import UserError
from solo_hcsc.methods.learner import CentreCropBatches

_DOWNLOADS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "stl10": "stl10_binary"}


@dataclass(frozen=True)
class Augmentation:
    """The pipelines that make an image's crops."""

    dataset: str  # as solo-learn calls it
    pipelines: tuple[Mapping[str, Any], ...]  # what solo-learn's transforms take
    crops: tuple[int, ...]  # that each of them makes
    equalised: tuple[float, ...] = ()  # probability that each of them equalises a crop's histogram; never, for none

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: ImageSource) -> "Augmentation":
        """From what solo-learn's own setup made of the flags."""
        pipelines = settings["transform_kwargs"] if settings["unique_augs"] > 1 else [settings["transform_kwargs"]]
        equalised = settings["equalization_prob"]
        equalised = equalised * len(pipelines) if len(equalised) == 1 else equalised
        return cls(source.framework_name, tuple(pipelines), tuple(settings["num_crops_per_aug"]), tuple(equalised))

    def transform(self) -> Callable:
        made = [pretrain_dataloader.prepare_transform(self.dataset, **settings) for settings in self.pipelines]
        for pipeline, probability in zip(made, self.equalised, strict=False):
            if probability:  # solo-learn 1.0.4 has it before the last three: flip, tensor, normalisation
                equalise = transforms.RandomApply([transforms.Lambda(ImageOps.equalize)], p=probability)
                pipeline.transform.transforms.insert(-3, equalise)
        return pretrain_dataloader.prepare_n_crop_transform(made, num_crops_per_aug=list(self.crops))


def pretraining_set(source: ImageSource, transform: Callable, share: float, seed: int) -> Dataset:
    """The augmented training images, or a seeded share of them, as (index, crops, label)."""
    if source.no_labels:
        dataset: Dataset = ImagesWithoutLabels(source.folder("train"), transform)
        tell_listing(dataset)  # type: ignore[arg-type]
    elif source.in_folders:
        indexed = pretrain_dataloader.dataset_with_index(LabelledImages)
        dataset = indexed(source.folder("train"), transform, source.class_level)
        tell_listing(dataset)  # type: ignore[arg-type]
    else:
        dataset = _downloaded(
            source,
            lambda: pretrain_dataloader.prepare_datasets(
                source.dataset, transform, data_dir=source.data_dir, train_dir=_below(source, source.train_dir)
            ),
        )
    return dataset if share == 1 else fraction(dataset, share, seed)


def validation_set(source: ImageSource, train_set: Dataset) -> Dataset | None:
    """Labelled validation images, or None where there are none."""
    train_transform, transform = evaluation_transforms(source)
    if not source.in_folders:
        return evaluation_sets(source, train_transform, transform)[1]
    if source.no_labels or source.val_dir is None:
        return None
    val_set = LabelledImages(source.folder("val"), transform, source.class_level)
    tell_listing(val_set)
    return with_classes_of(train_set, val_set)


def evaluation_sets(source: ImageSource, train_transform: Callable, val_transform: Callable) -> tuple[Dataset, Dataset]:
    """Labelled training and validation images."""
    if source.in_folders:
        train_set = LabelledImages(source.folder("train"), train_transform, source.class_level)
        val_set = LabelledImages(source.folder("val"), val_transform, source.class_level)
        tell_listing(train_set)
        tell_listing(val_set)
        refuse_single_class(train_set)
        return train_set, with_classes_of(train_set, val_set)  # type: ignore[return-value]
    return _downloaded(
        source,
        lambda: classification_dataloader.prepare_datasets(
            source.dataset,
            train_transform,
            val_transform,
            data_dir=source.data_dir,
            train_dir=_below(source, source.train_dir),
            val_dir=_below(source, source.val_dir),
        ),
    )


def one_split(source: ImageSource, split: str) -> Dataset:
    """The `train` or `val` images as centre crops with their labels; folders of the other part need not be there."""
    _, transform = evaluation_transforms(source)
    if source.in_folders:
        folder = source.folder(split)
        bare = source.no_labels
        dataset = BareImages(folder, transform) if bare else LabelledImages(folder, transform, source.class_level)
        tell_listing(dataset)
        return dataset
    return evaluation_sets(source, transform, transform)[0 if split == "train" else 1]


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
        """What the shorter side is resized to, or both sides where the image is looked at as a whole."""
        return [self.crop_size] * 2 if self.whole else round(self.crop_size * 256 / 224)

    @property
    def transform(self) -> transforms.Compose:
        """From a PIL image in RGB to a tensor (3, H, W); in ImageNet's colours where those are not known."""
        cut = [] if self.whole else [transforms.CenterCrop(self.crop_size)]
        normalise = transforms.Normalize(self.mean or IMAGENET_MEAN, self.std or IMAGENET_STD)
        return transforms.Compose([transforms.Resize(self.resize), *cut, transforms.ToTensor(), normalise])

    @property
    def code(self) -> str:
        """The same transform as Python to copy."""
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
    """How evaluations look at these images."""
    return View(source.crop_size[0], *normalisation(source), source.seen_whole)


def trained_view(trained: Mapping[str, Any], crop_size: int | None = None) -> View:
    """How a run with these flags saw images; at 224 pixels where neither they nor `crop_size` tell."""
    size = crop_size or (recorded("crop_size", trained["crop_size"])[0] if "crop_size" in trained else 224)
    return View(size, *trained_colours(trained), was_seen_whole(trained))


def evaluation_transforms(source: ImageSource) -> tuple[Callable, Callable]:
    """Transforms for training a classifier and for validation: solo-learn's, for any `crop_size`."""
    train = [
        transforms.RandomResizedCrop(source.crop_size[0], scale=(0.08, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(*normalisation(source)),
    ]
    return transforms.Compose(train), view_of(source).transform


def normalisation(source: ImageSource) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Channel means and deviations that evaluations, like training, normalise these images with."""
    if not source.has_own_colours:
        return source.mean, source.std
    _, transform = classification_dataloader.prepare_transforms(source.dataset)
    found = next(step for step in transform.transforms if isinstance(step, transforms.Normalize))
    return tuple(found.mean), tuple(found.std)


def trained_colours(trained: Mapping[str, Any]) -> tuple[Any, Any]:
    """Mean and deviation that a run's images were normalised with; None twice where its flags do not tell."""
    if not {"crop_size", "mean", "std"} <= trained.keys():
        return None, None
    if "dataset" not in trained:  # an exported file
        return recorded("mean", trained["mean"]), recorded("std", trained["std"])
    known = {name: recorded(name, trained[name]) for name in ("dataset", "crop_size", "mean", "std")}
    return normalisation(ImageSource(data_dir=Path(), train_dir=None, val_dir=None, **known))


def centre_crops(dataset: Dataset, source: ImageSource, loading: Loading) -> CentreCropBatches:
    """A function from indexes of a pretraining set to batches of their centre crops, in that order."""
    _, transform = evaluation_transforms(source)
    crops: Dataset
    if isinstance(dataset, SkipUnreadable):
        crops = SkipUnreadable(CentreCrops(dataset.dataset, transform), dataset.unreadable)
    else:
        crops = CentreCrops(dataset, transform)
    return lambda indexes: loading.in_order(Subset(crops, indexes))


def _below(source: ImageSource, folder: Path | None) -> Path | None:
    """Where torchvision's files are below the data folder: in it, if solo-learn 1.0.6 has put them there."""
    there = source.data_dir / _DOWNLOADS.get(source.dataset, "none")
    return Path() if folder is None and there.is_dir() else folder


def _downloaded(source: ImageSource, make: Callable[[], Any]) -> Any:
    """Makes a data set that is downloaded; what its class says of missing or broken data becomes one line."""
    try:
        return make()
    except (OSError, RuntimeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise UserError(
            f"`dataset` {source.dataset}: is not in `data_dir` {source.data_dir} and cannot be downloaded ({reason}); "
            "for images of your own use `dataset` custom `train_dir` FOLDER"
        ) from error
