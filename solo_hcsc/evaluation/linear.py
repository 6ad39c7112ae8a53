"""A linear classifier on a frozen encoder: on features in memory, or on images by the paper's protocols."""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from solo_hcsc.data.folders import classes_of
from solo_hcsc.data.sets import evaluation_sets
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import recorded_flags
from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation import protocols
from solo_hcsc.evaluation.features import Features
from solo_hcsc.evaluation.labelled import Labelled, as_pair
from solo_hcsc.evaluation.models import Cached, Sweep
from solo_hcsc.evaluation.probe import Evaluated, Probe
from solo_hcsc.evaluation.rates import choose_rate, fit_heads
from solo_hcsc.progress import say
from solo_hcsc.quiet import hushed
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation, Result, column, named_accuracies, shown_accuracies
from solo_hcsc.settings import NOT_NEGATIVE, POSITIVE, Settings, check_bound
from solo_hcsc.solo102 import LinearModel, accuracy_at_k
from solo_hcsc.training.resume import FinishedError
from solo_hcsc.typed import typed

BATCH = 256
UNUSED_RATE = 0.3  # solo-learn's default, which a sweep's model is made with


@typed
def linear(
    train: Any,
    val: Any,
    *,
    lr: float | None = None,
    epochs: int = 100,
    batch_size: int | None = None,
    lr_sweep: Sequence[float] | None = None,
    weight_decay: float = 0.0,
    seed: int = 5,
) -> Result:
    """Train a linear classifier on features in memory: SGD with momentum 0.9, whose learning rate falls as a cosine.

    Args:
        train: `Embeddings` with labels, or a pair of vectors (N, D) and labels (N,): arrays or tensors.
        val: the images to classify, given like `train`.
        lr: the learning rate; chosen on a fifth of the training images if not given.
        epochs: passes over the training images.
        batch_size: images per step; 256 if not given, and at most a quarter of the images.
        lr_sweep: train a classifier for each of these learning rates, and choose the best one on `val`.
        weight_decay: of the classifier's weights.
        seed: of the classifier's first weights, of the held-out part and of the order.

    Returns:
        Top-1 accuracy `acc1` in percent, and `acc5` where there are more than five classes; `rows` has one for each
        learning rate.

    Example:
        >>> corners = torch.eye(3).repeat(10, 1), torch.arange(3).repeat(10)
        >>> linear(corners, corners, lr=1.0, epochs=20).metrics
        {'acc1': 100.0}
    """
    started = time.monotonic()
    known, asked = as_pair(train, val)
    size = max(1, min(BATCH, len(known) // 4)) if batch_size is None else batch_size
    rates = [] if lr is None else [lr]
    for name, value in {"epochs": epochs, "batch_size": size, "lr": rates, "lr_sweep": lr_sweep or ()}.items():
        check_bound(name, value, POSITIVE)
    check_bound("weight_decay", weight_decay, NOT_NEGATIVE)
    if size > len(known):
        raise ArgumentError(f"`batch_size` {size}: there are only {len(known)} training images")
    if rates and lr_sweep:
        raise ArgumentError("`lr` and `lr_sweep` exclude each other; give one of them")
    features, stand_in = Features(*known.tensors), Cached(known.vectors.shape[1])
    own: dict[str, Any] = {"batch_size": size, "weight_decay": weight_decay, "optimizer": "sgd", "scheduler": "cosine"}
    others = {"extra_optimizer_args": {"momentum": 0.9}, "lars": False, "exclude_bias_n_norm": False}
    settings = {**own, **others, "num_classes": known.classes, "max_epochs": epochs}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if lr_sweep:
            rates, own["chosen"] = [*lr_sweep], f"best of {len(lr_sweep)} learning rates on the validation images"
        elif not rates:
            rate = choose_rate(features, stand_in, settings, seed)
            rates, own["chosen"] = [rate.lr], rate.said
        heads = fit_heads(features, stand_in, settings, rates, torch.Generator().manual_seed(seed))
    tops = shown_accuracies(known.classes)
    rows = [{"lr": one, **_accuracies(head, asked, tops)} for one, head in zip(rates, heads, strict=True)]
    metrics = dict(max(rows, key=lambda row: row["acc1"]))
    own |= {"lr": metrics.pop("lr"), "epochs": epochs, "seed": seed} | ({"all": rows} if lr_sweep else {})
    data = {"name": "arrays", "train_images": len(known), "val_images": len(asked), "classes": known.classes}
    columns = {"lr": "lr", **{f"acc{k}": column(k) for k in tops}}
    return Result("linear", metrics, own, data, rows, columns, seconds=time.monotonic() - started)


@torch.no_grad()
def _accuracies(head: nn.Module, asked: Labelled, tops: Sequence[int]) -> dict[str, float]:
    """Return the top-k accuracies in percent; 0 of a classifier that diverged."""
    vectors, labels = asked.tensors
    logits = head(vectors)
    if not logits.isfinite().all():
        return named_accuracies(tops, [0.0] * len(tops))
    return named_accuracies(tops, [float(found) for found in accuracy_at_k(logits, labels, top_k=tops)])


def linear_on_images(weights: Any, train: Any = None, val: Any = None, **settings: Any) -> Result:
    """Train a linear classifier on a frozen encoder, on augmented images, as `solo-hcsc linear` does.

    Args:
        weights: a `Run`, an `Encoder` from a file, or the path of a run or of weights.
        train: a folder with a folder of images for each class; the run's own images if not given, like `val`.
        val: the same, for validation.
        **settings: any setting of `solo-hcsc linear`, such as `config="pcl"`, `lr=0.3` or `checkpoint_dir="runs"`.

    Returns:
        The accuracies; `origin["run"]` is the folder of the classifier.

    Example:
        >>> linear_on_images("trained_models/hcsc", config="moco").metrics  # doctest: +SKIP
        {'acc1': 69.2, 'acc5': 88.9}
    """
    groups = protocols.linear_settings(settings.get("config"), settings.get("lr_sweep") is not None)
    asked = protocols.settled(groups, weights, protocols.folders(train, val) | settings)
    protocols.check_linear(asked)
    with hushed():
        return train_linear(asked, evaluated_images(asked).located(needs_val=True).labelled()).result


def train_linear(settings: Settings, source: ImageSource, command: Invocation | None = None) -> Evaluated:
    """Train the classifier, or one for each learning rate, on the images of `source`, and write a run's folder.

    Args:
        settings: all that `solo-hcsc linear` has, by name.
        source: the images, located and labelled.
        command: as it was typed, for the record.
    """
    probe = Probe("linear", settings, source, protocols.LINEAR.get(settings.config, {}), command=command)
    train_set, val_set = evaluation_sets(source, *probe.transforms)
    classes = classes_of(train_set)
    tops = shown_accuracies(classes)
    columns = {f"acc{k}": column(k) for k in tops}
    own: dict[str, Any] = {"config": settings.config} if settings.config else {}
    changes: dict[str, Any] = {"batch_size": batch_for(settings, len(train_set))}  # type: ignore[arg-type]
    if settings.lr is None and not settings.lr_sweep:
        resumed = settings.resume_from_checkpoint
        changes["lr"] = recorded_flags(resumed).get("lr") if resumed else None
        if changes["lr"] is None:
            plain = probe.transforms[1]
            rate = probe.choose_rate(classes, evaluation_sets(source, plain, plain)[0], changes)
            changes["lr"], own["chosen"] = rate.lr, rate.said
            say(f"`lr` {rate.lr:g}: {rate.said}; typed, it stays as typed")
    if not settings.lr_sweep:
        trained = probe.fit(LinearModel, classes, train_set, val_set, changes)
        metrics = trained.accuracies(tops)
        title = " ".join(filter(None, ["linear", settings.config, "(cached)" if settings.cache_features else None]))
        if probe.deviations():
            title += f", not the paper's {', '.join(probe.deviations())}"
        rows: list[dict[str, Any]] = [{"evaluation": title, **metrics}]
        return probe.result(trained, metrics, own, rows, {"evaluation": "evaluation", **columns})
    unused = {} if settings.lr is not None else {"lr": UNUSED_RATE}
    trained = probe.fit(Sweep, classes, train_set, val_set, changes | unused)
    names = {lr: f"_lr{lr:g}" for lr in settings.lr_sweep if f"val_acc1_lr{lr:g}" in trained.logged}
    rows = [{"lr": lr} | {f"acc{k}": trained.logged[f"val_acc{k}{name}"] for k in tops} for lr, name in names.items()]
    diverged = [lr for lr, name in names.items() if not math.isfinite(trained.logged[f"val_loss{name}"])]
    metrics = {}
    if rows:
        metrics = dict(max(rows, key=lambda row: row["acc1"]))
        own |= {"lr": metrics.pop("lr"), "all": rows} | ({"diverged": diverged} if diverged else {})
        own["chosen"] = f"best of {len(rows)} learning rates on the validation images"
    return probe.result(trained, metrics, own, rows, {"lr": "lr", **columns})


def linear_of_run(settings: Settings, source: ImageSource, command: Invocation | None = None) -> Evaluated | None:
    """Train as `train_linear` does and say what was found; return None where `auto_resume` finds it finished."""
    try:
        evaluated = train_linear(settings, source, command)
    except FinishedError as finished:
        if not settings.auto_resume:
            raise
        say(f"nothing to do: {finished}")
        return None
    result, remark = evaluated.result, ""
    if settings.lr_sweep and result.metrics:
        remark = (
            f"best: {result.metrics['acc1']:.2f} % with lr {result.settings['lr']:g}, chosen on the validation images"
        )
        if "diverged" in result.settings:
            remark += f"; diverged: {', '.join(f'{lr:g}' for lr in result.settings['diverged'])}"
    evaluated.show(remark)
    return evaluated


def batch_for(settings: Settings, images: int) -> int:
    """Return the batch size as given or as a configuration has it; else a quarter of the images where they are few."""
    given = "batch_size" in settings.typed or settings.config
    if given or images >= settings.batch_size:
        return int(settings.batch_size)
    batch = max(1, images // 4)
    say(f"`batch_size` {batch}: there are {images} training images")
    return batch
