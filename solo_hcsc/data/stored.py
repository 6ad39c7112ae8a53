"""Images that are no files of their own, of shards or of a table, as a data set."""

import copy
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset

from solo_hcsc.data.images import Encoded, show
from solo_hcsc.data.shard_index import ShardedImages
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import UserError


class Store(Protocol):
    """Images by number, in the order that they have for good."""

    @property
    def classes(self) -> tuple[str, ...] | None: ...

    @property
    def unlabelled(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def image(self, number: int) -> Encoded: ...

    def label(self, number: int) -> int: ...

    def labels(self) -> np.ndarray: ...

    def names(self) -> list[str]: ...


class StoredImages(Dataset):
    """Images of a store as (image, class), or as (index, image, class) in training.

    Args:
        store: where they are.
        transform: what is made of each.
        labelled: whether their classes are known; they are -1 otherwise.
        indexed: whether an image comes with its index.
    """

    def __init__(self, store: Store, transform: Callable, labelled: bool, indexed: bool = False) -> None:
        self.store, self.transform, self.labelled, self.indexed = store, transform, labelled, indexed
        self.classes: Sequence[str] = store.classes or () if labelled else ()
        self._left: np.ndarray | None = None  # numbers of the images that are left; None for all
        self._renumbered: np.ndarray | None = None  # numbers of the classes in another data set

    def __getitem__(self, index: int) -> Any:
        number = index if self._left is None else int(self._left[index])
        shown, label = show(self.store.image(number), self.transform), -1
        if self.labelled:
            label = self.store.label(number)
            label = label if self._renumbered is None or label < 0 else int(self._renumbered[label])
        return (index, shown, label) if self.indexed else (shown, label)

    def __len__(self) -> int:
        return len(self.store) if self._left is None else len(self._left)

    @property
    def targets(self) -> np.ndarray | tuple[()]:
        """Return the images' classes (N,); nothing where they are not known."""
        if not self.labelled:
            return ()
        labels = self.store.labels() if self._left is None else self.store.labels()[self._left]
        return labels if self._renumbered is None else self._renumbered[labels]

    def names(self) -> list[str]:
        """Return what the images are called."""
        names = self.store.names()
        return names if self._left is None else [names[number] for number in self._left]

    @property
    def fingerprint(self) -> str:
        """Return a hash of the images and their order."""
        left = b"" if self._left is None else self._left.tobytes()
        return sha256(self.store.fingerprint.encode() + left).hexdigest()

    def only(self, indexes: Sequence[int]) -> "StoredImages":
        """Return the same with some of its images, in the order of their indexes."""
        left = copy.copy(self)
        chosen = np.array(indexes, "int64")
        left._left = chosen if self._left is None else self._left[chosen]
        return left

    def with_classes(self, numbers: Sequence[int]) -> "StoredImages":
        """Return the same with other numbers for its classes."""
        renumbered = copy.copy(self)
        renumbered._renumbered = np.array(numbers, "int64")
        return renumbered


def stored_images(
    source: ImageSource, split: str, transform: Callable, indexed: bool = False, partly: bool = False
) -> StoredImages:
    """Open the `train` or `val` images of shards or of a table.

    Args:
        source: where they are.
        split: `train` or `val`.
        transform: what is made of each.
        indexed: whether an image comes with its index.
        partly: whether some may be without a label.
    """
    store = open_store(source, split)
    if not source.no_labels and (store.classes is None or (store.unlabelled and not partly)):
        told = "its images have no labels" if store.classes is None else f"{store.unlabelled} images have no label"
        raise UserError(f"{source.folder(split)}: {told}; add `no_labels`")
    return StoredImages(store, transform, not source.no_labels, indexed)


def open_store(source: ImageSource, split: str) -> Store:
    where: Path = source.folder(split)
    if source.dataset == "shards":
        return ShardedImages.found(where)
    from solo_hcsc.data.hugging_face import TableImages  # an optional package that takes seconds to import

    return TableImages(where, source.image_column, source.label_column)
