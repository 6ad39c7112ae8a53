"""Which images to keep: as many from every part of a tree, without duplicates, outliers and what is no picture.

The number to keep is split evenly from the root of a tree down to its bottom clusters (Vo et al., TMLR 2024,
arXiv 2405.15613). Shapes: `N` images, `D` features, `L` levels of a tree, the bottom first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from solo_hcsc.cells import as_cell
from solo_hcsc.errors import ArgumentError, on_one_line
from solo_hcsc.files import written_together
from solo_hcsc.hcsc.vectors import as_clusters, as_unit_vectors
from solo_hcsc.tables import data_frame, table
from solo_hcsc.trees.balancing import down_the_tree, effective_clusters
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.duplicates import Duplicates
from solo_hcsc.trees.handover import Chosen, Images, hand_over
from solo_hcsc.trees.names import LEAF_WAYS, check_list_name
from solo_hcsc.trees.neighbours import nearest_others
from solo_hcsc.trees.outliers import find_outliers
from solo_hcsc.trees.pool import centred
from solo_hcsc.trees.stored import stored
from solo_hcsc.typed import typed

if TYPE_CHECKING:
    import pandas

SAME = 0.95  # the cosine, less the mean of all images, from which two count as the same where no pixels are compared
FAR = 3.0  # interquartile ranges above the third quartile: Tukey's outer fence, which spares rare kinds of images
NEIGHBOURS = 10  # of each image that are compared with it
KEPT, ENOUGH, OUTLIER, COPY = "kept", "its cluster has enough", "outlier", "duplicate of {}"
UNREADABLE = "cannot be read"


@dataclass(frozen=True)
class Balance:
    """How even images are over a tree.

    Args:
        images: how many.
        duplicates: how many of them show the same as another one of them.
        effective: for each level, how many clusters of equal size would be as mixed.
        largest: for each level, the share of the images that is in the largest tenth of its clusters.
    """

    images: int
    duplicates: int
    effective: tuple[float, ...]
    largest: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Curated:
    """A choice of images, with the reason for each that is kept or left out.

    Args:
        kept: their numbers, rising.
        reasons: N texts: `kept`, or why not.
        clusters: (N, L) the cluster of each image in the tree.
        same_as: (N,) the number of the image that one is a duplicate of, -1 for none.
        before: how even all images are.
        after: how even those are that are kept.
        paths: N names; None without names.
        unreadable: paths of images without features, since they cannot be read.
    """

    kept: np.ndarray
    reasons: tuple[str, ...]
    clusters: np.ndarray
    same_as: np.ndarray
    before: Balance
    after: Balance
    paths: tuple[str, ...] | None = None
    unreadable: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self.kept)

    @cached_property
    def names(self) -> list[str]:
        """Return the path of each of the N images, its number where there are no paths."""
        return [str(number) for number in range(len(self.reasons))] if self.paths is None else list(self.paths)

    def columns(self) -> dict[str, Any]:
        """Return for each image its path, whether it is kept, why, and its cluster at each level, -1 for none."""
        more = len(self.unreadable)
        kept = np.isin(np.arange(len(self.reasons) + more), self.kept)
        reasons = [*self.reasons, *[UNREADABLE] * more]
        clusters = np.pad(self.clusters, ((0, more), (0, 0)), constant_values=-1)
        levels = {f"cluster_{level + 1}": column for level, column in enumerate(clusters.T)}
        return {"path": [*self.names, *self.unreadable], "kept": kept, "reason": reasons, **levels}

    def counts(self) -> dict[str, int]:
        """Return how many images have each reason, the commonest first; duplicates together."""
        words = [reason.partition(" of ")[0] for reason in self.columns()["reason"]]
        return dict(Counter(words).most_common())

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the columns as a table of pandas."""
        return data_frame(self.columns())

    def table(self) -> str:
        """Return how even the images are, before and after."""
        rows: list[tuple[str, str, str]] = [
            (name, f"{before:,}", f"{after:,}")
            for name, before, after in (
                ("images", self.before.images, self.after.images),
                ("duplicates", self.before.duplicates, self.after.duplicates),
            )
        ]
        for level in range(self.clusters.shape[1]):
            count = len(np.unique(self.clusters[:, level]))
            name = f"level {level + 1}, {count} cluster{'s' * (count > 1)}"
            both = self.before, self.after
            rows.append((f"{name}: effective number", *(f"{one.effective[level]:.1f}" for one in both)))  # type: ignore[arg-type]
            rows.append(("share of the largest tenth", *(f"{one.largest[level]:.1%}" for one in both)))  # type: ignore[arg-type]
        return table(("", "before", "after"), rows)

    def chosen(self) -> list[Chosen]:
        """Return the kept images, to hand over."""
        clusters = self.clusters[:, 0].tolist()
        return [Chosen(self.names[image], reason=KEPT, cluster=clusters[image]) for image in self.kept.tolist()]

    def save(self, file: str | Path, format: str = "csv", images: Images = None) -> Path:
        """Write the list of the kept images, a path in each line, and beside it a CSV and a Parquet file of all.

        Args:
            file: the list, such as `kept.txt`; the tables are `kept.csv` and `kept.parquet`.
            format: `csv` for these, or one of `hand_over`, which writes the kept images alone.
            images: the folder that paths are below, which the other formats need.
        """
        if format != "csv":
            return hand_over(self, file, format, images)
        import pyarrow as pa
        from pyarrow import csv, parquet

        file = Path(file)
        check_list_name(file)
        columns = self.columns()
        cells = {name: [as_cell(one) for one in columns[name]] for name in ("path", "reason")}
        parts = [file.name, *(file.with_suffix(ending).name for ending in (".csv", ".parquet"))]
        with written_together(file.parent, parts) as (listed, text, binary):
            with listed.open("w", encoding="utf-8", errors="surrogateescape") as lines:
                lines.writelines(f"{self.names[number]}\n" for number in self.kept)
            csv.write_csv(pa.table(columns | cells), text)
            parquet.write_table(pa.table(columns), binary)
        return file


@typed
def curate(
    images: Any,
    keep: int | float,
    way: str = "nearest",
    *,
    levels: Sequence[int] | None = None,
    clusters: Any = None,
    duplicates: Duplicates | None = None,
    same: float = SAME,
    outliers: float | None = FAR,
    left_out: Mapping[int, str] | None = None,
    seed: int = 0,
) -> Curated:
    """Choose images evenly over a tree, without near duplicates and outliers.

    Duplicates and outliers go first. Then the number to keep is split evenly over the top clusters of a tree, each
    one's share over its own clusters, and so down to the bottom, where no cluster gets more than it has; each of these
    gives so many of its images.

    Args:
        images: a `Tree`, or (N, D) features of any encoder: an array, a tensor, `Embeddings`, or the path of an .npy or
            .parquet file. Of a `Tree` whose leaves are clusters no duplicates and outliers are found.
        keep: how many, or which share of all; fewer are kept only where no more are left.
        way: which images of a bottom cluster: those `nearest` to its centre, `farthest` from it, or `random` ones.
        levels: numbers of clusters at each level of a tree that is built, falling; from the data if not given.
        clusters: (N, L) the cluster of every image at each level of another tree, the bottom first; if not given, those
            of the `Tree`, or of one that is built of the features.
        duplicates: what `find_duplicates` found among the same images; if not given, images whose features are nearly
            the same count as duplicates.
        same: the cosine of such features, less the mean of all; above 1 for no duplicates.
        outliers: how many interquartile ranges above the third quartile the distance of an outlier to its neighbours
            is, relative to theirs; None for no outliers.
        left_out: images that are not to be kept, by number, and why.
        seed: of `random`, and of the tree of 100,000 images and more.

    Returns:
        The numbers of the images that are kept, the reason for every image, and how even they are before and after.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> many, few = draw.normal(size=(80, 8)) + 4 * np.eye(8)[0], draw.normal(size=(20, 8)) + 4 * np.eye(8)[1]
        >>> found = curate(np.concatenate([many, few]), keep=20, clusters=[[0]] * 80 + [[1]] * 20, outliers=None)
        >>> int((found.kept < 80).sum()), round(found.before.effective[0], 2), round(found.after.effective[0], 2)
        (10, 1.65, 2.0)
    """
    value = stored(images, "images")
    tree = value if hasattr(value, "leaves") and hasattr(value, "cut") else None
    points = as_unit_vectors(value.means[value.leaves] if tree is not None else value, "images")
    told = getattr(value, "paths" if tree is None else "keys", None)
    paths = None if told is None else tuple(told)
    count = len(points)
    wanted = _wanted(keep, count)
    if way not in LEAF_WAYS:
        raise ArgumentError(f"`way` is {way!r}: give one of {', '.join(LEAF_WAYS)}")
    gone = dict(left_out or {})
    if any(not isinstance(image, int | np.integer) or not 0 <= image < count for image in gone):
        raise ArgumentError(f"`left_out` has other images than 0 to {count - 1}")
    knows_images = tree is None or len(tree.means) == count
    free = np.ones(count, dtype=bool)
    free[[*gone]] = False
    if duplicates is not None:
        same_as = _copies_in(duplicates, free)
    else:
        same_as = near_copies(points, same, free, seed) if knows_images else np.full(count, -1)
    free &= same_as < 0
    if outliers is not None and knows_images and free.sum() > 2:
        left = np.flatnonzero(free)
        far = left[find_outliers(points[left], NEIGHBOURS, seed, outliers, local=True).images]
        gone |= dict.fromkeys(far.tolist(), OUTLIER)
        free[far] = False
    if not free.any():
        raise ArgumentError(f"`images`: none of the {count} is left; all are left out, as `left_out` says")
    if clusters is not None:
        found = as_clusters(clusters, count)
    else:
        found = tree.levels if tree is not None else _levels(points, levels, free, same_as, seed)
    kept = _choose(points, found, np.flatnonzero(free), wanted, way, seed)
    names = [str(number) for number in range(count)] if paths is None else paths
    reasons = [ENOUGH] * count
    for number, reason in gone.items():
        reasons[number] = reason
    for number in np.flatnonzero(same_as >= 0).tolist():
        reasons[number] = COPY.format(names[same_as[number]])
    for number in kept.tolist():
        reasons[number] = KEPT
    whole = np.arange(count)
    return Curated(
        kept,
        tuple(reasons),
        found,
        same_as,
        _balance(whole, found, same_as),
        _balance(kept, found, same_as),
        paths,
        tuple(on_one_line(one.path) for one in getattr(value, "skipped", ())),
    )


def _wanted(keep: Any, count: int) -> int:
    if isinstance(keep, int | np.integer) and keep >= 1:
        return min(int(keep), count)
    if isinstance(keep, float | np.floating) and 0 < keep < 1:
        return max(1, round(float(keep) * count))
    raise ArgumentError(f"`keep` is {keep!r}: give how many images, at least 1, or a share of them between 0 and 1")


def near_copies(points: np.ndarray, same: float, free: np.ndarray, seed: int = 0) -> np.ndarray:
    """Find images that are nearly the same as one before them, by the cosine of their features less the mean.

    Args:
        points: (N, D) unit vectors.
        same: the least cosine.
        free: (N,) which images are looked at.
        seed: of the approximate search among 100,000 images and more.

    Returns:
        (N,) the number of the image that each is the same as; -1 for the others.
    """
    found = np.full(len(points), -1)
    numbers = np.flatnonzero(free)
    if same > 1 or len(numbers) < 2:
        return found
    vectors = centred(points[numbers])
    near, distances = nearest_others(vectors, min(NEIGHBOURS, len(numbers) - 1), seed)
    rows, columns = np.nonzero(distances <= np.sqrt(2 - 2 * min(same, 1)) + 1e-6)
    links = coo_array((np.ones(len(rows)), (rows, near[rows, columns])), shape=(len(numbers), len(numbers)))
    groups = connected_components(links, directed=False)[1]
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(groups.max() + 2))
    for group in np.flatnonzero(np.diff(starts) > 1):
        left = order[starts[group] : starts[group + 1]]
        while len(left):  # chains do not join what differs: each is compared with the one that stands for it
            alike = vectors[left] @ vectors[left[0]] >= same - 1e-6
            alike[0] = True
            found[numbers[left[alike][1:]]] = numbers[left[0]]
            left = left[~alike]
    return found


def _copies_in(duplicates: Duplicates, free: np.ndarray) -> np.ndarray:
    if len(duplicates.paths) != len(free):
        raise ArgumentError(f"`duplicates` are of {len(duplicates.paths)} images, and there are {len(free)}")
    found = np.full(len(free), -1)
    for group in duplicates.groups:
        there = [image for image in (group.keep, *group.others) if free[image]]
        found[there[1:]] = there[0] if there else -1
    return found


def _levels(
    points: np.ndarray, sizes: Sequence[int] | None, free: np.ndarray, same_as: np.ndarray, seed: int
) -> np.ndarray:
    """Return the clusters (N, L) in a new tree, in which duplicates and images that are left out have no say."""
    built = build_tree(points[free], sizes, seed=seed)
    found = np.empty((len(points), built.num_levels), dtype=np.int64)
    found[free] = built.levels
    others = np.flatnonzero(~free & (same_as < 0))
    if len(others):
        found[others] = built.assign(points[others])
    copies = np.flatnonzero(same_as >= 0)
    found[copies] = found[same_as[copies]]
    return found


def _choose(points: np.ndarray, levels: np.ndarray, left: np.ndarray, keep: int, way: str, seed: int) -> np.ndarray:
    """Return the numbers of the images to keep, rising, of those that are left."""
    nodes, shares = down_the_tree(levels[left], min(keep, len(left)))
    if way == "random":
        score = np.random.default_rng(seed).random(len(left))
    else:
        sums = np.zeros((len(shares), points.shape[1]))
        order = np.argsort(nodes, kind="stable")
        starts = np.searchsorted(nodes[order], np.arange(len(shares)))
        sums = np.add.reduceat(points[left[order]], starts, axis=0)
        score = np.einsum("nd,nd->n", points[left], sums[nodes])
        score = -score if way == "nearest" else score
    order = np.lexsort((score, nodes))
    starts = np.searchsorted(nodes[order], np.arange(len(shares)))
    rank = np.arange(len(left)) - starts[nodes[order]]
    return np.sort(left[order[rank < shares[nodes[order]]]])


def _balance(images: np.ndarray, levels: np.ndarray, same_as: np.ndarray) -> Balance:
    shown = np.where(same_as < 0, np.arange(len(same_as)), same_as)[images]
    columns: Sequence[np.ndarray] = levels[images].T
    return Balance(
        len(images),
        len(images) - len(np.unique(shown)),
        tuple(effective_clusters(column) for column in columns),
        tuple(_largest(column) for column in columns),
    )


def _largest(clusters: np.ndarray) -> float:
    sizes = np.sort(np.unique(clusters, return_counts=True)[1])[::-1]
    return float(sizes[: max(1, round(len(sizes) / 10))].sum() / len(clusters))
