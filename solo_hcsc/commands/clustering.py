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

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.clusters import (
        PAPER,
        Subject,
        clusters_by_level,
        labels_by_level,
        score_kmeans,
        score_tree,
    )
    from solo_hcsc.evaluation.features import FeatureSettings, evaluated_images
    from solo_hcsc.evaluation.results import Result, result_file
    from solo_hcsc.hcsc.kmeans import import_faiss

    started = time.monotonic()
    import_faiss("this evaluation clusters")
    source = evaluated_images(flags).with_split(flags.split)
    subject = Subject.load(take(FeatureSettings, flags), source, flags.split, flags.label_hierarchy)
    ks = list(dict.fromkeys(flags.k or [len(subject.classes)]))
    if max(ks) > subject.images:
        raise UserError(f"--k {max(ks)}: there are only {subject.images} images to cluster")
    encoder, tree = subject.frozen.encoder, subject.tree
    if tree is None and encoder.trained_with.get("method") == "hcsc":
        note(
            f"{encoder.checkpoint} has no tree, because it had not clustered yet: the only clusters are those of "
            "k-means"
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
    embeddings, clustered, classes = subject.embed(take(Loading, flags))
    labels = labels_by_level(classes, subject.levels)
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
        "label_hierarchy": str(subject.label_hierarchy) if subject.label_hierarchy else None,
        "label_groups": subject.groups,
        "all": rows,
    }
    metrics = {"nmi": rows[0]["nmi"], "ami": rows[0]["ami"]}
    result = Result("clustering", flags.method, subject.description, metrics, settings, time.monotonic() - started)
    result.write(file, encoder, Invocation("clustering", tuple(argv)))
    header = ["clusters", "NMI", "AMI", *(f"AMI, {count} groups" for count in subject.groups)]
    print(table(header, [[row["name"], *map(score, [row["nmi"], row["ami"], *row["ami_levels"]])] for row in rows]))
    print(f"result in {file}")


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "clustering",
        "Agreement (NMI, AMI) with labels of k-means on a frozen encoder's embeddings, and of the prototypes that an "
        "HCSC run has of its own.",
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
    check_features(flags)
    return flags
