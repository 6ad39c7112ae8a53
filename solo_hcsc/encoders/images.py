"""Images to embed, wherever they are: a folder, files, a data set, or images in memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from solo_hcsc.data.folders import BareImages, class_of, files_and_labels, labels_of, only
from solo_hcsc.data.images import Skipped, as_rgb
from solo_hcsc.data.source import ClassLevel
from solo_hcsc.data.stored import StoredImages
from solo_hcsc.data.views import View
from solo_hcsc.errors import ArgumentError, on_one_line


@dataclass(frozen=True)
class ImageSet:
    """Images to embed, in order.

    Args:
        dataset: gives each as (image, label), the image as a tensor (3, H, W).
        paths: N paths below a folder; numbers for images that are no files.
        labels: (N,) int64, the number of each image's class in `classes`, -1 for none; None without labels.
        classes: the classes' names.
        collects: whether the labels are those that the data set gives with the images.
    """

    dataset: Dataset
    paths: list[str]
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    collects: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def files(self) -> list[str] | None:
        """Return the images' files; None for images that are in none, or in a caller's own data set."""
        return self.dataset.images if isinstance(self.dataset, BareImages) else None

    def without(self, skipped: Sequence[Skipped]) -> "ImageSet":
        """Leave out the images that could not be read."""
        if not skipped:
            return self
        return self.some(np.delete(np.arange(len(self)), [one.index for one in skipped]))

    def some(self, rows: np.ndarray) -> "ImageSet":
        """Take the images of these numbers."""
        labels = None if self.labels is None else self.labels[rows]
        paths = [self.paths[place] for place in rows]
        return replace(self, dataset=only(self.dataset, rows.tolist()), paths=paths, labels=labels)

    def with_labels(self, batches: Sequence[torch.Tensor]) -> "ImageSet":
        """Take the labels that came with the images, where they are not known without."""
        if not self.collects:
            return self
        labels = torch.cat([torch.as_tensor(batch) for batch in batches])
        if labels.ndim != 1 or labels.is_floating_point():
            return self
        classes = self.classes or tuple(map(str, range(int(labels.max()) + 1)))
        return replace(self, labels=labels.numpy().astype("int64"), classes=classes)


def images_in_folder(dataset: BareImages, class_level: ClassLevel = None, no_labels: bool = False) -> ImageSet:
    """Take all images below a folder, in a class folder or not."""
    paths = [on_one_line(os.path.relpath(file, dataset.root)) for file in dataset.images]
    if no_labels:
        return ImageSet(dataset, paths)
    names = [on_one_line(class_of(file, dataset.root, class_level)) for file in dataset.images]
    classes = tuple(sorted({*names} - {""}))
    numbers = {name: number for number, name in enumerate(classes)} | {"": -1}
    return ImageSet(dataset, paths, np.array([numbers[name] for name in names], "int64"), classes)


def images_of(dataset: Any, split: str = "images") -> ImageSet:
    """Take a data set of (image, label); its images are called by their files, or by numbers such as `train/0`."""
    count = len(dataset)
    if isinstance(dataset, StoredImages):
        paths = [on_one_line(name) for name in dataset.names()]
        labels = np.array(dataset.targets, "int64") if dataset.labelled else None
        return ImageSet(dataset, paths, labels, tuple(dataset.classes))
    if hasattr(dataset, "samples") or isinstance(dataset, BareImages):
        root = str(dataset.root)
        paths = [on_one_line(os.path.relpath(file, root)) for file in files_and_labels(dataset)[0]]
    else:
        paths = [f"{split}/{number}" for number in range(count)]
    classes = tuple(map(str, getattr(dataset, "classes", ())))
    known = labels_of(dataset)
    if len(known) == count and not isinstance(dataset, BareImages):
        classes = classes or tuple(map(str, range(max(known) + 1)))
        return ImageSet(dataset, paths, np.array(known, "int64"), classes)
    return ImageSet(dataset, paths, None, classes, collects=not isinstance(dataset, BareImages))


def images_given(images: Any, view: View) -> ImageSet:
    """Take a list of paths, PIL images, a batch (N, 3, H, W) that is normalised, or a data set of (image, label)."""
    if isinstance(images, torch.Tensor):
        if images.ndim != 4 or not len(images):
            raise ArgumentError(f"`images` has shape {tuple(images.shape)}: give (N, 3, H, W)")
        return ImageSet(TensorDataset(images, torch.full((len(images),), -1)), _numbered(len(images)))
    if isinstance(images, Dataset):
        return images_of(images)
    listed = [images] if isinstance(images, Image.Image) else images
    if not isinstance(listed, Sequence) or not len(listed):
        given = "empty" if isinstance(listed, Sequence) else type(images).__name__
        raise ArgumentError(
            f"`images` is {given}: give a folder, a list of paths or PIL images, a tensor (N, 3, H, W) or a data set"
        )
    if all(isinstance(one, Image.Image) for one in listed):
        return ImageSet(_InMemory(listed, view), _numbered(len(listed)))
    if all(isinstance(one, str | os.PathLike) for one in listed):
        files = [os.fspath(one) for one in listed]  # type: ignore[arg-type]
        return ImageSet(BareImages.listed(files, view.transform), [on_one_line(file) for file in files])
    raise ArgumentError("`images`: give a list of paths, or one of PIL images")


def _numbered(count: int) -> list[str]:
    return [f"images/{number}" for number in range(count)]


class _InMemory(Dataset):
    """PIL images as (image, -1)."""

    def __init__(self, images: Sequence[Image.Image], view: View) -> None:
        self.images, self.transform = images, view.transform

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(as_rgb(self.images[index])), -1

    def __len__(self) -> int:
        return len(self.images)
