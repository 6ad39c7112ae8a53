"""`solo-hcsc pick`: the images worth labelling first, with the reason for each, to fill in, as CSV or for a tool."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add, embed_parser
from solo_hcsc.cli.next_command import next_command
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.frozen_settings import FORMAT, LEVELS, PICKING, check_frozen
from solo_hcsc.runs.images import find_images
from solo_hcsc.settings import Settings, at_least
from solo_hcsc.trees.label_files import check_labels, check_unfilled, read_labels


def run(argv: Sequence[str]) -> None:
    """Check, pick, and write the file."""
    flags = parse(argv)
    files, source = find_images(flags, flags.split)
    check_labels(flags.already, "already")

    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.runs.run import Run
    from solo_hcsc.runs.treed import clusters_to_pick, compute, files_to_hand_over, picks_from_run, prepare
    from solo_hcsc.trees.picking import pick

    import_faiss("pick clusters")
    opened = Run(files, flags.encoder, flags.encoder_args)
    embedder = prepare(opened, source, flags, flags.split, tree=picks_from_run(opened, flags))
    places = files_to_hand_over(embedder, flags)
    already = read_labels(flags.already, embedder.images.paths, "already")
    images = len(embedder.images)
    left = images - len(already)
    if flags.budget > left:
        raise UserError(f"--budget {flags.budget}: there are only {left} images to choose from")
    found = compute(embedder, flags)
    labelled = [path for path in found.paths if path in already]
    clusters = None if flags.way == "farthest" else clusters_to_pick(found, flags, flags.budget + len(labelled))
    picks = pick(found, flags.budget, labelled, flags.way, clusters)
    picks.save(flags.out, flags.format, places)
    few = f" (no more: the other {left - len(picks)} are duplicates of these)" * (len(picks) < flags.budget)
    print(f"{len(picks)} of {len(found)} images to label{few}, the most informative first: {flags.out}")
    more = "--labels", *flags.already, flags.out, "--out", "labels"
    line = next_command("spread", flags, ("budget", "out", "way", "tree", "levels", "already", "format"), *more)
    print(f"{'fill in its column label' if flags.format == 'csv' else 'label them'}, then: {line}")
    tell_skipped(found.skipped, images)


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "pick",
        "The images worth labelling first: typical ones of the clusters of a tree, from its top to its bottom, never "
        "two that are as good as the same. Works on any folder of images and with any encoder.",
        "[WHAT] [--data_dir FOLDER] --budget N --out FILE [flags]",
    )
    group = parser.add_argument_group("choice")
    group.add_argument("--budget", type=int, required=True, bound=at_least(1), help="how many images to label")
    group.add_argument("--out", type=Path, metavar="FILE", required=True, help="the file, or folder, to write")
    add(group, FORMAT, *PICKING, LEVELS)
    told = "images that have labels already: files like those that `labels` of `spread` takes"
    group.add_argument("--already", type=Path, nargs="+", default=[], metavar="FILE", help=told)
    flags = parser.parse(argv)
    check_frozen(flags)
    check_unfilled(flags.out, flags.format)
    return flags
