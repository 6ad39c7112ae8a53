"""Maps of images' features in the plane, by t-SNE and UMAP, coloured by what the images belong to.

scikit-learn, UMAP and matplotlib are heavy, and UMAP is an extra: they are imported where they are used.
"""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch

from solo_hcsc.cli.errors import note
from solo_hcsc.report import figures
from solo_hcsc.report.figures import Picture, short

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

    threads = torch.get_num_threads()
    points = UMAP(n_neighbors=min(15, len(features) - 1), random_state=seed, n_jobs=1).fit_transform(features)
    torch.set_num_threads(threads)  # numba sets its own number for all that uses OpenMP
    return points


def has_umap() -> bool:
    """Whether UMAP is installed."""
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
        for name, colour in zip(names, colours, strict=True):
            axes.scatter([], [], s=25, color=colour, linewidths=0, label=name)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, fontsize=8, handletextpad=0.1, columnspacing=0.8
        )
    return figure


# ---- for an analysis ----


def show_maps(
    features: np.ndarray, labels: np.ndarray, clusters: np.ndarray, names: Sequence[str], which: str, seed: int
) -> list[Picture]:
    """t-SNE and UMAP of features (n, D), by class (n,) and by cluster (n,), of which kind `which` says."""
    if not differ(features):
        print("no map is shown: the encoder gives all images the same features")
        return []
    used, groups = np.unique(clusters, return_inverse=True)
    commonest = [int(np.bincount(labels[groups == group]).argmax()) for group in range(len(used))]
    of_clusters = [f"{number}: {short(names[label], 16)}" for number, label in zip(used, commonest, strict=True)]
    kinds = {
        "class": (labels, [short(name, 16) for name in names], f"class, of which there are {len(names)}"),
        "cluster": (groups, of_clusters, f"{which}, of which these images have {len(used)}"),
    }
    pictures = []
    for method, title in ((tsne, "t-SNE"), (umap, "UMAP")):
        if method is umap and not has_umap():
            note("UMAP is not installed; run: pip install 'solo_hcsc[umap]'")
            continue
        print(f"{title}: mapping {len(features)} images", flush=True)
        points = method(features, seed)
        for kind, (group, group_names, words) in kinds.items():
            named = kind == "cluster" and len(used) <= NAMED
            caption = (
                f"{title} of the features of {len(features)} images; near each other are images with similar features. "
                f"The colour is the {words}{'; the legend has its number and its commonest class' if named else ''}."
            )
            draw = partial(draw_map, points, group, group_names)
            pictures.append(Picture(f"{method.__name__}_{kind}", f"{title} of the features, by {kind}", caption, draw))
    return pictures
