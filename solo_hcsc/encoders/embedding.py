"""Features of images: a row for each, computed batch by batch so that any number of images fits in memory.

Shapes: `N` images, `D` embedding size, `L` levels of a tree, `b` images of a batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders.images import ImageSet
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.table import Embeddings, Origin, far_below
from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.progress import watch

if TYPE_CHECKING:
    pass


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
    clusters = tree.assign(vectors)  # (b, L)
    prototypes = [level.prototypes[own] for level, own in zip(tree.levels, clusters.T, strict=True)]
    similarities = torch.stack([(vectors * own).sum(dim=1) for own in prototypes], dim=1)
    return Places(clusters.numpy(), similarities.numpy())


def choose_device(accelerator: str) -> torch.device:
    """Return the device that `auto`, `cpu` or `gpu` means; refuse a GPU that is not there."""
    gpu = torch.cuda.is_available()
    if accelerator == "gpu" and not gpu:
        raise UserError("`accelerator` gpu: there is no GPU here; use `accelerator` cpu")
    return torch.device("cuda" if gpu and accelerator != "cpu" else "cpu")
