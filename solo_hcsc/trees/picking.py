"""Which images to label first: the typical ones of a tree's clusters, from the top of the tree to its bottom.

Shapes: `N` images, `D` embedding size, `L` levels of a tree.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from solo_hcsc.cells import as_cell
from solo_hcsc.errors import ArgumentError
from solo_hcsc.files import written_together
from solo_hcsc.hcsc.options import IMAGES_EACH
from solo_hcsc.tables import data_frame
from solo_hcsc.trees.handover import Chosen, Images, hand_over
from solo_hcsc.trees.names import WAYS
from solo_hcsc.trees.neighbours import nearest_rows
from solo_hcsc.trees.pool import as_pool

if TYPE_CHECKING:
    import pandas

SAME = 0.999  # the cosine from which two images count as one
NEIGHBOURS = 20  # whose mean distance says how typical an image is (Hacohen et al., TypiClust, ICML 2022)
COLUMNS = ("rank", "path", "label", "reason")
_FIRST = {"typical": "most typical", "nearest": "nearest to the centre"}


@dataclass(frozen=True)
class Pick:
    """An image to label, by its number, why, and its path if it has one."""

    image: int
    reason: str
    path: str | None = None


@dataclass(frozen=True)
class Picks(Sequence[Pick]):
    """Images to label, the most telling first.

    Example:
        >>> picks = pick(np.repeat(np.eye(3, dtype="float32"), [5, 4, 3], axis=0), budget=2)
        >>> len(picks), picks[0].image, picks[0].reason
        (2, 5, 'most typical of 7 images, cluster 1 of 2 by size at level 1')
    """

    picks: tuple[Pick, ...]

    def __len__(self) -> int:
        return len(self.picks)

    def __repr__(self) -> str:
        shown = [path for _, path, *_ in self[:3].rows()]
        return f"<Picks of {len(self)} images: {', '.join([*shown, *(['...'] if len(self) > 3 else [])])}>"

    @overload
    def __getitem__(self, place: int) -> Pick: ...

    @overload
    def __getitem__(self, place: slice) -> "Picks": ...

    def __getitem__(self, place: int | slice) -> "Pick | Picks":
        return Picks(self.picks[place]) if isinstance(place, slice) else self.picks[place]

    @property
    def images(self) -> list[int]:
        """Return the numbers of the images."""
        return [one.image for one in self.picks]

    def rows(self) -> list[tuple[int, str, str, str]]:
        """Return rank, path (the number where there is no path), an empty label and the reason of each."""
        paths = (str(one.image) if one.path is None else one.path for one in self.picks)
        return [(rank, path, "", one.reason) for rank, (path, one) in enumerate(zip(paths, self.picks, strict=True), 1)]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a table of pandas."""
        return data_frame([dict(zip(COLUMNS, row, strict=True)) for row in self.rows()])

    def chosen(self) -> list[Chosen]:
        """Return the images to hand over."""
        return [Chosen(path, reason=reason) for _, path, _, reason in self.rows()]

    def save(self, file: str | Path, format: str = "csv", images: Images = None) -> Path:
        """Write the images to label: as a CSV file, whose column `label` is to be filled in, or as `hand_over` does.

        Args:
            file: where they go; for some formats a folder.
            format: `csv`, or one of `hand_over`; `spread` on the command line takes all of them with labels.
            images: the folder that paths are below, which the other formats need.
        """
        if format != "csv":
            return hand_over(self, file, format, images)
        file = Path(file)
        with (
            written_together(file.parent, [file.name]) as (part,),
            part.open("w", encoding="utf-8", newline="") as lines,
        ):
            rows = csv.writer(lines)
            rows.writerow(COLUMNS)
            rows.writerows((rank, as_cell(path), label, as_cell(reason)) for rank, path, label, reason in self.rows())
        return file


def sizes_for(images: int, budget: int) -> list[int]:
    """Return sizes of a tree's levels: one of `budget`, above it ever half as many, below it twice.

    Example:
        >>> sizes_for(1000, 20)
        [25, 20, 10, 5, 2]
    """
    sizes = [min(images, max(budget, images // IMAGES_EACH))]
    while sizes[-1] // 2 > budget:
        sizes.append(sizes[-1] // 2)
    if sizes[-1] > budget:
        sizes.append(budget)
    while sizes[-1] > 3:
        sizes.append(sizes[-1] // 2)
    return sizes


def pick(images: Any, budget: int = 100, already: Any = (), way: str = "typical", clusters: Any = None) -> Picks:
    """Pick the images whose labels tell most, the most telling first.

    The clusters of a tree are visited from the top level down, the largest of a level first, and each that has no
    labelled or picked image yet gives one. An image as good as identical to one of those is never picked.

    Args:
        images: a `Tree`, or (N, D) features of any encoder: an array, a tensor or `Embeddings`. The mean of all is
            taken off first.
        budget: how many to pick.
        already: the images that are labelled, by number or by path.
        way: which image of a cluster: `typical`, `nearest` to its centre; or `farthest`, farthest-first without a
            tree.
        clusters: (N, L) the cluster of every image at each level of another tree, the bottom first; if not given, those
            of the `Tree`, or of one that is made of the features.

    Returns:
        At most `budget` picks, fewer only if all others are duplicates; the same ones each time.

    Example:
        >>> corners = np.repeat(np.eye(3, dtype="float32"), [5, 4, 3], axis=0)
        >>> pick(corners, 2, already=[0]).images
        [5, 9]
    """
    if not isinstance(budget, Integral) or budget < 1:
        raise ArgumentError(f"`budget` is {budget!r}: give how many images to pick, at least 1")
    if way not in WAYS:
        raise ArgumentError(f"`way` is {way!r}: give one of {', '.join(WAYS)}")
    pool = as_pool(images, clusters)
    walk = _Walk(pool.points)
    labelled = pool.numbers(already, "already")
    for image in labelled:
        walk.take(image)
    if way == "farthest":
        visits = _farthest(walk)
    else:
        wanted = min(int(budget) + len(labelled), len(pool))
        visits = _from_the_tree(walk, pool.levels(sizes_for(len(pool), wanted)), way)
    picks: list[Pick] = []
    for image, reason in visits:
        if len(picks) == budget:
            break
        walk.take(image)
        picks.append(Pick(image, reason, None if pool.paths is None else pool.paths[image]))
    return Picks(tuple(picks))


@dataclass
class _Walk:
    """Remember what is picked so far."""

    points: np.ndarray  # (N, D) unit vectors
    closest: np.ndarray = field(init=False)  # (N,) each image's cosine to the most similar picked one
    picked: np.ndarray = field(init=False)  # (N,) bool

    def __post_init__(self) -> None:
        self.closest = np.full(len(self.points), -1, "float32")
        self.picked = np.zeros(len(self.points), bool)

    def take(self, image: int) -> None:
        self.picked[image] = True
        self.closest = np.maximum(self.closest, self.points @ self.points[image])
        self.closest[image] = 1


def _farthest(walk: _Walk) -> Iterator[tuple[int, str]]:
    """Yield images farthest-first; without any before it, the image nearest to the mean of all."""
    if not walk.picked.any():
        yield int((walk.points @ walk.points.mean(axis=0)).argmax()), "nearest to the mean of all images"
    while walk.closest.min() <= SAME:
        image = int(walk.closest.argmin())
        yield image, f"farthest from all before it: cosine {walk.closest[image]:.2f} to the most similar one"


def _from_the_tree(walk: _Walk, clusters: np.ndarray, way: str) -> Iterator[tuple[int, str]]:
    """Yield an image of each cluster without any, level by level from the top; then more of each at the bottom."""
    for level in range(clusters.shape[1], 0, -1):
        yield from _from_level(walk, clusters[:, level - 1], level, way)
    while (walk.closest <= SAME).any():
        yield from _from_level(walk, clusters[:, 0], 1, way, again=True)


def _from_level(
    walk: _Walk, clusters: np.ndarray, level: int, way: str, again: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the best image of each cluster of a level, the largest cluster first; `again`: of covered ones too."""
    sizes = np.bincount(clusters)
    for rank, cluster in enumerate(np.argsort(-sizes, kind="stable"), start=1):
        members = np.flatnonzero(clusters == cluster)
        free = members[walk.closest[members] <= SAME]
        if not len(free) or (walk.picked[members].any() and not again):
            continue
        if way == "typical":
            scores = _typicality(walk.points[members])[walk.closest[members] <= SAME]
        else:
            scores = walk.points[free] @ walk.points[members].mean(axis=0)
        first = f"{'next ' * again}{_FIRST[way]}"
        yield (
            int(free[scores.argmax()]),
            f"{first} of {len(members)} images, cluster {rank} of {np.count_nonzero(sizes)} by size at level {level}",
        )


def _typicality(points: np.ndarray) -> np.ndarray:
    """Return how near (n,) unit vectors (n, D) are to their nearest others: the mean distance, negated."""
    if len(points) == 1:
        return np.zeros(1)
    similarities = nearest_rows(points, 0, len(points), min(NEIGHBOURS, len(points) - 1))[1]
    return -np.sqrt(np.maximum(2 - 2 * similarities, 0)).mean(axis=1)
