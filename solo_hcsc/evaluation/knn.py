"""Weighted KNN on features: solo-learn's classifier, and the evaluation of a checkpoint by it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from solo_hcsc.data.folders import classes_of
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.features import Features, FeatureSettings, Frozen, tell_skipped
from solo_hcsc.runs.results import (
    Invocation,
    Result,
    column,
    describe_data,
    named_accuracies,
    result_file,
    shown_accuracies,
)
from solo_hcsc.solo102 import WeightedKNNClassifier
from solo_hcsc.solo102.datasets import evaluation_transforms
from solo_hcsc.tables import table


@dataclass(frozen=True)
class Voting:
    """How neighbours vote: every combination is tried."""

    k: tuple[int, ...]
    temperature: tuple[float, ...]
    distance_function: tuple[str, ...]

    @property
    def ways(self) -> list[tuple[str, float | None]]:
        """Distances with temperatures, each once; only votes by cosine have a temperature."""
        temperatures = {"cosine": self.temperature, "euclidean": (None,)}
        return list(dict.fromkeys((name, t) for name in self.distance_function for t in temperatures[name]))

    def deviations(self, features: str) -> list[str]:
        """The flags that differ from the paper's appendix A."""
        protocol = {"k": (10, 20, 100, 200), "temperature": (0.07,), "distance_function": ("cosine",)}
        found = [name for name, value in protocol.items() if getattr(self, name) != value]
        return found if features == "backbone" else [*found, "features"]


def evaluate(
    settings: FeatureSettings,
    kinds: Sequence[str],
    voting: Voting,
    loading: Loading,
    source: ImageSource,
    sets: Callable[[Callable], tuple[Dataset, Dataset]],
    invocation: Invocation,
) -> None:
    """The accuracy of every way to vote in the second of two data sets, with the first one as the bank.

    Writes a result and prints a table for each of the `kinds` of features.
    """
    started, evaluation = time.monotonic(), invocation.command
    frozen = Frozen(settings, source.crop_size[0])
    encoder = frozen.encoder
    heads = {kind: frozen.head(kind) for kind in kinds}
    train_set, val_set = sets(evaluation_transforms(source)[1])
    images, queries = len(train_set), len(val_set)  # type: ignore[arg-type]
    if max(voting.k) > images:
        raise UserError(f"`k` {max(voting.k)}: there are only {images} training images")
    names = {kind: evaluation if kind == "backbone" else f"{evaluation}-{kind}" for kind in heads}
    files = {kind: result_file(encoder.checkpoint, name, source) for kind, name in names.items()}
    print(encoder.taken)
    print(
        f"{evaluation} of {encoder.checkpoint} ({encoder.name}, {' and '.join(heads)} features) on {source.dataset}: "
        f"{images} images in the bank, {queries} queries, {frozen.device}",
        flush=True,
    )
    bank, asked = frozen.of(train_set, loading, "bank"), frozen.of(val_set, loading, "queries")
    skipped = bank.skipped + asked.skipped
    images, queries = len(bank.y), len(asked.y)
    if max(voting.k) > images:
        raise UserError(f"`k` {max(voting.k)}: there are only {images} training images that can be read")
    classes = classes_of(train_set)
    tops = shown_accuracies(classes)
    data = describe_data(source, classes, skipped, train=images, val=queries)
    for kind, head in heads.items():
        seen = head(bank), head(asked)
        rows = [
            Row(k, distance, temperature, tuple(values[: len(tops)]))
            for distance, temperature in voting.ways
            for k, *values in accuracies(*seen, voting.k, temperature, distance)
        ]
        best = max(rows, key=lambda row: row.accuracies[0])
        said = {
            **best.way,
            "features": kind,
            "all": [row.way | named_accuracies(tops, row.accuracies) for row in rows],
            "deviations": voting.deviations(kind),
        }
        metrics = named_accuracies(tops, best.accuracies)
        seconds = time.monotonic() - started
        result = Result(evaluation, metrics, said, data, method=settings.method, seconds=seconds)
        result.of(encoder, invocation).save(files[kind])
        shown = [name for name in ("distance", "temperature") if len({row.way[name] for row in rows}) > 1]
        if len(heads) > 1:
            print(f"{kind} features:")
        print(table(("k", *shown, *map(column, tops)), [row.cells(shown) for row in rows]))
        way = ", ".join(f"{name}={best.way[name]}" for name in ("k", *shown) if best.way[name] is not None)
        print(f"best: {best.accuracies[0]:.2f} % of {queries} images, with {way}; result in {files[kind]}")
    tell_skipped(skipped, images + queries + len(skipped))


@dataclass(frozen=True)
class Row:
    """The accuracies of one way to vote."""

    k: int
    distance: str
    temperature: float | None
    accuracies: tuple[float, ...]

    @property
    def way(self) -> dict[str, Any]:
        return {"k": self.k, "temperature": self.temperature, "distance": self.distance}

    def cells(self, names: Sequence[str]) -> tuple[Any, ...]:
        """Of a table that shows these settings beside K."""
        settings = ["-" if self.way[name] is None else str(self.way[name]) for name in names]
        return (self.k, *settings, *self.accuracies)


def accuracies(
    bank: Features, queries: Features, ks: Sequence[int], temperature: float | None, distance: str
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
