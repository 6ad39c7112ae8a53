"""Data sets of an `ImageSource`: folders of images, and the small ones that torchvision downloads."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, Subset
from torchvision import datasets

from solo_hcsc.data.folders import (
    BareImages,
    CentreCrops,
    LabelledImages,
    listed,
    refuse_single_class,
    tell_listing,
    with_classes_of,
)
from solo_hcsc.data.images import SkipUnreadable
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.stored import stored_images
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.errors import UserError

# torchvision's class of each, what it takes for the training and for the test images, and the folder it unpacks to.
_DOWNLOADED: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    "cifar10": (datasets.CIFAR10, {"train": True}, {"train": False}, "cifar-10-batches-py"),
    "cifar100": (datasets.CIFAR100, {"train": True}, {"train": False}, "cifar-100-python"),
    "stl10": (datasets.STL10, {"split": "train"}, {"split": "test"}, "stl10_binary"),
}


def validation_set(source: ImageSource, train_set: Dataset) -> Dataset | None:
    """Return labelled validation images, or None where there are none."""
    train_transform, transform = evaluation_transforms(source)
    if source.is_stored:
        unknown = source.no_labels or source.val_dir is None
        return None if unknown else with_classes_of(train_set, stored_images(source, "val", transform))
    if not source.in_folders:
        return evaluation_sets(source, train_transform, transform)[1]
    if source.no_labels or source.val_dir is None:
        return None
    val_set = LabelledImages(source.folder("val"), transform, source.class_level)
    tell_listing(val_set)
    return with_classes_of(train_set, val_set)


def evaluation_sets(source: ImageSource, train_transform: Callable, val_transform: Callable) -> tuple[Dataset, Dataset]:
    """Return labelled training and validation images."""
    if source.is_stored:
        bank = listed(stored_images(source, "train", train_transform), source)
        queries = stored_images(source, "val", val_transform)
        refuse_single_class(bank)
        return bank, with_classes_of(bank, queries)  # type: ignore[return-value]
    if source.in_folders:
        train_set = LabelledImages(source.folder("train"), train_transform, source.class_level)
        val_set = LabelledImages(source.folder("val"), val_transform, source.class_level)
        tell_listing(train_set)
        tell_listing(val_set)
        train_set = listed(train_set, source)
        refuse_single_class(train_set)
        return train_set, with_classes_of(train_set, val_set)  # type: ignore[return-value]
    return downloading(source, lambda: _downloaded_sets(source, train_transform, val_transform))


def one_split(source: ImageSource, split: str) -> Dataset:
    """Return the `train` or `val` images as centre crops with their labels; the other part need not be there."""
    _, transform = evaluation_transforms(source)
    if source.is_stored:
        return listed(stored_images(source, split, transform), source, split)
    if source.in_folders:
        folder = source.folder(split)
        bare = source.no_labels
        dataset = BareImages(folder, transform) if bare else LabelledImages(folder, transform, source.class_level)
        tell_listing(dataset)
        return listed(dataset, source, split)
    return evaluation_sets(source, transform, transform)[0 if split == "train" else 1]


def centre_crops(
    dataset: Dataset, source: ImageSource, loading: Loading
) -> Callable[[Sequence[int]], Iterable[torch.Tensor]]:
    """Return a function from indexes of a pretraining set to batches of their centre crops, in that order."""
    _, transform = evaluation_transforms(source)
    crops: Dataset
    if isinstance(dataset, SkipUnreadable):
        crops = SkipUnreadable(CentreCrops(dataset.dataset, transform), dataset.unreadable)
    else:
        crops = CentreCrops(dataset, transform)
    return lambda indexes: loading.in_order(Subset(crops, indexes))


def download_folder(source: ImageSource, folder: Path | None) -> Path | None:
    """Return the folder below `data_dir` with torchvision's files: itself, if solo-learn 1.0.6 has put them there."""
    if folder is None and source.dataset in _DOWNLOADED and (source.data_dir / _DOWNLOADED[source.dataset][3]).is_dir():
        return Path()
    return folder


def downloading(source: ImageSource, make: Callable[[], Any]) -> Any:
    """Make a data set that is downloaded; turn what its class says of missing or broken data into one line."""
    try:
        return make()
    except (OSError, RuntimeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise UserError(
            f"`dataset` {source.dataset}: is not in `data_dir` {source.data_dir} and cannot be downloaded ({reason}); "
            "for images of your own use `dataset` custom `train_dir` FOLDER"
        ) from error


def _downloaded_sets(
    source: ImageSource, train_transform: Callable, val_transform: Callable
) -> tuple[Dataset, Dataset]:
    """Return both parts; each is in a folder of its own, as solo-learn has it."""
    kind, train, val, _ = _DOWNLOADED[source.dataset]
    folders = (download_folder(source, folder) for folder in (source.train_dir, source.val_dir))
    train_dir, val_dir = (
        source.data_dir / (Path(source.dataset, split) if folder is None else folder)
        for folder, split in zip(folders, ("train", "val"), strict=True)
    )
    return (
        kind(train_dir, transform=train_transform, download=True, **train),
        kind(val_dir, transform=val_transform, download=True, **val),
    )
