"""Algorithm 1: the tree of prototypes, and the cluster temperatures of Eq. 3.

Shapes: `N` images, `D` embedding size, `L` levels, `M_l` prototypes at level `l` (the bottom is level 0).
"""

import json
import os
import time
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.kmeans import fast_kmeans, kmeans, nearest, normalise
from solo_hcsc.hcsc.linkage import lump, merge_table
from solo_hcsc.hcsc.options import Options
from solo_hcsc.hcsc.vectors import as_unit_vectors

# Eq. 3 gives a cluster of identical images the temperature 0; the released code clamps at the same value.
MIN_TEMPERATURE = 1e-3
KIND = "solo_hcsc.hierarchy"  # the entry of a file's metadata that says what the file is


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the tree.

    Args:
        prototypes: (M_l, D) unit vectors.
        temperatures: (M_l,), Eq. 3.
        parents: (M_l,) index into the level above; None at the top.
        sizes: (M_l,) images in each cluster.
        dropped: how many clusters were too small.
        objective: what clustering minimises, the sum of squared distances.
        seconds: how long it took.

    Example:
        >>> level = Level(torch.eye(2), torch.tensor([0.2, 0.2]), parents=None, sizes=torch.tensor([3, 1]))
        >>> level.imbalance
        1.25
    """

    prototypes: torch.Tensor
    temperatures: torch.Tensor
    parents: torch.Tensor | None
    sizes: torch.Tensor
    dropped: int = 0
    objective: float = 0.0
    seconds: float = 0.0

    @property
    def imbalance(self) -> float:
        """Return how unequal the clusters are: 1 if equal, M_l if one has everything (as faiss defines it)."""
        share = self.sizes.double() / self.sizes.sum()
        return float(len(share) * (share**2).sum())


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """The tree of prototypes as a value: to look at, to walk, to keep in a file.

    Args:
        levels: the bottom first.
        assignments: (N, L) each image's cluster at every level, -1 for one that was not clustered; None where they
            were not kept.

    Example:
        >>> import tempfile
        >>> bottom = Level(torch.eye(3), torch.ones(3), parents=torch.tensor([0, 1, 1]), sizes=torch.tensor([2, 1, 1]))
        >>> top = Level(torch.eye(3)[:2], torch.ones(2), parents=None, sizes=torch.tensor([2, 2]))
        >>> tree = Hierarchy((bottom, top), assignments=torch.tensor([[0, 0], [2, 1], [0, 0], [1, 1]]))
        >>> tree.num_levels, tree.parent(0, 2), tree.children(1, 1), tree.path(2)
        (2, 1, [1, 2], [2, 1])
        >>> tree.sizes(1).tolist(), tree.members(1, 1).tolist()
        ([2, 2], [1, 3])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tree.save(f"{folder}/tree.safetensors")
        ...     same = Hierarchy.load(f"{folder}/tree.safetensors")
        >>> same.assign(torch.tensor([[0.0, 0.6, 0.8]])).tolist()
        [[2, 1]]
    """

    levels: tuple[Level, ...]
    assignments: torch.Tensor | None

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("a tree has at least one level")
        for number, level in enumerate(self.levels):
            above = self.levels[number + 1] if number + 1 < len(self.levels) else None
            columns = [level.temperatures, level.sizes, *([] if level.parents is None else [level.parents])]
            if any(len(column) != len(level.prototypes) for column in columns):
                raise ValueError(f"level {number} of the tree does not have {len(level.prototypes)} of everything")
            if (level.parents is None) != (above is None):
                raise ValueError(f"level {number} of the tree must have parents, and the top level none")
            if above is not None and not bool(((columns[-1] >= 0) & (columns[-1] < len(above.prototypes))).all()):
                raise ValueError(f"level {number} of the tree has parents that are not in the level above")
            if not bool(level.prototypes.isfinite().all()):
                raise ValueError(f"level {number} of the tree has NaN or infinite prototypes")
        if self.assignments is not None and self.assignments.size(1) != len(self.levels):
            raise ValueError(f"the tree has {len(self.levels)} levels and assignments of {self.assignments.size(1)}")

    def __repr__(self) -> str:
        images = "" if self.assignments is None else f" of {len(self.assignments)} images"
        return f"<Hierarchy{images}: {', '.join(str(len(level.prototypes)) for level in self.levels)} prototypes>"

    @property
    def num_levels(self) -> int:
        """Return L."""
        return len(self.levels)

    @property
    def _parents(self) -> list[torch.Tensor]:
        """Return the parents of every level but the top."""
        return [level.parents for level in self.levels if level.parents is not None]

    @property
    def seconds(self) -> float:
        """Return how long the clustering took, all levels together."""
        return sum(level.seconds for level in self.levels)

    # ---- other images ----

    def assign(self, embeddings: Any) -> torch.Tensor:
        """Assign any images to clusters: the nearest prototype at the bottom, then its parents.

        Args:
            embeddings: (n, D), made as those that were clustered, and given as `build_hierarchy` takes them.

        Returns:
            (n, L) numbers of prototypes.
        """
        points, prototypes = as_unit_vectors(embeddings, "embeddings"), self.levels[0].prototypes.float().cpu().numpy()
        if points.shape[1] != prototypes.shape[1]:
            raise ArgumentError(f"`embeddings` has rows of {points.shape[1]} and the tree's have {prototypes.shape[1]}")
        clusters = [torch.from_numpy(nearest(points, prototypes)[1])]
        for parents in self._parents:
            clusters.append(parents[clusters[-1]])
        return torch.stack(clusters, dim=1)

    def over(self, images: torch.Tensor, num_images: int) -> "Hierarchy":
        """Return the same tree among all images, where it was built from some of them.

        Args:
            images: (n,) the indexes of those that were clustered, in the order of their embeddings.
            num_images: how many there are in all.

        Returns:
            A tree whose `assignments` are (num_images, L), -1 for images that were not clustered.
        """
        if self.assignments is None:
            return self
        assignments = self.assignments.new_full((num_images, self.num_levels), -1)
        assignments[images.to(assignments.device)] = self.assignments
        return replace(self, assignments=assignments)

    # ---- walking ----

    def parent(self, level: int, number: int) -> int | None:
        """Return the prototype of the level above that one belongs to; None at the top.

        Args:
            level: 0 is the bottom.
            number: of the prototype in its level.
        """
        parents = self.levels[level].parents
        return None if parents is None else int(parents[number])

    def children(self, level: int, number: int) -> list[int]:
        """Return the prototypes of the level below that belong to one; none at the bottom, where images do (`members`).

        Args:
            level: 0 is the bottom.
            number: of the prototype in its level.
        """
        parents = self.levels[level - 1].parents if level > 0 else None
        return [] if parents is None else (parents == number).nonzero()[:, 0].tolist()

    def path(self, number: int) -> list[int]:
        """Return the way from a prototype of the bottom up to the top: L numbers, one of each level."""
        path = [number]
        for parents in self._parents:
            path.append(int(parents[path[-1]]))
        return path

    def sizes(self, level: int) -> torch.Tensor:
        """Return how many images each prototype of a level has, (M_l,)."""
        return self.levels[level].sizes

    def members(self, level: int, number: int) -> torch.Tensor:
        """Return the indexes (n,) of a prototype's images; raise `ValueError` where `assignments` were not kept.

        Args:
            level: 0 is the bottom.
            number: of the prototype in its level.
        """
        if self.assignments is None:
            raise ValueError("this tree was kept without its images' clusters; use `assign` with their embeddings")
        return (self.assignments[:, level] == number).nonzero()[:, 0]

    # ---- files ----

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tree into one .safetensors file, which is there as a whole or not at all."""
        tensors = {} if self.assignments is None else {"assignments": self.assignments}
        for number, level in enumerate(self.levels):
            for name in ("prototypes", "temperatures", "parents", "sizes"):
                if getattr(level, name) is not None:
                    tensors[f"{name}_{number}"] = getattr(level, name)
        facts = [{name: getattr(level, name) for name in ("dropped", "objective", "seconds")} for level in self.levels]
        path = Path(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            # Cloned, because the format takes no two tensors that share memory.
            whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
            save_file(whole, partial, metadata={KIND: json.dumps(facts)})
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Hierarchy":
        """Read a tree that `save` wrote; raise `ValueError` for any other file."""
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {})[KIND])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            levels = [
                Level(
                    tensors[f"prototypes_{number}"],
                    tensors[f"temperatures_{number}"],
                    tensors.get(f"parents_{number}"),
                    tensors[f"sizes_{number}"],
                    **of_level,
                )
                for number, of_level in enumerate(facts)
            ]
            return cls(tuple(levels), tensors.get("assignments"))
        except KeyError as error:
            raise ValueError(f"{path}: not a tree that Hierarchy.save wrote; it has no {error}") from None
        except (SafetensorError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not a tree that Hierarchy.save wrote ({error})") from None


def build_hierarchy(embeddings: Any, options: Options, seed: int = 0, features: Any = None) -> Hierarchy:
    """Build a tree by bottom-up k-means (Alg. 1): of the images, then of the prototypes of each level.

    With `tree_builder` "ward" each level is Ward's linkage instead: of the images, then of the clusters of each level,
    which count as their mean and as many images as they have.

    Args:
        embeddings: (N, D), a tensor, a NumPy array, or the `Embeddings` that `embed` returns. Rows that are not at
            unit length are brought to it.
        options: how many prototypes at each level, and how they are found.
        seed: of k-means.
        features: (N, F) of the same images, given like `embeddings`, that are clustered in place of them. A prototype
            is then the mean embedding of its images.

    Returns:
        The tree, on the CPU, with the clusters of all N images. Anything else than such arguments, and NaN or infinite
        values in them, raise `ArgumentError`.

    Example:
        >>> corners = torch.eye(4).repeat_interleave(25, dim=0)
        >>> tree = build_hierarchy(corners, Options(num_prototypes=(4, 2)))
        >>> tree.sizes(0).tolist(), tree.assignments.shape
        ([25, 25, 25, 25], torch.Size([100, 2]))
    """
    images = as_unit_vectors(embeddings, "embeddings")
    compared = images if features is None else as_unit_vectors(features, "features")
    if len(compared) != len(images):
        raise ArgumentError(
            f"`features` has {len(compared)} rows and `embeddings` {len(images)}: give both of each image"
        )
    if not isinstance(options, Options):
        raise ArgumentError(f"`options` is {type(options).__name__}: give `Options`")
    if not isinstance(seed, Integral):
        raise ArgumentError(f"`seed` is {type(seed).__name__}: give a whole number")
    points, members = compared, np.arange(len(images))  # what a level clusters; each image's point in it
    ward = options.tree_builder == "ward"
    levels: list[Level] = []
    assignments: list[np.ndarray] = []
    for number in range(len(options.num_prototypes)):
        started = time.monotonic()
        found = _link(points, members, number, options, seed) if ward else _cluster(points, number, options, seed)
        found = _drop_small(found, points, members, options.min_cluster_size)
        members = found.of_points[members]
        above = normalise(found.centroids)  # what the next level clusters
        centroids = found.centroids if features is None else means_of(images, members, len(above))
        prototypes = above if features is None else normalise(centroids)
        if levels:
            levels[-1] = replace(levels[-1], parents=torch.from_numpy(found.of_points))
        below = levels[-1] if levels else None
        levels.append(
            Level(
                prototypes=torch.from_numpy(prototypes),
                temperatures=_temperatures(images, members, below, prototypes, centroids, options),
                parents=None,
                sizes=torch.from_numpy(np.bincount(members, minlength=len(prototypes))),
                dropped=found.dropped,
                objective=found.objective,
                seconds=time.monotonic() - started,
            )
        )
        assignments.append(members)
        points = found.centroids if ward else above
    return Hierarchy(tuple(levels), torch.from_numpy(np.stack(assignments, axis=1)))


def hierarchy_of_labels(embeddings: torch.Tensor, labels: torch.Tensor, options: Options) -> Hierarchy:
    """Build the tree of given clusters: an oracle's, which shows what a tree that is right could give.

    Args:
        embeddings: (N, D) unit vectors.
        labels: (N, L) each image's label at every level of a label hierarchy, the classes first; each level's labels
            are 0, 1, ..., and images of one label have one label at the level above.
        options: how temperatures are found.

    Returns:
        A tree as `build_hierarchy` makes it, with as many prototypes at each level as there are labels.

    Example:
        >>> labels = torch.tensor([[0, 0], [1, 1], [2, 1], [2, 1]])
        >>> tree = hierarchy_of_labels(torch.eye(4), labels, Options(num_prototypes=(3, 2)))
        >>> tree.sizes(0).tolist(), tree.levels[0].parents.tolist()
        ([1, 1, 2], [0, 1, 1])
    """
    images = as_unit_vectors(embeddings, "embeddings")
    levels: list[Level] = []
    given = labels.cpu().numpy()
    for number, members in enumerate(given.T):
        started = time.monotonic()
        count = int(members.max()) + 1
        centroids = means_of(images, members, count)
        prototypes = normalise(centroids)
        parents = None
        if number + 1 < given.shape[1]:
            parents = np.zeros(count, dtype=np.int64)
            parents[members] = given[:, number + 1]
        levels.append(
            Level(
                prototypes=torch.from_numpy(prototypes),
                temperatures=_temperatures(
                    images, members, levels[-1] if levels else None, prototypes, centroids, options
                ),
                parents=None if parents is None else torch.from_numpy(parents),
                sizes=torch.from_numpy(np.bincount(members, minlength=count)),
                seconds=time.monotonic() - started,
            )
        )
    return Hierarchy(tuple(levels), torch.from_numpy(given))


def means_of(points: np.ndarray, clusters: np.ndarray, count: int) -> np.ndarray:
    """Return the mean (count, D) of each cluster's points (n, D); 0 for a cluster without any."""
    sums = torch.zeros(count, points.shape[1]).index_add_(0, torch.from_numpy(clusters), torch.from_numpy(points))
    return (sums / torch.bincount(torch.from_numpy(clusters), minlength=count).clamp(min=1)[:, None]).numpy()


@dataclass(frozen=True)
class _Clusters:
    """What k-means or a linkage found."""

    centroids: np.ndarray  # (M, D)
    of_points: np.ndarray  # (n,) each point's cluster
    objective: float
    dropped: int = 0


def _cluster(points: np.ndarray, level: int, options: Options, seed: int) -> _Clusters:
    """Cluster a level's points (n, D)."""
    k = min(options.num_prototypes[level], len(points))
    seed = level if options.kmeans_seed == "level" else (seed * len(options.num_prototypes) + level) % 2**31
    centroids = (fast_kmeans if options.kmeans == "fast" else kmeans)(points, k, options, seed)
    distances, clusters = nearest(points, centroids)
    return _Clusters(centroids, clusters, float(distances.sum(dtype=np.float64)))


def _link(points: np.ndarray, members: np.ndarray, level: int, options: Options, seed: int) -> _Clusters:
    """Cluster a level's points (n, D) by Ward's linkage; `members (N,)`: each image's point."""
    weights = np.bincount(members, minlength=len(points)).astype("float32")
    k = min(options.num_prototypes[level], len(points))
    clusters = lump(merge_table(points, weights, seed=seed % 2**31), k)[1]
    centroids = means_of(points[members], clusters[members], k)
    distances = np.square(points - centroids[clusters]).sum(axis=1)
    return _Clusters(centroids, clusters, float(distances @ weights.astype("float64")))


def _drop_small(found: _Clusters, points: np.ndarray, members: np.ndarray, least: int) -> _Clusters:
    """Drop clusters of fewer than `least` images; `members (N,)`: each image's point."""
    kept = np.bincount(found.of_points[members], minlength=len(found.centroids)) >= least
    if kept.all():
        return found
    if not kept.any():
        raise ArgumentError(f"`min_cluster_size` {least}: no cluster of the {len(members)} images has as many")
    centroids = found.centroids[kept]
    # A point keeps its cluster; one whose cluster is gone goes to the nearest that is left.
    orphans = ~kept[found.of_points]
    clusters = (np.cumsum(kept) - 1)[found.of_points]
    if orphans.any():
        clusters[orphans] = nearest(points[orphans], centroids)[1]
    return replace(found, centroids=centroids, of_points=clusters, dropped=int((~kept).sum()))


def _temperatures(
    images: np.ndarray,
    members: np.ndarray,
    below: Level | None,
    prototypes: np.ndarray,
    centroids: np.ndarray,
    options: Options,
) -> torch.Tensor:
    """Return a level's temperatures (M,) as the options have them.

    Args:
        images: (N, D).
        members: (N,) their clusters at this level.
        below: the level below, whose parents are this level's clusters; None at the bottom.
        prototypes: (M, D).
        centroids: (M, D) the same before they were normalised.
        options: distances of what to which centre count, and how the temperatures are bounded.
    """
    points, clusters = images, members
    if options.temperature_members == "children" and below is not None and below.parents is not None:
        points, clusters = below.prototypes.numpy(), below.parents.numpy()
    centres = prototypes if options.temperature_centre == "prototype" else centroids
    lonely = "formula" if options.temperature_members == "images" else "maximum"
    temperatures = cluster_temperatures(points, centres, clusters, options.epsilon, lonely)
    if options.temperature_scaling == "clipped":
        temperatures = clip_and_rescale(temperatures, options.temperature)
    if options.temperature_floor == "everywhere":
        temperatures = np.maximum(temperatures, MIN_TEMPERATURE)
    taken = torch.from_numpy(temperatures).float()
    return torch.where(taken > 0, taken, MIN_TEMPERATURE)  # the released code divides by 0 there


def cluster_temperatures(
    points: np.ndarray, centres: np.ndarray, clusters: np.ndarray, epsilon: float, lonely: str = "formula"
) -> np.ndarray:
    """Compute Eq. 3: tau_c (M,), mean distance of a cluster's points (n, D) to its centre, over log(size + epsilon).

    A cluster of one or none has the largest temperature of all with lonely="maximum", as in the released code.
    """
    distances = (torch.from_numpy(points) - torch.from_numpy(centres)[clusters]).norm(dim=1).numpy()
    sizes = np.bincount(clusters, minlength=len(centres))
    sums = np.bincount(clusters, weights=distances, minlength=len(centres))
    temperatures = sums / np.maximum(sizes, 1) / np.log(sizes + epsilon)
    empty = sizes == 0 if lonely == "formula" else sizes <= 1
    temperatures[empty] = temperatures[~empty].max(initial=0.0)
    return temperatures


def clip_and_rescale(temperatures: np.ndarray, mean: float) -> np.ndarray:
    """Clip to the 10th and 90th percentile, then rescale to the given mean."""
    clipped = temperatures.clip(np.percentile(temperatures, 10), np.percentile(temperatures, 90))
    average = clipped.mean()
    return clipped * (mean / average) if average > 0 else np.full_like(clipped, mean)
