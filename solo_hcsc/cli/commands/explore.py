"""`solo-hcsc explore`: a page to walk through the tree of a run's images."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import embed_parser
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.frozen_settings import check_frozen
from solo_hcsc.files import check_folder_to_write
from solo_hcsc.runs.images import check_splits, embedded_images
from solo_hcsc.settings import Settings, take


def run(argv: Sequence[str]) -> None:
    """Check, embed, and write the page as a whole."""
    flags = parse(argv)
    files = find_run(flags.pretrained_feature_extractor)
    source = embedded_images(flags, files.settings)
    check_splits(source, flags.split)

    import numpy as np

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.evaluation.of_runs import prepare
    from solo_hcsc.report.explore import check_place, explore
    from solo_hcsc.runs.run import Run

    opened, loading = Run(files, flags.encoder, flags.encoder_args), take(Loading, flags)
    embedder = prepare(opened, source, flags, flags.split, tree=True)
    if embedder.tree is None:
        raise UserError(f"{opened.why_no_tree()}; give a later checkpoint of a `pretrain --method hcsc` run")
    images = len(embedder.images)
    print(embedder.encoder.taken)
    print(f"{images} images, {embedder.encoder.name}, {embedder.device}", flush=True)
    check_place(flags.out, embedder.origin)
    found = embedder.stream(loading, lambda vectors: None)
    dataset = embedder.images.without(found.skipped).dataset
    taken = {"batch_size": flags.batch_size, "num_workers": flags.num_workers}
    folder = explore(found, out=flags.out, title=flags.title, images=dataset, **taken)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    levels = np.transpose(found.clusters)  # type: ignore[arg-type]
    nodes = sum(len(np.unique(level)) for level in levels)
    print(f"{len(found)} images in {nodes} clusters, {size / 1e6:.1f} MB; open {folder / 'index.html'}")
    tell_skipped(found.skipped, images)


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
