"""What few labels are worth: the accuracy of classifiers by which images are labelled, and by how many."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from solo_hcsc.hcsc.kmeans import normalise
from solo_hcsc.hcsc.options import levels_for
from solo_hcsc.trees.picking import centred, clusters_of, pick
from solo_hcsc.trees.spreading import accuracy, knn_shares, linear_shares, spread

CHOICES = ("picked", "random", "stratified")
CLASSIFIERS = ("linear", "knn", "spread")
SHARE = 0.8  # of the pool that each draw chooses from


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images with their classes: features (N, D), numbers (N,) from 0, and clusters (L, N) of a tree to pick from."""

    features: np.ndarray
    classes: np.ndarray
    paths: np.ndarray | None = None

    def some(self, images: np.ndarray) -> "Labelled":
        paths = None if self.paths is None else self.paths[:, images]
        return Labelled(self.features[images], self.classes[images], paths)


@dataclass(frozen=True)
class Score:
    """A classifier's accuracy in percent, of each draw: on all images, and on the half that it is surest of."""

    budget: int
    choice: str
    classifier: str
    accuracies: list[float]
    surer_half: list[float]


def measure(pool: Labelled, judged: Labelled, budgets: Sequence[int], draws: int, way: str) -> list[Score]:
    """The scores of every choice and classifier, budget by budget; each draw chooses from another 80 % of the pool."""
    found: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for draw in range(draws):
        random = np.random.default_rng(draw)
        part = pool.some(np.sort(random.permutation(len(pool.classes))[: drawn_from(len(pool.classes))]))
        together = np.concatenate([part.features, judged.features])
        paths = clusters_of(centred(together), levels_for(len(together)))
        for budget, choice in product(budgets, CHOICES):
            chosen = choose(part, choice, budget, random, way)
            for classifier, shares in _answers(part, chosen, judged, paths):
                both = accuracy(shares, judged.classes), accuracy(shares, judged.classes, 0.5)
                found.setdefault((budget, choice, classifier), []).append(both)
    return [
        Score(*key, *([round(one, 3) for one in each] for each in zip(*values, strict=True)))
        for key, values in found.items()
    ]


def drawn_from(images: int) -> int:
    """How many of so many images a draw chooses from."""
    return max(1, int(SHARE * images))


def choose(pool: Labelled, choice: str, budget: int, random: np.random.Generator, way: str = "typical") -> np.ndarray:
    """The numbers of images that are labelled; `stratified` takes equally many of each class, at random."""
    if choice == "picked":
        return np.array([one.image for one in pick(pool.features, budget, way=way, paths=pool.paths)])
    order = random.permutation(len(pool.classes))
    if choice == "stratified":
        turns = np.empty(len(order), int)  # the first of each class, then the second of each, ...
        for label in np.unique(pool.classes):
            own = order[pool.classes[order] == label]
            turns[own] = np.arange(len(own))
        order = order[np.argsort(turns[order], kind="stable")]
    return order[:budget]


def _answers(
    pool: Labelled, chosen: np.ndarray, judged: Labelled, paths: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """What each classifier says (n, C) of the judged images."""
    mean, classes = pool.features.mean(axis=0), pool.classes[chosen]
    count = int(max(pool.classes.max(), judged.classes.max())) + 1
    known, asked = centred(pool.features[chosen], mean), centred(judged.features, mean)
    yield "linear", linear_shares(asked, known, classes, count)
    yield "knn", knn_shares(normalise(judged.features), normalise(pool.features[chosen]), classes, count)
    together = np.concatenate([pool.features, judged.features])
    yield "spread", spread(together, chosen.tolist(), classes, paths)[len(pool.features) :]
