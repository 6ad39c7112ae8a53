"""`solo-hcsc spread`: from few labels to labels of all images, with a confidence for each, as CSV and Parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.flags import add, embed_parser
from solo_hcsc.cli.next_command import next_command
from solo_hcsc.evaluation.frozen_settings import LABEL_FILES, LEVELS, SPREADING, check_spreading
from solo_hcsc.runs.images import find_images
from solo_hcsc.settings import Settings
from solo_hcsc.tables import table
from solo_hcsc.trees.label_files import check_enough, check_labels, read_labels

if TYPE_CHECKING:
    from solo_hcsc.encoders.embedding import Embeddings
    from solo_hcsc.trees.spreading import Spread


def run(argv: Sequence[str]) -> None:
    """Check, spread, and write the files together."""
    flags = parse(argv)
    files, source = find_images(flags, flags.split)
    check_labels(flags.labels)

    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.runs.run import Run
    from solo_hcsc.runs.treed import clusters_to_spread, compute, files_to_hand_over, prepare
    from solo_hcsc.trees.spreading import NAMES, spread

    import_faiss("spread clusters")
    embedder = prepare(Run(files, flags.encoder, flags.encoder_args), source, flags, flags.split)
    places = files_to_hand_over(embedder, flags)
    labels = {path: label for path, label in read_labels(flags.labels, embedder.images.paths).items() if label}
    check_enough(labels, flags.labels)
    found = compute(embedder, flags)
    labels = {path: labels[path] for path in found.paths if path in labels}
    check_enough(labels, flags.labels)
    result = spread(found, labels, clusters_to_spread(found, flags), flags.abstain)
    result.save(flags.out, flags.format, places)
    where = f"{', '.join(NAMES)} in {flags.out}" if flags.format == "csv" else flags.out
    told = sum(label is not None for label in result.labels)
    print(f"{len(labels)} labels spread to {told} of {len(found)} images: {where}")
    report(found, result)
    more = "--already", *flags.labels, "--budget", len(labels), "--out", "more.csv"
    line = next_command("pick", flags, ("labels", "out", "abstain", "levels", "format"), *more)
    print(f"to label more images where it helps most: {line}")
    tell_skipped(found.skipped, len(embedder.images))


def report(found: "Embeddings", result: "Spread") -> None:
    """Print the accuracy on the other images beside that of KNN, where class folders tell the true classes."""
    from solo_hcsc.trees.spreading import compare_with_truth

    others, accuracies = compare_with_truth(result, found.vectors, found.names)
    if others:
        rows = [(way, *(f"{value:.1f}" for value in both)) for way, both in accuracies.items()]
        print(f"accuracy in % on the other {others} images, by their class folders:")
        print(table(("", "all", "surest half"), rows))


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "spread",
        "Labels for all images from few: by weighted KNN, a linear classifier and the clusters of a tree, with a "
        "confidence for each image. They come from files of `pick` that you filled in, or from other tools.",
        "[WHAT] [--data_dir FOLDER] --labels FILE --out FOLDER [flags]",
    )
    add(parser.add_argument_group("tree"), LEVELS)
    group = parser.add_argument_group("labels")
    group.add_argument("--labels", type=Path, nargs="+", required=True, metavar="FILE", help=LABEL_FILES)
    told = "where the files go; a file for some formats"
    group.add_argument("--out", type=Path, metavar="FOLDER", required=True, help=told)
    add(group, *SPREADING)
    flags = parser.parse(argv)
    check_spreading(flags)
    return flags
