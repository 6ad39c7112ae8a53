"""k-means by faiss: plain, as the paper and the released code have it, and a fast one that is as good.

Shapes: `points (n, D)`, `centroids (k, D)`, both float32.
"""

from typing import Any

import numpy as np
import torch

from solo_hcsc.hcsc.errors import MissingPackage
from solo_hcsc.hcsc.options import Options

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


def nearest(points: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared distance (n,) to, and index (n,) of, the centroid nearest to each of `points` (n, D)."""
    index = import_faiss().IndexFlatL2(centroids.shape[1])
    index.add(np.ascontiguousarray(centroids))
    distances, indices = index.search(np.ascontiguousarray(points), 1)
    return distances[:, 0], indices[:, 0]


def normalise(vectors: np.ndarray) -> np.ndarray:
    """The vectors (n, D) at unit length."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(norms, 1e-12)).astype("float32")


def import_faiss(who: str = "hcsc clusters") -> Any:
    """faiss, which a user of other methods may do without; `who` needs it, for the message of `MissingPackage`."""
    try:
        import faiss
    except ImportError:
        raise MissingPackage(f"{who} with faiss; run: pip install 'solo_hcsc[cpu]', or 'solo_hcsc[gpu]'") from None
    if not hasattr(faiss, "ClusteringInitMethod_KMEANS_PLUS_PLUS"):
        raise MissingPackage(
            f"{who} with faiss 1.14.2 or newer, and this is {faiss.__version__}; upgrade faiss-cpu or -gpu"
        )
    return faiss
