"""Which way to build a tree of images: clusters against labels, time and memory.

Trees of frozen features of labelled pictures (`benchmarks.tree_images`), cut at equal numbers of clusters, are compared
with the labels; each seed takes other images. The cost is that of trees of more and more vectors, each in a
process of its own.
"""

import json
import os
import resource
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import HDBSCAN
from sklearn.metrics import adjusted_mutual_info_score

from benchmarks import measure
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.kmeans import fast_kmeans, nearest, normalise
from solo_hcsc.hcsc.linkage import ward_along_graph
from solo_hcsc.hcsc.options import Options
from solo_hcsc.trees.building import POWER, build_tree
from solo_hcsc.trees.tree import Tree

IMAGES = 2500  # of a set at most, for each seed nine tenths of the set if it is smaller
SIZES = {"exact": 10_000, "graph": 1_000_000, "kmeans": 1_000_000, "kmeans of kmeans": 1_000_000}
SHOWN = ("ami", "hungarian", "purity", "cpu_seconds")
RESAMPLED, ROUNDS = 5, 5  # images of each cluster, and rounds, in Vo et al.'s resampling


def main() -> None:
    flags = measure.parser(__doc__, repeats=3)
    flags.set_defaults(threads=[2])
    flags.add_argument("--pictures", type=Path, help="folder that benchmarks.tree_images wrote")
    flags.add_argument("--weights", type=Path, help="of EfficientNet-lite0, from scripts/data/weights.sh")
    flags.add_argument("--cache", type=Path, default=Path("datasets/features"), help="folder where features are kept")
    flags.add_argument("--jobs", type=int, default=2, help="processes that compare, with a thread each")
    flags.add_argument("--parts", nargs="+", choices=["quality", "cost"], default=["quality", "cost"])
    flags.add_argument("--ways", nargs="+", choices=SIZES, default=list(SIZES), help="of which the cost is measured")
    flags.add_argument("--scale", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    args = flags.parse_args()
    if args.small:
        args.scale = [1_000]
    if "quality" in args.parts:
        measure.write("trees", named(args), quality(args))
    if "cost" in args.parts:
        measure.write("trees", named(args), scaling(args), file="trees_cost")


def child() -> None:
    """One tree of so many vectors: prints seconds and bytes."""
    parser = ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("count", type=int)
    parser.add_argument("threads", type=int)
    args = parser.parse_args(sys.argv[2:])
    print(json.dumps(cost_of(args.way, args.count, args.threads)))


def named(args: Namespace) -> Namespace:
    """The arguments for the record: of a path its name."""
    return Namespace(**{k: v.name if isinstance(v, Path) and k != "out" else v for k, v in vars(args).items()})


# ---- quality ----


def quality(args: Namespace) -> list[dict[str, Any]]:
    sets = {"mixture": mixture(900)} if args.small else {f.name: features(f, args) for f in sorted_folders(args)}
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        tasks = {
            name: [pool.submit(compared, name, *of, seed) for seed in range(args.repeats)] for name, of in sets.items()
        }
        for name, of_set in tasks.items():
            rows += [row for task in of_set for row in task.result()]
            measure.show(
                [name, "AMI", "", "", "Hungarian", "", "", "purity", "CPU s"],
                [(way, *(value for what in SHOWN for value in mean_of(rows, name, way, what))) for way in WAYS],
            )
    return rows


def compared(name: str, vectors: np.ndarray, labels: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """A row for each way of clustering some of a set's images."""
    taken = np.random.default_rng(seed).permutation(len(labels))[: min(IMAGES, len(labels) * 9 // 10)]
    levels = (len(taken) // 20, len(taken) // 50, len(taken) // 200)
    rows = []
    with measure.threads(1):
        for way, cluster in WAYS.items():
            started = time.process_time()
            found, parents = cluster(vectors[taken], levels, seed)
            seconds = time.process_time() - started
            about = {"set": name, "seed": seed, "images": len(taken), "levels": levels, "way": way}
            rows.append(about | {"cpu_seconds": seconds} | judged(found, parents, labels[taken], seed))
    tree = build_tree(vectors[taken])
    same = np.stack([tree.cut(count) for count in rows[-1]["clusters"]], axis=1)
    rows[-1]["ami_of_the_default_at_as_many"] = [adjusted_mutual_info_score(labels[taken], one) for one in same.T]
    return rows


def mean_of(rows: list[dict[str, Any]], name: str, way: str, what: str) -> list[float]:
    values = [row[what] for row in rows if row["set"] == name and row["way"] == way]
    return np.mean([np.atleast_1d(value) for value in values], axis=0).tolist()


def sorted_folders(args: Namespace) -> list[Path]:
    return sorted(folder for folder in args.pictures.iterdir() if folder.is_dir() and folder.name[0] != ".")


def features(folder: Path, args: Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (N, 1280) of the pictures below a folder, and their fine labels (N,)."""
    from solo_hcsc.runs.run import embed

    cached = args.cache / f"{folder.name}.npz"
    if not cached.exists():
        normalised: dict[str, Any] = {"crop_size": 96, "mean": [0.5] * 3, "std": [0.5] * 3, "no_labels": True}
        found = embed(args.weights, folder, encoder="timm/tf_efficientnet_lite0", skip_unreadable=True, **normalised)
        args.cache.mkdir(parents=True, exist_ok=True)
        np.savez(cached, features=found.vectors, paths=np.array(found.paths))
    with np.load(cached) as kept:
        labels = np.unique([path.split("/")[1] for path in kept["paths"].tolist()], return_inverse=True)[1]
        return normalise(kept["features"]), labels


def judged(found: np.ndarray, parents: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, Any]:
    return {
        "clusters": [len(np.unique(level)) for level in found.T],
        "ami": [adjusted_mutual_info_score(labels, level) for level in found.T],
        "hungarian": [hungarian(labels, level) for level in found.T],
        "purity": dendrogram_purity(parents_of_levels(found), labels, seed),
        "purity_of_all_merges": dendrogram_purity(parents, labels, seed),
    }


def hungarian(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Share of images in the best one-to-one matching of clusters and labels."""
    table = np.zeros((labels.max() + 1, clusters.max() + 1))
    np.add.at(table, (labels, clusters), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(labels))


def dendrogram_purity(parents: np.ndarray, labels: np.ndarray, seed: int, pairs: int = 20_000) -> float:
    """Share of an image's class below the lowest node that it shares with another of its class (Heller & Ghahramani).

    `parents`: of each node, images first and each before its parent; the root's is itself. The mean over random pairs,
    of which each class has a share by its number of pairs.
    """
    draw = np.random.default_rng(seed)
    by_class, sizes_of = np.argsort(labels, kind="stable"), np.bincount(labels)
    first = np.cumsum(sizes_of) - sizes_of
    others = (sizes_of - 1)[labels]  # of its class, for each image
    a = draw.choice(len(labels), size=pairs, p=others / others.sum())
    classes = labels[a]
    place = np.argsort(by_class)[a] - first[classes]
    step = draw.integers(1, sizes_of[classes])
    b = by_class[first[classes] + (place + step) % sizes_of[classes]]
    while (a != b).any():  # the lower of the two goes up
        a, b = np.where(a < b, parents[a], a), np.where(b < a, parents[b], b)
    sizes = np.zeros((len(parents), labels.max() + 1), dtype=np.int32)
    sizes[np.arange(len(labels)), labels] = 1
    for node in range(len(parents) - 1):
        sizes[parents[node]] += sizes[node]
    return float((sizes[a, classes] / sizes[a].sum(axis=1)).mean())


# ---- ways: clusters (N, L) at the levels, and the parents of all nodes ----

Way = Callable[[np.ndarray, tuple[int, ...], int], tuple[np.ndarray, np.ndarray]]


def by_tree(
    points: np.ndarray, levels: tuple[int, ...], seed: int, builder: str, power: float = POWER
) -> tuple[np.ndarray, np.ndarray]:
    tree = build_tree(points, levels, builder=builder, power=power, seed=seed)
    return tree.levels, parents_of_merges(tree)


def by_graph(
    points: np.ndarray, levels: tuple[int, ...], seed: int, exact: int, power: float = POWER
) -> tuple[np.ndarray, np.ndarray]:
    """`exact`: clusters left where the exact linkage takes over."""
    table = ward_along_graph(points, power=power, exact=exact, seed=seed)
    tree = Tree(table, np.arange(len(points)), points, levels)
    return tree.levels, parents_of_merges(tree)


def parents_of_merges(tree: Tree) -> np.ndarray:
    count = len(tree.means)
    parents = np.arange(2 * count - 1)
    parents[tree.merges[:, :2].astype(int)] = count + np.arange(count - 1)[:, None]
    if count == len(tree):
        return parents
    return np.concatenate([len(tree) + tree.leaves, len(tree) + parents])


def parents_of_levels(found: np.ndarray) -> np.ndarray:
    """A tree of the clusters (N, L) of each level below a root."""
    columns = [np.unique(level, return_inverse=True)[1] for level in found.T]
    parents, first = [], len(found)
    parents.append(first + columns[0])
    for below, above in pairwise(columns):
        first += below.max() + 1
        of_clusters = np.zeros(below.max() + 1, dtype=int)
        of_clusters[below] = above
        parents.append(first + of_clusters)
    first += columns[-1].max() + 1
    parents.append(np.full(columns[-1].max() + 2, first))
    return np.concatenate(parents)


def kmeans_of_kmeans(points: np.ndarray, levels: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    options = Options(num_prototypes=levels, min_cluster_size=0, kmeans_restarts=3)
    found = build_hierarchy(points, options, seed).assignments.numpy()
    return found, parents_of_levels(found)


def resampled_kmeans(points: np.ndarray, levels: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vo et al., TMLR 2024: at each level, k-means again of the points nearest to each centroid, some rounds."""
    options = Options(num_prototypes=levels[:1], kmeans_restarts=3)
    columns, current = [], points
    members = np.arange(len(points))
    for count in levels:
        centroids = normalise(fast_kmeans(current, count, options, seed))
        for number in range(ROUNDS):
            distances, clusters = nearest(current, centroids)
            order = np.lexsort((distances, clusters))
            rank = np.arange(len(order)) - np.searchsorted(clusters[order], clusters[order])
            nearby = order[rank < max(2, RESAMPLED)]
            if len(nearby) < count:
                break
            centroids = normalise(fast_kmeans(current[nearby], count, options, seed + number + 1))
        members = nearest(current, centroids)[1][members]
        columns.append(members)
        current = centroids
    return np.stack(columns, axis=1), parents_of_levels(np.stack(columns, axis=1))


def hdbscan(points: np.ndarray, levels: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At each level the least size of a cluster with the nearest number of them; noise goes to the nearest mean.

    It seldom finds as many as are asked for, so that its figures are not at equal numbers.
    """
    distances = np.sqrt(np.maximum(2 - 2 * points.astype(np.float64) @ points.T, 0))
    tried = []
    for least in (2, 3, 5, 8, 15):
        clusters = HDBSCAN(least, min_samples=3, metric="precomputed", copy=True).fit(distances).labels_
        if clusters.max() > 0:
            means = np.stack([points[clusters == one].mean(axis=0) for one in range(clusters.max() + 1)])
            tried.append(np.where(clusters < 0, nearest(points, normalise(means))[1], clusters))
    columns = [min(tried, key=lambda found: abs(found.max() + 1 - level)) for level in levels]
    return np.stack(columns, axis=1), parents_of_levels(columns[0][:, None])


WAYS: dict[str, Way] = {
    "exact, power 0.8": partial(by_tree, builder="exact"),
    "exact, power 1 (Ward)": partial(by_tree, builder="exact", power=1),
    "exact, power 0.6": partial(by_tree, builder="exact", power=0.6),
    "graph, then exact": partial(by_graph, exact=250),
    "graph, then exact, power 1": partial(by_graph, exact=250, power=1),
    "graph alone, power 1": partial(by_graph, exact=1, power=1),
    "k-means, then exact": partial(by_tree, builder="kmeans"),
    "k-means, then weighted Ward": partial(by_tree, builder="kmeans", power=1),
    "k-means of k-means": kmeans_of_kmeans,
    "k-means of k-means, resampled": resampled_kmeans,
    "HDBSCAN": hdbscan,
}


# ---- time and memory ----


def scaling(args: Namespace) -> list[dict[str, Any]]:
    rows = []
    for way in args.ways:
        for count in (count for count in args.scale if count <= SIZES[way]):
            command = [sys.executable, "-m", "benchmarks.trees", "child", way, str(count), str(args.threads[-1])]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            measure.show(
                ["way", "vectors", "CPU s", "wall s", "peak GB", "AMI at 1,000 and 20 groups"],
                [[*map(rows[-1].get, ("way", "vectors", "cpu_seconds", "wall_seconds", "peak_gb", "ami"))]],
            )
    return rows


def mixture(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (count, 128) of 1,000 groups in 20 groups of groups, and their groups (count,)."""
    draw = np.random.default_rng(seed)
    centres = np.repeat(draw.standard_normal((20, 128), dtype="float32"), 50, axis=0)
    centres += 0.7 * draw.standard_normal((1000, 128), dtype="float32")
    groups = draw.integers(1000, size=count)
    points = centres[groups]
    points += 1.2 * draw.standard_normal((count, 128), dtype="float32")
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points, groups


def cost_of(way: str, count: int, threads: int) -> dict[str, Any]:
    points, groups = mixture(count)
    sizes = (min(1000, count // 5), 20)
    levels: Sequence[int] = sizes
    with measure.threads(threads):
        started, processor = time.perf_counter(), time.process_time()
        if way == "kmeans of kmeans":
            options = Options(num_prototypes=sizes, min_cluster_size=0)
            found = build_hierarchy(points, options, 0).assignments.numpy()
        else:
            found = build_tree(points, levels, builder=way).levels
        wall, used = time.perf_counter() - started, time.process_time() - processor
    some = np.random.default_rng(1).permutation(count)[:20_000]
    truths = (groups[some], groups[some] // 50)
    return {
        "way": way,
        "vectors": count,
        "cpu_seconds": used,
        "wall_seconds": wall,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "ami": [float(adjusted_mutual_info_score(t, f)) for t, f in zip(truths, found[some].T, strict=True)],
    }


if __name__ == "__main__":
    child() if sys.argv[1:2] == ["child"] else main()
