"""Maps of images' features in the plane, by t-SNE and UMAP, coloured by what the images belong to."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from solo_hcsc import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = 10  # groups up to which a legend names them


def tsne(features: np.ndarray, seed: int) -> np.ndarray:
    """Points (n, 2) of features (n, D)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(features) - 1) / 3)
    with threadpool_limits(1):  # several threads would add up in another order every time
        return TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(features)


def umap(features: np.ndarray, seed: int) -> np.ndarray:
    """Points (n, 2) of features (n, D)."""
    from umap import UMAP

    return UMAP(n_neighbors=min(15, len(features) - 1), random_state=seed, n_jobs=1).fit_transform(features)


def has_umap() -> bool:
    return find_spec("umap") is not None


def differ(features: np.ndarray) -> bool:
    """Whether there is anything to map: a collapsed encoder gives every image the same features."""
    return bool(np.ptp(features, axis=0).max() > 1e-6)


def draw_map(points: np.ndarray, groups: np.ndarray, names: Sequence[str]) -> "Figure":
    """Points (n, 2) in the colours of their groups (n,), which `names` has a name for each of."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 3.6))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    colours = [figures.colour(number, len(names)) for number in range(len(names))]
    x, y = points.T
    axes.scatter(x, y, s=9, c=[colours[group] for group in groups], linewidths=0, alpha=0.85, rasterized=True)
    if len(names) <= NAMED:
        for name, one in zip(names, colours, strict=True):
            axes.scatter([], [], s=25, color=one, linewidths=0, label=name)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, fontsize=8, handletextpad=0.1, columnspacing=0.8
        )
    return figure
