"""`solo-hcsc clustering`: how well clusters of a frozen encoder's embeddings agree with labels."""

import time
from collections.abc import Sequence
from dataclasses import replace

from solo_hcsc.cli.flags import add_feature_flags, add_split_flags, check_features
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.settings import check_label_hierarchy
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.progress import note
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings, at_least, take


def run(argv: Sequence[str]) -> None:
    """Compare k-means with every --k, and the checkpoint's own tree with each of its levels, with labels."""
    flags = parse(argv)
    files = find_run(flags.pretrained_feature_extractor)
    source = evaluated_images(flags, files.settings).with_split(flags.split)

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.analysed import Analysed
    from solo_hcsc.evaluation.clusters import check_ks, clustering, compare_tree
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.runs.results import result_file
    from solo_hcsc.runs.run import Run

    started = time.monotonic()
    import_faiss("this evaluation clusters")
    how = (flags.split, flags.label_hierarchy, flags.features, flags.accelerator)
    subject = Analysed.load(Run(files, flags.encoder, flags.encoder_args), source, *how)
    ks = flags.k or [len(subject.classes)]
    check_ks(ks, subject.images)
    encoder, tree = subject.frozen.encoder, subject.tree
    if tree is None and encoder.trained_with.get("method") == "hcsc":
        early = "since it is from before the run's first clustering; only k-means is compared"
        note(f"{encoder.checkpoint} carries no tree, {early}")
    variant = "-projector" * (flags.features == "projector") + "-val" * (flags.split == "val")
    file = result_file(encoder.checkpoint, f"clustering{variant}", source)

    print(encoder.taken)
    print(
        f"clustering of {encoder.checkpoint} ({encoder.name}, {flags.features} features) on {source.dataset}: "
        f"{subject.images} {flags.split} images, {subject.frozen.device}",
        flush=True,
    )
    subject, images, clusters = subject.embed_labelled(take(Loading, flags))
    prototypes = [len(level.prototypes) for level in tree.hierarchy.levels] if tree else None
    told = {"seed": flags.seed, "label_hierarchy": subject.levels, "prototypes": prototypes}
    result = clustering(images, clusters, ks, **told)
    own = {"features": flags.features, "split": flags.split, "label_hierarchy": subject.label_hierarchy}
    seconds, settings = time.monotonic() - started, {**result.settings, **own}
    result = replace(result, settings=settings, data=subject.description, method=flags.method, seconds=seconds)
    result.of(encoder, Invocation("clustering", tuple(argv))).save(file)
    print(result.table() + (f"\n\n{compare_tree(result)}\n" if settings["tree"] else ""))
    print(f"result in {file}")
    tell_skipped(subject.skipped, subject.images + len(subject.skipped))


def parse(argv: Sequence[str]) -> Settings:
    parser = Parser(
        "clustering",
        "Agreement (NMI, AMI, accuracy) with labels of k-means on a frozen encoder's embeddings, and of the tree of "
        "prototypes that an HCSC run has of its own (also dendrogram and leaf purity).",
        "--pretrained_feature_extractor PATH [flags]",
    )
    add_feature_flags(parser)
    group = parser.add_argument_group("clustering")
    told = "clusters of k-means, one number or several; as many as classes if not given"
    group.add_argument("--k", type=int, nargs="+", bound=at_least(2), help=told)
    add_split_flags(group, "which images are clustered", "seed of k-means")
    flags = parser.parse(argv)
    check_label_hierarchy(flags)
    check_features(flags)
    return flags
