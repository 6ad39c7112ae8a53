"""`solo-hcsc explore`: a page to walk through the tree of a run's images."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import check_frozen, embed_parser
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import check_folder_to_write, folder_written_whole
from solo_hcsc.runs.images import check_splits, choose_labels, embedded_images
from solo_hcsc.settings import Settings, take


def run(argv: Sequence[str]) -> None:
    """Check, embed, and write the page as a whole."""
    flags = parse(argv)
    files = find_run(flags.pretrained_feature_extractor)
    source = embedded_images(flags, files.settings)
    check_splits(source, flags.split)

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.report.explore import is_page, write_page
    from solo_hcsc.runs.run import Run

    opened, loading = Run(files, flags.encoder, flags.encoder_args), take(Loading, flags)
    source = choose_labels(source, flags, files.settings)
    embedder = opened.embedder(source, split=flags.split, accelerator=flags.accelerator)
    if embedder.tree is None:
        raise UserError(f"{opened.why_no_tree()}; give a later checkpoint of a `pretrain --method hcsc` run")
    check(source, flags)
    images = len(embedder.images)
    print(embedder.encoder.taken)
    print(f"{images} images, {embedder.encoder.name}, {embedder.device}", flush=True)
    with folder_written_whole(flags.out, is_page) as folder:
        found = embedder.stream(loading, lambda vectors: None)
        dataset = embedder.images.without(found.skipped).dataset
        nodes = write_page(folder, found, dataset, loading, flags.title or name_of(source, flags.split))
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{len(found)} images in {nodes} clusters, {size / 1e6:.1f} MB; open {flags.out / 'index.html'}")
    tell_skipped(found.skipped, images)


def check(source: ImageSource, flags: Settings) -> None:
    """Refuse a page inside the folder of images."""
    images = source.folder(flags.split) if source.in_folders else None
    if images is not None and flags.out.resolve().is_relative_to(images.resolve()):
        raise UserError(f"--out {flags.out}: is among the images of {images}; give a folder outside of it")


def name_of(source: ImageSource, split: str) -> str:
    """Return the name of the images, for the title."""
    return on_one_line(source.folder(split).resolve().name) if source.in_folders else source.dataset


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
