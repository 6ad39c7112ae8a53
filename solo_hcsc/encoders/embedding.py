"""Features of images: a row for each, computed batch by batch so that any number of images fits in memory.

Shapes: `N` images, `D` embedding size, `L` levels of a tree, `b` images of a batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.images import ImageSet
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.table import far_below, read, save
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.progress import watch
from solo_hcsc.tables import data_frame
from solo_hcsc.trees.neighbours import BLOCK

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Origin:
    """Whose features of which images embeddings are."""

    encoder: Encoder
    features: str  # backbone or projector
    source: ImageSource | None = None  # None for images that a caller gave one by one
    split: str = "train"  # of the source


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Features of N images, in the order of their paths: what `embed` returns.

    Args:
        paths: N paths below the folder that was read; `train/0`, `train/1`, ... for images that are no files.
        vectors: (N, D) float32, as the encoder or the projector gives them, not at unit length.
        labels: (N,) int64, each image's class by its number in `classes`, -1 for none; None without labels.
        classes: the classes' names.
        clusters: (N, L) int64, the cluster of each image at every level of a run's tree, the bottom level first; None
            without a tree, like the next two.
        similarities: (N, L) float32, the cosine of an image and its prototype at every level.
        outliers: (N,) bool, whether an image is much less similar to its bottom prototype than the others are to
            theirs (see `far_below`).
        skipped: images that could not be read and are not among the N.
        origin: whose features of which images they are; None for others' vectors.

    Example:
        >>> found = Embeddings(["a.jpg", "b.jpg"], np.eye(2, dtype="float32"), np.array([0, -1]), ("cat",))
        >>> found.names, len(found[[1]])
        (['cat', None], 1)
    """

    paths: list[str]
    vectors: np.ndarray
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    clusters: np.ndarray | None = None
    similarities: np.ndarray | None = None
    outliers: np.ndarray | None = None
    skipped: tuple[Skipped, ...] = ()
    origin: "Origin | None" = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Any) -> "Embeddings":
        """Return the rows of an array of indexes, a mask or a slice."""
        places = np.arange(len(self))[rows]
        if places.ndim != 1:
            raise ArgumentError("`rows`: give an array of indexes, a mask or a slice")
        chosen = {name: value[places] for name, value in self._columns().items()}
        return replace(self, paths=[self.paths[place] for place in places], **chosen)

    def _columns(self) -> dict[str, Any]:
        """Return the arrays that there are."""
        names = ("vectors", "labels", "clusters", "similarities", "outliers")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def names(self) -> list[str | None] | None:
        """Return the name of each image's class, None for an image without one; None without labels."""
        return None if self.labels is None else self.classes_of(self.labels)

    def classes_of(self, labels: np.ndarray) -> list[str | None]:
        """Return the names of some labels, None for -1."""
        return [self.classes[label] if label >= 0 else None for label in labels.tolist()]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a table with a row for each image, with the columns that `save` writes."""
        columns: dict[str, Any] = {"path": self.paths}
        if self.labels is not None:
            columns["label"] = self.names
        columns["embedding"] = list(self.vectors[:])
        if self.clusters is not None and self.similarities is not None:
            for level in range(self.clusters.shape[1]):
                columns[f"cluster_{level + 1}"] = self.clusters[:, level]
                columns[f"similarity_{level + 1}"] = self.similarities[:, level]
            columns["outlier"] = self.outliers
        return data_frame(columns)

    def save(self, folder: str | Path) -> None:
        """Write `embeddings.parquet`, `embeddings.npy` and `embeddings.json`, as the command `embed` does."""

        def compute(keep: Callable[[np.ndarray], None]) -> Embeddings:
            for start in range(0, len(self), BLOCK):
                keep(self.vectors[start : start + BLOCK])
            return self

        save(Path(folder), compute, len(self))

    @classmethod
    def load(cls, folder: str | Path) -> "Embeddings":
        """Read what `save` or the command `embed` wrote; without the neighbours and the map."""
        return cls(**read(Path(folder)))


class TreeSide(Protocol):
    """A run's tree, with the module whose embeddings it was made of."""

    @property
    def side(self) -> nn.Module: ...

    @property
    def hierarchy(self) -> Hierarchy: ...


class Places(NamedTuple):
    """Where images are in a tree."""

    clusters: np.ndarray  # (b, L)
    similarities: np.ndarray  # (b, L)


@dataclass(frozen=True)
class Embedder:
    """Computes the embeddings of images, any number of them.

    Args:
        origin: whose features of which images they are.
        images: the images.
        device: where it computes.
        projector: what makes the features of the encoder's, if that is asked for.
        tree: the run's tree, in which each image gets its place.
    """

    origin: Origin
    images: ImageSet
    device: torch.device
    projector: nn.Module | None = None
    tree: TreeSide | None = None

    @property
    def encoder(self) -> Encoder:
        return self.origin.encoder

    def embeddings(self, loading: Loading) -> Embeddings:
        """Embed every image, and keep all in memory."""
        parts: list[np.ndarray] = []
        found = self.stream(loading, parts.append)
        return replace(found, vectors=np.concatenate(parts))

    def stream(self, loading: Loading, keep: Callable[[np.ndarray], None]) -> Embeddings:
        """Embed every image once, in order, and hand each batch of vectors (b, D) to `keep`.

        Returns:
            All of the embeddings but the vectors, which have shape (N, 0).
        """
        skipped: list[Skipped] = []
        labels: list[torch.Tensor] = []
        places: list[Places] = []
        for vectors, clustered, numbers in self._batches(loading, skipped):
            keep(vectors)
            labels.append(numbers)
            if self.tree is not None and clustered is not None:
                places.append(_place(self.tree.hierarchy, clustered))
        seen = self.images.without(skipped).with_labels(labels)
        found = Embeddings(seen.paths, np.empty((len(seen.paths), 0), "float32"), seen.labels, seen.classes)
        found = replace(found, skipped=tuple(skipped), origin=self.origin)
        if not places:
            return found
        clusters, similarities = (np.concatenate(column) for column in zip(*places, strict=True))
        outliers = similarities[:, 0] < far_below(similarities[:, 0])
        return replace(found, clusters=clusters, similarities=similarities, outliers=outliers)

    @torch.no_grad()
    def _batches(
        self, loading: Loading, skipped: list[Skipped]
    ) -> Iterator[tuple[np.ndarray, torch.Tensor | None, torch.Tensor]]:
        """Yield each batch's vectors (b, D), the unit vectors (b, d) that the tree is made of, and labels (b,)."""
        module = self.encoder.module
        module = (module if self.projector is None else nn.Sequential(module, self.projector)).eval().to(self.device)
        side = None if self.tree is None else self.tree.side.eval().to(self.device)
        done = 0
        for images, labels in watch(loading.readable(self.images.dataset, skipped), len(self.images), "embeddings"):
            images = images.to(self.device, non_blocking=True)
            out = module(images).float().cpu()
            clustered = None if side is None else F.normalize(side(images).float(), dim=1).cpu()
            bad = ~torch.cat([out, *([] if clustered is None else [clustered])], dim=1).isfinite().all(dim=1)
            if bad.any():
                path = self.images.without(skipped).paths[done + int(bad.nonzero()[0])]
                raise UserError(
                    f"{path}: the encoder's output has NaN or infinite values; take a checkpoint from before that"
                )
            yield out.numpy(), clustered, labels
            done += len(out)


def _place(tree: Hierarchy, vectors: torch.Tensor) -> Places:
    """Find where unit vectors (b, D) are in a tree."""
    clusters = tree.assign(vectors)  # (L, b)
    prototypes = [level.prototypes[own] for level, own in zip(tree.levels, clusters, strict=True)]
    similarities = torch.stack([(vectors * own).sum(dim=1) for own in prototypes])
    return Places(clusters.T.numpy(), similarities.T.numpy())


def choose_device(accelerator: str) -> torch.device:
    """Return the device that `auto`, `cpu` or `gpu` means; refuse a GPU that is not there."""
    gpu = torch.cuda.is_available()
    if accelerator == "gpu" and not gpu:
        raise UserError("`accelerator` gpu: there is no GPU here; use `accelerator` cpu")
    return torch.device("cuda" if gpu and accelerator != "cpu" else "cpu")
