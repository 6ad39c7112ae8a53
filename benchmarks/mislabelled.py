"""Likely wrong labels: planted errors found by the product, beside other ways and cleanlab if it is installed.

Some labels of a set (`benchmarks.tree_images`) become random other classes; each way ranks all images and lists
some. All have the same frozen features. cleanlab gets out-of-sample probabilities of a logistic regression in five
folds, and its own rankings and filters are compared.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold

from benchmarks import measure
from benchmarks.trees import features, named
from solo_hcsc.hcsc.kmeans import normalise
from solo_hcsc.trees.mislabelled import LEAST_MARGIN, margins_of
from solo_hcsc.trees.neighbours import nearest_others

IMAGES = 2500  # of a set at most, others for each draw
SETS = {"grocery, 81 classes": ("grocery", 1), "grocery, 42 groups": ("grocery", 0), "cifar10": ("cifar10", 1)}
NEIGHBOURS, FOLDS, PENALTY = 20, 5, 10.0  # the penalty is scikit-learn's C, the best of 1 and 10 on the groceries
DRAWS = 2000  # of the bootstrap


class Ranked(NamedTuple):
    """How suspicious a way finds each image (N,), and which it lists (N,)."""

    scores: np.ndarray
    listed: np.ndarray


def main() -> None:
    flags = measure.parser(__doc__, repeats=5)
    flags.set_defaults(threads=[1])
    flags.add_argument("--pictures", type=Path, help="folder that benchmarks.tree_images wrote")
    flags.add_argument("--weights", type=Path, help="of EfficientNet-lite0, from scripts/data/weights.sh")
    flags.add_argument("--cache", type=Path, default=Path("datasets/features"), help="folder where features are kept")
    flags.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    flags.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.1], help="shares of labels that are wrong")
    args = flags.parse_args()
    rows: list[dict[str, Any]] = []
    for name in ["mixture"] if args.small else args.sets:
        vectors, labels = mixture() if args.small else labelled(name, args)
        for rate in args.rates:
            with measure.threads(args.threads[-1]):
                found = [row for seed in range(args.repeats) for row in judged(vectors, labels, rate, seed)]
            rows += [{"set": name, "rate": rate} | row for row in found]
            ways = dict.fromkeys(row["way"] for row in found)
            shown = [(way, *summary([row for row in found if row["way"] == way])) for way in ways]
            measure.show([f"{name}, {rate:.0%}", "average precision", "precision", "recall", "listed", "CPU s"], shown)
            measure.write("mislabelled", named(args), rows)  # what is done, should the rest be stopped


def labelled(name: str, args: Namespace) -> tuple[np.ndarray, np.ndarray]:
    folder, level = SETS[name]
    vectors, _ = features(args.pictures / folder, args)
    with np.load(args.cache / f"{folder}.npz") as kept:
        names = [path.split("/")[level] for path in kept["paths"].tolist()]
    return vectors, np.unique(names, return_inverse=True)[1]


def mixture() -> tuple[np.ndarray, np.ndarray]:
    """300 points around six centres."""
    draw = np.random.default_rng(0)
    labels = np.arange(300) % 6
    return normalise((draw.normal(size=(6, 16))[labels] + draw.normal(size=(300, 16)) / 2).astype("float32")), labels


def summary(rows: list[dict[str, Any]]) -> Iterable[str]:
    for what in ("average_precision", "precision", "recall"):
        values = np.array([row[what] for row in rows])
        low, high = interval(values)
        yield f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"
    yield f"{np.mean([row['listed'] for row in rows]):.0f}"
    yield f"{np.median([row['cpu_seconds'] for row in rows]):.1f}"


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean of draws, by the bootstrap."""
    draws = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def judged(vectors: np.ndarray, true: np.ndarray, rate: float, seed: int) -> list[dict[str, Any]]:
    """A row for each way, on labels of which some are made wrong."""
    draw = np.random.default_rng(seed)
    taken = draw.permutation(len(true))[:IMAGES]
    taken = taken[np.bincount(true[taken])[true[taken]] >= FOLDS]  # each fold trains on every class
    points, true = vectors[taken], np.unique(true[taken], return_inverse=True)[1]
    labels, wrong = planted(true, rate, draw)
    rows = []
    probabilities = np.empty(0)

    def logistic() -> Ranked:
        nonlocal probabilities
        probabilities = out_of_fold(points, labels, seed)
        return by_margin(probabilities, labels)

    ways: dict[str, Callable[[], Ranked]] = {
        "solo_hcsc": lambda: product(points, labels),
        "votes of 20 neighbours": lambda: by_margin(votes(points, labels), labels),
        "logistic regression in folds": logistic,
    }
    for way, work in (*ways.items(), *cleanlab(lambda: probabilities, labels).items()):
        started = time.process_time()
        found = work()
        seconds = time.process_time() - started
        if way.startswith("cleanlab"):
            seconds += rows[2]["cpu_seconds"]
        right = int((found.listed & wrong).sum())
        rows.append(
            {
                "seed": seed,
                "way": way,
                "images": len(labels),
                "wrong": int(wrong.sum()),
                "listed": int(found.listed.sum()),
                "average_precision": float(average_precision_score(wrong, found.scores)),
                "precision": right / max(1, int(found.listed.sum())),
                "recall": right / int(wrong.sum()),
                "cpu_seconds": seconds,
            }
        )
    return rows


def planted(true: np.ndarray, rate: float, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share are random other classes, and which these are."""
    which = draw.choice(len(true), round(rate * len(true)), replace=False)
    labels, classes = true.copy(), int(true.max()) + 1
    labels[which] = (true[which] + draw.integers(1, classes, len(which))) % classes
    return labels, np.isin(np.arange(len(true)), which)


def product(points: np.ndarray, labels: np.ndarray) -> Ranked:
    margins = margins_of(points, labels)[2]
    return Ranked(margins, margins >= LEAST_MARGIN)


def by_margin(shares: np.ndarray, labels: np.ndarray) -> Ranked:
    """Lists an image where another class is likelier than its label by a half."""
    at = np.arange(len(labels)), labels
    others = shares.copy()
    others[at] = -1
    margins = others.max(axis=1) - shares[at]
    return Ranked(margins, margins >= 0.5)


def votes(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The share (N, C) of each class among an image's nearest others, weighted as KNN weights them."""
    numbers, distances = nearest_others(normalise(points), min(NEIGHBOURS, len(points) - 1))
    weights = np.exp(-(distances**2 - distances[:, :1] ** 2) / 2 / 0.07)
    found = np.zeros((len(points), labels.max() + 1))
    np.add.at(found, (np.arange(len(points))[:, None], labels[numbers]), weights)
    return found / found.sum(axis=1, keepdims=True)


def out_of_fold(points: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Probabilities (N, C), each by a model that was trained without the image."""
    found = np.zeros((len(points), labels.max() + 1))
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(points, labels):
        model = LogisticRegression(C=PENALTY, max_iter=200).fit(points[train], labels[train])
        found[np.ix_(test, model.classes_)] = model.predict_proba(points[test])
    return found


def cleanlab(probabilities: Callable[[], np.ndarray], labels: np.ndarray) -> dict[str, Callable[[], Ranked]]:
    try:
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        return {}

    def way(rank: str, listed_by: str) -> Ranked:
        scores = -get_label_quality_scores(labels, probabilities(), method=rank)
        return Ranked(scores, find_label_issues(labels, probabilities(), filter_by=listed_by, n_jobs=1))

    return {
        "cleanlab, self-confidence, pruned by noise rate": lambda: way("self_confidence", "prune_by_noise_rate"),
        "cleanlab, normalised margin, confident learning": lambda: way("normalized_margin", "confident_learning"),
        "cleanlab, self-confidence, both filters": lambda: way("self_confidence", "both"),
    }


if __name__ == "__main__":
    main()
