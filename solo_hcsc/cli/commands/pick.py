"""`solo-hcsc pick`: the images worth labelling first, with the reason for each, as a CSV to fill in."""

import csv
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.commands._labelling import (
    check_labels,
    features_of,
    next_command,
    of_readable,
    picks_from_run,
    read_labels,
)
from solo_hcsc.cli.flags import add_way_flags, check_frozen, embed_parser
from solo_hcsc.data.cells import as_cell
from solo_hcsc.errors import UserError
from solo_hcsc.files import check_folder_to_write, written_together
from solo_hcsc.runs.images import check_embedded
from solo_hcsc.settings import Settings, at_least

COLUMNS = ("rank", "path", "label", "reason")


def run(argv: Sequence[str]) -> None:
    """Check, pick, and write the file."""
    flags = parse(argv)
    check_embedded(flags, flags.split)
    check_labels("--already", flags.already)

    from solo_hcsc.evaluation.embedding import Embedder
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.trees.picking import pick

    import_faiss("pick clusters")
    embedder = Embedder.load(flags)
    paths = embedder.paths()
    already = read_labels("--already", flags.already, paths)
    left = len(paths) - len(already)
    if flags.budget > left:
        raise UserError(f"--budget {flags.budget}: there are only {left} images to choose from")
    embedder, features, clusters = features_of(embedder, flags, picks_from_run(embedder, flags))
    paths = embedder.paths()
    picks = pick(features, flags.budget, sorted(of_readable(embedder, already)), flags.way, clusters)
    with (
        written_together(flags.out.parent, [flags.out.name]) as (part,),
        part.open("w", encoding="utf-8", newline="") as file,
    ):
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        rows.writerows(
            (rank, as_cell(paths[one.image]), "", as_cell(one.reason)) for rank, one in enumerate(picks, start=1)
        )
    few = f" (no more: the other {left - len(picks)} are duplicates of these)" * (len(picks) < flags.budget)
    print(f"{len(picks)} of {len(paths)} images to label{few}, the most informative first: {flags.out}")
    files = [*flags.already, flags.out]
    line = next_command(
        "spread", flags, ("budget", "out", "way", "tree", "already"), "--labels", *files, "--out", "labels"
    )
    print(f"fill in its column label, then: {line}")
    tell_skipped(embedder.skipped, embedder.images + len(embedder.skipped))


def check_file(file: Path) -> None:
    """Refuse a place for the result that cannot be written, or that has somebody's labels."""
    if file.is_dir():
        raise UserError(f"--out {file}: is a folder; give a file in it, such as {file / 'labels.csv'}")
    check_folder_to_write(file.parent)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            filled = any(row.get("label") for row in csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error):
        return
    if filled:
        raise UserError(f"--out {file}: has labels in it; give another name, and --already {file} to go on from them")


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "pick",
        "The images worth labelling first: typical ones of the clusters of a tree, from its top to its bottom, never "
        "two that are as good as the same. Works on any folder of images and with any encoder.",
        "RUN [--data_dir FOLDER] --budget N --out FILE.csv [flags]",
    )
    group = parser.add_argument_group("choice")
    group.add_argument("--budget", type=int, required=True, bound=at_least(1), help="how many images to label")
    group.add_argument("--out", type=Path, metavar="FILE", required=True, help="the CSV file to write")
    add_way_flags(group)
    told = "CSV files with columns path and label: the images that are labelled, to go on from"
    group.add_argument("--already", type=Path, nargs="+", default=[], metavar="FILE", help=told)
    flags = parser.parse(argv)
    check_frozen(flags)
    check_file(flags.out)
    return flags
