"""`solo-hcsc clustering`: how well clusters of a frozen encoder's embeddings agree with labels."""

import time
from collections.abc import Sequence
from typing import Any

from solo_hcsc.cli.flags import add_feature_flags, add_split_flags, check_features
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.settings import check_label_hierarchy
from solo_hcsc.errors import UserError
from solo_hcsc.progress import note
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings, at_least, take
from solo_hcsc.tables import score, table


def run(argv: Sequence[str]) -> None:
    """Compare k-means with every --k, and the checkpoint's own tree with each of its levels, with labels."""
    flags = parse(argv)
    source = evaluated_images(flags).with_split(flags.split)

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.clusters import (
        PAPER,
        Subject,
        clusters_by_level,
        labels_by_level,
        score_kmeans,
        score_tree,
        score_whole_tree,
    )
    from solo_hcsc.evaluation.features import FeatureSettings, tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.runs.results import Result, result_file

    started = time.monotonic()
    import_faiss("this evaluation clusters")
    subject = Subject.load(take(FeatureSettings, flags), source, flags.split, flags.label_hierarchy)
    ks = list(dict.fromkeys(flags.k or [len(subject.classes)]))
    if max(ks) > subject.images:
        raise UserError(f"--k {max(ks)}: there are only {subject.images} images to cluster")
    encoder, tree = subject.frozen.encoder, subject.tree
    if tree is None and encoder.trained_with.get("method") == "hcsc":
        note(
            f"{encoder.checkpoint} carries no tree, since it is from before the run's first clustering; only "
            "k-means is compared"
        )
    variant = "-projector" if flags.features == "projector" else ""
    variant += "-val" if flags.split == "val" else ""
    file = result_file(encoder.checkpoint, f"clustering{variant}", source)

    print(encoder.taken)
    print(
        f"clustering of {encoder.checkpoint} ({encoder.name}, {flags.features} features) on {source.dataset}: "
        f"{subject.images} {flags.split} images, {subject.frozen.device}",
        flush=True,
    )
    subject, embeddings, clustered, classes = subject.embed(take(Loading, flags))
    labels = labels_by_level(classes, subject.levels)
    rows = [score_kmeans(embeddings, k, flags.seed, labels)[0] for k in ks]
    levels, whole = [], None
    if tree is not None:
        found = clusters_by_level(tree.hierarchy, clustered)
        levels = score_tree(tree.hierarchy, found, labels)
        whole = score_whole_tree(found, levels, labels)
    rows += levels

    settings = {
        "k": ks[0],
        "features": flags.features,
        "split": flags.split,
        "seed": flags.seed,
        "kmeans_iterations": PAPER.kmeans_iterations,
        "kmeans_restarts": PAPER.kmeans_restarts,
        "kmeans_points": PAPER.kmeans_points,
        "label_hierarchy": str(subject.label_hierarchy) if subject.label_hierarchy else None,
        "label_groups": subject.groups,
        "all": rows,
        "tree": whole,
    }
    metrics: dict[str, float] = {name: rows[0][name] for name in ("nmi", "ami", "accuracy") if name in rows[0]}
    seconds = time.monotonic() - started
    result = Result("clustering", metrics, settings, subject.description, method=flags.method, seconds=seconds)
    result.of(encoder, Invocation("clustering", tuple(argv))).save(file)
    header = ["clusters", "NMI", "AMI", "accuracy", *(f"AMI, {count} groups" for count in subject.groups)]
    print(table(header, map(scores, rows)))
    if whole is not None:
        names = [f"{len(subject.classes)} classes", *(f"{count} groups" for count in subject.groups)]
        print(f"\n{compare_tree(whole, levels, names)}\n")
    print(f"result in {file}")
    tell_skipped(subject.skipped, subject.images + len(subject.skipped))


def scores(row: dict[str, Any]) -> list[str]:
    accuracy = score(row["accuracy"]) if "accuracy" in row else "-"
    return [row["name"], score(row["nmi"]), score(row["ami"]), accuracy, *map(score, row["ami_levels"])]


def compare_tree(whole: dict[str, Any], levels: Sequence[dict[str, Any]], labels: Sequence[str]) -> str:
    """Compare the tree with each level of the labels, which `labels` names: its purities, and the AMI of its levels.

    With several levels of labels, a star marks the one that a level of the tree agrees best with, and a sentence says
    whether it is the one of the same number.
    """
    header = ["tree against", "dendrogram purity", "leaf purity", *(f"AMI, level {row['level']}" for row in levels)]
    columns = [[whole[name], *whole[f"{name}_levels"]] for name in ("dendrogram_purity", "leaf_purity")]
    columns += [[row["ami"], *row["ami_levels"]] for row in levels]
    cells = [list(map(score, column)) for column in columns]
    if len(labels) == 1:
        return table(header, zip(labels, *cells, strict=True))
    best = list(enumerate(whole["best_labels"], start=1))
    for level, chosen in best:
        cells[level + 1][chosen - 1] += " *"
    said = ", ".join(f"level {level} with the {labels[chosen - 1]}" for level, chosen in best)
    same = [level == chosen for level, chosen in best[: len(labels)]]
    return (
        f"{table(header, zip(labels, *cells, strict=True))}\n"
        f"* The tree agrees best at {said}: {sum(same)} of {len(same)} with the labels' level of the same number."
    )


def parse(argv: Sequence[str]) -> Settings:
    parser = Parser(
        "clustering",
        "Agreement (NMI, AMI, accuracy) with labels of k-means on a frozen encoder's embeddings, and of the tree of "
        "prototypes that an HCSC run has of its own (also dendrogram and leaf purity).",
        "--pretrained_feature_extractor PATH [flags]",
    )
    add_feature_flags(parser)
    group = parser.add_argument_group("clustering")
    group.add_argument(
        "--k",
        type=int,
        nargs="+",
        bound=at_least(2),
        help="clusters of k-means, one number or several; as many as classes if not given",
    )
    add_split_flags(group, "which images are clustered", "seed of k-means")
    flags = parser.parse(argv)
    check_label_hierarchy(flags)
    check_features(flags)
    return flags
