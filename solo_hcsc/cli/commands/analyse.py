"""`solo-hcsc analyse`: pictures of what a run has learnt, as the paper's analysis shows it.

Prototypes with their nearest images, left-out negatives, agreement with labels, and maps of the features; into a folder
of SVG files and `analysis.json`, which has their captions and the numbers behind them. What needs no labels works
without them.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.flags import add_feature_flags, add_split_flags, add_wandb_flags, check_frozen
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.settings import check_label_hierarchy
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.errors import UserError
from solo_hcsc.files import check_folder_to_write
from solo_hcsc.runs.images import choose_labels, same_data
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Bound, Settings, at_least, take
from solo_hcsc.training.settings import Wandb, check_wandb

if TYPE_CHECKING:
    import numpy as np

    from solo_hcsc.evaluation.analysed import Analysed
    from solo_hcsc.report.charts import Curves
    from solo_hcsc.report.figures import Picture

FEWEST = 10  # images of which a map says anything
MOST_QUERIES = 12  # that a picture has room for
NAMES = (
    *("left_out", "ami", "chain", "tree", "negatives"),
    *("tsne_class", "tsne_cluster", "umap_class", "umap_cluster"),
)


def run(argv: Sequence[str]) -> None:
    """Check, compute and write; nothing is written before everything is known."""
    flags = parse(argv)
    files = find_run(flags.pretrained_feature_extractor)
    trained = files.settings
    images = ImageSource.of_run(flags, trained)
    images.with_split(flags.split)

    from solo_hcsc.evaluation.analysed import Analysed
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.runs.results import versions
    from solo_hcsc.runs.run import Run
    from solo_hcsc.study.record import Analysis, AnalysisFigure

    started = time.monotonic()
    import_faiss("the analysis clusters")
    wandb = take(Wandb, flags)
    check_wandb(wandb)
    source = choose_labels(images, flags, trained)
    if source.no_labels and flags.label_hierarchy is not None:
        raise UserError(f"--label_hierarchy {flags.label_hierarchy}: there are no classes to group; leave it out")
    how = (flags.split, flags.label_hierarchy, flags.features, flags.accelerator)
    subject = Analysed.load(Run(files, flags.encoder, flags.encoder_args), source, *how)
    if subject.images < FEWEST:
        raise UserError(f"--{flags.split}_dir: {subject.images} images are too few to analyse; give at least {FEWEST}")
    encoder, names = subject.frozen.encoder, subject.classes
    folder = flags.out or encoder.checkpoint.parent / "analysis"
    check_folder_to_write(folder)
    history = read_history(encoder.checkpoint, bool(names)) if subject.tree else {}

    print(encoder.taken)
    print(
        f"analysis of {encoder.checkpoint} ({encoder.name}) on {source.dataset}: {subject.images} {flags.split} "
        f"images, {f'{len(names)} classes' if names else 'no labels'}, {subject.frozen.device}",
        flush=True,
    )
    as_trained = flags.split == "train" and same_data(source, trained, "train_dir", "class_level")
    subject, pictures, numbers = look(subject, flags, history, as_trained)
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
            "no_labels": source.no_labels,
            "label_hierarchy": str(subject.label_hierarchy) if subject.label_hierarchy else None,
        },
        numbers=numbers,
        figures=[
            AnalysisFigure(file=f"{picture.name}.svg", title=picture.title, caption=picture.caption)
            for picture in pictures
        ],
    )
    write(folder, pictures, record, replace(wandb, name=wandb.name or f"analysis-{encoder.checkpoint.stem}"))
    tell_skipped(subject.skipped, subject.images + len(subject.skipped))


def look(
    subject: "Analysed", flags: Settings, history: "Curves", knows_chance: bool
) -> "tuple[Analysed, list[Picture], dict[str, Any]]":
    """Draw all pictures and return the numbers behind them; `knows_chance`: the history is of the same classes.

    The first value is the subject with the images that could be read.
    """
    import numpy as np

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.clusters import same_class_share
    from solo_hcsc.report.charts import show_history
    from solo_hcsc.report.gallery import Thumbnails
    from solo_hcsc.report.maps import by_class, by_cluster, show_maps
    from solo_hcsc.report.negatives import show_negatives
    from solo_hcsc.report.prototypes import Assigned, show_prototypes

    tree, names = subject.tree, subject.classes
    if tree is None:
        print("the checkpoint carries no tree: no pictures of prototypes and left-out negatives")
    subject, features, clustered, classes = subject.embed(take(Loading, flags))
    by_level = [] if tree is None else list(tree.hierarchy.assign(clustered).numpy().T)
    sample = np.random.default_rng(flags.seed).permutation(subject.images)[: flags.points]
    numbers: dict[str, Any] = {}
    pictures = show_history(history, same_class_share(classes) if names and knows_chance else None, numbers)
    agreement, of_kmeans = compare_clusters(subject, features, by_level, classes, flags.seed, numbers)
    pictures += agreement
    if tree is not None:
        assigned = Assigned(tree.hierarchy, clustered, by_level, classes, names, subject.files)
        thumbnails = Thumbnails(subject.dataset)
        pictures += show_prototypes(assigned, thumbnails, numbers)
        pictures += show_negatives(tree.coding, assigned, sample, flags.queries, thumbnails, numbers)
    clusters, which = (of_kmeans, "cluster of k-means") if tree is None else (by_level[-1], "top-level prototype")
    colourings = [
        *([found] if names and (found := by_class(classes[sample], names, subject.levels)) else []),
        by_cluster(clusters[sample], classes[sample], names, which),
    ]
    pictures += show_maps(features[sample], colourings, flags.seed)
    numbers["mapped_images"] = len(sample)
    return subject, pictures, numbers


def compare_clusters(
    subject: "Analysed",
    features: "np.ndarray",
    by_level: "list[np.ndarray]",
    classes: "np.ndarray",
    seed: int,
    numbers: dict[str, Any],
) -> "tuple[list[Picture], np.ndarray]":
    """Compare prototypes and k-means with labels, if there are any; also return each image's cluster of k-means (N,).

    Without labels k-means is for methods without prototypes only.
    """
    import numpy as np

    from solo_hcsc.evaluation.clusters import clusters_for, find_kmeans, labels_by_level, score_kmeans, score_tree
    from solo_hcsc.report.charts import show_agreement

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
    print(f"k-means with {k} clusters, a default for {subject.images} images without classes")
    numbers["clusters_of_kmeans"] = k
    return [], find_kmeans(features, k, seed)


def read_history(checkpoint: Path, labelled: bool) -> "Curves":
    """Read what the run logged of left-out negatives; without labels, their share only; empty if it logged none."""
    from solo_hcsc.report.charts import read_left_out

    file = checkpoint.parent / "metrics.csv"
    found = read_left_out(file) if file.exists() else {}
    if not found:
        why = f"{file} has no such columns" if file.exists() else f"there is no {file}"
        print(f"no curves of left-out negatives: {why}")
    return found if labelled else {name: levels for name, levels in found.items() if name == "left_out"}


def write(folder: Path, pictures: "list[Picture]", record: Any, wandb: Wandb) -> None:
    """Write pictures, then analysis.json, each whole; last, remove what only an earlier analysis had."""
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
    """Select the numbers that wandb shows besides the pictures."""
    summary = {f"ami/{row['name']}": row["ami"] for row in numbers.get("ami", ())}
    if "negatives" in numbers:
        if "chance" in numbers["negatives"]:
            summary["left_out/chance"] = numbers["negatives"]["chance"]
        for level in numbers["negatives"]["levels"]:
            named = {name: value for name, value in level.items() if name != "level"}
            summary |= {f"left_out/{name} level {level['level']}": value for name, value in named.items()}
    return summary


def parse(argv: Sequence[str]) -> Settings:
    parser = Parser(
        "analyse",
        "Pictures of what a run has learnt. HCSC: its prototypes, its left-out negatives, and the agreement of both "
        "with labels. Any method: maps of its features. Works without labels too.",
        "--pretrained_feature_extractor PATH [flags]",
    )
    add_feature_flags(parser)
    told = "use no labels; implied when there are no class folders, or when pretraining used none"
    parser.change("no_labels", help=told)
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
    check_label_hierarchy(flags)
    check_frozen(flags)
    return flags
