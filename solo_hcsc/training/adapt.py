"""Adapt given weights to images, and never hand over worse ones.

Every image is embedded once, with random views of it; an adapter is trained on what came out, in seconds. Held-out
images then decide whether the adapted features or the frozen ones are handed over.

Shapes: `N` images, `V` random views of each, `F` features of the encoder, `P` size of a point.
"""

import copy
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import nn

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.adapter import PREFIX, Adapted, Adapter
from solo_hcsc.encoders.embedding import Embedder, Embeddings
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.recorded import PRETRAINING, RunFiles
from solo_hcsc.errors import UserError
from solo_hcsc.files import folder_written_whole
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.hcsc.options import Options
from solo_hcsc.progress import say
from solo_hcsc.runs.asked import resolve
from solo_hcsc.runs.images import check_splits, find_images
from solo_hcsc.runs.results import Invocation, Result, describe_data
from solo_hcsc.runs.run import Run, open_run
from solo_hcsc.runs.treed import compute, prepare
from solo_hcsc.settings import Setting, Settings, settle, take
from solo_hcsc.training.adapt_settings import ADAPT, CHECKPOINT, check_adapt, is_adapted, with_splits
from solo_hcsc.training.adapting import Recipe, epochs_for, fit_adapter
from solo_hcsc.training.held_out import Held, Judged, Labels, hold_out
from solo_hcsc.training.tuning import Tuning, tune_encoder
from solo_hcsc.trees.label_files import check_enough, read_labels

FEWEST = 40  # images that can be adapted to
_JUDGED_EVERY = 5  # epochs
_PATIENCE = 4  # judgements without a better one, after which the training ends
WHAT = "pretrained_feature_extractor"
HEADINGS = {
    "knn": "KNN %",
    "labels_1": "1 label a class %",
    "labels_5": "5 labels a class %",
    "agreement": "neighbours that a view shares %",
}
_OPTIONS = tuple(item.name for item in fields(Options))


@dataclass(frozen=True)
class Adaptation:
    """What came of adapting an encoder.

    Args:
        run: with the features that are handed over.
        result: how frozen and adapted features do on held-out images.
        adapted: whether the adapted ones are handed over.
        skipped: images that could not be read.
        images: how many there are, with these.
    """

    run: Run
    result: Result
    adapted: bool
    skipped: Sequence[Skipped]
    images: int


def adapt(
    what: str | PathLike[str],
    images: str | PathLike[str],
    out: str | PathLike[str],
    *,
    val: str | PathLike[str] | None = None,
    loss: str = "hcsc",
    epochs: int | None = None,
    **settings: Any,
) -> Run:
    """Go on from given weights on one's own images, and never hand over worse features.

    Each image and random views of it are embedded once; a small adapter is trained on the features, in seconds.
    Held-out images are then judged by the frozen and by the adapted features: with labels by KNN and with one and five
    labels a class, without by whether an image and another view of it have the same neighbours.

    Args:
        what: a run, a file of weights, `timm/NAME`, or `auto` for the best weights that this machine has.
        images: a folder of images, or one that has `train`, and maybe `val`, below it.
        out: the folder of the run that is written.
        val: a folder of held-out images; a tenth of `images` is held out if there is none.
        loss: `hcsc`, `infonce`, `swav`, or `none`, which leaves the principal components.
        epochs: epochs to train; 40, and more of few images, if not given.
        **settings: any other setting of `solo-hcsc adapt` by name, such as `views=10` or `labels="some.csv"`.

    Returns:
        The run, whose encoder is the given one with the adapter on top, or without if that is no better.

    Example:
        >>> run = adapt("timm/vit_small_patch14_dinov2", "photos", "trained_models/photos")  # doctest: +SKIP
        >>> run.results()[["evaluation", "knn"]]  # doctest: +SKIP
    """
    given = {"out": out, "data_dir": images, "loss": loss, "max_epochs": epochs, **settings}
    if val is not None:
        given |= {"dataset": "custom", "train_dir": ".", "val_dir": Path(val).absolute()}
    rows = [row for group in ADAPT.values() for row in group]
    known = settle([Setting(WHAT, Path), *rows], {**given, WHAT: what})
    asked = with_splits(resolve(known))
    check_adapt(asked)
    files, source = find_images(asked, "train")
    if source.val_dir is not None:
        check_splits(source, "val")
    return adapt_run(asked, files, source).run


def adapt_run(
    settings: Settings, files: RunFiles, source: ImageSource, command: Invocation | None = None
) -> Adaptation:
    """Adapt the encoder of a run or of weights to images, and write the folder of a run.

    Args:
        settings: those of `adapt_settings.ADAPT`.
        files: of the run or the weights.
        source: the images; those of a validation folder are held out.
        command: as it was typed, for the record.
    """
    started = time.monotonic()
    import_faiss("adapting clusters")
    opened = Run(files, settings.encoder, settings.encoder_args)
    embedder = prepare(opened, source, settings, "train")
    encoder = embedder.encoder
    if isinstance(encoder.module, Adapted):
        raise UserError(f"{encoder.checkpoint}: is adapted already; give what it was adapted from")
    say(encoder.taken)
    train = compute(embedder, settings)
    if len(train) < FEWEST:
        raise UserError(f"adapting takes {FEWEST} images or more, and there are {len(train)}")
    labels = given_labels(settings, train)
    val = None if source.val_dir is None else prepare(opened, source, settings, "val")
    there = next(folder for folder in settings.out.absolute().parents if folder.is_dir())
    with tempfile.TemporaryFile(dir=there) as disk:
        before, views = points_of(embedder, train, settings, disk)
        known = None if val is None else compute(val, settings)
        held, kept = hold_out(before, views, train, known, labels, settings.seed)
        frozen, module = held.judge_frozen(), encoder.module
        recipe: Recipe | Tuning
        if settings.depth == "adapter":
            recipe = recipe_for(settings, len(kept))
            say(f"training an adapter on {len(kept)} images for {recipe.epochs} epochs, with loss {recipe.loss}")
            best, after = fit(before, views[kept] if len(kept) < len(views) else views, recipe, held)
            module = Adapted(encoder.module, best)
        else:
            recipe = tuning_for(settings)
            say(f"training {encoder.name} on {len(kept)} images for {recipe.epochs} epochs, with loss {recipe.loss}")
            images = embedder.images.without(train.skipped).some(kept.numpy())
            module = tune_encoder(replace(embedder, images=images), take(Loading, settings), recipe)
            after = judge_tuned(module, embedder, val, settings, labels)
    adapted = after.beats(frozen)
    rows = [{"features": name, **one.measures} for name, one in (("frozen", frozen), ("adapted", after))]
    handed = "adapted" if adapted else "frozen"
    module = module if adapted else encoder.module
    read = replace(embedder.origin.source or source, val_dir=source.val_dir)
    write_run(settings, encoder, module, read, handed)
    run = open_run(settings.out)
    data = describe_data(read, None, train.skipped, train=len(train), val=len(held.queries))
    columns = {"features": "features", **{name: HEADINGS[name] for name in frozen.measures}}
    told = {
        "handed_over": handed,
        "held_out": len(held.queries),
        "depth": settings.depth,
        "views": settings.views,
        **asdict(recipe),
    }
    result = Result(
        "adapt", after.measures if adapted else frozen.measures, told, data, rows, columns, 1, "adapt",
        time.monotonic() - started,
    )  # fmt: skip
    run.save(result, invocation=command)
    return Adaptation(run, result, adapted, train.skipped, len(embedder.images))


def hcsc_options(settings: Settings) -> dict[str, Any]:
    """Return the options of HCSC that the settings give."""
    return {name: getattr(settings, name) for name in _OPTIONS if vars(settings).get(name) is not None}


def recipe_for(settings: Settings, images: int) -> Recipe:
    """Return how an adapter is trained on so many images."""
    own = {"epochs": settings.max_epochs or epochs_for(images), "lr": settings.lr or Recipe.lr}
    return take(Recipe, settings, options=hcsc_options(settings), **own)


def tuning_for(settings: Settings) -> Tuning:
    """Return how an encoder is trained."""
    own = {"epochs": settings.max_epochs or Tuning.epochs, "lr": settings.lr or Tuning.lr}
    own["depth"] = None if settings.depth == "all" else settings.depth
    return take(Tuning, settings, options=hcsc_options(settings), **own)


def points_of(
    embedder: Embedder, found: Embeddings, settings: Settings, disk: IO[bytes]
) -> tuple[Adapter, torch.Tensor]:
    """Embed random views of each image beside its centre.

    Args:
        embedder: of the images.
        found: what it gives for their centres.
        settings: how many views, and how they are read.
        disk: a file for the points.

    Returns:
        An adapter that is not trained yet, and the points (N, V + 1, P) as float16, which stay on the disk.
    """
    adapter, views = Adapter.of(found.vectors), settings.views + 1
    loading = replace(take(Loading, settings), batch_size=max(1, settings.batch_size // views))
    say(f"{len(embedder.images)} images, {settings.views} views of each")

    def keep(batch: np.ndarray) -> None:
        points = adapter.points(torch.from_numpy(batch).reshape(len(batch), views, -1))
        disk.write(points.half().numpy().tobytes())

    again = embedder.of_views(settings.views).stream(loading, keep)
    if len(again) != len(found):
        raise UserError("images changed while they were read; run this again")
    disk.flush()
    shape = (len(found), views, adapter.components.shape[1])
    return adapter, torch.from_numpy(np.memmap(disk, "float16", "r+", shape=shape))


def judge_tuned(
    module: nn.Module, embedder: Embedder, val: Embedder | None, settings: Settings, labels: Labels
) -> Judged:
    """Judge an encoder that was trained by the images that judged it before."""

    def by_it(one: Embedder) -> Embedder:
        encoder = replace(one.encoder, module=module)
        return replace(one, origin=replace(one.origin, encoder=encoder), cache=None)

    tuned = by_it(embedder)
    train = compute(tuned, settings)
    with tempfile.TemporaryFile() as disk:
        adapter, views = points_of(tuned, train, settings, disk)
        known = None if val is None else compute(by_it(val), settings)
        return hold_out(adapter, views, train, known, labels, settings.seed)[0].judge_frozen()


def given_labels(settings: Settings, train: Embeddings) -> Labels:
    """Return the classes of the images, from files of labels or from their folders."""
    if not settings.labels:
        return Labels.of(train.names or [None] * len(train))
    found = {path: label for path, label in read_labels(settings.labels, train.paths).items() if label}
    check_enough(found, settings.labels)
    return Labels.of([found.get(path) for path in train.paths])


def fit(
    before: Adapter,
    views: torch.Tensor,
    recipe: Recipe,
    held: Held,
    told: Callable[[int, Judged], None] = lambda done, judged: None,
) -> tuple[Adapter, Judged]:
    """Train an adapter, judged every few epochs; return the best one, and how it does.

    Args:
        before: not trained yet.
        views: (N, V + 1, P) of the images to train on.
        recipe: how.
        held: the images that judge.
        told: called with the number of epochs and what was judged.
    """
    best = [(before, held.judge(before.beside))]
    misses = 0

    def each(done: int, adapter: Adapter) -> bool:
        nonlocal misses
        if done % _JUDGED_EVERY and done != recipe.epochs:
            return False
        judged = held.judge(adapter.beside)
        told(done, judged)
        better = sum(judged.measures.values()) > sum(best[0][1].measures.values())
        misses = 0 if better else misses + 1
        if better:
            best[:] = [(copy.deepcopy(adapter), judged)]
        return misses >= _PATIENCE

    fit_adapter(before, views, recipe, each=each)
    return best[0][0].eval().requires_grad_(False), best[0][1]


def write_run(settings: Settings, encoder: Encoder, module: nn.Module, source: ImageSource, handed: str) -> None:
    """Write a run's folder: a checkpoint of the encoder, with its adapter if there is one, and args.json."""
    inner = module.encoder if isinstance(module, Adapted) else module
    weights = {f"encoder.{name}": value for name, value in inner.state_dict().items()}
    if isinstance(module, Adapted):
        weights |= {f"{PREFIX}{name}": value for name, value in module.adapter.state_dict().items()}
    view = encoder.view
    seen = {"crop_size": [view.crop_size], "resize": view.resize}
    seen |= {name: list(value) for name in ("mean", "std") if (value := getattr(view, name)) is not None}
    of_images = {item.name: getattr(source, item.name) for item in fields(source) if item.name != "whole"}
    typed = {name: getattr(settings, name) for name in ("depth", "loss", "max_epochs", "views", "seed")}
    facts = {
        **of_images, **hcsc_options(settings), **typed, **seen,
        "method": "adapt", "role": PRETRAINING, "handed_over": handed,
        "encoder": encoder.name, "backbone_args": encoder.settings, "init_weights": encoder.checkpoint,
    }  # fmt: skip
    with folder_written_whole(settings.out, is_adapted) as folder:
        torch.save({"state_dict": weights, "epoch": settings.max_epochs}, folder / CHECKPOINT)
        (folder / "args.json").write_text(json.dumps(facts, indent=2, default=str) + "\n", encoding="utf-8")
