"""Pictures of what a run has learnt, as the paper's analysis shows it.

Prototypes with their nearest images, left-out negatives, agreement with labels, and maps of the features; into a folder
of SVG files and `analysis.json`, which has their captions and the numbers behind them. What needs no labels works
without them.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource, stored_kind
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.analysed import Analysed
from solo_hcsc.evaluation.clusters import (
    clusters_for,
    find_kmeans,
    labels_by_level,
    same_class_share,
    score_kmeans,
    score_tree,
)
from solo_hcsc.evaluation.features import tell_skipped
from solo_hcsc.evaluation.frozen_settings import ANALYSE, FEWEST_TO_ANALYSE, check_analysis, settled
from solo_hcsc.files import check_folder_to_write
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.progress import say
from solo_hcsc.report import figures
from solo_hcsc.report.charts import Curves, read_left_out, show_agreement, show_history
from solo_hcsc.report.figures import Picture
from solo_hcsc.report.gallery import Thumbnails
from solo_hcsc.report.maps import by_class, by_cluster, show_maps
from solo_hcsc.report.negatives import show_negatives
from solo_hcsc.report.prototypes import Assigned, show_prototypes
from solo_hcsc.report.to_wandb import log_pictures
from solo_hcsc.runs.images import choose_labels, same_data
from solo_hcsc.runs.results import Invocation, versions
from solo_hcsc.runs.run import Run
from solo_hcsc.settings import Settings, take
from solo_hcsc.study.job import invocation, plain
from solo_hcsc.study.record import Analysis, AnalysisFigure, write_analysis
from solo_hcsc.tables import data_frame, score, table
from solo_hcsc.training.settings import Wandb, check_wandb
from solo_hcsc.typed import typed

if TYPE_CHECKING:
    import pandas

NAMES = (
    *("left_out", "ami", "chain", "tree", "negatives"),
    *("tsne_class", "tsne_cluster", "umap_class", "umap_cluster"),
)


@dataclass(frozen=True)
class Pictures:
    """Pictures of a run and the numbers behind them; nothing is written yet."""

    record: Analysis
    pictures: list[Picture]
    folder: Path  # where they go if no other is given
    images: int  # that could be read
    skipped: tuple[Skipped, ...]  # images that could not be read

    @property
    def numbers(self) -> dict[str, Any]:
        """Return the numbers behind the pictures."""
        return self.record.numbers

    def table(self) -> str:
        """Return how well clusters agree with labels, if there are any, and a line for each picture."""
        rows = [(row["name"], score(row["ami"])) for row in self.numbers.get("ami", ())]
        parts = [table(("clusters", "AMI"), rows)] if rows else []
        return "\n\n".join([*parts, "\n".join(f"{one.file}: {one.title}" for one in self.record.figures)])

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row for each number that stands for the whole."""
        return data_frame([{"name": name, "value": value} for name, value in main_numbers(self.numbers).items()])

    def save(self, folder: str | PathLike[str] | None = None, wandb: Wandb | None = None) -> Path:
        """Write the pictures, then analysis.json, each whole; return its file.

        What only an earlier analysis had is removed last. With `wandb` the pictures are logged there too.
        """
        folder = self.folder if folder is None else Path(folder)
        say(f"drawing {len(self.pictures)} pictures")
        drawn = {picture.name: figures.to_svg(f"analysis-{picture.name}", picture.draw) for picture in self.pictures}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"`out` {folder}: cannot be written ({error.strerror}); give another folder") from error
        for name, picture in drawn.items():
            figures.write_svg(folder / f"{name}.svg", picture)
        if wandb is not None and wandb.wandb:
            named = replace(wandb, name=wandb.name or f"analysis-{Path(self.record.checkpoint).stem}")
            say(f"wandb: {log_pictures(self.pictures, main_numbers(self.numbers), named, folder)}")
        write_analysis(folder, self.record)
        for name in set(NAMES) - drawn.keys():  # of an earlier analysis
            (folder / f"{name}.svg").unlink(missing_ok=True)
        return folder / "analysis.json"


@typed
def analyse(run: Run | str | PathLike[str], images: str | PathLike[str] | None = None, **settings: Any) -> Pictures:
    """Draw what a run has learnt.

    Args:
        run: a run, its folder, or a checkpoint.
        images: a folder of images; the run's own if not given.
        **settings: of `solo-hcsc analyse`: `split="val"`, `points=1000`, `queries=4`, `no_labels=True`.

    Returns:
        The pictures and numbers; `save` writes them.

    Example:
        >>> analyse("trained_models/hcsc").save("pictures")  # doctest: +SKIP
        PosixPath('pictures/analysis.json')
    """
    dataset = "custom" if images is None else stored_kind(Path(images)) or "custom"
    own = {} if images is None else {"dataset": dataset, "data_dir": images, "train_dir": "."}
    given = plain({"pretrained_feature_extractor": getattr(run, "checkpoint", run), **own, **settings})
    return analyse_as(settle("analyse", given), invocation("analyse", given))


def settle(_: str, given: Mapping[str, Any]) -> Settings:
    """Return all settings; refuse wrong ones."""
    settings = settled(ANALYSE, given)
    check_analysis(settings)
    return settings


def call(function: str, given: Mapping[str, Any]) -> None:
    """Analyse and write, as a job."""
    analyse_and_save(settle(function, given), invocation(function, given))


def analyse_and_save(settings: Settings, command: Invocation) -> None:
    """Analyse, write the pictures and say where they are."""
    found = analyse_as(settings, command)
    file = found.save(wandb=take(Wandb, settings))
    say(f"{len(found.pictures)} pictures in {file.parent}; their captions and numbers in {file}")
    tell_skipped(found.skipped, found.images + len(found.skipped))


def analyse_as(settings: Settings, command: Invocation) -> Pictures:
    """Check settings, and compute and draw as they say; `command` is for the record."""
    started = time.monotonic()
    files = find_run(settings.pretrained_feature_extractor)
    trained = files.settings
    images = ImageSource.of_run(settings, trained)
    images.with_split(settings.split)
    import_faiss("the analysis clusters")
    check_wandb(take(Wandb, settings))
    source = choose_labels(images, settings, trained)
    if source.no_labels and settings.label_hierarchy is not None:
        raise UserError(f"`label_hierarchy` {settings.label_hierarchy}: there are no classes to group; leave it out")
    how = (settings.split, settings.label_hierarchy, settings.features, settings.accelerator)
    subject = Analysed.load(Run(files, settings.encoder, settings.encoder_args), source, *how)
    if subject.images < FEWEST_TO_ANALYSE:
        few = f"{subject.images} images are too few to analyse; give at least {FEWEST_TO_ANALYSE}"
        raise UserError(f"`{settings.split}_dir`: {few}")
    encoder, names = subject.frozen.encoder, subject.classes
    folder = settings.out or encoder.checkpoint.parent / "analysis"
    check_folder_to_write(folder)
    history = read_history(encoder.checkpoint, bool(names)) if subject.tree else {}

    say(encoder.taken)
    say(
        f"analysis of {encoder.checkpoint} ({encoder.name}) on {source.dataset}: {subject.images} {settings.split} "
        f"images, {f'{len(names)} classes' if names else 'no labels'}, {subject.frozen.device}"
    )
    as_trained = settings.split == "train" and same_data(source, trained, "train_dir", "class_level")
    subject, pictures, numbers = look(subject, settings, history, as_trained)
    record = Analysis(
        method=encoder.trained_with.get("method") or settings.method,
        checkpoint=str(encoder.checkpoint),
        checkpoint_sha256=encoder.fingerprint,
        command=command.line,
        flags=list(command.argv),
        versions=versions("matplotlib", "umap-learn"),
        seconds=round(time.monotonic() - started, 1),
        data=subject.description,
        settings={
            "split": settings.split,
            "features": settings.features,
            "points": settings.points,
            "queries": settings.queries,
            "seed": settings.seed,
            "no_labels": source.no_labels,
            "label_hierarchy": str(subject.label_hierarchy) if subject.label_hierarchy else None,
        },
        numbers=numbers,
        figures=[
            AnalysisFigure(file=f"{picture.name}.svg", title=picture.title, caption=picture.caption)
            for picture in pictures
        ],
    )
    return Pictures(record, pictures, folder, subject.images, tuple(subject.skipped))


def look(
    subject: Analysed, settings: Settings, history: Curves, knows_chance: bool
) -> tuple[Analysed, list[Picture], dict[str, Any]]:
    """Draw all pictures and return the numbers behind them; `knows_chance`: the history is of the same classes.

    The first value is the subject with the images that could be read.
    """
    tree, names = subject.tree, subject.classes
    if tree is None:
        say("the checkpoint carries no tree: no pictures of prototypes and left-out negatives")
    subject, features, clustered, classes = subject.embed(take(Loading, settings))
    by_level = [] if tree is None else list(tree.hierarchy.assign(clustered).numpy().T)
    sample = np.random.default_rng(settings.seed).permutation(subject.images)[: settings.points]
    numbers: dict[str, Any] = {}
    pictures = show_history(history, same_class_share(classes) if names and knows_chance else None, numbers)
    agreement, of_kmeans = compare_clusters(subject, features, by_level, classes, settings.seed, numbers)
    pictures += agreement
    if tree is not None:
        assigned = Assigned(tree.hierarchy, clustered, by_level, classes, names, subject.files)
        thumbnails = Thumbnails(subject.dataset)
        pictures += show_prototypes(assigned, thumbnails, numbers)
        pictures += show_negatives(tree.coding, assigned, sample, settings.queries, thumbnails, numbers)
    clusters, which = (of_kmeans, "cluster of k-means") if tree is None else (by_level[-1], "top-level prototype")
    colourings = [
        *([found] if names and (found := by_class(classes[sample], names, subject.levels)) else []),
        by_cluster(clusters[sample], classes[sample], names, which),
    ]
    pictures += show_maps(features[sample], colourings, settings.seed)
    numbers["mapped_images"] = len(sample)
    return subject, pictures, numbers


def compare_clusters(
    subject: Analysed,
    features: np.ndarray,
    by_level: list[np.ndarray],
    classes: np.ndarray,
    seed: int,
    numbers: dict[str, Any],
) -> tuple[list[Picture], np.ndarray]:
    """Compare prototypes and k-means with labels, if there are any; also return each image's cluster of k-means (N,).

    Without labels k-means is for methods without prototypes only.
    """
    if subject.classes:
        labels = labels_by_level(classes, subject.levels)
        kmeans, found = score_kmeans(features, len(subject.classes), seed, labels)
        rows = []
        if subject.tree:
            prototypes = [len(level.prototypes) for level in subject.tree.hierarchy.levels]
            rows = score_tree(prototypes, np.stack(by_level, axis=1), labels)
        return show_agreement([*rows, kmeans], subject.groups, numbers), found
    if subject.tree:
        return [], np.empty(0, int)
    k = clusters_for(subject.images)
    say(f"k-means with {k} clusters, a default for {subject.images} images without classes")
    numbers["clusters_of_kmeans"] = k
    return [], find_kmeans(features, k, seed)


def read_history(checkpoint: Path, labelled: bool) -> Curves:
    """Read what the run logged of left-out negatives; without labels, their share only; empty if it logged none."""
    file = checkpoint.parent / "metrics.csv"
    found = read_left_out(file) if file.exists() else {}
    if not found:
        why = f"{file} has no such columns" if file.exists() else f"there is no {file}"
        say(f"no curves of left-out negatives: {why}")
    return found if labelled else {name: levels for name, levels in found.items() if name == "left_out"}


def main_numbers(numbers: dict[str, Any]) -> dict[str, float]:
    """Select the numbers that wandb shows besides the pictures."""
    summary = {f"ami/{row['name']}": row["ami"] for row in numbers.get("ami", ())}
    if "negatives" in numbers:
        if "chance" in numbers["negatives"]:
            summary["left_out/chance"] = numbers["negatives"]["chance"]
        for level in numbers["negatives"]["levels"]:
            named = {name: value for name, value in level.items() if name != "level"}
            summary |= {f"left_out/{name} level {level['level']}": value for name, value in named.items()}
    return summary
