"""A tree of images as a value: cut it anywhere, walk it, place new images in it, keep it in a folder.

Shapes: `N` images, `M` leaves, `D` features, `L` levels (the bottom is level 0), `k` clusters of a cut.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from solo_hcsc.errors import ArgumentError
from solo_hcsc.extras import require
from solo_hcsc.hcsc.kmeans import nearest, normalise
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.trees.stored import stored
from solo_hcsc.typed import typed

KIND = "solo_hcsc.tree"  # the entry of a file's metadata that says what the file is
TREE, IMAGES = "tree.safetensors", "images.parquet"


@dataclass(frozen=True, eq=False)
class Tree:
    """A full hierarchy of images: it can be cut into any number of clusters up to its leaves.

    A leaf is an image or, in a large tree, a small cluster of images. Nodes are numbered as scipy's: those below M are
    the leaves, node M + i is what row i of `merges` makes, and the last one is the root.

    Args:
        merges: (M - 1, 4) float64, scipy's linkage: two nodes, the height of their merge, and the images below it;
            heights rise.
        leaves: (N,) int64, the leaf of every image.
        means: (M, D) float32, the mean feature vector of each leaf's images.
        level_sizes: clusters at each level, falling.
        keys: N names of images, such as paths; None without names.

    Example:
        >>> from solo_hcsc.trees.building import build_tree
        >>> features = np.repeat([[1, 0, 0], [1, 0.3, 0], [0, 0, 1], [0, 0.5, 1]], (8, 5, 4, 3), axis=0)
        >>> tree = build_tree(features, levels=(4, 2), keys=[f"{number}.jpg" for number in range(20)])
        >>> tree.levels.shape, np.unique(tree.cut(3)).tolist()
        ((20, 2), [0, 1, 2])
        >>> tree.members(tree.path("9.jpg")[0]).tolist()
        [8, 9, 10, 11, 12]
        >>> bool((tree.assign(features) == tree.levels).all())
        True
        >>> print(tree)
        tree of 20 images: levels of 4 and 2 clusters
        ├─ 13 images in 2 clusters: 0.jpg, 8.jpg
        └─ 7 images in 2 clusters: 13.jpg, 17.jpg
    """

    merges: np.ndarray
    leaves: np.ndarray
    means: np.ndarray
    level_sizes: tuple[int, ...]
    keys: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.means)
        if self.merges.shape != (count - 1, 4):
            raise ValueError(f"a tree of {count} leaves has {count - 1} merges, not {self.merges.shape}")
        made = count + np.arange(count - 1)
        ends = self.merges[:, :2]
        if (ends >= made[:, None]).any() or not np.array_equal(np.sort(ends, axis=None), np.arange(2 * count - 2)):
            raise ValueError("the merges of a tree join every node but the last once, after it is made")
        if (np.diff(self.merges[:, 2]) < 0).any():
            raise ValueError("the heights of a tree's merges rise")
        if len(np.unique(self.leaves)) != count or self.leaves.min() < 0 or self.leaves.max() >= count:
            raise ValueError(f"the images of a tree are in all of its {count} leaves, and in no others")
        check_level_sizes(self.level_sizes, count)
        if self.keys is not None and len(self.keys) != len(self.leaves):
            raise ValueError(f"the tree has {len(self.leaves)} images and {len(self.keys)} keys")

    def __len__(self) -> int:
        """Return N, the number of images."""
        return len(self.leaves)

    @property
    def num_levels(self) -> int:
        """Return L."""
        return len(self.level_sizes)

    # ---- clusters of the images ----

    def cut(self, k: int) -> np.ndarray:
        """Return each image's cluster (N,), from 0 to k - 1, where the tree has k clusters.

        Clusters are numbered from left to right, so that those which merge next to each other have close numbers.
        """
        return self._numbers(self.nodes(k))[self.leaves]

    def nodes(self, k: int) -> np.ndarray:
        """Return the nodes (k,) of the clusters of `cut(k)`, in the order of their numbers."""
        count = len(self.means)
        if not isinstance(k, int | np.integer) or not 1 <= k <= count:
            raise ArgumentError(f"`k` {k}: give a number of clusters from 1 to {count}, the tree's leaves")
        made = 2 * count - k  # nodes that there are when k clusters are left
        found = np.flatnonzero(self._parents[:made] >= made)
        return found[np.argsort(self._places[found])]

    @cached_property
    def levels(self) -> np.ndarray:
        """Return the cluster of each image at every level, (N, L) int64."""
        return np.stack([self.cut(k) for k in self.level_sizes], axis=1)

    def assign(self, vectors: Any) -> np.ndarray:
        """Return the cluster of new images at every level, (n, L): that of the leaf whose mean is nearest.

        Args:
            vectors: (n, D), made as those of which the tree was built; a tensor, an array, or `Embeddings`.
        """
        points = as_unit_vectors(stored(vectors, "vectors"), "vectors")
        if points.shape[1] != self.means.shape[1]:
            raise ArgumentError(f"`vectors` has rows of {points.shape[1]} and the tree's have {self.means.shape[1]}")
        leaves = nearest(points, self.means)[1]
        return np.stack([self._numbers(self.nodes(k))[leaves] for k in self.level_sizes], axis=1)

    # ---- walking ----

    def path(self, image: int | str) -> tuple[int, ...]:
        """Return an image's node at every level, from the bottom to the top (L,).

        Args:
            image: its number, or its key.
        """
        number = self._find(image)
        return tuple(
            int(self.nodes(k)[clusters[number]]) for k, clusters in zip(self.level_sizes, self.levels.T, strict=True)
        )

    @typed
    def members(self, node: int) -> np.ndarray:
        """Return the numbers of the images below a node, rising."""
        first = self._places[self._check(node)]
        return np.flatnonzero(np.isin(self.leaves, self._order[first : first + self._widths[node]]))

    def children(self, node: int) -> tuple[int, ...]:
        """Return the two nodes that a node was merged from; none of a leaf."""
        row = self._check(node) - len(self.means)
        return () if row < 0 else (int(self.merges[row, 0]), int(self.merges[row, 1]))

    def parent(self, node: int) -> int | None:
        """Return the node that a node merges into; None of the root."""
        found = int(self._parents[self._check(node)])
        return None if node == self.root else found

    @property
    def root(self) -> int:
        """Return the node of all images."""
        return 2 * len(self.means) - 2

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the images below each node, (2 M - 1,) int64."""
        return np.concatenate([np.bincount(self.leaves), self.merges[:, 3].astype(np.int64)])

    @cached_property
    def heights(self) -> np.ndarray:
        """Return the height at which each node was merged, (2 M - 1,); 0 of leaves."""
        return np.concatenate([np.zeros(len(self.means)), self.merges[:, 2]])

    def centroids(self, nodes: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the mean (n, D) of all images below each of some nodes, not brought to unit length."""
        found = np.empty((len(nodes), self.means.shape[1]), dtype=np.float32)
        weights = self.sizes[: len(self.means)].astype(np.float64)
        for row, node in enumerate(nodes):
            first = self._places[self._check(node)]
            below = self._order[first : first + self._widths[node]]
            found[row] = np.average(self.means[below], axis=0, weights=weights[below])
        return found

    # ---- looking ----

    @typed
    def show(self, most: int = 12) -> str:
        """Return a short text: the levels, and the largest clusters of the top one with typical images.

        Args:
            most: clusters to name.
        """
        return "\n".join([self._title(), *self._rows(most)])

    def __str__(self) -> str:
        return self.show()

    def __repr__(self) -> str:
        return f"<{self._title()}>"

    def _title(self) -> str:
        *first, last = map(str, self.level_sizes)
        sizes = f"levels of {', '.join(first)} and {last}" if first else f"a level of {last}"
        lumped = f" in {len(self.means):,} leaves" if len(self.means) < len(self) else ""
        return f"tree of {len(self):,} images{lumped}: {sizes} clusters"

    def _rows(self, most: int) -> list[str]:
        top = self.nodes(self.level_sizes[-1])
        top = top[np.argsort(-self.sizes[top], kind="stable")]
        below = np.bincount(self._numbers(top)[self._order[self._places[self.nodes(self.level_sizes[0])]]])
        rows = []
        for node, clusters in zip(top[:most].tolist(), below[:most].tolist(), strict=True):
            inside = f" in {clusters} cluster{'s' * (clusters > 1)}" if self.num_levels > 1 else ""
            rows.append(f"{self.sizes[node]:,} image{'s' * bool(self.sizes[node] > 1)}{inside}{self._typical(node)}")
        if len(top) > most:
            clusters = f"{len(top) - most} smaller cluster{'s' * (len(top) > most + 1)}"
            rows.append(f"{clusters} of {int(self.sizes[top[most:]].sum()):,} images")
        return [f"{'└' if number + 1 == len(rows) else '├'}─ {row}" for number, row in enumerate(rows)]

    def _typical(self, node: int, count: int = 3) -> str:
        """Return the keys of the images nearest to the means of a node's largest clusters at the bottom."""
        if self.keys is None:
            return ""
        bottom = self.nodes(self.level_sizes[0])
        first = self._places[bottom]
        inside = bottom[(first >= self._places[node]) & (first < self._places[node] + self._widths[node])]
        names = []
        for cluster in inside[np.argsort(-self.sizes[inside], kind="stable")][:count]:
            members = self.members(int(cluster))
            near = nearest(normalise(self.centroids([cluster])), self.means[self.leaves[members]])[1]
            names.append(self.keys[members[near[0]]])
        return f": {', '.join(names)}"

    # ---- files ----

    @typed
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tree.safetensors`, and `images.parquet` with each image's key and clusters, into a folder.

        The folder may have other files. A tree that is there is replaced, and `load` refuses half of a new one.
        """
        require("tables", "a tree in a folder")
        import pyarrow
        import pyarrow.parquet

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ("merges", "leaves", "means")}
        whole = hashlib.sha256()
        for array in arrays.values():
            whole.update(array.data)
        whole.update("\0".join(self.keys or ()).encode("utf-8", "surrogateescape"))
        facts = {"level_sizes": [int(size) for size in self.level_sizes], "digest": whole.hexdigest()}
        columns: dict[str, Any] = {"level_" + str(level): self.levels[:, level] for level in range(self.num_levels)}
        if self.keys is not None:
            columns = {"key": pyarrow.array(_as_bytes(self.keys))} | columns
        table = pyarrow.table(columns).replace_schema_metadata({KIND: facts["digest"]})
        partial = {name: folder / f".{name}.{os.getpid()}" for name in (TREE, IMAGES)}
        try:
            save_file(arrays, partial[TREE], metadata={KIND: json.dumps(facts)})
            pyarrow.parquet.write_table(table, partial[IMAGES])
            for name, path in partial.items():
                path.replace(folder / name)
        finally:
            for path in partial.values():
                path.unlink(missing_ok=True)

    @classmethod
    @typed
    def load(cls, folder: str | os.PathLike[str]) -> "Tree":
        """Read a tree that `save` wrote; raise `ValueError` for anything else."""
        require("tables", "a tree in a folder")
        import pyarrow
        import pyarrow.parquet

        folder = Path(folder)
        try:
            with safe_open(folder / TREE, framework="np") as file:
                facts = json.loads((file.metadata() or {})[KIND])
                arrays = {name: file.get_tensor(name) for name in ("merges", "leaves", "means")}
            images = pyarrow.parquet.read_table(folder / IMAGES)
            if (images.schema.metadata or {}).get(KIND.encode()) != facts["digest"].encode():
                raise ValueError(f"{TREE} and {IMAGES} are not of the same tree; build it again")
            named = "key" in images.column_names
            keys = tuple(os.fsdecode(key) for key in images["key"].to_pylist()) if named else None
            return cls(**arrays, level_sizes=tuple(facts["level_sizes"]), keys=keys)
        except FileNotFoundError as error:
            raise ValueError(
                f"{folder}: not a tree that Tree.save wrote; {error.filename or TREE} is missing"
            ) from None
        except (SafetensorError, pyarrow.ArrowException, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder}: not a tree that Tree.save wrote ({error})") from None

    # ---- where nodes are: the leaves in an order in which every node's are side by side ----

    @cached_property
    def _parents(self) -> np.ndarray:
        """Return the parent of each node; of the root a number beyond all nodes."""
        count = len(self.means)
        parents = np.full(2 * count - 1, 2 * count - 1)
        for side in (0, 1):
            parents[self.merges[:, side].astype(np.int64)] = count + np.arange(count - 1)
        return parents

    @cached_property
    def _widths(self) -> np.ndarray:
        """Return the leaves below each node."""
        widths = [1] * len(self.means)
        for one, other in self.merges[:, :2].astype(np.int64).tolist():
            widths.append(widths[one] + widths[other])
        return np.array(widths)

    @cached_property
    def _places(self) -> np.ndarray:
        """Return where each node's leaves begin in the order; the larger child first."""
        widths, sizes, count = self._widths.tolist(), self.sizes.tolist(), len(self.means)
        places = [0] * len(widths)
        pairs = self.merges[:, :2].astype(np.int64).tolist()
        for row in reversed(range(len(pairs))):
            one, other = pairs[row]
            if sizes[other] > sizes[one]:
                one, other = other, one
            places[one] = places[count + row]
            places[other] = places[one] + widths[one]
        return np.array(places)

    @cached_property
    def _order(self) -> np.ndarray:
        """Return the leaves (M,) from left to right."""
        return np.argsort(self._places[: len(self.means)])

    def _numbers(self, nodes: np.ndarray) -> np.ndarray:
        """Return, for each leaf (M,), which of some nodes it is below; the nodes share no leaf and have all."""
        found = np.empty(len(self.means), dtype=np.int64)
        by_place = np.argsort(self._places[nodes])
        found[self._order] = np.repeat(by_place, self._widths[nodes][by_place])
        return found

    @cached_property
    def _numbers_of_keys(self) -> dict[str, int]:
        return {key: number for number, key in enumerate(self.keys or ())}

    def _find(self, image: int | str) -> int:
        if isinstance(image, str):
            if image not in self._numbers_of_keys:
                raise ArgumentError(f"`image` {image}: the tree has no image of this name")
            return self._numbers_of_keys[image]
        if not 0 <= image < len(self):
            raise ArgumentError(f"`image` {image}: give a number from 0 to {len(self) - 1}")
        return int(image)

    def _check(self, node: int | np.integer) -> int:
        if not 0 <= node <= self.root:
            raise ArgumentError(f"`node` {node}: give a number from 0 to {self.root}")
        return int(node)


def check_level_sizes(sizes: Sequence[int], most: int, argument: str = "levels") -> None:
    """Raise `ArgumentError` unless the numbers of clusters fall from level to level, and the tree can have them."""
    whole = all(isinstance(size, int | np.integer) and not isinstance(size, bool) for size in sizes)
    if not sizes or not whole or not all(1 <= size <= most for size in sizes):
        raise ArgumentError(f"`{argument}` {tuple(sizes)}: give numbers of clusters from 1 to {most}")
    if any(above >= below for below, above in pairwise(sizes)):
        raise ArgumentError(f"`{argument}` {tuple(sizes)}: give fewer clusters at each level than at the one below it")


def _as_bytes(keys: Sequence[str]) -> list[str] | list[bytes]:
    """Return keys as text where they are; as bytes where a file's name is not valid UTF-8."""
    try:
        "".join(keys).encode()
    except UnicodeEncodeError:
        return [os.fsencode(key) for key in keys]
    return list(keys)
