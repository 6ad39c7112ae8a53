"""Algorithm 1: the tree of prototypes, and the cluster temperatures of Eq. 3.

Shapes: `N` images, `D` embedding size, `M_l` prototypes at level `l` (the bottom is level 0).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from solo_hcsc.cli.errors import UserError
from solo_hcsc.hcsc.options import Options

# Eq. 3 gives a cluster of identical images the temperature 0; the released code clamps at the same value.
MIN_TEMPERATURE = 1e-3


@dataclass(frozen=True)
class Level:
    """One level of the tree."""

    prototypes: torch.Tensor  # (M_l, D) unit vectors
    temperatures: torch.Tensor  # (M_l,)
    parents: torch.Tensor | None  # (M_l,) index into the level above; None at the top
    sizes: torch.Tensor  # (M_l,) images in each cluster
    dropped: int  # clusters that were too small
    objective: float  # what k-means minimises: the sum of squared distances
    seconds: float

    @property
    def imbalance(self) -> float:
        """1 for equal clusters, M_l if one has everything (as faiss defines it)."""
        share = self.sizes.double() / self.sizes.sum()
        return float(len(share) * (share**2).sum())


@dataclass(frozen=True)
class Hierarchy:
    levels: tuple[Level, ...]
    assignments: torch.Tensor  # (L, N) each image's cluster at every level

    @property
    def seconds(self) -> float:
        return sum(level.seconds for level in self.levels)


def build_hierarchy(
    embeddings: torch.Tensor, options: Options, seed: int = 0, last: Sequence[torch.Tensor] = ()
) -> Hierarchy:
    """Bottom-up k-means (Alg. 1) on unit vectors `embeddings` (N, D).

    `last`: the prototypes of the last clustering, per level, from which a fast k-means may go on.
    """
    images = np.ascontiguousarray(embeddings.float().cpu().numpy())
    points, members = images, np.arange(len(images))  # what this level clusters; each image's point in it
    levels: list[Level] = []
    assignments: list[np.ndarray] = []
    for number, wanted in enumerate(options.num_prototypes):
        started = time.monotonic()
        k_seed = number if options.kmeans_seed == "level" else (seed * len(options.num_prototypes) + number) % 2**31
        wanted = min(wanted, len(points))
        if options.kmeans == "fast":
            centroids = fast_kmeans(points, wanted, options, k_seed, last[number].cpu().numpy() if last else None)
        else:
            centroids = kmeans(points, wanted, options, k_seed)
        distances, parents = nearest(points, centroids)
        sizes = np.bincount(parents[members], minlength=len(centroids))
        kept = sizes >= options.min_cluster_size
        dropped = int((~kept).sum())
        if dropped:
            centroids = centroids[kept]
            # A point keeps its cluster; one whose cluster is gone goes to the nearest that is left.
            renumbered = np.cumsum(kept) - 1
            orphans = ~kept[parents]
            parents = renumbered[parents]
            if orphans.any():
                parents[orphans] = nearest(points[orphans], centroids)[1]
        members = parents[members]
        prototypes = normalise(centroids)
        if levels:
            below = levels[-1]
            levels[-1] = Level(**(vars(below) | {"parents": torch.from_numpy(parents)}))
        centres = prototypes if options.temperature_centre == "prototype" else centroids
        per_image = number == 0 or options.temperature_members == "images"
        temperatures = cluster_temperatures(
            images if per_image else points,
            centres,
            members if per_image else parents,
            options.epsilon,
            lonely="formula" if options.temperature_members == "images" else "maximum",
        )
        if options.temperature_scaling == "clipped":
            temperatures = clip_and_rescale(temperatures, options.temperature)
        levels.append(
            Level(
                prototypes=torch.from_numpy(prototypes),
                temperatures=torch.from_numpy(np.maximum(temperatures, MIN_TEMPERATURE)).float(),
                parents=None,
                sizes=torch.from_numpy(np.bincount(members, minlength=len(centroids))),
                dropped=dropped,
                objective=float(distances.sum(dtype=np.float64)),
                seconds=time.monotonic() - started,
            )
        )
        assignments.append(members)
        points = prototypes
    return Hierarchy(tuple(levels), torch.from_numpy(np.stack(assignments)))


SMALL = 2**23  # points times clusters up to which k-means takes well under a second
COARSE = 16  # principal components in which faiss compares four times as fast as in 128 dimensions
TRUSTED = 0.85  # share of the variance that they must hold


def fast_kmeans(points: np.ndarray, k: int, options: Options, seed: int, last: np.ndarray | None = None) -> np.ndarray:
    """Centroids (k, D) of `points` (n, D) that are as good as `kmeans` finds with restarts, in a fraction of its time.

    Embeddings of images vary in few directions. Where these hold most of the variance, k-means runs in them, from the
    `last` prototypes (at most k, D) if there are any, and two iterations in all directions finish it. Embeddings that
    vary in many directions are those of a trained encoder, which moves little from epoch to epoch: there a few
    iterations from the last prototypes do.
    """
    if len(points) * k <= SMALL:
        return kmeans(points, k, options, seed, start="kmeans++")
    axes = principal_axes(points)
    if axes is None:
        if last is None:
            return kmeans(points, k, options, seed, start="kmeans++")
        return kmeans(points, k, options, seed, start=last, most=4)
    coarse = points @ axes
    found = kmeans(coarse, k, options, seed, start="kmeans++" if last is None else last @ axes, most=10)
    start = means(points, nearest(coarse, found)[1], k)
    return kmeans(points, k, options, seed, start=start, most=2)


def kmeans(
    points: np.ndarray,
    k: int,
    options: Options,
    seed: int,
    start: np.ndarray | str = "random",
    most: int | None = None,
) -> np.ndarray:
    """Centroids (k, D) of `points` (n, D) by faiss, on the GPU if there is one.

    `start`: "random" points, "kmeans++", or centroids (at most k, D), to which faiss adds what k lacks. `most`: of the
    iterations asked for.
    """
    faiss = import_faiss()
    given = start if isinstance(start, np.ndarray) else None
    at_random = given is None and start == "random"
    clustering = faiss.Kmeans(
        points.shape[1],
        k,
        niter=min(options.kmeans_iterations, most or options.kmeans_iterations),
        nredo=options.kmeans_restarts if given is None else 1,
        seed=seed,
        init_method=faiss.ClusteringInitMethod_RANDOM if at_random else faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
        max_points_per_centroid=options.kmeans_points,
        min_points_per_centroid=1,  # faiss only warns below its default of 39
        gpu=faiss.get_num_gpus() > 0,
    )
    clustering.train(points, init_centroids=None if given is None else np.ascontiguousarray(given[:k]))
    return clustering.centroids


def principal_axes(points: np.ndarray) -> np.ndarray | None:
    """The directions (D, at most COARSE) of most variance, or None if they do not hold enough of it."""
    some = points[:: max(1, len(points) // 20_000)]
    variances, axes = np.linalg.eigh(np.cov(some, rowvar=False))  # ascending
    if variances[-COARSE:].sum() < TRUSTED * variances.sum():
        return None
    return axes[:, -COARSE:].astype("float32")


def means(points: np.ndarray, clusters: np.ndarray, k: int) -> np.ndarray:
    """The mean of each cluster that has points, (at most k, D)."""
    sums = torch.zeros(k, points.shape[1]).index_add_(0, torch.from_numpy(clusters), torch.from_numpy(points))
    sizes = np.bincount(clusters, minlength=k)
    return sums.numpy()[sizes > 0] / sizes[sizes > 0, None].astype("float32")


def import_faiss(who: str = "hcsc clusters") -> Any:
    """faiss, which a user of other methods may do without."""
    try:
        import faiss
    except ImportError:
        raise UserError(f"{who} with faiss; run: pip install 'solo_hcsc[cpu]', or 'solo_hcsc[gpu]'") from None
    if not hasattr(faiss, "ClusteringInitMethod_KMEANS_PLUS_PLUS"):
        raise UserError(f"{who} with faiss 1.14.2 or newer, and this is {faiss.__version__}; upgrade faiss-cpu or -gpu")
    return faiss


def nearest(points: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared distance (n,) to, and index (n,) of, the centroid nearest to each of `points` (n, D)."""
    index = import_faiss().IndexFlatL2(centroids.shape[1])
    index.add(np.ascontiguousarray(centroids))
    distances, indices = index.search(np.ascontiguousarray(points), 1)
    return distances[:, 0], indices[:, 0]


def normalise(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(norms, 1e-12)).astype("float32")


def cluster_temperatures(
    points: np.ndarray, centres: np.ndarray, clusters: np.ndarray, epsilon: float, lonely: str = "formula"
) -> np.ndarray:
    """Eq. 3: tau_c (M,), the mean distance of a cluster's points (n, D) to its centre, over log(size + epsilon).

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
    """Clips to the 10th and 90th percentile, then rescales to the given mean."""
    clipped = temperatures.clip(np.percentile(temperatures, 10), np.percentile(temperatures, 90))
    average = clipped.mean()
    return clipped * (mean / average) if average > 0 else np.full_like(clipped, mean)
