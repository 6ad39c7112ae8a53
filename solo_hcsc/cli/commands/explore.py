"""`solo-hcsc explore`: a page to walk through a tree of images; of a folder alone it takes the best weights at hand."""

import time
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add, embed_parser
from solo_hcsc.cli.next_command import default_place, next_command
from solo_hcsc.evaluation.frozen_settings import LEVELS, SORTING, TREE, check_frozen, check_sorting
from solo_hcsc.files import check_folder_to_write
from solo_hcsc.runs.images import find_images
from solo_hcsc.settings import Settings, take
from solo_hcsc.tables import clock


def run(argv: Sequence[str]) -> None:
    """Check, embed, and write the page as a whole."""
    started, flags = time.monotonic(), parse(argv)
    files, source = find_images(flags, flags.split)

    import numpy as np

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.encoders.cache import chosen_cache
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.report.explore import check_places, explore
    from solo_hcsc.runs.run import Run
    from solo_hcsc.runs.treed import prepare, takes_own_tree, tree_of

    opened, loading = Run(files, flags.encoder, flags.encoder_args), take(Loading, flags)
    own = takes_own_tree(opened, flags)
    embedder = prepare(opened, source, flags, flags.split, tree=own, by_tree=own)
    images = len(embedder.images)
    print(embedder.encoder.taken)
    print(f"{images} images, {embedder.encoder.name}, {embedder.device}", flush=True)
    check_places(flags.out, flags.sort_into, embedder.origin)
    found, tree = tree_of(embedder.embeddings(loading), flags)
    dataset = embedder.images.without(found.skipped).dataset
    names = ("title", "sort_into", "sort_by", "sort_clusters", "batch_size", "num_workers")
    taken = {name: getattr(flags, name) for name in names}
    folder = explore(found, tree, out=flags.out, images=dataset, cache=chosen_cache(flags), **taken)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    levels = np.transpose(found.clusters)  # type: ignore[arg-type]
    nodes = sum(len(np.unique(level)) for level in levels)
    took = clock(time.monotonic() - started)
    clusters = f"{nodes} cluster{'s' * (nodes != 1)}"
    print(f"{len(found)} images in {clusters}, {size / 1e6:.1f} MB, {took}; open {folder / 'index.html'}")
    lists = ", ".join(sorted(file.name for file in folder.glob("*.csv")))
    print(f"beside it: {lists}" + (f"; images sorted into {flags.sort_into}" if flags.sort_into else ""))
    tell_skipped(found.skipped, images)
    dropped = ("out", "title", "tree", "levels", *SORT)
    for command, more in (("pick", ("--budget", 100, "--out", "labels.csv")), ("tree", ("--out", "tree"))):
        print(f"{NEXT[command]}: {next_command(command, flags, dropped, *more)}")


SORT = ("sort_into", "sort_by", "sort_clusters")
NEXT = {"pick": "to choose images for labelling", "tree": "to keep the tree"}


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "explore",
        "A page to walk through the tree of any images: clusters in clusters down to single images, with a map, "
        "search, duplicates, outliers and likely wrong labels, also as CSV. It opens by double click and needs no "
        "network. Of a folder alone it takes the best weights at hand; an HCSC run may bring its own tree.",
        "FOLDER, or [WHAT] [--data_dir FOLDER] [--out FOLDER] [flags]",
    )
    parser.hide("features")
    parser.change("no_labels", help="show no classes; implied when there are no class folders")
    add(parser.add_argument_group("tree"), *TREE, LEVELS)
    group = parser.add_argument_group("page")
    out = "where index.html and what it loads go, in place of an earlier page; NAME_page for a folder NAME if not given"
    group.add_argument("--out", type=Path, metavar="FOLDER", help=out)
    group.add_argument("--title", help="of the page; the name of the folder of images if not given")
    add(parser.add_argument_group("images sorted into folders"), *SORTING)
    flags = default_place(parser.parse(argv), "page")
    check_frozen(flags)
    check_folder_to_write(flags.out)
    check_sorting(flags)
    return flags
