"""`solo-hcsc clustering`: how well clusters of a frozen encoder's embeddings agree with labels."""

import time
from argparse import Namespace
from collections.abc import Sequence

from solo_hcsc.cli.console import score, table
from solo_hcsc.cli.errors import UserError, note
from solo_hcsc.cli.flags import add_feature_flags, add_split_flags, check_features
from solo_hcsc.cli.parser import Invocation, Parser, at_least, take


def run(argv: Sequence[str]) -> None:
    """NMI and AMI of k-means with every --k, and of the checkpoint's own tree at every level."""
    flags = parse(argv)

    from solo_hcsc.data.folders import refuse_single_class
    from solo_hcsc.data.label_hierarchy import find_levels
    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.evaluation.clusters import (
        PAPER,
        clusters_by_level,
        describe_split,
        embed_both,
        labels_by_level,
        score_kmeans,
        score_tree,
    )
    from solo_hcsc.evaluation.encoders import load_tree
    from solo_hcsc.evaluation.features import FeatureSettings, Frozen
    from solo_hcsc.evaluation.results import Result, result_file
    from solo_hcsc.framework.datasets import labelled_split
    from solo_hcsc.hcsc.kmeans import import_faiss

    started = time.monotonic()
    import_faiss("this evaluation clusters")
    source = take(ImageSource, flags).with_split(flags.split)
    label_hierarchy, levels_of = find_levels(flags.label_hierarchy, source.dataset)
    frozen = Frozen(take(FeatureSettings, flags), source.crop_size[0])
    dataset = labelled_split(source, flags.split)
    images, classes = len(dataset), dataset.classes  # type: ignore[arg-type, attr-defined]
    refuse_single_class(dataset, f"--{flags.split}_dir")
    ks = list(dict.fromkeys(flags.k or [len(classes)]))
    if max(ks) > images:
        raise UserError(f"--k {max(ks)}: there are only {images} images to cluster")
    levels = levels_of(classes)
    checkpoint = frozen.encoder.checkpoint
    tree = load_tree(checkpoint)
    if tree is None and frozen.encoder.trained_with.get("method") == "hcsc":
        note(f"{checkpoint} has no tree, because it had not clustered yet: the only clusters are those of k-means")
    variant = "-projector" if flags.features == "projector" else ""
    variant += "-val" if flags.split == "val" else ""
    file = result_file(checkpoint, f"clustering{variant}", source)

    print(frozen.encoder.taken)
    print(
        f"clustering of {checkpoint} ({frozen.encoder.name}, {flags.features} features) on {source.dataset}: "
        f"{images} {flags.split} images, {frozen.device}",
        flush=True,
    )
    embeddings, clustered, classes_of_images = embed_both(frozen, tree, dataset, take(Loading, flags))
    labels = labels_by_level(classes_of_images, levels)
    rows = [score_kmeans(embeddings, k, flags.seed, labels)[0] for k in ks]
    if tree is not None:
        rows += score_tree(tree.hierarchy, clusters_by_level(tree.hierarchy, clustered), labels)

    settings = {
        "k": ks[0],
        "features": flags.features,
        "split": flags.split,
        "seed": flags.seed,
        "kmeans_iterations": PAPER.kmeans_iterations,
        "kmeans_restarts": PAPER.kmeans_restarts,
        "kmeans_points": PAPER.kmeans_points,
        "label_hierarchy": str(label_hierarchy) if label_hierarchy else None,
        "label_groups": [len(level.names) for level in levels[1:]],
        "all": rows,
    }
    metrics = {"nmi": rows[0]["nmi"], "ami": rows[0]["ami"]}
    data = describe_split(source, flags.split, dataset)
    result = Result("clustering", flags.method, data, metrics, settings, time.monotonic() - started)
    result.write(file, frozen.encoder, Invocation("clustering", tuple(argv)))
    header = ["clusters", "NMI", "AMI", *(f"AMI, {len(level.names)} groups" for level in levels[1:])]
    print(table(header, [[row["name"], *map(score, [row["nmi"], row["ami"], *row["ami_levels"]])] for row in rows]))
    print(f"result in {file}")


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "clustering",
        "Agreement (NMI, AMI) with labels of k-means on a frozen encoder's embeddings, and of the prototypes that an "
        "HCSC run has of its own.",
        "--pretrained_feature_extractor PATH --dataset NAME [flags]",
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
    check_features(flags)
    return flags
