"""`solo-hcsc curate`: a part of many images, even over a tree, without duplicates, outliers and broken ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.flags import add, embed_parser
from solo_hcsc.data.source import check_folder
from solo_hcsc.evaluation.frozen_settings import CURATING, FORMAT, LEVELS, check_curating
from solo_hcsc.runs.images import find_images
from solo_hcsc.settings import Settings

if TYPE_CHECKING:
    from solo_hcsc.encoders.embedding import Embeddings


def run(argv: Sequence[str]) -> None:
    """Check, embed or read embeddings, choose, and write the list with its tables."""
    flags = parse(argv)
    found, files = stored(flags) if flags.embeddings else embedded(flags)

    from solo_hcsc.runs.curating import curate_files

    result = curate_files(found, files, flags)
    result.save(flags.out, flags.format, None if files is None else dict(zip(found.paths, files, strict=True)))
    print(result.table())
    told = ", ".join(f"{reason} {count:,}" for reason, count in result.counts().items())
    why = f"; the reason for each: {flags.out.with_suffix('.csv')}" if flags.format == "csv" else ""
    print(f"{told}\n{len(result):,} images: {flags.out}{why}")
    if files is not None and flags.format == "csv":
        folder = flags.data_dir if "data_dir" in flags.typed else "FOLDER"
        print(f"to train on them: solo-hcsc pretrain --data_dir {folder} --train_list {flags.out}")


def stored(flags: Settings) -> tuple["Embeddings", list[str] | None]:
    """Read embeddings that somebody has."""
    folder = flags.data_dir if "data_dir" in flags.typed else None
    if folder is not None:
        check_folder("data_dir", folder)

    from solo_hcsc.runs.curating import stored_embeddings

    return stored_embeddings(flags.embeddings, folder)


def embedded(flags: Settings) -> tuple["Embeddings", list[str] | None]:
    """Embed the images; those that cannot be read are among what is left out."""
    files, source = find_images(flags, flags.split)

    from solo_hcsc.runs.run import Run
    from solo_hcsc.runs.treed import compute, files_to_hand_over, image_files, prepare

    opened = Run(files, flags.encoder, flags.encoder_args)
    embedder = prepare(opened, source, flags, flags.split, tree=flags.tree == "run")
    files_to_hand_over(embedder, flags)
    found = compute(embedder, flags.but(skip_unreadable=source.in_folders or source.is_stored))
    return found, image_files(embedder, found)


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "curate",
        "Chooses images to train on: as many from every part of a tree, no two that show the same, no outliers and "
        "nothing broken, blank or tiny. Writes a list for `train_list`, and the reason for every image.",
        "[WHAT] [--data_dir FOLDER] --keep N --out LIST [flags], or --embeddings FILE --keep N --out LIST [flags]",
    )
    group = parser.add_argument_group("choice")
    group.add_argument("--out", type=Path, metavar="LIST", required=True, help="the list; kept.txt has kept.csv beside")
    told = "features that are there already: .npy, .parquet with columns path and embedding, or a folder of `embed`"
    group.add_argument("--embeddings", type=Path, metavar="FILE", help=told)
    add(group, FORMAT, *CURATING, LEVELS)
    flags = parser.parse(argv)
    check_curating(flags)
    return flags
