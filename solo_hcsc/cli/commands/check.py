"""`solo-hcsc check`: what is wrong with a folder of images before anybody trains on it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.cli.flags import embed_parser
from solo_hcsc.data.source import check_folder
from solo_hcsc.evaluation.frozen_settings import check_checked
from solo_hcsc.report.names import KINDS
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    """Look at the images, write the page and the record, and end with code 1 on what was not to be there."""
    flags = parse(argv)
    check_folder("data_dir", flags.data_dir)
    vectors = embedded(flags) if flags.pretrained_feature_extractor else flags.embeddings

    from solo_hcsc.report.checked import NAMES, check

    found = check(flags.data_dir, vectors, flags.class_level)
    print(found.table())
    if flags.out is not None:
        found.save(flags.out)
        print(f"{', '.join(NAMES)} in {flags.out}")
    failed = [kind for kind in flags.fail_on if found.problems[kind]]
    if failed:
        print(f"--fail_on: {', '.join(f'{kind} {found.problems[kind]}' for kind in failed)}", file=sys.stderr)
        sys.exit(1)


def embedded(flags: Settings) -> Any:
    """Embed the folder's images, without those that cannot be read."""
    from solo_hcsc.runs.images import find_images
    from solo_hcsc.runs.run import Run
    from solo_hcsc.runs.treed import compute, prepare

    files, source = find_images(flags, flags.split)
    opened = Run(files, flags.encoder, flags.encoder_args)
    return compute(prepare(opened, source, flags, flags.split), flags.but(skip_unreadable=True))


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "check",
        "Looks for what is wrong with a folder of images: the same picture in several of its splits or with different "
        "labels, classes without validation images, files that cannot be read, and blank, tiny, dark or blurred ones. "
        "With WHAT or embeddings, cropped copies are found, too.",
        "FOLDER [--out FOLDER] [--fail_on leak ...] [flags], or WHAT --data_dir FOLDER ...",
        needs_features=False,
    )
    parser.change("data_dir", default=None, help="with train, val and test, or some of these; or any folder of images")
    parser.hide("dataset", "train_dir", "val_dir", "train_list", "split", "skip_unreadable", "no_labels", "features")
    group = parser.add_argument_group("check")
    group.add_argument("--out", type=Path, metavar="FOLDER", help="where check.html and check.json go")
    told = "end with exit code 1 where any of these is found"
    group.add_argument("--fail_on", nargs="+", choices=KINDS, default=[], metavar="KIND", help=told)
    told = "features of all images that are there already: .npy, .parquet, or a folder of `embed`"
    group.add_argument("--embeddings", type=Path, metavar="FILE", help=told)
    flags = parser.parse(argv)
    check_checked(flags)
    return flags
