"""What a run makes of images: a row for each, computed batch by batch so that any number of images fits in memory.

Shapes: `N` images, `D` embedding size, `L` levels of an HCSC run's tree, `b` images of a batch.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from solo_hcsc.cli.flags import check_frozen, embed_parser
from solo_hcsc.data.folders import BareImages, class_of, labels_of, tell_listing, without
from solo_hcsc.data.images import Skipped
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.sets import one_split
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.encoders.checkpoints import find_checkpoint
from solo_hcsc.encoders.recorded import recorded_flags
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.evaluation.features import FeatureSettings, Frozen
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.progress import watch
from solo_hcsc.runs.encoders import RunTree, check_arguments, load_tree
from solo_hcsc.runs.images import choose_labels, embedded_images
from solo_hcsc.settings import Settings, take


@dataclass(frozen=True, eq=False)
class Embeddings:
    """What a run makes of N images, in the order of their paths: what `embed` returns.

    Args:
        paths: N paths below the folder that was read; `train/0`, `train/1`, ... for a data set that is no files.
        labels: N names of classes, None for an image that is in no class folder; None without labels.
        embeddings: (N, D) float32, as the encoder or the projector gives them, not at unit length.
        clusters: (N, L) int64, the prototype of each image at every level of an HCSC run's tree, the bottom level
            first; None without a tree, like the next two.
        similarities: (N, L) float32, the cosine of an image and its prototype at every level.
        outliers: (N,) bool, whether an image is much less similar to its bottom prototype than the others are to
            theirs (see `far_below`).
    """

    paths: list[str]
    labels: list[str | None] | None
    embeddings: np.ndarray
    clusters: np.ndarray | None = None
    similarities: np.ndarray | None = None
    outliers: np.ndarray | None = None


def embed(
    run: str | Path,
    folder: str | Path | None = None,
    *,
    split: str = "train",
    no_labels: bool = False,
    features: str = "backbone",
    encoder: str | None = None,
    encoder_args: Sequence[str] = (),
    crop_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_size: int = 128,
    num_workers: int = 0,
    accelerator: str = "auto",
    skip_unreadable: bool = False,
) -> Embeddings:
    """What a run makes of the images in a folder, as `solo-hcsc embed` writes it.

    Args:
        run: a checkpoint of any method, or a folder whose newest one is taken.
        folder: the images, in class folders or not; the run's own images if not given.
        split: `train` or `val` of the run's own images.
        no_labels: whether class folders are no labels.
        features: `backbone`, the encoder's, or `projector`, what the method's projector makes of them.
        encoder: the architecture, where no args.json beside the checkpoint tells it.
        encoder_args: settings of a `timm/NAME`, each as `key=value`, where no args.json tells them.
        crop_size: side of the images in pixels; as in pretraining if not given.
        mean: of each colour, by which images are normalised; as in pretraining if not given, or ImageNet's.
        std: of each colour; the same.
        batch_size: images per forward pass.
        num_workers: processes that load images.
        accelerator: `auto`, `cpu` or `gpu`.
        skip_unreadable: leave out images that cannot be read, which else end it with an error.

    Returns:
        A row for each image, all in memory; the command writes any number of them to disk.

    Example:
        >>> found = embed("trained_models/hcsc", "photos")  # doctest: +SKIP
        >>> found.paths[0], found.embeddings.shape, found.clusters.shape  # doctest: +SKIP
        ('cats/1.jpg', (2000, 512), (2000, 3))
    """
    given: dict[str, Any] = {"split": split, "features": features, "encoder": encoder, "crop_size": crop_size}
    given |= {"batch_size": batch_size, "num_workers": num_workers, "accelerator": accelerator}
    several = {"encoder_args": encoder_args, "mean": mean, "std": std}
    check_arguments(run=run, folder=folder, **given, **several)
    given["data_dir"] = folder
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    for name, values in several.items():
        words += [f"--{name}", *map(str, values)] if values is not None and len(values) else []
    words += ["--no_labels"] * no_labels + ["--skip_unreadable"] * skip_unreadable
    flags = embed_parser().parse([str(run), *words])
    embedder = Embedder.load(flags)
    parts: list[np.ndarray] = []
    embedder, places = embedder.run_through(take(Loading, flags), parts.append)
    return embedder.described(np.concatenate(parts), places)


@dataclass(frozen=True)
class Places:
    """Where images are in a tree."""

    clusters: np.ndarray  # (N, L)
    similarities: np.ndarray  # (N, L)


@dataclass(frozen=True)
class Embedder:
    """A run, and the images that it embeds."""

    source: ImageSource
    split: str
    frozen: Frozen
    tree: RunTree | None  # of an HCSC run that has clustered
    dataset: Dataset
    skipped: tuple[Skipped, ...] = ()  # images that could not be read and are not in the data set

    @classmethod
    def load(cls, flags: Settings) -> "Embedder":
        """As the flags of `embed_parser` say; all images below a folder, in a class folder or not."""
        check_frozen(flags)
        trained = recorded_flags(find_checkpoint(flags.pretrained_feature_extractor))
        source = choose_labels(embedded_images(flags, trained), flags, trained)
        frozen = Frozen(take(FeatureSettings, flags, method=None), source.crop_size[0])
        tree = load_tree(frozen.encoder.checkpoint)
        if tree is not None:
            import_faiss("an HCSC run finds clusters")
        if source.in_folders:
            dataset: Dataset = BareImages(source.folder(flags.split), evaluation_transforms(source)[1])
            tell_listing(dataset)  # type: ignore[arg-type]
        else:
            dataset = one_split(source, flags.split)
        return cls(source, flags.split, frozen, tree, dataset)

    def why_no_tree(self) -> str:
        """Say why a run's `tree` is None."""
        encoder = self.frozen.encoder
        if encoder.trained_with.get("method") == "hcsc":
            return f"{encoder.checkpoint} carries no tree: it is from before the run's first clustering"
        return f"{encoder.checkpoint} carries no tree: only runs of hcsc do"

    @property
    def images(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def paths(self) -> list[str]:
        """Of every image, below the folder; numbers where images are no files."""
        if not isinstance(self.dataset, BareImages):
            return [f"{self.split}/{number}" for number in range(self.images)]
        return [on_one_line(os.path.relpath(file, self.dataset.root)) for file in self.dataset.images]

    def labels(self) -> list[str | None] | None:
        """The name of every image's class, without reading one; None without labels."""
        dataset: Any = self.dataset
        if self.source.no_labels:
            return None
        if not isinstance(dataset, BareImages):
            return [str(dataset.classes[number]) for number in labels_of(dataset)]
        names = (class_of(file, dataset.root, self.source.class_level) for file in dataset.images)
        return [sys.intern(on_one_line(name)) if name else None for name in names]

    def run_through(self, loading: Loading, keep: Callable[[np.ndarray], None]) -> "tuple[Embedder, Places | None]":
        """Embed every image once, in order, and hand each batch of embeddings (b, D) to `keep`.

        Returns:
            This embedder with the images that could be read, and their places in the tree.
        """
        found: list[Places] = []
        skipped: list[Skipped] = []
        hierarchy = None if self.tree is None else self.tree.hierarchy
        for embeddings, clustered in self._batches(loading, skipped):
            keep(embeddings)
            if hierarchy is not None and clustered is not None:
                found.append(_place(hierarchy, clustered))
        embedded = replace(self, dataset=without(self.dataset, skipped), skipped=tuple(skipped)) if skipped else self
        if not found:
            return embedded, None
        columns = ([one.clusters for one in found], [one.similarities for one in found])
        return embedded, Places(*map(np.concatenate, columns))

    @torch.no_grad()
    def _batches(self, loading: Loading, skipped: list[Skipped]) -> Iterator[tuple[np.ndarray, torch.Tensor | None]]:
        """Each batch's embeddings (b, D), and the unit vectors (b, d) that the tree is made of."""
        device, done = self.frozen.device, 0
        side = None if self.tree is None else self.tree.side.eval().to(device)
        for images, _ in watch(loading.readable(self.dataset, skipped), self.images, "embeddings"):
            images = images.to(device, non_blocking=True)
            out = self.frozen.module(images).float().cpu()
            clustered = None if side is None else F.normalize(side(images).float(), dim=1).cpu()
            bad = ~torch.cat([out, *([] if clustered is None else [clustered])], dim=1).isfinite().all(dim=1)
            if bad.any():
                paths = replace(self, dataset=without(self.dataset, skipped)).paths()
                raise UserError(
                    f"{paths[done + int(bad.nonzero()[0])]}: the encoder's output has NaN or infinite values; "
                    "take a checkpoint from before that"
                )
            yield out.numpy(), clustered
            done += len(out)

    def described(self, embeddings: Any, places: Places | None) -> Embeddings:
        """Embeddings (N, D), an array or what reads like one, with all that is known of their images."""
        paths, labels = self.paths(), self.labels()
        if places is None:
            return Embeddings(paths, labels, embeddings)
        outliers = places.similarities[:, 0] < far_below(places.similarities[:, 0])
        return Embeddings(paths, labels, embeddings, places.clusters, places.similarities, outliers)


def _place(tree: Hierarchy, embeddings: torch.Tensor) -> Places:
    """Where unit vectors (b, D) are in a tree."""
    clusters = tree.assign(embeddings)  # (L, b)
    prototypes = [level.prototypes[own] for level, own in zip(tree.levels, clusters, strict=True)]
    similarities = torch.stack([(embeddings * own).sum(dim=1) for own in prototypes])
    return Places(clusters.T.numpy(), similarities.T.numpy())


def far_below(values: np.ndarray) -> float:
    """Tukey's lower fence of values (N,): 1.5 interquartile ranges below the first quartile.

    Example:
        >>> far_below(np.array([0.5, 0.6, 0.7, 0.8, 0.9]))
        0.3
    """
    first, third = np.percentile(values.astype(float), [25, 75])
    return round(float(first - 1.5 * (third - first)), 6)
