"""What few labels are worth: the accuracy of classifiers by which images are labelled, and by how many."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from numbers import Integral
from statistics import fmean
from typing import Any

import numpy as np

from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation.labelled import Labelled, as_pair
from solo_hcsc.hcsc.kmeans import normalise
from solo_hcsc.hcsc.options import levels_for
from solo_hcsc.runs.results import Result
from solo_hcsc.trees.picking import pick
from solo_hcsc.trees.pool import centred, cluster
from solo_hcsc.trees.spreading import accuracy, knn_shares, linear_shares, spread_shares
from solo_hcsc.typed import typed

CHOICES = ("picked", "random", "stratified")
CLASSIFIERS = ("linear", "knn", "spread")
BUDGETS = (10, 20, 50, 100, 250, 500)
DRAWS = 5
SHARE = 0.8  # of the pool that each draw chooses from


@dataclass(frozen=True)
class Score:
    """Hold a classifier's accuracy in percent, of each draw: on all images, and on the half that it is surest of."""

    budget: int
    choice: str
    classifier: str
    accuracies: list[float]
    surer_half: list[float]


@typed
def fewlabels(
    train: Any,
    val: Any,
    budgets: Sequence[int] | None = None,
    draws: int = DRAWS,
    way: str = "typical",
    own_tree: bool = False,
) -> Result:
    """Measure what few labels are worth: of images that `pick` chooses, of random ones, and of as many of each class.

    Args:
        train: the images that labels are chosen from, `Embeddings` with labels, or a pair of vectors (N, D) and labels
            (N,): arrays or tensors.
        val: the images that are classified, given like `train`.
        budgets: how many images are labelled; 10 to 500 if not given, as far as there are so many.
        draws: how often each choice is made, each from another four fifths of `train`.
        way: which image of a cluster `pick` takes.
        own_tree: whether it picks from the clusters that `train` has, rather than from a tree made of the features.

    Returns:
        Accuracies in percent of a linear classifier, KNN and `spread`; `metrics` has those of the linear classifier
        with picked and with random labels, on average over budgets and draws.

    Example:
        >>> labels = np.repeat([0, 1], 10)
        >>> images = np.eye(4)[labels] + 0.1 * np.random.default_rng(0).normal(size=(20, 4)), labels
        >>> fewlabels(images, images, budgets=[4], draws=1).metrics["picked"]
        100.0
    """
    started = time.monotonic()
    pool, judged = as_pair(train, val)
    if len(np.unique(pool.labels)) < 2:
        raise ArgumentError("`train` has one class: give images of at least two")
    if own_tree and pool.clusters is None:
        raise ArgumentError("`own_tree`: `train` has no clusters; leave it out")
    if not isinstance(draws, Integral) or draws < 1:
        raise ArgumentError(f"`draws` is {draws!r}: give a whole number from 1")
    counts = check_budgets(budgets, len(pool))
    scores = measure(pool, judged, counts, draws, way, own_tree)
    return Result(
        "fewlabels",
        headline(scores),
        {
            "budgets": counts,
            "draws": draws,
            "way": way,
            "tree": None if way == "farthest" else "run" if own_tree else "features",
            "scores": [asdict(score) for score in scores],
        },
        {"name": "arrays", "train_images": len(pool), "val_images": len(judged), "classes": pool.classes},
        _rows(scores),
        digits=1,
        seconds=time.monotonic() - started,
    )


def check_budgets(budgets: Sequence[int] | None, images: int) -> list[int]:
    """Return numbers of labels, rising, each once; refuse more than a draw from so many images has."""
    most = drawn_from(images)
    if budgets is None:
        return [one for one in BUDGETS if one <= most] or [1]
    counts = sorted({*budgets})
    if not counts or not all(isinstance(one, Integral) and one >= 1 for one in counts):
        raise ArgumentError(f"`budgets` is {budgets!r}: give whole numbers from 1")
    if counts[-1] > most:
        raise ArgumentError(f"`budgets` {counts[-1]}: a draw chooses from {most} of {images} images; give fewer")
    return counts


def headline(scores: Sequence[Score]) -> dict[str, float]:
    """Average the linear classifier's accuracy with picked and with random labels over budgets and draws."""
    return {
        choice: fmean(
            value for one in scores if (one.classifier, one.choice) == ("linear", choice) for value in one.accuracies
        )
        for choice in ("picked", "random")
    }


def _rows(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Return a row for each budget and choice, with the accuracies of all draws by each classifier."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for values, told in (("accuracies", ""), ("surer_half", ", surer half")):
        for one in scores:
            row = rows.setdefault((one.budget, one.choice), {"labels": one.budget, "chosen": one.choice})
            row[f"{one.classifier}{told}"] = getattr(one, values)
    return list(rows.values())


def measure(
    pool: Labelled, judged: Labelled, budgets: Sequence[int], draws: int, way: str, own_tree: bool = False
) -> list[Score]:
    """Return the scores of every choice and classifier; each draw chooses from another 80 % of the pool."""
    found: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for draw in range(draws):
        random = np.random.default_rng(draw)
        part = pool.some(np.sort(random.permutation(len(pool))[: drawn_from(len(pool))]))
        together = centred(np.concatenate([part.vectors, judged.vectors]))
        clusters = cluster(together, levels_for(len(together)))
        for budget, choice in product(budgets, CHOICES):
            chosen = choose(part, choice, budget, random, way, own_tree)
            for classifier, shares in _answers(part, chosen, judged, together, clusters):
                both = accuracy(shares, judged.labels), accuracy(shares, judged.labels, 0.5)
                found.setdefault((budget, choice, classifier), []).append(both)
    return [
        Score(*key, *([round(one, 3) for one in each] for each in zip(*values, strict=True)))
        for key, values in found.items()
    ]


def drawn_from(images: int) -> int:
    """Return how many of so many images a draw chooses from."""
    return max(1, int(SHARE * images))


def choose(
    pool: Labelled, choice: str, budget: int, random: np.random.Generator, way: str = "typical", own_tree: bool = False
) -> np.ndarray:
    """Return the numbers of images to label; `stratified` takes equally many of each class, at random."""
    if choice == "picked":
        return np.array(pick(pool.vectors, budget, way=way, clusters=pool.clusters if own_tree else None).images)
    order = random.permutation(len(pool))
    if choice == "stratified":
        turns = np.empty(len(order), int)  # the first of each class, then the second of each, ...
        for label in np.unique(pool.labels):
            own = order[pool.labels[order] == label]
            turns[own] = np.arange(len(own))
        order = order[np.argsort(turns[order], kind="stable")]
    return order[:budget]


def _answers(
    pool: Labelled, chosen: np.ndarray, judged: Labelled, together: np.ndarray, clusters: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what each classifier says (n, C) of the judged images; `together` has the points of both."""
    mean, labels, count = pool.vectors.mean(axis=0), pool.labels[chosen], pool.classes
    known, asked = centred(pool.vectors[chosen], mean), centred(judged.vectors, mean)
    yield "linear", linear_shares(asked, known, labels, count)
    yield "knn", knn_shares(normalise(judged.vectors), normalise(pool.vectors[chosen]), labels, count)
    if len(np.unique(labels)) < 2:
        raise ArgumentError(f"`budgets` {len(chosen)}: all labels are of one class; give more")
    yield "spread", spread_shares(together, chosen, labels, count, clusters)[len(pool) :]
