"""`solo-hcsc embed`: one row per image, with its path, label, embedding and clusters, as Parquet and NPY."""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from solo_hcsc.cli.flags import check_frozen, embed_parser
from solo_hcsc.errors import UserError
from solo_hcsc.files import check_folder_to_write, written_together
from solo_hcsc.runs.images import check_embedded
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings, at_least, take
from solo_hcsc.tables import pace

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from solo_hcsc.evaluation.embedding import Embedder, Embeddings

NAMES = ("embeddings.npy", "embeddings.parquet", "embeddings.json")
MEANINGS = {
    "path": "the image's file, below the folder that was read",
    "label": "its class",
    "embedding": "its features, not at unit length",
    "cluster": "the number of its prototype at level {level}; level 1 is the bottom",
    "similarity": "its cosine to its prototype at level {level}",
    "outlier": "whether similarity_1 is below outlier_below: 1.5 interquartile ranges below the first quartile",
    "x": "its place in the map of all images",
    "y": "its place in the map of all images",
    "neighbours": "the rows of the nearest other images, from 0, and their distances: 1 - cosine",
}


def run(argv: Sequence[str]) -> None:
    """Check, embed, and write the files all together."""
    flags = parse(argv)
    check_embedded(flags, flags.split)

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.embedding import Embedder
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.trees.neighbours import BLOCK, StoredRows

    if flags.neighbours:
        import_faiss("--neighbours searches")
    embedder = Embedder.load(flags)
    check(embedder, flags)
    encoder, images = embedder.frozen.encoder, embedder.images
    print(encoder.taken)
    print(f"{images} images, {flags.features} features of {encoder.name}, {embedder.frozen.device}", flush=True)
    with written_together(flags.out, NAMES) as (array, table, record):
        started = time.monotonic()
        with array.open("w+b") as file:
            embedder, places = embedder.run_through(take(Loading, flags), npy_writer(file, images))
            if embedder.skipped:
                set_rows(file, images := embedder.images)
        seconds = time.monotonic() - started
        found = embedder.described(StoredRows(array), places)
        if flags.map:
            print(f"{flags.map}: fitting a map", flush=True)
        columns = write_table(table, blocks(found, flags.map, flags.neighbours, BLOCK), images)
        facts = facts_of(embedder, found, flags, columns)
        facts["images_per_second"] = round(images / seconds, 1)
        facts["command"] = Invocation("embed", tuple(argv)).line
        record.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(f"{images} images, {pace(images / seconds)}: {', '.join(NAMES)} in {flags.out}")
    say_next(flags)
    tell_skipped(embedder.skipped, images + len(embedder.skipped))


def say_next(flags: Namespace) -> None:
    """Print what to try with the table."""
    file = flags.out / "embeddings.parquet"
    print(f"""try: python -c "import pandas; print(pandas.read_parquet('{file}'))\"""")
    if flags.map:
        neighbours = " --neighbors neighbours" * bool(flags.neighbours)
        print(f"or: embedding-atlas {file} --x x --y y{neighbours}")


def check(embedder: "Embedder", flags: Namespace) -> None:
    """Refuse what these images or this run cannot give."""
    from solo_hcsc.trees.plane import FEWEST, has_umap

    images = embedder.images
    if flags.clusters and embedder.tree is None:
        raise UserError(f"--clusters: {embedder.why_no_tree()}; leave it out")
    if flags.neighbours and flags.neighbours >= images:
        raise UserError(f"--neighbours {flags.neighbours}: {images} images have {images - 1} others each at most")
    if flags.map and images < FEWEST:
        raise UserError(f"--map {flags.map}: {images} images are too few for a map; it takes {FEWEST}")
    if flags.map == "umap" and not has_umap():
        raise UserError("--map umap: UMAP is not installed; run: pip install 'solo_hcsc[umap]', or use --map pca")


def npy_writer(file: BinaryIO, images: int) -> "Callable[[np.ndarray], None]":
    """Build a function that appends batches (b, D) to an NPY file of so many rows; holds none of them."""
    import numpy as np

    def keep(batch: "np.ndarray") -> None:
        if file.tell() == 0:
            header = {"descr": "<f4", "fortran_order": False, "shape": (images, batch.shape[1])}
            np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(batch, dtype="<f4").data)

    return keep


def set_rows(file: BinaryIO, rows: int) -> None:
    """Set how many rows an NPY file has, where there are fewer than its header says; numpy leaves room for that."""
    import numpy as np

    file.seek(0)
    np.lib.format.read_magic(file)
    shape, _, _ = np.lib.format.read_array_header_1_0(file)
    start = file.tell()
    file.seek(0)
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, shape[1])}
    np.lib.format.write_array_header_1_0(file, header)
    assert file.tell() == start, "the header has grown"


def blocks(found: "Embeddings", kind: str | None, neighbours: int, size: int) -> "Iterator[pa.Table]":
    """Yield the table, so many rows at a time, with a map of a `kind` and neighbours where they are asked for."""
    import pyarrow as pa

    from solo_hcsc.trees.neighbours import nearest_rows
    from solo_hcsc.trees.plane import fit_map

    rows = found.embeddings
    place = fit_map(kind, rows) if kind else None
    for start in range(0, len(found.paths), size):
        stop = min(start + size, len(found.paths))
        columns: dict[str, Any] = {"path": found.paths[start:stop]}
        if found.labels is not None:
            columns["label"] = pa.array(found.labels[start:stop], pa.string())
        columns["embedding"] = lists(rows[start:stop])
        if found.clusters is not None and found.similarities is not None and found.outliers is not None:
            for level in range(found.clusters.shape[1]):
                columns[f"cluster_{level + 1}"] = found.clusters[start:stop, level]
                columns[f"similarity_{level + 1}"] = found.similarities[start:stop, level]
            columns["outlier"] = found.outliers[start:stop]
        if place is not None:
            columns["x"], columns["y"] = place(start, stop).T
        if neighbours:
            numbers, cosines = nearest_rows(rows, start, stop, neighbours)
            columns["neighbours"] = pa.StructArray.from_arrays(
                [lists(numbers), lists((1 - cosines).clip(min=0))], ["ids", "distances"]
            )
        yield pa.table(columns)


def lists(values: "np.ndarray") -> "pa.Array":
    """Build a column of the rows (n, D)."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def write_table(file: Path, parts: "Iterator[pa.Table]", images: int) -> list[str]:
    """Write the parts of a table of so many rows one after the other; return the names of its columns."""
    import pyarrow.parquet as pq

    from solo_hcsc.progress import watch

    first = next(parts)
    with pq.ParquetWriter(file, first.schema, use_dictionary=["label"]) as writer:
        for (part,) in watch(((part,) for part in chain([first], parts)), images, "table"):
            writer.write_table(part)
    return first.column_names


def meaning(column: str) -> str:
    """Explain a column, for the record."""
    name, _, level = column.partition("_")
    return MEANINGS[name].format(level=level)


def facts_of(embedder: "Embedder", found: "Embeddings", flags: Namespace, columns: Sequence[str]) -> dict[str, Any]:
    """Collect for the record which run, which images, and what the columns mean."""
    from solo_hcsc.evaluation.embedding import far_below
    from solo_hcsc.runs.results import describe_data, versions

    encoder, source = embedder.frozen.encoder, embedder.source
    seen = {} if source.has_own_colours else {"mean": source.mean, "std": source.std}
    tree = {} if found.similarities is None else {"outlier_below": far_below(found.similarities[:, 0])}
    return {
        "run": str(encoder.checkpoint),
        "checkpoint_sha256": encoder.fingerprint,
        "method": encoder.trained_with.get("method"),
        "encoder": encoder.name,
        "features": flags.features,
        "images": len(found.paths),
        "dimensions": found.embeddings.shape[1],
        "data": describe_data(source, None, embedder.skipped, **{flags.split: len(found.paths)}) | seen,
        **tree,
        "columns": {name: meaning(name) for name in columns},
        "versions": versions("pyarrow", "umap-learn"),
    }


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser()
    group = parser.add_argument_group("table")
    group.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="where the files go")
    group.add_argument("--map", choices=("umap", "pca"), help="columns x and y: each image's place in a map of all")
    group.add_argument(
        "--neighbours",
        type=int,
        default=0,
        bound=at_least(0),
        metavar="K",
        help="the K nearest images of each by their cosine, exactly; time grows with the square of the images",
    )
    group.add_argument(
        "--clusters",
        action="store_true",
        help="refuse a run without a tree of prototypes; a run that has one always gives its clusters",
    )
    flags = parser.parse(argv)
    check_frozen(flags)
    check_folder_to_write(flags.out)
    return flags
