"""`python -m solo_hcsc.analyse`: pictures of what a run has learnt, as the paper's analysis shows it.

Prototypes with their nearest images, left-out negatives, agreement with labels, and maps of the features; into a folder
of SVG files and `analysis.json`, which has their captions and the numbers behind them.
"""

import json
import os
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from solo_hcsc.cli.errors import UserError, command
from solo_hcsc.report.figures import Picture
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.quiet import quiet

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from solo_hcsc.report.charts import Curves
    from solo_hcsc.evaluation.encoders import Encoder

FEWEST = 10  # images of which a map says anything
MOST_QUERIES = 12  # that a picture has room for
NAMES = (
    *("left_out", "ami", "chain", "tree", "negatives"),
    *("tsne_class", "tsne_cluster", "umap_class", "umap_cluster"),
)


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.framework.registry import load_methods

    load_methods()
    from solo_hcsc.commands.clustering import resolve_split
    from solo_hcsc.hcsc.hierarchy import import_faiss
    from solo_hcsc.training.run import check_wandb

    args = parse(argv)
    import_faiss("the analysis clusters")
    check_wandb(args)
    resolve_split(args)
    analyse(args)


def analyse(args: Namespace) -> None:
    """From the checks to the files; nothing is written before everything is known."""
    from solo_hcsc.commands import clustering
    from solo_hcsc.data import folders as data
    from solo_hcsc.report.charts import show_agreement, show_history
    from solo_hcsc.evaluation.features import Frozen
    from solo_hcsc.report.gallery import Thumbnails
    from solo_hcsc.report.maps import show_maps
    from solo_hcsc.report.negatives import show_negatives
    from solo_hcsc.report.prototypes import Assigned, show_prototypes

    started = time.monotonic()
    find_levels = clustering.label_levels_of(args)
    frozen = Frozen(args)
    checkpoint = frozen.encoder.checkpoint
    dataset = clustering.read_split(args)
    images, names = len(dataset), dataset.classes  # type: ignore[arg-type, attr-defined]
    data.refuse_single_class(dataset, f"--{args.split}_dir")
    if images < FEWEST:
        raise UserError(f"--{args.split}_dir: {images} images are too few to analyse; give at least {FEWEST}")
    label_levels = find_levels(names)
    tree = clustering.own_tree(checkpoint)
    folder = args.out or checkpoint.parent / "analysis"
    check_folder(folder)
    history = read_history(checkpoint) if tree else {}

    print(frozen.encoder.taken)
    print(
        f"analysis of {checkpoint} ({frozen.encoder.name}) on {args.dataset}: {images} {args.split} images, "
        f"{len(names)} classes, {frozen.device}",
        flush=True,
    )
    features, own, labels = clustering.embed(frozen, tree, dataset, args)
    by_level = [labels, *(level.groups[labels] for level in label_levels[1:])]
    kmeans, kmeans_clusters = clustering.score_kmeans(
        features, len(names), clustering.paper_kmeans(), args.seed, by_level
    )
    sample = np.random.default_rng(args.seed).permutation(images)[: args.points]
    thumbnails = Thumbnails(dataset)

    pictures: list[Picture] = []
    numbers: dict[str, Any] = {}
    scores = [kmeans]
    clusters = kmeans_clusters
    if tree is None:
        print("prototypes and left-out negatives are not shown: the checkpoint has no tree of prototypes")
    else:
        assigned = Assigned(tree, own, list(tree.assign(own)), labels, names)
        clusters = assigned.clusters[-1]
        scores = [*clustering.score_tree(tree, assigned.clusters, by_level), kmeans]
        pictures += show_history(history, numbers)
    pictures += show_agreement(scores, [len(level.names) for level in label_levels[1:]], numbers)
    if tree is not None:
        pictures += show_prototypes(assigned, thumbnails, numbers)
        pictures += show_negatives(assigned, sample, args.queries, thumbnails, numbers)
    which = "top-level prototype" if tree else "cluster of k-means"
    pictures += show_maps(features[sample], labels[sample], clusters[sample], names, which, args.seed)
    numbers["mapped_images"] = len(sample)
    write(folder, pictures, numbers, frozen.encoder, dataset, args, started)


def read_history(checkpoint: Path) -> "Curves":
    """What the run logged of left-out negatives; empty if it did not."""
    from solo_hcsc.report.charts import read_left_out

    file = checkpoint.parent / "metrics.csv"
    found = read_left_out(file) if file.exists() else {}
    if not found:
        why = f"{file} has none" if file.exists() else f"there is no {file}"
        print(f"left-out negatives along training are not shown: {why}")
    return found


# ---- the folder ----


def check_folder(folder: Path) -> None:
    """Refuses a folder that cannot be written; makes none yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--out {folder}: {there} is a file; give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"--out {folder}: {there} cannot be written; give another folder")


def write(
    folder: Path,
    pictures: list[Picture],
    numbers: dict[str, Any],
    encoder: "Encoder",
    dataset: "Dataset",
    args: Namespace,
    started: float,
) -> None:
    """Pictures, then analysis.json; an earlier analysis in the folder is replaced as a whole."""
    from solo_hcsc.commands import clustering
    from solo_hcsc.report import figures
    from solo_hcsc.evaluation.encoders import recorded_args
    from solo_hcsc.evaluation.results import versions, write_whole

    print(f"drawing {len(pictures)} pictures", flush=True)
    drawn = {picture.name: figures.svg(f"analysis-{picture.name}", picture.draw) for picture in pictures}
    record = folder / "analysis.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)
        for name in NAMES:
            (folder / f"{name}.svg").unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror}); give another folder") from error
    for name, picture in drawn.items():
        figures.write(folder / f"{name}.svg", picture)
    content = {
        "method": recorded_args(encoder.checkpoint).get("method") or args.method,
        "checkpoint": str(encoder.checkpoint),
        "checkpoint_sha256": encoder.fingerprint,
        "command": f"python -m solo_hcsc.analyse {shlex.join(sys.argv[1:])}",
        "versions": versions("matplotlib", "umap-learn"),
        "seconds": round(time.monotonic() - started, 1),
        "data": clustering.describe_split(args, dataset),
        "settings": {
            "split": args.split,
            "features": args.features,
            "points": args.points,
            "queries": args.queries,
            "seed": args.seed,
            "label_hierarchy": str(args.label_hierarchy) if args.label_hierarchy else None,
        },
        "numbers": numbers,
        "figures": [
            {"file": f"{picture.name}.svg", "title": picture.title, "caption": picture.caption} for picture in pictures
        ],
    }
    if args.wandb:
        print(f"wandb: {send(pictures, numbers, encoder.checkpoint, args, folder)}", flush=True)
    write_whole(record, json.dumps(content, indent=2) + "\n")
    print(f"{len(pictures)} pictures in {folder}; their captions and numbers in {record}")


def send(pictures: list[Picture], numbers: dict[str, Any], checkpoint: Path, args: Namespace, folder: Path) -> str:
    """The pictures and the main numbers to wandb."""
    from solo_hcsc.report.wandb import log_pictures

    args.name = args.name or f"analysis-{checkpoint.stem}"
    summary = {f"ami/{row['name']}": row["ami"] for row in numbers["ami"]}
    if "negatives" in numbers:
        summary["left_out/chance"] = numbers["negatives"]["chance"]
        for level in numbers["negatives"]["levels"]:
            for name in ("share", "precision", "recall"):
                summary[f"left_out/{name} level {level['level']}"] = level[name]
    return log_pictures(pictures, summary, args, folder)


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.commands import clustering
    from solo_hcsc.evaluation import features
    from solo_hcsc.data.folders import DATASETS
    from solo_hcsc.report.wandb import add_wandb_flags

    parser = Parser(
        prog="solo_hcsc.analyse",
        usage="%(prog)s --pretrained_feature_extractor PATH --dataset NAME [flags]",
        description="Pictures of what a run has learnt: of HCSC its prototypes, its left-out negatives and their "
        "agreement with labels; of any method, maps of its features.",
    )
    features.add_feature_flags(parser)
    features.add_data_flags(parser)
    group = parser.add_argument_group("analysis")
    clustering.add_split_flags(group, "which images are analysed", "seed of k-means, of the sample and of the maps")
    group.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where the pictures go; `analysis` beside the checkpoint if not given",
    )
    group.add_argument(
        "--points", type=int, default=1000, help="images that maps and left-out negatives are made of; at most all"
    )
    group.add_argument("--queries", type=int, default=4, help="queries that are shown with their left-out negatives")
    add_wandb_flags(parser)
    parser.choose("dataset", DATASETS)
    parser.explain({"data_dir": Path("datasets")})
    parser.hide("dali", "dali_device", "no_labels")
    args = parser.parse(argv)
    features.check(args)
    clustering.check_seed(args)
    if args.points < FEWEST:
        raise UserError(f"--points {args.points}: must be at least {FEWEST}")
    if not 1 <= args.queries <= MOST_QUERIES:
        raise UserError(f"--queries {args.queries}: must be from 1 to {MOST_QUERIES}")
    return args


if __name__ == "__main__":
    main()
