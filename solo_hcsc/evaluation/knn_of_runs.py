"""KNN of a run, from its settings to the results' files; imports no more than that, so that it starts soon."""

import time
from collections.abc import Callable
from dataclasses import replace

from torch.utils.data import Dataset

from solo_hcsc.data.folders import classes_of
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.sets import evaluation_sets
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.encoders.recorded import RunFiles
from solo_hcsc.evaluation import knn as neighbours
from solo_hcsc.evaluation.features import Frozen
from solo_hcsc.evaluation.judged import Judged
from solo_hcsc.evaluation.labelled import Labelled
from solo_hcsc.progress import say
from solo_hcsc.runs.results import Invocation, Result, describe_data, result_file
from solo_hcsc.runs.run import Run
from solo_hcsc.settings import Settings, take

Sets = Callable[[ImageSource, Callable], tuple[Dataset, Dataset]]  # the bank and the queries


def _both_parts(source: ImageSource, transform: Callable) -> tuple[Dataset, Dataset]:
    return evaluation_sets(source, transform, transform)


def knn_of_run(
    settings: Settings,
    files: RunFiles,
    source: ImageSource,
    command: Invocation | None = None,
    function: Callable[..., Result] = neighbours.knn,
    sets: Sets = _both_parts,
) -> Judged:
    """Embed the bank and the queries, and save the result of every kind of features beside the checkpoint.

    Args:
        settings: those of `frozen_settings.KNN`.
        files: of the run.
        source: the images, located and labelled.
        command: as it was typed, for the record.
        function: `knn` or `zeroshot`, which the result is named for.
        sets: reads the bank and the queries.
    """
    started, name = time.monotonic(), function.__name__
    opened, loading = Run(files, settings.encoder, settings.encoder_args), take(Loading, settings)
    frozen = Frozen(opened, source.crop_size[0], accelerator=settings.accelerator)
    encoder, heads = frozen.encoder, {kind: frozen.head(kind) for kind in settings.features}
    train_set, val_set = sets(source, evaluation_transforms(source)[1])
    images, queries, classes = len(train_set), len(val_set), classes_of(train_set)  # type: ignore[arg-type]
    ks = _neighbours(settings, images)
    names = {kind: name if kind == "backbone" else f"{name}-{kind}" for kind in heads}
    places = {kind: result_file(encoder.checkpoint, names[kind], source) for kind in heads}
    say(encoder.taken)
    say(
        f"{name} of {encoder.checkpoint} ({encoder.name}, {' and '.join(heads)} features) on {source.dataset}: "
        f"{images} images in the bank, {queries} queries, {frozen.device}"
    )
    both = frozen.of(train_set, loading, "bank"), frozen.of(val_set, loading, "queries")
    skipped, (images, queries) = both[0].skipped + both[1].skipped, (len(one.y) for one in both)
    neighbours.check_ks(ks, images, " that can be read")
    data = describe_data(source, classes, skipped, train=images, val=queries)
    results, lines = {}, []
    for kind, head in heads.items():
        seen = (Labelled(one.x.numpy(), one.y.numpy(), classes) for one in map(head, both))
        result = function(*seen, ks, settings.temperature, settings.distance_function)
        other = [*result.settings["deviations"], *(["features"] if kind != "backbone" else [])]
        own = {**result.settings, "features": kind, "deviations": other}
        seconds = time.monotonic() - started
        result = replace(result, settings=own, data=data, method=settings.method, seconds=seconds)
        results[places[kind]] = result = result.of(encoder, command)
        result.save(places[kind])
        way = ", ".join(f"{name}={own[name]}" for name in result.columns if own.get(name) is not None)
        lines += [f"{kind} features:"] * (len(heads) > 1) + [result.table()]
        lines += [f"best: {result.metrics['acc1']:.2f} % of {queries} images, with {way}; result in {places[kind]}"]
    return Judged(results, lines, skipped, images + queries + len(skipped))


def _neighbours(settings: Settings, images: int) -> list[int]:
    """Return the numbers of neighbours to try: those that were asked for, or those that so many images have."""
    if "k" in settings.typed:
        neighbours.check_ks(settings.k, images)
        return settings.k
    ks = [k for k in settings.k if k <= images] or [1]
    if ks != settings.k:
        say(f"`k` {' '.join(map(str, ks))}: there are only {images} training images")
    return ks
