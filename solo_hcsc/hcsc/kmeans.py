"""k-means by faiss: plain, as the paper and the released code have it, and a fast one that is as good.

Shapes: `points (n, D)`, `centroids (k, D)`, both float32.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from solo_hcsc.errors import MissingPackage
from solo_hcsc.hcsc.options import Options

SMALL = 2**23  # points times clusters up to which k-means takes well under a second
COARSE = 16  # principal components in which faiss compares four times as fast as in 128 dimensions
TRUSTED = 0.85  # share of the variance that they must hold
CANDIDATES = 4  # points per centroid among which k-means++ chooses; all of 50,000 took three iterations' time more
OVERSHOOT = 1.3  # up to 2 the objective falls; as many iterations as with 1, and 0.2 to 1 % less inertia at their end
SETTLED = 0.01  # share of points that may still change cluster: what is left to gain is then 0.1 to 0.2 %
ALONE = 0.1  # share of clusters of one point above which random points were the better start by 0.6 to 17 %


def fast_kmeans(points: np.ndarray, k: int, options: Options, seed: int) -> np.ndarray:
    """Find centroids (k, D) of `points` (n, D), as good as `kmeans` finds with restarts, in a fraction of its time.

    A large clustering goes from k-means++ among some of the points through a few iterations that overshoot (`settle`).
    Where few directions hold most of the variance it settles in them first, where an iteration costs a fraction. If it
    ends with many clusters of one point, k-means++ has chosen outliers: then random points are tried too, and the
    better of the two counts.

    Every clustering is a start of its own: going on from the last epoch's prototypes saved two iterations at most and
    ended up to 1.2 % above a new start, which only the new start itself would show.
    """
    if len(points) * k <= SMALL:
        return kmeans(points, k, options, seed, start="kmeans++")
    draw = np.random.default_rng(seed)
    if len(points) > k * options.kmeans_points:
        points = points[draw.permutation(len(points))[: k * options.kmeans_points]]
    axes = principal_axes(points)
    view = points if axes is None else points @ axes
    seeds = [(seed + number) % 2**31 for number in range(options.kmeans_restarts)]
    runs = [_run(points, view, plus_plus(view, k, one), options.kmeans_iterations) for one in seeds]
    if min(run.alone for run in runs) > ALONE:
        runs.append(_run(points, view, view[draw.permutation(len(view))[:k]], options.kmeans_iterations))
    return min(runs, key=lambda run: run.objective).centroids


class Settled(NamedTuple):
    """What `settle` found."""

    centroids: np.ndarray  # (k, D)
    objective: float  # before the last step
    alone: float  # share of clusters with one point or none


def _run(points: np.ndarray, view: np.ndarray, start: np.ndarray, most: int) -> Settled:
    """Settle from `start` (k, d) in a `view` (n, d) of the points; then, if that is not all of them, in the points."""
    found = settle(view, start, most)
    if view is points:
        return found
    distances, clusters = nearest(view, found.centroids)
    return settle(points, means(points, clusters, distances, len(start)), most)


def plus_plus(points: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Choose k of the `points` (n, D) that are far from each other: k-means++ among some of them."""
    faiss = import_faiss()
    clustering = faiss.Kmeans(
        points.shape[1],
        k,
        niter=0,
        seed=seed,
        init_method=faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
        max_points_per_centroid=CANDIDATES,
        min_points_per_centroid=1,
    )
    clustering.train(points)
    return clustering.centroids


def settle(points: np.ndarray, centroids: np.ndarray, most: int) -> Settled:
    """Iterate from `centroids` (k, D) until hardly a point changes its cluster, but at most so many times.

    In all but the last iteration each centroid goes beyond the mean of its points, which ends in better minima.
    """
    faiss = import_faiss()
    index = faiss.IndexFlatL2(points.shape[1])
    if faiss.get_num_gpus() > 0:
        index = faiss.index_cpu_to_all_gpus(index)
    clusters = np.full(len(points), -1)
    for left in reversed(range(most)):
        index.reset()
        index.add(centroids)
        before = clusters
        distances, clusters = (found[:, 0] for found in index.search(points, 1))
        target = means(points, clusters, distances, len(centroids))
        if left == 0 or (clusters != before).mean() <= SETTLED:
            break
        centroids = centroids + OVERSHOOT * (target - centroids)
    alone = (np.bincount(clusters, minlength=len(centroids)) <= 1).mean()
    return Settled(target, float(distances.sum(dtype=np.float64)), float(alone))


def kmeans(points: np.ndarray, k: int, options: Options, seed: int, start: str = "random") -> np.ndarray:
    """Find centroids (k, D) of `points` (n, D) by faiss, on a GPU if there is one; `start`: "random" or "kmeans++"."""
    faiss = import_faiss()
    at_random = start == "random"
    clustering = faiss.Kmeans(
        points.shape[1],
        k,
        niter=options.kmeans_iterations,
        nredo=options.kmeans_restarts,
        seed=seed,
        init_method=faiss.ClusteringInitMethod_RANDOM if at_random else faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
        max_points_per_centroid=options.kmeans_points,
        min_points_per_centroid=1,  # faiss only warns below its default of 39
        gpu=faiss.get_num_gpus() > 0,
    )
    clustering.train(points)
    return clustering.centroids


def principal_axes(points: np.ndarray) -> np.ndarray | None:
    """Return the directions (D, at most COARSE) of most variance, or None if they do not hold enough of it."""
    some = points[:: max(1, len(points) // 20_000)]
    variances, axes = np.linalg.eigh(np.cov(some, rowvar=False))  # ascending
    if variances[-COARSE:].sum() < TRUSTED * variances.sum():
        return None
    return axes[:, -COARSE:].astype("float32")


def means(points: np.ndarray, clusters: np.ndarray, distances: np.ndarray, k: int) -> np.ndarray:
    """Average each cluster of `points` (n, D) to (k, D); one without points takes a point that is far from its own."""
    sums = torch.zeros(k, points.shape[1]).index_add_(0, torch.from_numpy(clusters), torch.from_numpy(points))
    sizes = np.bincount(clusters, minlength=k)
    found = sums.numpy() / np.maximum(sizes, 1)[:, None].astype("float32")
    empty = np.flatnonzero(sizes == 0)
    found[empty] = points[np.argpartition(-distances, len(empty))[: len(empty)]]
    return found


def nearest(points: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find squared distance (n,) to, and index (n,) of, the centroid nearest to each of `points` (n, D)."""
    index = import_faiss().IndexFlatL2(centroids.shape[1])
    index.add(np.ascontiguousarray(centroids))
    distances, indices = index.search(np.ascontiguousarray(points), 1)
    return distances[:, 0], indices[:, 0]


def normalise(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors (n, D) to unit length."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(norms, 1e-12)).astype("float32")


def import_faiss(who: str = "hcsc clusters") -> Any:
    """Import faiss, which a user of other methods may do without; `MissingPackage` says that `who` needs it."""
    try:
        import faiss
    except ImportError:
        raise MissingPackage(f"{who} with faiss; run: pip install 'solo_hcsc[cpu]', or 'solo_hcsc[gpu]'") from None
    if not hasattr(faiss, "ClusteringInitMethod_KMEANS_PLUS_PLUS"):
        raise MissingPackage(
            f"{who} with faiss 1.14.2 or newer, and this is {faiss.__version__}; upgrade faiss-cpu or -gpu"
        )
    return faiss
