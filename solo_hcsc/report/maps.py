"""Maps of images' features in the plane, by t-SNE and UMAP, coloured by what the images belong to.

scikit-learn, UMAP and matplotlib are heavy, and UMAP is an extra: they are imported where they are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from solo_hcsc.data.folders import short_names
from solo_hcsc.data.label_hierarchy import LabelLevel
from solo_hcsc.progress import note, say
from solo_hcsc.report import figures
from solo_hcsc.report.figures import Picture, short
from solo_hcsc.trees.plane import differ, fit_umap, has_umap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = 12  # groups up to which a legend names them, and classes up to which a map is coloured by class
BLUE = "#1f7fc9"  # the first colour: points are pixels, which cannot change on a dark page, so it suits both
SMALLEST = 0.02  # share of the points from which a group is labelled on the map
WIDTH, HEIGHT, SIZE = 4.5, 3.6, 8  # of a map in inches, and of its letters in points


@dataclass(frozen=True)
class Colouring:
    """The colours of the points of a map."""

    name: str  # class or cluster, in the names of files
    title: str
    groups: np.ndarray  # (n,) each point's group
    names: Sequence[str]  # of the groups
    words: str  # what the colour is, for the caption


def tsne(features: np.ndarray, seed: int) -> np.ndarray:
    """Map features (n, D) to points (n, 2) by t-SNE."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(features) - 1) / 3)
    with threadpool_limits(1):  # several threads would add up in another order every time
        return TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(features)


def umap(features: np.ndarray, seed: int) -> np.ndarray:
    """Map features (n, D) to points (n, 2) by UMAP."""
    return fit_umap(features, seed).embedding_


def draw_map(points: np.ndarray, groups: np.ndarray, names: Sequence[str]) -> "Figure":
    """Draw points (n, 2) in the colours of their groups (n,), with each group's name at its place, few in a legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    painted = [figures.paint(number, len(names)) for number in range(len(names))]
    colours = [BLUE if colour == figures.BLUE else colour for colour in painted]
    x, y = points.T
    axes.scatter(x, y, s=9, c=[colours[group] for group in groups], linewidths=0, alpha=0.85, rasterized=True)
    for group, (left, low) in place_labels(points, groups, names).items():
        box = {"boxstyle": "round,pad=0.15", "facecolor": figures.PAPER, "edgecolor": "none", "alpha": 0.75}
        axes.text(left, low, names[group], fontsize=SIZE, ha="center", va="center", bbox=box)
    if len(names) <= NAMED:
        for name, colour in zip(names, colours, strict=True):
            axes.scatter([], [], s=25, color=colour, linewidths=0, label=name)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, fontsize=SIZE, handletextpad=0.1, columnspacing=0.8
        )
    return figure


def place_labels(points: np.ndarray, groups: np.ndarray, names: Sequence[str]) -> dict[int, tuple[float, float]]:
    """Place groups' names: at the median of their points (n, 2), or a line above or below it.

    The largest groups come first. Tiny ones have no label, nor those whose place is taken.
    """
    sizes = np.bincount(groups, minlength=len(names))
    unit = np.ptp(points, axis=0) * 1.1 / (WIDTH * 72, HEIGHT * 72)  # of a point of type, on the map
    taken: list[tuple[np.ndarray, np.ndarray]] = []
    places = {}
    for group in np.argsort(-sizes, kind="stable").tolist():
        if sizes[group] < max(2, SMALLEST * len(points)):
            break
        half = unit * (SIZE * (0.3 * len(names[group]) + 0.4), SIZE * 0.75)
        middle = np.median(points[groups == group], axis=0)
        for lines in (0, 2.5, -2.5):
            place = np.array([middle[0], middle[1] + lines * half[1]])
            if all((abs(place - other) >= half + room).any() for other, room in taken):
                taken.append((place, half))
                places[group] = (float(place[0]), float(place[1]))
                break
    return places


# ---- for an analysis ----


def by_class(labels: np.ndarray, names: Sequence[str], levels: Sequence[LabelLevel]) -> Colouring | None:
    """Colour by class (n,); of many classes, by the lowest level of their hierarchy with few groups; else None."""
    if len(names) <= NAMED:
        shown = [short(name, 16) for name in names]
        return Colouring("class", "class", labels, shown, f"The colour is the class. There are {len(names)}.")
    for number, level in enumerate(levels[1:], start=2):
        if 1 < len(level.names) <= NAMED:
            words = (
                f"The {len(names)} classes are too many to colour. The colour is the group of classes instead: level "
                f"{number} of the label hierarchy, with {len(level.names)} groups."
            )
            shown = [short(name, 16) for name in short_names(level.names)]
            return Colouring("class", "group of classes", level.groups[labels], shown, words)
    say(f"no map by class is shown: {len(names)} classes are more than {NAMED}, and no label hierarchy groups them")
    return None


def by_cluster(clusters: np.ndarray, labels: np.ndarray, names: Sequence[str], which: str) -> Colouring:
    """Colour by cluster (n,), numbered from 1 by size, with its commonest class (n,) if there are any."""
    _, found, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    ranks = np.argsort(np.argsort(-sizes, kind="stable"))
    groups = ranks[found]
    words = f"The colour is the {which}. These images have {len(sizes)}, numbered by size"
    if not names:
        return Colouring("cluster", "cluster", groups, [str(number + 1) for number in sorted(ranks)], f"{words}.")
    commonest = [int(np.bincount(labels[groups == group]).argmax()) for group in range(len(sizes))]
    shown = [f"{number}: {short(names[label], 14)}" for number, label in enumerate(commonest, start=1)]
    return Colouring("cluster", "cluster", groups, shown, f"{words} and named by their most common class.")


def show_maps(features: np.ndarray, colourings: Sequence[Colouring], seed: int) -> list[Picture]:
    """Draw t-SNE and UMAP of features (n, D), coloured in each way."""
    if not differ(features):
        say("no map is shown: the encoder gives all images the same features")
        return []
    pictures = []
    for method, title in ((tsne, "t-SNE"), (umap, "UMAP")):
        if method is umap and not has_umap():
            note("UMAP is not installed; run: pip install 'solo_hcsc[umap]'")
            continue
        say(f"{title}: mapping {len(features)} images")
        points = method(features, seed)
        for by in colourings:
            caption = (
                f"{title} of the features of {len(features)} images. Images with similar features are near each other. "
                f"{by.words}"
            )
            draw = partial(draw_map, points, by.groups, by.names)
            name = f"{method.__name__}_{by.name}"
            pictures.append(Picture(name, f"{title} of the features, by {by.title}", caption, draw))
    return pictures
