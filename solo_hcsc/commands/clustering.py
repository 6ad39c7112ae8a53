"""`python -m solo_hcsc.clustering`: how well clusters of a frozen encoder's embeddings agree with labels.

Shapes: `N` images, `D` embedding size, `M_l` prototypes at level `l`, `C` classes.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from solo_hcsc.cli.errors import UserError, command, note
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.quiet import quiet

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import Dataset

    from solo_hcsc.hcsc.coding import SelectiveCoding
    from solo_hcsc.evaluation.features import Frozen
    from solo_hcsc.data.label_hierarchy import LabelLevel
    from solo_hcsc.hcsc.options import Options


@dataclass(frozen=True)
class Tree:
    """The prototypes that a run has of its own."""

    side: "nn.Sequential"  # encoder and projector whose embeddings were clustered
    prototypes: np.ndarray  # (M_0, D) of the bottom level, unit vectors
    sizes: tuple[int, ...]  # M_l
    parents: list[np.ndarray]  # (M_l,) of every level but the top: an index into the level above
    coding: "SelectiveCoding"  # prototypes and temperatures of every level, and the run's options

    def assign(self, embeddings: np.ndarray) -> Iterator[np.ndarray]:
        """The clusters (N,) of unit vectors (N, D) at every level: the nearest at the bottom, then its parents."""
        from solo_hcsc.hcsc.hierarchy import nearest

        clusters = nearest(embeddings, self.prototypes)[1]
        yield clusters
        for parents in self.parents:
            clusters = parents[clusters]
            yield clusters


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.framework.registry import load_methods

    load_methods()
    from solo_hcsc.hcsc.hierarchy import import_faiss

    args = parse(argv)
    import_faiss("this evaluation clusters")
    resolve_split(args)
    evaluate(args)


def evaluate(args: Namespace) -> None:
    """NMI and AMI of k-means with every --k, and of the checkpoint's own tree at every level."""
    from solo_hcsc.data import folders as data
    from solo_hcsc.evaluation.features import Frozen
    from solo_hcsc.evaluation.results import result_file, table, write_result

    started = time.monotonic()
    find_levels = label_levels_of(args)
    frozen = Frozen(args)
    dataset = read_split(args)
    images, classes = len(dataset), dataset.classes  # type: ignore[arg-type, attr-defined]
    data.refuse_single_class(dataset, f"--{args.split}_dir")
    ks = list(dict.fromkeys(args.k or [len(classes)]))
    if max(ks) > images:
        raise UserError(f"--k {max(ks)}: there are only {images} images to cluster")
    label_levels = find_levels(classes)
    checkpoint = frozen.encoder.checkpoint
    tree = own_tree(checkpoint)
    variant = "-projector" if args.features == "projector" else ""
    variant += "-val" if args.split == "val" else ""
    result = result_file(checkpoint, f"clustering{variant}", args)

    print(frozen.encoder.taken)
    print(
        f"clustering of {checkpoint} ({frozen.encoder.name}, {args.features} features) on {args.dataset}: "
        f"{images} {args.split} images, {frozen.device}",
        flush=True,
    )
    embeddings, own, classes_of_images = embed(frozen, tree, dataset, args)
    labels = [classes_of_images, *(level.groups[classes_of_images] for level in label_levels[1:])]
    options = paper_kmeans()
    rows = [score_kmeans(embeddings, k, options, args.seed, labels)[0] for k in ks]
    if tree:
        rows += score_tree(tree, tree.assign(own), labels)

    write_result(
        result,
        "clustering",
        args,
        frozen.encoder,
        describe_split(args, dataset),
        {"nmi": rows[0]["nmi"], "ami": rows[0]["ami"]},
        {
            "k": ks[0],
            "features": args.features,
            "split": args.split,
            "seed": args.seed,
            "kmeans_iterations": options.kmeans_iterations,
            "kmeans_restarts": options.kmeans_restarts,
            "kmeans_points": options.kmeans_points,
            "label_hierarchy": str(args.label_hierarchy) if args.label_hierarchy else None,
            "label_groups": [len(level.names) for level in label_levels[1:]],
            "all": rows,
        },
        time.monotonic() - started,
    )
    header = ["clusters", "NMI", "AMI"]
    header += [f"AMI, {len(level.names)} groups" for level in label_levels[1:]]
    print(table(header, [[row["name"], *map(shown, [row["nmi"], row["ami"], *row["ami_levels"]])] for row in rows]))
    print(f"result in {result}")


def resolve_split(args: Namespace) -> None:
    """Finds the folders of the images to cluster; those of the other part need not be there."""
    from solo_hcsc.data import folders as data

    if args.split == "val" and args.train_dir is None:
        args.train_dir = args.val_dir  # not read: only the validation images are clustered
    data.resolve_folders(args, needs_val=args.split == "val")


def label_levels_of(args: Namespace) -> Callable[[Sequence[str]], list["LabelLevel"]]:
    """Reads the label hierarchy, if there is one; the function returned gives its levels for a data set's classes."""
    from solo_hcsc.data import label_hierarchy

    args.label_hierarchy = file = args.label_hierarchy or label_hierarchy.shipped(args.dataset)
    if file is None:
        return lambda classes: []
    parents = label_hierarchy.read(file)
    return lambda classes: label_hierarchy.levels(parents, classes, file)


def describe_split(args: Namespace, dataset: "Dataset") -> dict[str, Any]:
    """Which images were clustered and how many, for the record."""
    folder = getattr(args, f"{args.split}_dir")
    return {
        "name": args.dataset,
        "data_dir": str(args.data_dir),
        **({f"{args.split}_dir": str(folder)} if folder else {}),
        f"{args.split}_images": len(dataset),  # type: ignore[arg-type]
        "classes": len(dataset.classes),  # type: ignore[attr-defined]
    }


def read_split(args: Namespace) -> "Dataset":
    """The labelled images to cluster, as centre crops."""
    from solo_hcsc.data import folders as data

    _, transform = data.evaluation_transforms(args)
    if data.in_folders(args):  # the other part need not be there
        return data.LabelledImages(args.data_dir / getattr(args, f"{args.split}_dir"), transform)
    train_set, val_set = data.evaluation_sets(args, transform, transform)
    return train_set if args.split == "train" else val_set


def own_tree(checkpoint: Path) -> Tree | None:
    """The prototypes of an HCSC run; None of another method's, or before the first clustering."""
    from torch import nn

    from solo_hcsc.evaluation.encoders import load_method, recorded_args
    from solo_hcsc.framework.method import HCSC
    from solo_hcsc.framework.registry import load_methods

    trained = recorded_args(checkpoint)
    method = load_methods().get(str(trained.get("method")), object)
    of_evaluation = "pretrained_feature_extractor" in trained  # a classifier on an encoder has no prototypes
    if of_evaluation or not issubclass(method, HCSC):
        return None
    model = load_method(checkpoint)
    assert isinstance(model, HCSC)
    levels = range(len(model.coding.kept))
    if not levels:
        note(f"{checkpoint} has no tree, because it had not clustered yet: the only clusters are those of k-means")
        return None
    return Tree(
        nn.Sequential(*model.clustered_side),
        model.coding.level(0)[0].numpy(),
        model.coding.kept,
        [model.coding.level(number)[2].numpy() for number in levels[:-1]],
        model.coding,
    )


def embed(
    frozen: "Frozen", tree: Tree | None, dataset: "Dataset", args: Namespace
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors (N, D) of the images, those in which the tree was made (N, D or 0), and labels (N,).

    Both in one pass: of many images, reading takes longest.
    """
    import torch
    import torch.nn.functional as F

    from solo_hcsc.evaluation.features import extract

    parts = [frozen.module]
    if tree:
        parts.append(tree.side.eval().to(frozen.device))

    def unit_vectors(images: "torch.Tensor") -> "torch.Tensor":
        return torch.cat([F.normalize(part(images).float(), dim=1) for part in parts], dim=1)

    found = extract(unit_vectors, dataset, args, "embeddings", frozen.device)
    own_size = tree.prototypes.shape[1] if tree else 0
    size = found.x.size(1) - own_size
    embeddings, own = found.x.split([size, own_size], dim=1)
    return embeddings.contiguous().numpy(), own.contiguous().numpy(), found.y.numpy()


def paper_kmeans() -> "Options":
    """Preset `paper`'s k-means: from images drawn evenly, the best of several runs."""
    from solo_hcsc.hcsc.options import resolve_options

    return resolve_options({"preset": "paper"})


def kmeans_clusters(embeddings: np.ndarray, k: int, options: "Options", seed: int) -> np.ndarray:
    """Each image's cluster (N,) in k-means."""
    from solo_hcsc.hcsc.hierarchy import kmeans, nearest

    return nearest(embeddings, kmeans(embeddings, k, options, seed))[1]


def score_kmeans(
    embeddings: np.ndarray, k: int, options: "Options", seed: int, labels: Sequence[np.ndarray]
) -> tuple[dict[str, Any], np.ndarray]:
    """The agreement of k-means with labels, and each image's cluster (N,)."""
    print(f"k-means k={k}: clustering {len(embeddings)} embeddings of size {embeddings.shape[1]}", flush=True)
    clusters = kmeans_clusters(embeddings, k, options, seed)
    name = f"k-means k={k}"
    return {"name": name, "kind": "k-means", "k": k, **agreement(clusters, labels, name)}, clusters


def score_tree(tree: Tree, assigned: Iterable[np.ndarray], labels: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """The agreement with labels of each level, in which the images' clusters are `assigned` (N,)."""
    rows = []
    for level, (size, clusters) in enumerate(zip(tree.sizes, assigned, strict=True), start=1):
        name = f"hierarchy level {level} ({size} prototypes)"
        found = agreement(clusters, labels, name)
        rows.append({"name": name, "kind": "hierarchy", "level": level, "prototypes": size, **found})
    return rows


def agreement(clusters: np.ndarray, labels: Sequence[np.ndarray], name: str) -> dict[str, Any]:
    """NMI and AMI of clusters (N,) with the classes, the first of `labels` (N,), and AMI with each further level."""
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    used = len(np.unique(clusters))
    print(f"{name}: NMI and AMI of {used} clusters with {len(np.unique(labels[0]))} classes", flush=True)
    return {
        "clusters": used,
        "nmi": float(normalized_mutual_info_score(labels[0], clusters)),
        "ami": float(adjusted_mutual_info_score(labels[0], clusters)),
        "ami_levels": [float(adjusted_mutual_info_score(groups, clusters)) for groups in labels[1:]],
    }


def shown(score: float) -> str:
    return f"{round(score, 3) + 0.0:.3f}"  # adding makes 0 of -0, which AMI's chance correction leaves


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.evaluation import features
    from solo_hcsc.data.folders import DATASETS

    parser = Parser(
        prog="solo_hcsc.clustering",
        usage="%(prog)s --pretrained_feature_extractor PATH --dataset NAME [flags]",
        description="Agreement (NMI, AMI) with labels of k-means on a frozen encoder's embeddings, and of the "
        "prototypes that an HCSC run has of its own.",
    )
    features.add_feature_flags(parser)
    features.add_data_flags(parser)
    group = parser.add_argument_group("clustering")
    group.add_argument(
        "--k", type=int, nargs="+", help="clusters of k-means, one number or several; as many as classes if not given"
    )
    add_split_flags(group, "which images are clustered", "seed of k-means")
    parser.choose("dataset", DATASETS)
    parser.explain({"data_dir": Path("datasets")})
    parser.hide("dali", "dali_device", "no_labels")
    args = parser.parse(argv)
    features.check(args)
    if args.k and min(args.k) < 2:
        raise UserError(f"--k {min(args.k)}: must be at least 2")
    check_seed(args)
    return args


def add_split_flags(group: Any, split: str, seed: str) -> None:
    """Flags of whatever compares clusters with labels; `split` and `seed` are help texts."""
    group.add_argument("--split", choices=["train", "val"], default="train", help=split)
    group.add_argument("--seed", type=int, default=5, help=seed)
    group.add_argument(
        "--label_hierarchy",
        type=Path,
        help="a text file of lines `child: parent`, to compare with groups of classes too; cifar10 and digits have one",
    )


def check_seed(args: Namespace) -> None:
    if not 0 <= args.seed < 2**31:
        raise UserError(f"--seed {args.seed}: must be from 0 to {2**31 - 1}")


if __name__ == "__main__":
    main()
