"""Weighted KNN on features: solo-learn's classifier, and the evaluation of a checkpoint by it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset

from solo_hcsc.cli.console import table
from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.parser import Invocation
from solo_hcsc.data.folders import classes_of
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.evaluation.features import Features, FeatureSettings, Frozen
from solo_hcsc.evaluation.results import (
    Result,
    column,
    describe_data,
    named_accuracies,
    result_file,
    shown_accuracies,
)
from solo_hcsc.framework import WeightedKNNClassifier
from solo_hcsc.framework.datasets import evaluation_transforms


@dataclass(frozen=True)
class Voting:
    """How neighbours vote."""

    k: tuple[int, ...]  # each is tried
    temperature: float
    distance_function: str

    def deviations(self, features: str) -> list[str]:
        """The flags that differ from the paper's appendix A."""
        protocol = {"k": (10, 20, 100, 200), "temperature": 0.07, "distance_function": "cosine"}
        found = [name for name, value in protocol.items() if getattr(self, name) != value]
        return found if features == "backbone" else [*found, "features"]


def evaluate(
    settings: FeatureSettings,
    voting: Voting,
    loading: Loading,
    source: ImageSource,
    sets: Callable[[Callable], tuple[Dataset, Dataset]],
    invocation: Invocation,
) -> None:
    """The accuracy of every K in the second of two data sets, with the first one as the bank; writes the result."""
    started, evaluation = time.monotonic(), invocation.command
    frozen = Frozen(settings, source.crop_size[0])
    encoder = frozen.encoder
    train_set, val_set = sets(evaluation_transforms(source)[1])
    images, queries = len(train_set), len(val_set)  # type: ignore[arg-type]
    if max(voting.k) > images:
        raise UserError(f"--k {max(voting.k)}: there are only {images} training images")
    variant = "-projector" if settings.features == "projector" else ""
    file = result_file(encoder.checkpoint, evaluation + variant, source)
    print(encoder.taken)
    print(
        f"{evaluation} of {encoder.checkpoint} ({encoder.name}, {settings.features} features) on {source.dataset}: "
        f"{images} images in the bank, {queries} queries, {frozen.device}",
        flush=True,
    )
    bank, asked = frozen.of(train_set, loading, "bank"), frozen.of(val_set, loading, "queries")
    found = accuracies(bank, asked, voting.k, voting.temperature, voting.distance_function)
    classes = classes_of(train_set)
    tops = shown_accuracies(classes)
    rows = [(k, *values[: len(tops)]) for k, *values in found]
    best = max(rows, key=lambda row: row[1])
    said = {
        "k": best[0],
        "temperature": voting.temperature,
        "distance": voting.distance_function,
        "features": settings.features,
        "all": [{"k": k, **named_accuracies(tops, values)} for k, *values in rows],
        "deviations": voting.deviations(settings.features),
    }
    data = describe_data(source, classes, train=images, val=queries)
    result = Result(
        evaluation, settings.method, data, named_accuracies(tops, best[1:]), said, time.monotonic() - started
    )
    result.write(file, encoder, invocation)
    print(table(("k", *map(column, tops)), rows))
    print(f"best: {best[1]:.2f} % of {queries} images, with k={best[0]}; result in {file}")


def accuracies(
    bank: Features, queries: Features, ks: Sequence[int], temperature: float, distance: str
) -> list[tuple[int, float, float]]:
    """K, top-1 and top-5 accuracy of the framework's weighted KNN classifier, in percent."""
    knn = WeightedKNNClassifier(T=temperature, distance_fx=distance)
    knn.update(train_features=bank.x, train_targets=bank.y, test_features=queries.x, test_targets=queries.y)
    return [(k, *found) for k, found in knn.accuracies(ks).items()]


def knn_accuracy(
    bank: torch.Tensor,
    bank_labels: torch.Tensor,
    queries: torch.Tensor,
    labels: torch.Tensor,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Top-1 accuracy in percent of weighted KNN with cosine similarity, as `solo-hcsc knn` computes it.

    Args:
        bank: features (N, D) whose labels are known, `bank_labels` (N,).
        queries: features (n, D) to classify, whose right classes are `labels` (n,).
        k: neighbours that vote.
        temperature: of the votes' weights.

    Returns:
        The share of the queries whose class is found, in percent.

    Example:
        >>> points = torch.eye(4)
        >>> knn_accuracy(points, torch.arange(4), points, torch.tensor([0, 1, 2, 0]), k=1)
        75.0
    """
    return accuracies(Features(bank, bank_labels), Features(queries, labels), [k], temperature, "cosine")[0][1]
