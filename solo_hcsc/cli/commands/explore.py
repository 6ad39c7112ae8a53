"""`solo-hcsc explore`: a page to walk through the tree of a run's images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.flags import check_frozen, embed_parser
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import check_folder_to_write, folder_written_whole
from solo_hcsc.runs.images import check_embedded
from solo_hcsc.settings import Settings, take

if TYPE_CHECKING:
    from solo_hcsc.evaluation.embedding import Embedder


def run(argv: Sequence[str]) -> None:
    """Check, embed, and write the page as a whole."""
    flags = parse(argv)
    check_embedded(flags, flags.split)

    import numpy as np

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.embedding import Embedder
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.report.explore import is_page, write_page

    embedder, loading = Embedder.load(flags), take(Loading, flags)
    check(embedder, flags)
    print(embedder.frozen.encoder.taken)
    print(f"{embedder.images} images, {embedder.frozen.encoder.name}, {embedder.frozen.device}", flush=True)
    with folder_written_whole(flags.out, is_page) as folder:
        embedder, places = embedder.run_through(loading, lambda embeddings: None)
        found = embedder.described(np.empty((embedder.images, 0)), places)
        nodes = write_page(folder, found, embedder.dataset, loading, flags.title or name_of(embedder))
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{embedder.images} images in {nodes} clusters, {size / 1e6:.1f} MB; open {flags.out / 'index.html'}")
    tell_skipped(embedder.skipped, embedder.images + len(embedder.skipped))


def check(embedder: "Embedder", flags: Settings) -> None:
    """Refuse a run without a tree, and a page inside the folder of images."""
    if embedder.tree is None:
        raise UserError(f"{embedder.why_no_tree()}; give a later checkpoint of a `pretrain --method hcsc` run")
    if embedder.source.in_folders:
        images = embedder.source.folder(flags.split)
        if flags.out.resolve().is_relative_to(images.resolve()):
            raise UserError(f"--out {flags.out}: is among the images of {images}; give a folder outside of it")


def name_of(embedder: "Embedder") -> str:
    """Return the name of the images, for the title."""
    source = embedder.source
    return on_one_line(source.folder(embedder.split).resolve().name) if source.in_folders else source.dataset


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "explore",
        "A page to walk through an HCSC run's tree of images: clusters in clusters down to single images, with search, "
        "outliers and likely wrong labels. It opens by double click and needs no network.",
    )
    parser.hide("features")
    parser.change("no_labels", help="show no classes; implied when there are no class folders")
    group = parser.add_argument_group("page")
    out = "where index.html and what it loads go; replaces an earlier page"
    group.add_argument("--out", type=Path, metavar="FOLDER", required=True, help=out)
    group.add_argument("--title", help="of the page; the name of the folder of images if not given")
    flags = parser.parse(argv)
    check_frozen(flags)
    check_folder_to_write(flags.out)
    return flags
