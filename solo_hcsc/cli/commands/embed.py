"""`solo-hcsc embed`: one row per image, with its path, label, embedding and clusters, as Parquet and NPY."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from solo_hcsc.cli.flags import add, embed_parser
from solo_hcsc.evaluation.frozen_settings import LEVELS, check_frozen
from solo_hcsc.files import check_folder_to_write
from solo_hcsc.runs.images import find_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings, at_least, take
from solo_hcsc.tables import pace


def run(argv: Sequence[str]) -> None:
    """Check, embed, and write the files all together."""
    flags = parse(argv)
    files, source = find_images(flags, flags.split)

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.encoders.table import NAMES
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.runs.embedding import check_table, write_table
    from solo_hcsc.runs.run import Run
    from solo_hcsc.runs.treed import grouped, prepare

    opened = Run(files, flags.encoder, flags.encoder_args)
    another = flags.levels or flags.saved
    embedder = prepare(opened, source, flags, flags.split, tree=not another)
    grow = partial(grouped, settings=flags) if another or (flags.clusters and embedder.tree is None) else None
    images, encoder = len(embedder.images), embedder.encoder
    check_table(images, flags.map, flags.neighbours)
    print(encoder.taken)
    print(f"{images} images, {flags.features} features of {encoder.name}, {embedder.device}", flush=True)
    command = Invocation("embed", tuple(argv)).line
    found, speed = write_table(embedder, flags.out, take(Loading, flags), flags.map, flags.neighbours, command, grow)
    print(f"{len(found)} images, {pace(speed)}: {', '.join(NAMES)} in {flags.out}")
    say_next(flags)
    tell_skipped(found.skipped, images)


def say_next(flags: Settings) -> None:
    """Print what to try with the table."""
    file = flags.out / "embeddings.parquet"
    print(f"""try: python -c "import pandas; print(pandas.read_parquet('{file}'))\"""")
    if flags.map:
        neighbours = " --neighbors neighbours" * bool(flags.neighbours)
        print(f"or: embedding-atlas {file} --x x --y y{neighbours}")


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser()
    group = parser.add_argument_group("table")
    group.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="where the files go")
    group.add_argument("--map", choices=("umap", "pca"), help="columns x and y: each image's place in a map of all")
    nearest = "the K nearest images of each by their cosine, exactly; time grows with the square of the images"
    group.add_argument("--neighbours", type=int, default=0, bound=at_least(0), metavar="K", help=nearest)
    told = "build a tree, for columns of clusters, if the run has none; a run's own tree always gives its clusters"
    group.add_argument("--clusters", action="store_true", help=told)
    add(group, LEVELS)
    flags = parser.parse(argv)
    check_frozen(flags)
    check_folder_to_write(flags.out)
    return flags
