"""Evaluations of a run, from its settings to the results' files: what a command and a study's job call.

Each takes the run's files and its images, which are found without torch, so that wrong ones are refused early.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.embedding import Embedder
from solo_hcsc.encoders.recorded import RunFiles
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation import clusters as clusterings
from solo_hcsc.evaluation.analysed import Analysed
from solo_hcsc.evaluation.budgets import check_budgets, fewlabels
from solo_hcsc.evaluation.judged import Judged
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.progress import note, say
from solo_hcsc.runs.results import Invocation, Result, describe_data, result_file
from solo_hcsc.runs.run import Run
from solo_hcsc.runs.treed import compute, picks_from_run, prepare
from solo_hcsc.settings import Settings, take


def clustering_of_run(
    settings: Settings, files: RunFiles, source: ImageSource, command: Invocation | None = None
) -> Judged:
    """Compare clusters of the features, and the checkpoint's own tree at each of its levels, with labels.

    Args:
        settings: those of `frozen_settings.CLUSTERING`.
        files: of the run.
        source: the images of the split.
        command: as it was typed, for the record.
    """
    started = time.monotonic()
    import_faiss("this evaluation clusters")
    how = (settings.split, settings.label_hierarchy, settings.features, settings.accelerator)
    subject = Analysed.load(Run(files, settings.encoder, settings.encoder_args), source, *how)
    ks = settings.k or [len(subject.classes)]
    clusterings.check_ks(ks, subject.images)
    encoder, tree = subject.frozen.encoder, subject.tree
    if tree is None and encoder.trained_with.get("method") == "hcsc":
        early = "since it is from before the run's first clustering; one of its features is compared"
        note(f"{encoder.checkpoint} carries no tree, {early}")
    variant = "-projector" * (settings.features == "projector") + "-val" * (settings.split == "val")
    file = result_file(encoder.checkpoint, f"clustering{variant}", source)
    say(encoder.taken)
    say(
        f"clustering of {encoder.checkpoint} ({encoder.name}, {settings.features} features) on {source.dataset}: "
        f"{subject.images} {settings.split} images, {subject.frozen.device}"
    )
    subject, images, found = subject.embed_labelled(take(Loading, settings))
    prototypes = [len(level.prototypes) for level in tree.hierarchy.levels] if tree else None
    told = {"seed": settings.seed, "label_hierarchy": subject.levels, "prototypes": prototypes}
    result = clusterings.clustering(images, found, ks, **told)
    own = {"features": settings.features, "split": settings.split, "label_hierarchy": subject.label_hierarchy}
    asked, seconds = {**result.settings, **own}, time.monotonic() - started
    result = replace(result, settings=asked, data=subject.description, method=settings.method, seconds=seconds)
    result = result.of(encoder, command)
    result.save(file)
    table = f"{result.table()}\n\n{clusterings.compare_tree(result)}\n"
    images_in_all = subject.images + len(subject.skipped)
    return Judged({file: result}, [table, f"result in {file}"], subject.skipped, images_in_all)


def fewlabels_of_run(
    settings: Settings,
    files: RunFiles,
    source: ImageSource,
    save: Callable[[Result], Mapping[Path, Result]],
    command: Invocation | None = None,
) -> Judged:
    """Measure what few labels are worth, on the run's features.

    Args:
        settings: those of `frozen_settings.FEWLABELS`.
        files: of the run.
        source: the images.
        save: writes the result and its picture; returns the result by its file.
        command: as it was typed, for the record.
    """
    started = time.monotonic()
    import_faiss("fewlabels clusters")
    opened = Run(files, settings.encoder, settings.encoder_args)
    embedders = [prepare(opened, source, settings, split) for split in ("train", "val")]
    typed = settings.budgets if "budgets" in settings.typed else None
    budgets = check_budgets(typed, len(embedders[0].images))
    _check_classes(embedders)
    own = picks_from_run(opened, settings)
    embedders[0] = prepare(opened, source, settings, "train", tree=own)
    train, val = (compute(embedder, settings) for embedder in embedders)
    say("choosing, training, judging ...")
    result = fewlabels(train, val, budgets, settings.draws, settings.way, own)
    skipped = train.skipped + val.skipped
    counts = {split: result.data[f"{split}_images"] for split in ("train", "val")}
    described = replace(source.with_split("train"), val_dir=source.with_split("val").val_dir)
    data = describe_data(described, result.data["classes"], skipped, **counts)
    asked = {**result.settings, "features": settings.features}
    result = replace(result, data=data, settings=asked, seconds=time.monotonic() - started)
    results = save(result.of(embedders[0].encoder, command))
    told = f"accuracy in % on {counts['val']} images; mean ± standard deviation of {settings.draws} draws"
    return Judged(results, [told, result.table()], skipped, sum(len(embedder.images) for embedder in embedders))


def _check_classes(embedders: Sequence[Embedder]) -> None:
    """Refuse images without labels, and those of one class."""
    sets = [embedder.images for embedder in embedders]
    if any(one.labels is None or not (one.labels >= 0).any() for one in sets):
        raise UserError("fewlabels compares with true labels: give images in class folders")
    if len(classes := {name for one in sets for name in one.classes}) < 2:
        raise UserError(f"fewlabels needs at least two classes; all images are {min(classes)!r}")
