"""`solo-hcsc tree`: a tree of any images by any weights, in a folder that other commands take."""

import time
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add, embed_parser
from solo_hcsc.cli.next_command import default_place
from solo_hcsc.evaluation.frozen_settings import LEVELS, check_frozen
from solo_hcsc.files import check_folder_to_write, check_replaceable
from solo_hcsc.runs.asked import is_tree
from solo_hcsc.runs.images import find_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings
from solo_hcsc.tables import clock


def run(argv: Sequence[str]) -> None:
    """Check, embed, build the tree, and write it."""
    started, flags = time.monotonic(), parse(argv)
    files, source = find_images(flags, flags.split)

    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.runs.run import Run
    from solo_hcsc.runs.treed import build, compute, prepare, save_tree

    embedder = prepare(Run(files, flags.encoder, flags.encoder_args), source, flags, flags.split)
    print(embedder.encoder.taken)
    found = compute(embedder, flags)
    tree = build(found, flags)
    save_tree(flags.out, tree, found, flags, Invocation("tree", tuple(argv)).line)
    print(tree.show())
    tell_skipped(found.skipped, len(embedder.images))
    print(f"{len(found)} images, {clock(time.monotonic() - started)}; the tree is in {flags.out}")
    print(f"try: solo-hcsc explore {flags.out}")
    print(f"or: solo-hcsc pick {flags.out} --budget 100 --out labels.csv")


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "tree",
        "Builds a tree of the images in a folder, from the features of any weights, and keeps it in a folder that "
        "explore, pick, spread, embed and curate take in place of a run.",
        "FOLDER, or [WHAT] [--data_dir FOLDER] [--out TREE] [flags]",
    )
    group = parser.add_argument_group("tree")
    add(group, LEVELS)
    out = "the folder of the tree, in place of an earlier one; NAME_tree for a folder NAME if not given"
    group.add_argument("--out", type=Path, metavar="TREE", help=out)
    flags = default_place(parser.parse(argv), "tree")
    check_frozen(flags)
    check_folder_to_write(flags.out)
    check_replaceable(flags.out, is_tree)
    return flags
