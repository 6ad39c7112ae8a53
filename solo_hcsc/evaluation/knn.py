"""KNN accuracy of frozen features, without training."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation.labelled import as_pair
from solo_hcsc.runs.results import Result, column, named_accuracies, shown_accuracies
from solo_hcsc.trees.votes import DISTANCES, TEMPERATURE, knn_accuracies

KS = (10, 20, 100, 200)  # of the paper's appendix A, like the next two
PROTOCOL = {"k": KS, "temperature": (TEMPERATURE,), "distance_function": ("cosine",)}


def knn(
    train: Any,
    val: Any,
    k: int | Sequence[int] = 20,
    temperature: float | Sequence[float] = TEMPERATURE,
    distance: str | Sequence[str] = "cosine",
) -> Result:
    """Classify each image by a weighted vote of its nearest neighbours, as solo-learn and the paper's appendix A do.

    Args:
        train: the bank, `Embeddings` with labels, or a pair of vectors (N, D) and labels (N,): arrays or tensors.
        val: the queries, given like `train`.
        k: neighbours that vote; of several numbers the best is reported, and `rows` has all.
        temperature: of the votes' weights, exp(cosine / temperature); of several, each is tried.
        distance: `cosine` or `euclidean`; of several, each is tried.

    Returns:
        Top-1 accuracy `acc1` in percent, and `acc5` where there are more than five classes.

    Example:
        >>> points = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]
        >>> knn((points, [0, 1, 2, 3]), (points, [0, 1, 2, 0]), k=1).metrics
        {'acc1': 75.0}
    """
    started = time.monotonic()
    ks, temperatures, distances = _several(k), _several(temperature), _several(distance)
    check_ks(ks)
    if not temperatures or not all(isinstance(one, int | float) and one > 0 for one in temperatures):
        raise ArgumentError(f"`temperature` is {temperature!r}: give a number above 0, or several")
    if not distances or not {*distances} <= {*DISTANCES}:
        raise ArgumentError(f"`distance` is {distance!r}: give one of {', '.join(DISTANCES)}, or both")
    bank, asked = as_pair(train, val)
    check_ks(ks, len(bank))
    tops = shown_accuracies(bank.classes)
    # Each way once; only votes by cosine have a temperature.
    ways = dict.fromkeys((name, t) for name in distances for t in (temperatures if name == "cosine" else (None,)))
    rows = [
        {"k": count, "temperature": t, "distance": name, **named_accuracies(tops, found[: len(tops)])}
        for name, t in ways
        for count, found in knn_accuracies(*bank.tensors, *asked.tensors, ks, t, name).items()
    ]
    best = max(rows, key=lambda row: row["acc1"])
    varied = [name for name in ("distance", "temperature") if len({row[name] for row in rows}) > 1]
    given = {"k": ks, "temperature": temperatures, "distance_function": distances}
    chosen = {name: best[name] for name in ("k", "temperature", "distance")}
    return Result(
        "knn",
        named_accuracies(tops, [best[name] for name in named_accuracies(tops, tops)]),
        {**chosen, "all": rows, "deviations": [name for name, usual in PROTOCOL.items() if given[name] != usual]},
        {"name": "arrays", "train_images": len(bank), "val_images": len(asked), "classes": bank.classes},
        rows,
        {name: name for name in ("k", *varied)} | {f"acc{top}": column(top) for top in tops},
        seconds=time.monotonic() - started,
    )


def zeroshot(
    train: Any,
    val: Any,
    k: int | Sequence[int] = 20,
    temperature: float | Sequence[float] = TEMPERATURE,
    distance: str | Sequence[str] = "cosine",
) -> Result:
    """Classify images of a data set that the encoder was not pretrained on, as `knn` does.

    Args:
        train: the bank, given as to `knn`, like all else.
        val: the queries.
        k: neighbours that vote.
        temperature: of the votes' weights.
        distance: `cosine` or `euclidean`.

    Returns:
        The same as `knn`, by the name of `zeroshot`.

    Example:
        >>> birds = [[1, 0], [0, 1]], ["wren", "robin"]
        >>> zeroshot(birds, birds, k=1).metrics
        {'acc1': 100.0}
    """
    return replace(knn(train, val, k, temperature, distance), evaluation="zeroshot")


def check_ks(ks: Sequence[Any], images: int | None = None, which: str = "") -> None:
    """Refuse numbers of neighbours that are none, or more than there are images in the bank."""
    if not ks or not all(isinstance(one, int | np.integer) and one >= 1 for one in ks):
        raise ArgumentError(f"`k` is {ks!r}: give a whole number from 1, or several")
    if images is not None and max(ks) > images:
        raise ArgumentError(f"`k` {max(ks)}: there are only {images} training images{which}")


def _several(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) or not isinstance(value, Sequence) else tuple(value)
