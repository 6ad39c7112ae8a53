"""Features of images: a row for each, computed batch by batch so that any number of images fits in memory.

Shapes: `N` images, `D` embedding size, `L` levels of a tree, `b` images of a batch.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.many_views import ManyViews
from solo_hcsc.encoders.adapter import Adapted, Adapter
from solo_hcsc.encoders.cache import Store, Writer, stamp_of
from solo_hcsc.encoders.images import ImageSet
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.table import Embeddings, Origin, far_below
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.progress import say, watch
from solo_hcsc.trees.neighbours import BLOCK

# Side of images from which convolutions on a CPU are faster with channels last: 2.1 times for EfficientNet-lite0
# at 160 pixels, 1.2 times for ResNet-18 at 224; at 32 it is 0.95 times.
CHANNELS_LAST_FROM = 64


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


class _Part(NamedTuple):
    """What makes one kind of vectors of an image: a network, or what another part makes, and a network on top."""

    name: str
    trunk: nn.Module
    head: nn.Module | None = None

    def __call__(self, images: torch.Tensor, seen: dict[int, torch.Tensor]) -> torch.Tensor:
        """Return vectors (b, D); `seen` has what the trunks of other parts gave for the same images."""
        if id(self.trunk) not in seen:
            seen[id(self.trunk)] = self.trunk(images)
        out = seen[id(self.trunk)]
        return (out if self.head is None else self.head(out)).float()

    def of_some(self, images: torch.Tensor, which: np.ndarray, seen: dict[int, torch.Tensor]) -> np.ndarray:
        """Return the vectors (w, D) of those images of a batch that are marked (b,)."""
        if which.all():
            return self(images, seen).cpu().numpy()
        return self(images[torch.from_numpy(which)], {}).cpu().numpy() if which.any() else np.empty((0, 0), "float32")

    @property
    def maker(self) -> str:
        """Return a text that another kind of vectors and other weights do not share."""
        digest = sha256()
        for module in (self.trunk, self.head):
            for name, value in ({} if module is None else module.state_dict()).items():
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
                digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return f"{self.name} {digest.hexdigest()}"


@dataclass(frozen=True)
class Embedder:
    """Computes the embeddings of images, any number of them.

    Args:
        origin: whose features of which images they are.
        images: the images.
        device: where it computes.
        projector: what makes the features of the encoder's, if that is asked for.
        tree: the run's tree, in which each image gets its place.
        cache: the folder of a cache (see `cache`), from which images come that were embedded before; None for none.
            Only files in a folder, or listed by path, are kept there.
        by_tree: whether the features are those of the encoder that the tree was made by, which spares a second pass.
    """

    origin: Origin
    images: ImageSet
    device: torch.device
    projector: nn.Module | None = None
    tree: TreeSide | None = None
    cache: Path | None = None
    by_tree: bool = False

    @property
    def encoder(self) -> Encoder:
        return self.origin.encoder

    def embeddings(self, loading: Loading) -> Embeddings:
        """Embed every image, and keep all in memory."""
        vectors: list[np.ndarray] = []
        filled = 0

        def keep(batch: np.ndarray) -> None:
            nonlocal filled
            if not vectors:  # written in place: joining batches would take the memory twice
                vectors.append(np.empty((len(self.images), batch.shape[1]), "float32"))
            vectors[0][filled : filled + len(batch)] = batch
            filled += len(batch)

        found = self.stream(loading, keep)
        return replace(found, vectors=vectors[0][:filled])

    def of_views(self, views: int, centre: bool = True) -> "Embedder":
        """Return what embeds several views of each image, one after the other in its row (see `ManyViews`).

        Args:
            views: random ones.
            centre: whether the centre comes first.
        """
        if not hasattr(self.images.dataset, "transform"):
            raise ArgumentError("`images` are tensors, of which no views can be made: give files or PIL images")
        dataset = copy.copy(self.images.dataset)
        dataset.transform = ManyViews(self.encoder.view, views, centre)
        encoder = replace(self.encoder, module=_EachView(self.encoder.module))
        return replace(self, origin=replace(self.origin, encoder=encoder), images=replace(self.images, dataset=dataset))

    def stream(self, loading: Loading, keep: Callable[[np.ndarray], None]) -> Embeddings:
        """Embed every image once, in order, and hand each batch of vectors (b, D) to `keep`.

        Returns:
            All of the embeddings but the vectors, which have shape (N, 0).
        """
        skipped: list[Skipped] = []
        labels: list[torch.Tensor] = []
        places: list[Places] = []
        for (vectors, *clustered), numbers in self._batches(loading, skipped):
            keep(vectors if self._adapter is None else self._adapter(torch.from_numpy(vectors)).numpy())
            labels.append(numbers)
            if self.tree is not None:
                places.append(_place(self.tree.hierarchy, torch.from_numpy(clustered[0])))
        seen = self.images.without(skipped).with_labels(labels)
        found = Embeddings(seen.paths, np.empty((len(seen.paths), 0), "float32"), seen.labels, seen.classes)
        found = replace(found, skipped=tuple(skipped), origin=self.origin)
        if not places:
            return found
        clusters, similarities = (np.concatenate(column) for column in zip(*places, strict=True))
        outliers = similarities[:, 0] < far_below(similarities[:, 0])
        return replace(found, clusters=clusters, similarities=similarities, outliers=outliers)

    def _batches(self, loading: Loading, skipped: list[Skipped]) -> Iterator[tuple[list[np.ndarray], torch.Tensor]]:
        """Yield each batch's vectors (b, D), with a tree also unit vectors (b, d) as it was made of, and labels."""
        if self.cache is not None and self.images.files is not None:
            yield from self._kept(self.cache, self.images.files, loading, skipped)
            return
        everything = np.arange(len(self.images))
        wanted = [np.ones(len(self.images), bool)] * len(self._parts)
        for _, made, labels in self._computed(everything, wanted, loading, skipped):
            yield [vectors for vectors, _ in made], labels

    def _kept(
        self, cache: Path, files: Sequence[str], loading: Loading, skipped: list[Skipped]
    ) -> Iterator[tuple[list[np.ndarray], torch.Tensor]]:
        """Embed what a cache does not have, and yield all images from there."""
        shown = self.images.dataset.transform  # type: ignore[attr-defined]
        folder = os.path.abspath(self.images.dataset.root)  # type: ignore[attr-defined]
        maker = f"{self.encoder.name} {self.encoder.settings} {type(shown).__name__} {shown}"
        stores = [Store(cache, f"{part.maker} {maker}", os.path.realpath(folder)) for part in self._parts]
        names = [os.path.abspath(file).removeprefix(os.path.join(folder, "")) for file in files]
        stamps = [stamp_of(file) for file in files]
        places = [store.find(names, stamps) for store in stores]
        missing = [place[:, 0] < 0 for place in places]
        left = np.flatnonzero(np.any(missing, axis=0))
        if len(left) < len(files):
            say(f"{len(files) - len(left)} of {len(files)} images are as they were embedded before ({cache})")
        if len(left):
            writers = [Writer(store) for store in stores]
            try:
                for rows, made, _ in self._computed(left, missing, loading, skipped):
                    for writer, (vectors, own) in zip(writers, made, strict=True):
                        # stamped before they were read: what changes meanwhile is embedded again the next time
                        chosen = rows[own].tolist()
                        writer.add([names[row] for row in chosen], [stamps[row] for row in chosen], vectors)
            finally:
                for writer in writers:
                    writer.flush()
            places = [store.find(names, stamps) for store in stores]
        there = np.delete(np.arange(len(files)), [one.index for one in skipped])
        for start in range(0, len(there), BLOCK):
            rows = there[start : start + BLOCK]
            found = [store.take(place[rows]) for store, place in zip(stores, places, strict=True)]
            yield found, torch.full((len(rows),), -1)

    @cached_property
    def _adapter(self) -> Adapter | None:
        """Return the encoder's adapter, which is applied to the frozen features: those are what a cache keeps."""
        module = self.encoder.module
        return module.adapter.eval().requires_grad_(False) if isinstance(module, Adapted) else None

    @cached_property
    def _parts(self) -> list[_Part]:
        """Return the parts that make the vectors, and if there is a tree those that it was made of.

        A tree whose encoder has the same weights as the other one makes no pass of its own.
        """
        whole = self.encoder.module
        encoder = (whole.encoder if isinstance(whole, Adapted) else whole).eval().to(self.device)
        projector = None if self.projector is None else self.projector.eval().to(self.device)
        own = _Part("backbone" if projector is None else "projector", encoder, projector)
        if self.tree is None:
            return [own]
        trunk, head = self.tree.side.eval().to(self.device).children()
        trunk = encoder if _same_weights(encoder, trunk) else trunk
        return [
            _Part("backbone", trunk) if self.by_tree else own,
            _Part("tree", trunk, nn.Sequential(head, _UnitLength())),
        ]

    @torch.no_grad()
    def _computed(
        self, numbers: np.ndarray, wanted: Sequence[np.ndarray], loading: Loading, skipped: list[Skipped]
    ) -> Iterator[tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]], torch.Tensor]]:
        """Embed the images of these numbers (n,), each by the parts that want it: (N,) for each part.

        Yields:
            The numbers (b,) of a batch's images; for each part its vectors (w, D) and which images they are of (b,);
            and the labels (b,).
        """
        dataset = self.images.dataset
        chosen = dataset if len(numbers) == len(self.images) else Subset(dataset, numbers.tolist())
        unread: list[Skipped] = []
        done = told = 0
        batches = loading.readable(chosen, unread, needs_one=len(numbers) == len(self.images))
        for images, labels in watch(batches, len(numbers), "embeddings"):
            skipped += [replace(one, index=int(numbers[one.index])) for one in unread[told:]]
            gone, told = {one.index for one in unread}, len(unread)
            places = [place for place in range(done, done + len(labels) + len(gone)) if place not in gone]
            done, rows = places[len(labels) - 1] + 1, numbers[places[: len(labels)]]
            large = self.device.type == "cpu" and images.ndim == 4 and images.shape[-1] >= CHANNELS_LAST_FROM
            order = torch.channels_last if large else torch.preserve_format  # the weights stay as they are
            images = images.to(self.device, non_blocking=True, memory_format=order)
            made = []
            seen: dict[int, torch.Tensor] = {}
            for part, want in zip(self._parts, wanted, strict=True):
                own = want[rows]
                made.append((part.of_some(images, own, seen), own))
                bad = ~np.isfinite(made[-1][0]).all(axis=1)
                if bad.any():
                    raise UserError(
                        f"{self.images.paths[rows[own][bad][0]]}: the encoder's output has NaN or infinite values; "
                        "take a checkpoint from before that"
                    )
            yield rows, made, labels
        skipped += [replace(one, index=int(numbers[one.index])) for one in unread[told:]]


class _EachView(nn.Module):
    """Takes several views of each image (b, V, 3, H, W) to their features, side by side (b, V * D)."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        views = images.flatten(0, 1)
        if views.device.type == "cpu" and views.shape[-1] >= CHANNELS_LAST_FROM:
            views = views.contiguous(memory_format=torch.channels_last)
        return self.encoder(views).float().reshape(len(images), -1)


class _UnitLength(nn.Module):
    """Brings vectors (b, D) to unit length."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return F.normalize(vectors.float(), dim=1)


def _same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two networks have the same weights under the same names."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


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
