"""Clusters of embeddings, and how well they agree with labels.

Shapes: `N` images, `D` embedding size, `L` levels of a tree.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from solo_hcsc.data.label_hierarchy import LabelLevel, find_levels
from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation.labelled import as_labelled
from solo_hcsc.hcsc.kmeans import kmeans, nearest
from solo_hcsc.hcsc.options import Options
from solo_hcsc.hcsc.vectors import as_clusters, as_unit_vectors
from solo_hcsc.progress import say
from solo_hcsc.runs.results import Result
from solo_hcsc.tables import score, table
from solo_hcsc.trees.building import POWER, build_tree
from solo_hcsc.trees.purity import dendrogram_purity, leaf_purity, matched_accuracy
from solo_hcsc.trees.tree import Tree
from solo_hcsc.typed import typed

PAPER = Options(preset="paper")  # its k-means: from images drawn evenly, the best of several runs


@typed
def clustering(
    embeddings: Any,
    tree: Any = None,
    k: int | Sequence[int] | None = None,
    *,
    seed: int = 5,
    label_hierarchy: str | Path | Sequence[LabelLevel] | None = None,
    prototypes: Sequence[int] | None = None,
) -> Result:
    """Compare clusters with labels: those of a tree at each of its levels, and of k-means and linkages of the vectors.

    At each number of clusters there are k-means, Ward's linkage, and the tree that `build_tree` makes by default.

    Args:
        embeddings: `Embeddings` with labels, or a pair of vectors (N, D) and labels (N,): arrays or tensors.
        tree: a `Tree` of the same images, or their clusters (N, L), the bottom level first; if not given, the clusters
            that `Embeddings` of an HCSC run have, or else the tree that `build_tree` makes.
        k: clusters to look for, one number or several; as many as classes if not given.
        seed: of k-means.
        label_hierarchy: a text file of lines `child: parent`, to compare with groups of classes too, or its levels; if
            not given, the hierarchy that names of classes such as `Fruit/Apple` have.
        prototypes: clusters at each level of the tree, of which some may be empty.

    Returns:
        NMI, AMI and, up to as many clusters as classes, accuracy; `metrics` are those of k-means with the first `k`.

    Example:
        >>> corners = np.repeat(np.eye(3), 4, axis=0)
        >>> found = clustering((corners, np.repeat([0, 1, 2], 4)))
        >>> found.metrics
        {'nmi': 1.0, 'ami': 1.0, 'accuracy': 1.0}
        >>> [row["name"] for row in found.rows]
        ['k-means k=3', 'Ward k=3', 'tree k=3', 'tree level 1 (3 clusters)']
    """
    started = time.monotonic()
    images = as_labelled(embeddings, "embeddings")
    points, count = as_unit_vectors(images.vectors, "embeddings"), images.classes
    if len(np.unique(images.labels)) < 2:
        raise ArgumentError("`embeddings` have one class: give images of at least two")
    asked: Sequence[int] = [count] if k is None else list(k) if isinstance(k, Sequence) else [k]
    ks = list(dict.fromkeys(asked))
    check_ks(ks, len(points))
    levels = _label_levels(label_hierarchy, images.names)
    labels = labels_by_level(images.labels, levels)
    given = images.clusters if tree is None else tree
    clusters = None if given is None else as_clusters(getattr(given, "levels", given), len(points), "tree")
    linked = {"Ward": _link(points, power=1.0), "tree": given if isinstance(given, Tree) else _link(points)}
    of_features = given is None or given is linked["tree"]
    if clusters is None:
        given, clusters = linked["tree"], linked["tree"].levels
    if prototypes is None:
        prototypes = getattr(given, "level_sizes", [int(last) + 1 for last in clusters.max(axis=0)])
    found = score_tree(prototypes, clusters, labels, "level" if of_features else "hierarchy")
    rows = []
    for one in ks:
        rows += [score_kmeans(points, one, seed, labels)[0], *_score_cuts(linked, one, labels)]
    if of_features:  # its cuts at its own levels are these levels
        del linked["tree"]
    for level in found:
        rows.append(level)
        if (one := level["clusters"]) > 1 and not any(row.get("k") == one for row in rows):
            rows += [score_kmeans(points, one, seed, labels)[0], *_score_cuts(linked, one, labels)]
    asked_for = [row for row in rows if "level" in row or (row["kind"] == "k-means" and row["k"] in ks)]
    groups = [len(level.names) for level in levels[1:]]
    shown = {f"ami_{size}_groups": f"AMI, {size} groups" for size in groups}
    told = [{**row, **dict(zip(shown, row["ami_levels"], strict=True))} for row in rows]
    return Result(
        "clustering",
        {name: rows[0][name] for name in ("nmi", "ami", "accuracy") if name in rows[0]},
        {
            "k": ks[0],
            "seed": seed,
            "kmeans_iterations": PAPER.kmeans_iterations,
            "kmeans_restarts": PAPER.kmeans_restarts,
            "kmeans_points": PAPER.kmeans_points,
            "label_groups": groups,
            "all": asked_for,
            "equal": [row for row in rows if row not in asked_for],
            "tree": score_whole_tree(clusters, found, labels),
        },
        {"name": "arrays", "train_images": len(points), "classes": count},
        [{name: value for name, value in row.items() if name != "ami_levels"} for row in told],
        {"name": "clusters", "nmi": "NMI", "ami": "AMI", "accuracy": "accuracy"} | shown,
        digits=3,
        seconds=time.monotonic() - started,
    )


def check_ks(ks: Sequence[Any], images: int) -> None:
    """Refuse numbers of clusters that are none, or more than there are images."""
    if not ks or not all(isinstance(one, int | np.integer) and one >= 2 for one in ks):
        raise ArgumentError(f"`k` is {ks!r}: give a whole number from 2, or several")
    if max(ks) > images:
        raise ArgumentError(f"`k` {max(ks)}: there are only {images} images to cluster")


def _label_levels(given: Any, names: Sequence[str] | None) -> Sequence[LabelLevel]:
    """Return the levels of the labels' hierarchy, the classes first; none where these have no names."""
    if given is not None and not isinstance(given, str | Path):
        return given
    if names is None:
        if given is not None:
            raise ArgumentError("`label_hierarchy`: the classes are numbers; give labels with names")
        return ()
    return find_levels(None if given is None else Path(given), "custom")[1](names)


def compare_tree(result: Result) -> str:
    """Compare the tree with each level of the labels: its purities, and the AMI of its levels.

    With several levels of labels, a star marks the one that a level of the tree agrees best with, and a sentence says
    whether it is the one of the same number.
    """
    whole = result.settings["tree"]
    levels = [row for row in result.settings["all"] if "level" in row]
    labels = [f"{result.data['classes']} classes", *(f"{size} groups" for size in result.settings["label_groups"])]
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


def labels_by_level(labels: np.ndarray, levels: Sequence[LabelLevel]) -> list[np.ndarray]:
    """Return the images' classes (N,), and their groups (N,) at each further level of a label hierarchy."""
    return [labels, *(level.groups[labels] for level in levels[1:])]


def find_kmeans(embeddings: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Return each image's cluster (N,) of `k` that k-means finds in embeddings (N, D)."""
    say(f"k-means k={k}: clustering {len(embeddings)} embeddings of size {embeddings.shape[1]}")
    return nearest(embeddings, kmeans(embeddings, k, PAPER, seed))[1]


def clusters_for(images: int) -> int:
    """Return how many clusters to look for without classes: 10, or fewer so that each has 10 images on average."""
    return max(2, min(10, images // 10))


def same_class_share(labels: np.ndarray) -> float:
    """Return the share of pairs of images with the same label (N,): what leaving out by chance would hit."""
    sizes = np.bincount(labels)
    return float((sizes * (sizes - 1)).sum() / (len(labels) * (len(labels) - 1)))


def score_kmeans(
    embeddings: np.ndarray, k: int, seed: int, labels: Sequence[np.ndarray]
) -> tuple[dict[str, Any], np.ndarray]:
    """Return the agreement of k-means with labels, and each image's cluster (N,)."""
    clusters = find_kmeans(embeddings, k, seed)
    name = f"k-means k={k}"
    return {"name": name, "kind": "k-means", "k": k, **agreement(clusters, labels, name)}, clusters


def _link(points: np.ndarray, power: float = POWER) -> Tree:
    """Return the tree that `build_tree` makes of vectors (N, D), or one by Ward's linkage with power 1."""
    say(f"{'Ward' if power == 1 else 'tree'}: merging {len(points)} embeddings of size {points.shape[1]}")
    return build_tree(points, power=power)


def _score_cuts(trees: Mapping[str, Tree], k: int, labels: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Return the agreement with labels of trees by name, each cut at `k` clusters, if it has as many leaves."""
    cuts = {f"{name} k={k}": tree.cut(k) for name, tree in trees.items() if k <= len(tree.means)}
    kinds = [name.partition(" ")[0].lower() for name in cuts]
    return [
        {"name": name, "kind": kind, "k": k, **agreement(found, labels, name)}
        for kind, (name, found) in zip(kinds, cuts.items(), strict=True)
    ]


def score_tree(
    prototypes: Sequence[int], clusters: np.ndarray, labels: Sequence[np.ndarray], kind: str = "hierarchy"
) -> list[dict[str, Any]]:
    """Return the agreement with labels of each level of clusters (N, L), which has so many prototypes.

    `kind`: "hierarchy" of a run's prototypes, or "level" of a `Tree`.
    """
    told = {"hierarchy": "hierarchy level {} ({} prototypes)", "level": "tree level {} ({} clusters)"}[kind]
    rows = []
    for number, (size, found) in enumerate(zip(prototypes, clusters.T, strict=True), start=1):
        name = told.format(number, size)
        rows.append({"name": name, "kind": kind, "level": number, "prototypes": size, **agreement(found, labels, name)})
    return rows


def score_whole_tree(
    clusters: np.ndarray, levels: Sequence[dict[str, Any]], labels: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Return the purities of a tree, in whose `levels` (what `score_tree` found) the images have these clusters (N, L).

    They are of the classes, and of each further level of the labels. `best_labels` has for each level of the tree the
    level of the labels, from 1, with the highest AMI.
    """
    dendrogram = [dendrogram_purity(list(clusters.T), groups) for groups in labels]
    leaves = [leaf_purity(clusters[:, 0], groups) for groups in labels]
    return {
        "name": f"tree of {clusters.shape[1]} levels",
        "kind": "tree",
        "dendrogram_purity": dendrogram[0],
        "leaf_purity": leaves[0],
        "dendrogram_purity_levels": dendrogram[1:],
        "leaf_purity_levels": leaves[1:],
        "best_labels": [int(np.argmax([row["ami"], *row["ami_levels"]])) + 1 for row in levels],
    }


def agreement(clusters: np.ndarray, labels: Sequence[np.ndarray], name: str) -> dict[str, Any]:
    """Return NMI and AMI of clusters (N,) with the classes, the first of `labels` (N,), and AMI with further levels.

    Accuracy too, unless there are more clusters than classes: those could only be wrong.
    """
    used, classes = len(np.unique(clusters)), len(np.unique(labels[0]))
    say(f"{name}: NMI and AMI of {used} clusters with {classes} classes")
    accuracy = {"accuracy": matched_accuracy(clusters, labels[0])} if used <= classes else {}
    return {
        **accuracy,
        "clusters": used,
        "nmi": float(normalized_mutual_info_score(labels[0], clusters)),
        "ami": float(adjusted_mutual_info_score(labels[0], clusters)),
        "ami_levels": [float(adjusted_mutual_info_score(groups, clusters)) for groups in labels[1:]],
    }
