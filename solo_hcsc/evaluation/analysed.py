"""A checkpoint, and the images that its clusters are compared on: for `clustering` and `analyse`.

Shapes: `N` images, `D` embedding size, `L` levels of a tree.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from solo_hcsc.data.folders import files_and_labels, refuse_single_class, short_names, without
from solo_hcsc.data.images import Skipped
from solo_hcsc.data.label_hierarchy import LabelLevel, find_levels
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.sets import one_split
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import on_one_line
from solo_hcsc.evaluation.features import Frozen, extract
from solo_hcsc.evaluation.labelled import Labelled
from solo_hcsc.runs.methods import RunTree
from solo_hcsc.runs.results import describe_data
from solo_hcsc.runs.run import Run


@dataclass(frozen=True)
class Analysed:
    """Hold a checkpoint and the images that it is analysed on, with labels or without."""

    frozen: Frozen
    tree: RunTree | None  # of an HCSC run that has clustered
    dataset: Dataset
    files: Sequence[str] | None  # the images' paths below the split's folder; None where images are no files
    classes: Sequence[str]  # none without labels
    levels: Sequence[LabelLevel]  # of the labels' hierarchy; none without one
    label_hierarchy: Path | None  # its file
    description: dict[str, Any]  # which images and how many, for the record
    skipped: Sequence[Skipped] = ()  # images that could not be read and are not among them

    @classmethod
    def load(
        cls,
        run: Run,
        source: ImageSource,
        split: str,
        label_hierarchy: Path | None = None,
        features: str = "backbone",
        accelerator: str = "auto",
    ) -> "Analysed":
        """Load them; refuse images of one class, and a hierarchy that does not know all classes."""
        file, levels_of = find_levels(label_hierarchy, source.dataset)
        frozen = Frozen(run, source.crop_size[0], features, accelerator)
        dataset: Any = one_split(source, split)
        files = _files_below(source.folder(split), dataset) if source.in_folders else None
        files = dataset.names() if source.is_stored else files
        tree = run.tree
        if source.no_labels:
            description = describe_data(source, None, (), **{split: len(dataset)})
            return cls(frozen, tree, dataset, files, (), (), None, description)
        refuse_single_class(dataset, f"`{split}_dir`")
        description = describe_data(source, len(dataset.classes), (), **{split: len(dataset)})
        names, levels = short_names(dataset.classes), levels_of(dataset.classes)
        return cls(frozen, tree, dataset, files, names, levels, file, description)

    @property
    def images(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @property
    def groups(self) -> list[int]:
        """Return how many groups of classes each further level of the labels has."""
        return [len(level.names) for level in self.levels[1:]]

    def embed(self, loading: Loading) -> "tuple[Analysed, np.ndarray, np.ndarray, np.ndarray]":
        """Return unit vectors (N, D) of the images, those in which the tree was made (N, D or 0), and labels (N,).

        Both in one pass: of many images, reading takes longest. The first value is the subject with the images that
        could be read.
        """
        frozen, tree = self.frozen, self.tree
        parts = [frozen.module]
        if tree is not None:
            parts.append(tree.side.eval().to(frozen.device))

        def unit_vectors(images: torch.Tensor) -> torch.Tensor:
            return torch.cat([F.normalize(part(images).float(), dim=1) for part in parts], dim=1)

        found = extract(unit_vectors, self.dataset, loading, "embeddings", frozen.device)
        of_tree = 0 if tree is None else tree.hierarchy.levels[0].prototypes.size(1)
        features, clustered = found.x.split([found.x.size(1) - of_tree, of_tree], dim=1)
        return (
            self._without(found.skipped),
            features.contiguous().numpy(),
            clustered.contiguous().numpy(),
            found.y.numpy(),
        )

    def embed_labelled(self, loading: Loading) -> "tuple[Analysed, Labelled, np.ndarray | None]":
        """Return the same with the images that could be read, their vectors and labels, and clusters (N, L)."""
        subject, vectors, clustered, labels = self.embed(loading)
        clusters = None if self.tree is None else self.tree.hierarchy.assign(clustered).numpy()
        return subject, Labelled(vectors, labels, len(self.classes)), clusters

    def _without(self, skipped: Sequence[Skipped]) -> "Analysed":
        gone = {one.index for one in skipped}
        if not gone or self.files is None:
            return self
        files = [file for index, file in enumerate(self.files) if index not in gone]
        counts = {name: len(files) for name in self.description if name in ("train_images", "val_images")}
        description = self.description | counts | {"unreadable": [on_one_line(one.path) for one in skipped]}
        left = without(self.dataset, skipped)
        return replace(self, dataset=left, files=files, description=description, skipped=skipped)


def _files_below(folder: Path, dataset: Dataset) -> list[str]:
    """Return the images' paths below a folder, in the data set's order."""
    return [on_one_line(os.path.relpath(file, folder)) for file in files_and_labels(dataset)[0]]
