"""Clusters of embeddings, and how well they agree with labels.

Shapes: `N` images, `D` embedding size, `M_l` prototypes at level `l`, `C` classes.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from torch.utils.data import Dataset

from solo_hcsc.data.folders import files_and_labels, refuse_single_class, short_names, without
from solo_hcsc.data.images import Skipped
from solo_hcsc.data.label_hierarchy import LabelLevel, find_levels
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import on_one_line
from solo_hcsc.evaluation.features import FeatureSettings, Frozen, extract
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.hcsc.kmeans import kmeans, nearest
from solo_hcsc.hcsc.options import Options
from solo_hcsc.runs.encoders import RunTree, load_tree
from solo_hcsc.runs.results import describe_data
from solo_hcsc.solo102.datasets import one_split
from solo_hcsc.trees.purity import dendrogram_purity, leaf_purity, matched_accuracy

PAPER = Options(preset="paper")  # its k-means: from images drawn evenly, the best of several runs


@dataclass(frozen=True)
class Subject:
    """A checkpoint, and the images that it is looked at on, with labels or without."""

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
        cls, settings: FeatureSettings, source: ImageSource, split: str, label_hierarchy: Path | None
    ) -> "Subject":
        """Refuses images of one class, and a hierarchy that does not know all classes."""
        file, levels_of = find_levels(label_hierarchy, source.dataset)
        frozen = Frozen(settings, source.crop_size[0])
        dataset: Any = one_split(source, split)
        files = _files_below(source.folder(split), dataset) if source.in_folders else None
        tree = load_tree(frozen.encoder.checkpoint)
        if source.no_labels:
            description = describe_data(source, None, (), **{split: len(dataset)})
            return cls(frozen, tree, dataset, files, (), (), None, description)
        refuse_single_class(dataset, f"--{split}_dir")
        description = describe_data(source, len(dataset.classes), (), **{split: len(dataset)})
        names, levels = short_names(dataset.classes), levels_of(dataset.classes)
        return cls(frozen, tree, dataset, files, names, levels, file, description)

    @property
    def images(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @property
    def groups(self) -> list[int]:
        """How many groups of classes each further level of the labels has."""
        return [len(level.names) for level in self.levels[1:]]

    def embed(self, loading: Loading) -> "tuple[Subject, np.ndarray, np.ndarray, np.ndarray]":
        """Unit vectors (N, D) of the images, those in which the tree was made (N, D or 0), and labels (N,).

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

    def _without(self, skipped: Sequence[Skipped]) -> "Subject":
        gone = {one.index for one in skipped}
        if not gone or self.files is None:
            return self
        files = [file for index, file in enumerate(self.files) if index not in gone]
        counts = {name: len(files) for name in self.description if name in ("train_images", "val_images")}
        description = self.description | counts | {"unreadable": [on_one_line(one.path) for one in skipped]}
        left = without(self.dataset, skipped)
        return replace(self, dataset=left, files=files, description=description, skipped=skipped)


def _files_below(folder: Path, dataset: Dataset) -> list[str]:
    """The images' paths below a folder, in the data set's order."""
    return [on_one_line(os.path.relpath(file, folder)) for file in files_and_labels(dataset)[0]]


def labels_by_level(labels: np.ndarray, levels: Sequence[LabelLevel]) -> list[np.ndarray]:
    """The images' classes (N,), and their groups (N,) at each further level of a label hierarchy."""
    return [labels, *(level.groups[labels] for level in levels[1:])]


def find_kmeans(embeddings: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Each image's cluster (N,) of `k` that k-means finds in embeddings (N, D)."""
    print(f"k-means k={k}: clustering {len(embeddings)} embeddings of size {embeddings.shape[1]}", flush=True)
    return nearest(embeddings, kmeans(embeddings, k, PAPER, seed))[1]


def clusters_for(images: int) -> int:
    """How many clusters are looked for where no classes tell: 10, or fewer so that each has 10 images on average."""
    return max(2, min(10, images // 10))


def same_class_share(labels: np.ndarray) -> float:
    """The share of pairs of images that have the same of their labels (N,): what leaving out by chance would hit."""
    sizes = np.bincount(labels)
    return float((sizes * (sizes - 1)).sum() / (len(labels) * (len(labels) - 1)))


def score_kmeans(
    embeddings: np.ndarray, k: int, seed: int, labels: Sequence[np.ndarray]
) -> tuple[dict[str, Any], np.ndarray]:
    """The agreement of k-means with labels, and each image's cluster (N,)."""
    clusters = find_kmeans(embeddings, k, seed)
    name = f"k-means k={k}"
    return {"name": name, "kind": "k-means", "k": k, **agreement(clusters, labels, name)}, clusters


def clusters_by_level(tree: Hierarchy, embeddings: np.ndarray) -> list[np.ndarray]:
    """The clusters (N,) of unit vectors (N, D) at every level, bottom first."""
    return list(tree.assign(torch.from_numpy(embeddings)).numpy())


def score_tree(tree: Hierarchy, clusters: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """The agreement with labels of each level, in which the images have these clusters (N,)."""
    rows = []
    for number, (level, found) in enumerate(zip(tree.levels, clusters, strict=True), start=1):
        size = len(level.prototypes)
        name = f"hierarchy level {number} ({size} prototypes)"
        scores = agreement(found, labels, name)
        rows.append({"name": name, "kind": "hierarchy", "level": number, "prototypes": size, **scores})
    return rows


def score_whole_tree(
    clusters: Sequence[np.ndarray], levels: Sequence[dict[str, Any]], labels: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Purities of a tree, in whose `levels` (what `score_tree` found) the images have these clusters (N,).

    They are of the classes, and of each further level of the labels. `best_labels` has for each level of the tree the
    level of the labels, from 1, with the highest AMI.
    """
    dendrogram = [dendrogram_purity(clusters, groups) for groups in labels]
    leaves = [leaf_purity(clusters[0], groups) for groups in labels]
    return {
        "name": f"tree of {len(clusters)} levels",
        "kind": "tree",
        "dendrogram_purity": dendrogram[0],
        "leaf_purity": leaves[0],
        "dendrogram_purity_levels": dendrogram[1:],
        "leaf_purity_levels": leaves[1:],
        "best_labels": [int(np.argmax([row["ami"], *row["ami_levels"]])) + 1 for row in levels],
    }


def agreement(clusters: np.ndarray, labels: Sequence[np.ndarray], name: str) -> dict[str, Any]:
    """NMI and AMI of clusters (N,) with the classes, the first of `labels` (N,), and AMI with each further level.

    Accuracy too, unless there are more clusters than classes: those could only be wrong.
    """
    used, classes = len(np.unique(clusters)), len(np.unique(labels[0]))
    print(f"{name}: NMI and AMI of {used} clusters with {classes} classes", flush=True)
    accuracy = {"accuracy": matched_accuracy(clusters, labels[0])} if used <= classes else {}
    return {
        **accuracy,
        "clusters": used,
        "nmi": float(normalized_mutual_info_score(labels[0], clusters)),
        "ami": float(adjusted_mutual_info_score(labels[0], clusters)),
        "ami_levels": [float(adjusted_mutual_info_score(groups, clusters)) for groups in labels[1:]],
    }
