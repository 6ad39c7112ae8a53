"""`solo-hcsc analyse`: pictures of what a run has learnt, as the paper's analysis shows it.

Prototypes with their nearest images, left-out negatives, agreement with labels, and maps of the features; into a folder
of SVG files and `analysis.json`, which has their captions and the numbers behind them.
"""

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.flags import add_feature_flags, add_split_flags, add_wandb_flags, check_features
from solo_hcsc.cli.parser import Bound, Invocation, Parser, at_least, take
from solo_hcsc.training.settings import Wandb, check_wandb

if TYPE_CHECKING:
    from solo_hcsc.report.charts import Curves
    from solo_hcsc.report.figures import Picture

FEWEST = 10  # images of which a map says anything
MOST_QUERIES = 12  # that a picture has room for
NAMES = (
    *("left_out", "ami", "chain", "tree", "negatives"),
    *("tsne_class", "tsne_cluster", "umap_class", "umap_cluster"),
)


def run(argv: Sequence[str]) -> None:
    """From the checks to the files; nothing is written before everything is known."""
    flags = parse(argv)

    import numpy as np

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.clusters import Subject, clusters_by_level, labels_by_level, score_kmeans, score_tree
    from solo_hcsc.evaluation.features import FeatureSettings, evaluated_images
    from solo_hcsc.evaluation.results import versions
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.report.charts import show_agreement, show_history
    from solo_hcsc.report.gallery import Thumbnails
    from solo_hcsc.report.maps import show_maps
    from solo_hcsc.report.negatives import show_negatives
    from solo_hcsc.report.prototypes import Assigned, show_prototypes
    from solo_hcsc.study.record import Analysis, AnalysisFigure

    started = time.monotonic()
    import_faiss("the analysis clusters")
    wandb = take(Wandb, flags)
    check_wandb(wandb)
    source = evaluated_images(flags).with_split(flags.split)
    subject = Subject.load(take(FeatureSettings, flags), source, flags.split, flags.label_hierarchy)
    if subject.images < FEWEST:
        raise UserError(f"--{flags.split}_dir: {subject.images} images are too few to analyse; give at least {FEWEST}")
    encoder, tree, names = subject.frozen.encoder, subject.tree, subject.classes
    folder = flags.out or encoder.checkpoint.parent / "analysis"
    check_folder(folder)
    history = read_history(encoder.checkpoint) if tree else {}

    print(encoder.taken)
    print(
        f"analysis of {encoder.checkpoint} ({encoder.name}) on {source.dataset}: {subject.images} {flags.split} "
        f"images, {len(names)} classes, {subject.frozen.device}",
        flush=True,
    )
    features, clustered, classes = subject.embed(take(Loading, flags))
    labels = labels_by_level(classes, subject.levels)
    kmeans, clusters = score_kmeans(features, len(names), flags.seed, labels)
    sample = np.random.default_rng(flags.seed).permutation(subject.images)[: flags.points]
    thumbnails, groups = Thumbnails(subject.dataset), subject.groups

    pictures: list[Picture] = []
    numbers: dict[str, Any] = {}
    if tree is None:
        print("prototypes and left-out negatives are not shown: the checkpoint has no tree of prototypes")
        pictures += show_agreement([kmeans], groups, numbers)
    else:
        hierarchy = tree.hierarchy
        assigned = Assigned(hierarchy, clustered, clusters_by_level(hierarchy, clustered), classes, names)
        clusters = assigned.clusters[-1]
        pictures += show_history(history, numbers)
        pictures += show_agreement([*score_tree(hierarchy, assigned.clusters, labels), kmeans], groups, numbers)
        pictures += show_prototypes(assigned, thumbnails, numbers)
        pictures += show_negatives(tree.coding, assigned, sample, flags.queries, thumbnails, numbers)
    which = "top-level prototype" if tree else "cluster of k-means"
    pictures += show_maps(features[sample], classes[sample], clusters[sample], names, which, flags.seed)
    numbers["mapped_images"] = len(sample)
    invocation = Invocation("analyse", tuple(argv))
    record = Analysis(
        method=encoder.trained_with.get("method") or flags.method,
        checkpoint=str(encoder.checkpoint),
        checkpoint_sha256=encoder.fingerprint,
        command=invocation.line,
        flags=list(argv),
        versions=versions("matplotlib", "umap-learn"),
        seconds=round(time.monotonic() - started, 1),
        data=subject.description,
        settings={
            "split": flags.split,
            "features": flags.features,
            "points": flags.points,
            "queries": flags.queries,
            "seed": flags.seed,
            "label_hierarchy": str(subject.label_hierarchy) if subject.label_hierarchy else None,
        },
        numbers=numbers,
        figures=[
            AnalysisFigure(file=f"{picture.name}.svg", title=picture.title, caption=picture.caption)
            for picture in pictures
        ],
    )
    write(folder, pictures, record, replace(wandb, name=wandb.name or f"analysis-{encoder.checkpoint.stem}"))


def read_history(checkpoint: Path) -> "Curves":
    """What the run logged of left-out negatives; empty if it did not."""
    from solo_hcsc.report.charts import read_left_out

    file = checkpoint.parent / "metrics.csv"
    found = read_left_out(file) if file.exists() else {}
    if not found:
        why = f"{file} has none" if file.exists() else f"there is no {file}"
        print(f"left-out negatives along training are not shown: {why}")
    return found


def check_folder(folder: Path) -> None:
    """Refuses a folder that cannot be written; makes none yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--out {folder}: {there} is a file; give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"--out {folder}: {there} cannot be written; give another folder")


def write(folder: Path, pictures: "list[Picture]", record: Any, wandb: Wandb) -> None:
    """Pictures, then analysis.json, each whole; what only an earlier analysis in the folder had goes last."""
    from solo_hcsc.report import figures
    from solo_hcsc.report.to_wandb import log_pictures
    from solo_hcsc.study.record import write_analysis

    print(f"drawing {len(pictures)} pictures", flush=True)
    drawn = {picture.name: figures.to_svg(f"analysis-{picture.name}", picture.draw) for picture in pictures}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror}); give another folder") from error
    for name, picture in drawn.items():
        figures.write_svg(folder / f"{name}.svg", picture)
    if wandb.wandb:
        print(f"wandb: {log_pictures(pictures, main_numbers(record.numbers), wandb, folder)}", flush=True)
    write_analysis(folder, record)
    for name in set(NAMES) - drawn.keys():  # of an earlier analysis
        (folder / f"{name}.svg").unlink(missing_ok=True)
    print(f"{len(pictures)} pictures in {folder}; their captions and numbers in {folder / 'analysis.json'}")


def main_numbers(numbers: dict[str, Any]) -> dict[str, float]:
    """What wandb shows of an analysis besides its pictures."""
    summary = {f"ami/{row['name']}": row["ami"] for row in numbers["ami"]}
    if "negatives" in numbers:
        summary["left_out/chance"] = numbers["negatives"]["chance"]
        for level in numbers["negatives"]["levels"]:
            for name in ("share", "precision", "recall", "preservation"):
                summary[f"left_out/{name} level {level['level']}"] = level[name]
    return summary


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "analyse",
        "Pictures of what a run has learnt: of HCSC its prototypes, its left-out negatives and their agreement with "
        "labels; of any method, maps of its features.",
        "--pretrained_feature_extractor PATH [flags]",
    )
    add_feature_flags(parser)
    group = parser.add_argument_group("analysis")
    add_split_flags(group, "which images are analysed", "seed of k-means, of the sample and of the maps")
    group.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where the pictures go; `analysis` beside the checkpoint if not given",
    )
    group.add_argument(
        "--points",
        type=int,
        default=1000,
        bound=at_least(FEWEST),
        help="images that maps and left-out negatives are made of; at most all",
    )
    group.add_argument(
        "--queries",
        type=int,
        default=4,
        bound=Bound(lambda value: 1 <= value <= MOST_QUERIES, f"must be from 1 to {MOST_QUERIES}"),
        help="queries that are shown with their left-out negatives",
    )
    add_wandb_flags(parser)
    flags = parser.parse(argv)
    check_features(flags)
    return flags
