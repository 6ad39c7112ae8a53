"""Vectors of images with their labels, taken from arrays, tensors or `Embeddings`.

Shapes: `N` images, `D` embedding size, `L` levels of a tree.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.vectors import as_clusters, as_vectors

_GIVE = "give `Embeddings` with labels, or a pair of vectors (N, D) and labels (N,)"


@dataclass(frozen=True, eq=False)
class Labelled:
    """Hold images whose classes are known.

    Args:
        vectors: (N, D) float32.
        labels: (N,) int64 classes from 0.
        classes: how many there are; of some there may be no image.
        names: of the classes; None where these are numbers only.
        clusters: (N, L) of a tree, if one is known.
    """

    vectors: np.ndarray
    labels: np.ndarray
    classes: int
    names: tuple[str, ...] | None = None
    clusters: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return vectors and labels as tensors, which share their memory."""
        return torch.from_numpy(self.vectors), torch.from_numpy(self.labels)

    def some(self, images: np.ndarray) -> "Labelled":
        """Choose images by their numbers."""
        clusters = None if self.clusters is None else self.clusters[images]
        return replace(self, vectors=self.vectors[images], labels=self.labels[images], clusters=clusters)


def as_labelled(value: Any, argument: str) -> Labelled:
    """Return images with their labels; those without a label are left out.

    Args:
        value: `Embeddings` with labels; or a pair of vectors (N, D) and labels (N,), arrays, tensors or lists, where
            labels are whole numbers, -1 for none, or names, None for none.
        argument: what the caller's argument is called, for the message.

    Example:
        >>> found = as_labelled((np.eye(3), ["dog", None, "cat"]), "train")
        >>> found.labels.tolist(), found.names, found.vectors.shape
        ([1, 0], ('cat', 'dog'), (2, 3))
    """
    if isinstance(value, Labelled):
        return value
    clusters, classes = None, None
    if isinstance(value, tuple | list) and len(value) == 2:
        vectors, labels = value
    elif getattr(value, "labels", None) is not None:
        vectors, labels, clusters = value, value.labels, getattr(value, "clusters", None)
        classes = getattr(value, "classes", None)
    else:
        raise ArgumentError(f"`{argument}` has no labels: {_GIVE}")
    found = as_vectors(vectors, argument)
    numbers, names = _numbered(labels, classes, argument)
    if len(numbers) != len(found):
        raise ArgumentError(f"`{argument}` has {len(found)} vectors and {len(numbers)} labels: give one of each image")
    known = numbers >= 0
    if not known.any():
        raise ArgumentError(f"`{argument}` has no labels: {_GIVE}")
    if clusters is not None:
        clusters = as_clusters(clusters, len(found))
    whole = Labelled(found, numbers, len(names or range(numbers.max() + 1)), names, clusters)
    return whole if known.all() else whole.some(np.flatnonzero(known))


def as_pair(train: Any, val: Any) -> tuple[Labelled, Labelled]:
    """Return both of `as_labelled`, with the same numbers for the same classes where these have names."""
    pair = as_labelled(train, "train"), as_labelled(val, "val")
    if pair[0].vectors.shape[1] != pair[1].vectors.shape[1]:
        sizes = [one.vectors.shape[1] for one in pair]
        raise ArgumentError(f"`train` has vectors of size {sizes[0]} and `val` of {sizes[1]}: give both of one encoder")
    names = [one.names for one in pair]
    if names[0] == names[1]:
        classes = max(one.classes for one in pair)
        return replace(pair[0], classes=classes), replace(pair[1], classes=classes)
    if names[0] is None or names[1] is None or not {*names[0]} & {*names[1]}:
        raise ArgumentError("`train` and `val` have no class in common: give both with names, or both with numbers")
    together = tuple(sorted({*names[0], *names[1]}))
    numbers = {name: number for number, name in enumerate(together)}

    def renumbered(one: Labelled) -> Labelled:
        labels = np.array([numbers[name] for name in one.names or ()])[one.labels]
        return replace(one, labels=labels, classes=len(together), names=together)

    return renumbered(pair[0]), renumbered(pair[1])


def _numbered(labels: Any, classes: Any, argument: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return whole numbers (N,), -1 for no label, and the classes' names, if they have some."""
    given = np.asarray(labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels)
    if given.ndim == 1 and given.dtype.kind in "iu" and given.size:
        return given.astype("int64"), None if classes is None else tuple(classes)
    if given.ndim == 1 and given.dtype.kind in "UO" and all(one is None or isinstance(one, str) for one in given):
        names = sorted({one for one in given.tolist() if one})
        numbers = {name: number for number, name in enumerate(names)}
        return np.array([numbers.get(one, -1) for one in given.tolist()], "int64"), tuple(names)
    raise ArgumentError(f"`{argument}` has labels of {given.dtype} {given.shape}: give whole numbers or names (N,)")
