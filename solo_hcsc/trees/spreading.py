"""From few labels to all images: by their neighbours, a linear classifier and the clusters of a tree.

Shapes: `N` images, `D` embedding size, `L` levels of a tree, `m` labelled images, `C` classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from solo_hcsc.cells import as_cell
from solo_hcsc.errors import ArgumentError
from solo_hcsc.files import written_together
from solo_hcsc.hcsc.options import levels_for
from solo_hcsc.tables import data_frame
from solo_hcsc.trees.handover import Chosen, Images, hand_over
from solo_hcsc.trees.pool import as_mapping, as_pool
from solo_hcsc.trees.votes import knn_votes
from solo_hcsc.typed import typed

if TYPE_CHECKING:
    import pandas

NAMES = ("labels.csv", "labels.parquet")


@dataclass(frozen=True, eq=False)
class Spread:
    """Hold the labels that few were spread to.

    Args:
        classes: the names or numbers of the C classes, sorted.
        shares: (N, C) how much of each image belongs to each class; rows sum to 1.
        given: (N,) bool, whether an image's label was given.
        paths: N names; None without names.
        abstain: the share of the other images, those with the lowest confidence, that have no label.
    """

    classes: tuple[Any, ...]
    shares: np.ndarray
    given: np.ndarray
    paths: tuple[str, ...] | None = None
    abstain: float = 0.0

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        return f"<Spread of {self.given.sum()} labels to {len(self)} images, {len(self.classes)} classes>"

    @cached_property
    def confidences(self) -> np.ndarray:
        """Return (N,) the share of the likeliest class."""
        return self.shares.max(axis=1)

    @cached_property
    def labels(self) -> np.ndarray:
        """Return (N,) the likeliest class of each image; None where the confidence is too low."""
        found = np.array([*self.classes, None], object)[self.shares.argmax(axis=1)]
        order = np.argsort(np.where(self.given, np.inf, self.confidences), kind="stable")
        found[order[: round(self.abstain * int((~self.given).sum()))]] = None
        return found

    def columns(self) -> dict[str, Any]:
        """Return path (the number where there is no path), label, confidence, and whether the label was given."""
        paths = [str(number) for number in range(len(self))] if self.paths is None else list(self.paths)
        labels = [None if label is None else str(label) for label in self.labels]
        return {"path": paths, "label": labels, "confidence": self.confidences.round(4), "given": self.given}

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the columns as a table of pandas."""
        return data_frame(self.columns())

    def chosen(self) -> list[Chosen]:
        """Return all images with their labels, to hand over."""
        columns = self.columns()
        columns["confidence"], columns["given"] = columns["confidence"].tolist(), columns["given"].tolist()
        rows = zip(*columns.values(), strict=True)
        return [Chosen(path, label, None if label is None else score, given) for path, label, score, given in rows]

    def save(self, out: str | Path, format: str = "csv", images: Images = None) -> Path:
        """Write labels.csv, which spreadsheets can open, and labels.parquet into a folder; or what `hand_over` writes.

        Args:
            out: the folder, or for other formats the file or folder.
            format: `csv`, or one of `hand_over`.
            images: the folder that paths are below, which the other formats need.
        """
        if format != "csv":
            return hand_over(self, out, format, images)
        import pyarrow as pa
        from pyarrow import csv, parquet

        rows = pa.table(self.columns(), pa.schema([("path", pa.string()), ("label", pa.string()),
                                                   ("confidence", pa.float64()), ("given", pa.bool_())]))  # fmt: skip
        cells = {name: [one and as_cell(one) for one in rows[name].to_pylist()] for name in ("path", "label")}
        with written_together(Path(out), NAMES) as (text, binary):
            csv.write_csv(pa.table(cells | {name: rows[name] for name in ("confidence", "given")}, rows.schema), text)
            parquet.write_table(rows, binary)
        return Path(out)


@typed
def spread(images: Any, labels: Mapping[Any, Any], clusters: Any = None, abstain: float = 0.0) -> Spread:
    """Label all images from a few whose classes are known.

    The labelled images say it of each image alone: weighted KNN and a linear classifier, in equal parts. Half of an
    image's answer is this, half what is so said of the images in its clusters, on average over the levels of a tree.

    Args:
        images: a `Tree`, or (N, D) features of any encoder: an array, a tensor or `Embeddings`. The mean of all is
            taken off first.
        labels: the class of each labelled image, by its number or path; of at least two classes.
        clusters: (N, L) the cluster of every image at each level of another tree; if not given, those of the `Tree`,
            or of one that is made of the features.
        abstain: the share of the other images, those with the lowest confidence, that get no label.

    Returns:
        Labels and confidences. A labelled image has its class with confidence 1.

    Example:
        >>> ring = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
        >>> found = spread(ring, {0: "east", 2: "north"}, clusters=np.array([[0], [0], [1], [1]]))
        >>> found.labels.tolist(), found.confidences.round(2).tolist()
        (['east', 'east', 'north', 'north'], [1.0, 0.99, 1.0, 0.99])
    """
    pool = as_pool(images, clusters)
    known = np.array(pool.numbers(as_mapping(labels, "labels"), "labels"), "int64")
    if not len(known):
        raise ArgumentError("`labels` are none: give {path or number of an image: label} of at least two classes")
    try:
        classes, numbers = np.unique(np.array([*labels.values()]), return_inverse=True)
    except TypeError:
        raise ArgumentError("`labels` are of several types: give names, or numbers") from None
    if len(classes) < 2:
        raise ArgumentError(f"`labels` are all {classes[0].item()!r}: give at least two classes")
    if not 0 <= abstain <= 1:
        raise ArgumentError(f"`abstain` is {abstain!r}: give a share from 0 to 1")
    tree = pool.tree
    sizes = levels_for(len(pool)) if tree is None else tree.level_sizes
    shares = spread_shares(pool.points, known, numbers, len(classes), pool.levels(sizes))
    given = np.isin(np.arange(len(pool)), known)
    return Spread(tuple(classes.tolist()), shares, given, pool.paths, abstain)


def spread_shares(
    points: np.ndarray, known: np.ndarray, classes: np.ndarray, count: int, clusters: np.ndarray
) -> np.ndarray:
    """Return how much (N, C) of each image belongs to each class; rows sum to 1.

    Args:
        points: (N, D) unit vectors.
        known: (m,) the numbers of labelled images.
        classes: (m,) their classes, from 0.
        count: C.
        clusters: (N, L).
    """
    own = (knn_shares(points, points[known], classes, count) + linear_shares(points, points[known], classes, count)) / 2
    own[known] = np.eye(count)[classes]
    found = own / 2 + sum(_means(level, own) for level in clusters.T) / (2 * clusters.shape[1])
    found[known] = own[known]
    return found


def knn_shares(points: np.ndarray, known: np.ndarray, classes: np.ndarray, count: int, k: int = 20) -> np.ndarray:
    """Return the votes (n, C) for vectors (n, D) by weighted KNN from `known` (m, D); each row sums to 1."""
    bank, labels, queries = map(torch.from_numpy, (known, np.asarray(classes, "int64"), points))
    votes = torch.cat([one for (one,) in knn_votes(bank, labels, queries, [k], count)]).double().numpy()
    return votes / votes.sum(axis=1, keepdims=True)


def linear_shares(points: np.ndarray, known: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Return the probabilities (n, C) for unit vectors (n, D) by a logistic regression on `known` (m, D)."""
    shares = np.zeros((len(points), count))
    if (classes == classes[0]).all():
        shares[:, classes[0]] = 1
        return shares
    fitted = LogisticRegression(C=100, max_iter=1000).fit(known, classes)
    shares[:, fitted.classes_] = fitted.predict_proba(points)
    return shares


def accuracy(shares: np.ndarray, classes: np.ndarray, coverage: float = 1.0) -> float:
    """Return the accuracy in percent among the surest images: a `coverage` of all, by the largest of their shares.

    Example:
        >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]), coverage=0.5)
        100.0
    """
    surest = np.argsort(-shares.max(axis=1), kind="stable")[: max(1, round(coverage * len(shares)))]
    return float(100 * (shares[surest].argmax(axis=1) == classes[surest]).mean())


def compare_with_truth(
    result: Spread, vectors: np.ndarray, truth: Sequence[Any] | None
) -> tuple[int, dict[str, tuple[float, float]]]:
    """Compare with the true classes of the images without a given label.

    Args:
        result: the labels that were spread.
        vectors: (N, D).
        truth: N names of classes, None for an unknown one.

    Returns:
        How many such images there are, and the accuracy in percent, on all of them and on the surest half, of `spread`
        and of KNN alone; nothing where the given labels are not such names.
    """
    if truth is None or not {*result.classes} <= {*truth}:
        return 0, {}
    numbers = {name: number for number, name in enumerate(result.classes)}
    right = np.array([numbers.get(name, -1) for name in truth])
    known = np.flatnonzero(result.given)
    others = np.flatnonzero(~result.given & np.array([name is not None for name in truth]))
    if not len(others):
        return 0, {}
    classes = result.shares[known].argmax(axis=1)
    votes = knn_shares(vectors[others], vectors[known], classes, len(result.classes))
    ways = {"spread": result.shares[others], "knn": votes}
    right = right[others]
    return len(others), {way: (accuracy(own, right), accuracy(own, right, 0.5)) for way, own in ways.items()}


def _means(clusters: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the mean share (N, C) in each image's cluster."""
    sums = np.zeros((clusters.max() + 1, shares.shape[1]))
    np.add.at(sums, clusters, shares)
    return (sums / np.maximum(np.bincount(clusters), 1)[:, None])[clusters]
