"""Embeddings as a value, and on disk: a table in Parquet, the vectors in NPY, and a record of what they are.

Shapes: `N` images, `D` embedding size, `L` levels of a tree.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.files import read_json, written_together
from solo_hcsc.hcsc.hierarchy import means_of
from solo_hcsc.hcsc.kmeans import normalise
from solo_hcsc.hcsc.vectors import as_clusters, as_unit_vectors
from solo_hcsc.progress import say, watch
from solo_hcsc.tables import data_frame
from solo_hcsc.trees.neighbours import BLOCK, StoredRows, nearest_rows
from solo_hcsc.trees.plane import fit_map
from solo_hcsc.typed import typed

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa


NAMES = ("embeddings.npy", "embeddings.parquet", "embeddings.json")
MEANINGS = {
    "path": "the image's file, below the folder that was read",
    "label": "its class",
    "embedding": "its features, not at unit length",
    "cluster": "the number of its cluster, in a run's tree of its prototype, at level {level}; level 1 is the bottom",
    "similarity": "its cosine to its prototype, or to the mean of its cluster, at level {level}",
    "outlier": "whether similarity_1 is below outlier_below: 1.5 interquartile ranges below the first quartile",
    "x": "its place in the map of all images",
    "y": "its place in the map of all images",
    "neighbours": "the rows of the nearest other images, from 0, and their distances: 1 - cosine",
}
Keep = Callable[[np.ndarray], None]


@dataclass(frozen=True)
class Origin:
    """Whose features of which images embeddings are."""

    encoder: Encoder
    features: str  # backbone or projector
    source: ImageSource | None = None  # None for images that a caller gave one by one
    split: str = "train"  # of the source


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Features of N images, in the order of their paths: what `embed` returns.

    Args:
        paths: N paths below the folder that was read; `train/0`, `train/1`, ... for images that are no files.
        vectors: (N, D) float32, as the encoder or the projector gives them, not at unit length.
        labels: (N,) int64, each image's class by its number in `classes`, -1 for none; None without labels.
        classes: the classes' names.
        clusters: (N, L) int64, the cluster of each image at every level of a run's tree, the bottom level first; None
            without a tree, like the next two.
        similarities: (N, L) float32, the cosine of an image and its prototype at every level.
        outliers: (N,) bool, whether an image is much less similar to its bottom prototype than the others are to
            theirs (see `far_below`).
        skipped: images that could not be read and are not among the N.
        origin: whose features of which images they are; None for others' vectors.

    Example:
        >>> found = Embeddings(["a.jpg", "b.jpg"], np.eye(2, dtype="float32"), np.array([0, -1]), ("cat",))
        >>> found.names, len(found[[1]])
        (['cat', None], 1)
    """

    paths: list[str]
    vectors: np.ndarray
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    clusters: np.ndarray | None = None
    similarities: np.ndarray | None = None
    outliers: np.ndarray | None = None
    skipped: tuple[Skipped, ...] = ()
    origin: "Origin | None" = None

    def __post_init__(self) -> None:
        for name, column in self._columns().items():
            if len(column) != len(self.paths):
                raise ArgumentError(f"`{name}` has {len(column)} rows and `paths` {len(self.paths)}: give one of each")

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        counts = {"classes": len(self.classes), "levels": 0 if self.clusters is None else self.clusters.shape[1]}
        more = "".join(f", {count} {name}" for name, count in counts.items() if count)
        return f"<Embeddings of {len(self)} images, {self.vectors.shape[1]} dimensions{more}>"

    def __getitem__(self, rows: Any) -> "Embeddings":
        """Return the rows of an array of indexes, a mask or a slice."""
        places = np.arange(len(self))[rows]
        if places.ndim != 1:
            raise ArgumentError("`rows`: give an array of indexes, a mask or a slice")
        chosen = {name: value[places] for name, value in self._columns().items()}
        return replace(self, paths=[self.paths[place] for place in places], **chosen)

    def _columns(self) -> dict[str, Any]:
        """Return the arrays that there are."""
        names = ("vectors", "labels", "clusters", "similarities", "outliers")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def names(self) -> list[str | None] | None:
        """Return the name of each image's class, None for an image without one; None without labels."""
        return None if self.labels is None else self.classes_of(self.labels)

    def classes_of(self, labels: np.ndarray) -> list[str | None]:
        """Return the names of some labels, None for -1."""
        return [self.classes[label] if label >= 0 else None for label in labels.tolist()]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a table with a row for each image, with the columns that `save` writes."""
        columns: dict[str, Any] = {"path": self.paths}
        if self.labels is not None:
            columns["label"] = self.names
        columns["embedding"] = list(self.vectors[:])
        if self.clusters is not None and self.similarities is not None:
            for level in range(self.clusters.shape[1]):
                columns[f"cluster_{level + 1}"] = self.clusters[:, level]
                columns[f"similarity_{level + 1}"] = self.similarities[:, level]
            columns["outlier"] = self.outliers
        return data_frame(columns)

    @typed
    def save(self, folder: str | Path) -> None:
        """Write `embeddings.parquet`, `embeddings.npy` and `embeddings.json`, as the command `embed` does."""

        def compute(keep: Callable[[np.ndarray], None]) -> Embeddings:
            for start in range(0, len(self), BLOCK):
                keep(self.vectors[start : start + BLOCK])
            return self

        save(Path(folder), compute, len(self))

    @classmethod
    @typed
    def load(cls, folder: str | Path) -> "Embeddings":
        """Read what `save` or the command `embed` wrote; without the neighbours and the map."""
        return cls(**read(Path(folder)))


def save(
    folder: Path,
    compute: Callable[[Keep], Embeddings],
    images: int,
    map: str | None = None,
    neighbours: int = 0,
    facts: Callable[[Embeddings], Mapping[str, Any]] = lambda found: {},
) -> Embeddings:
    """Write the three files of a folder, all together or none.

    Args:
        folder: where they go; made if it is not there.
        compute: computes the embeddings, and hands each batch of vectors (b, D) to the function that it is given.
        images: how many there are at most.
        map: `pca` or `umap` for columns x and y.
        neighbours: how many nearest images of each are found.
        facts: what else the record has.

    Returns:
        What `compute` gave, with the vectors as they are on the disk; they are read when they are asked for.
    """
    with written_together(folder, NAMES) as (array, table, record):
        with array.open("w+b") as file:
            found = compute(npy_writer(file, images))
            if len(found) < images:
                set_rows(file, len(found))
        found = replace(found, vectors=StoredRows(array))  # type: ignore[arg-type]
        if map:
            say(f"{map}: fitting a map")
        columns = write_table(table, blocks(found, map, neighbours, BLOCK), len(found))
        record.write_text(json.dumps({**describe(found, columns), **facts(found)}, indent=2) + "\n", encoding="utf-8")
    return replace(found, vectors=StoredRows(folder / NAMES[0]))  # type: ignore[arg-type]


def read(folder: Path) -> dict[str, Any]:
    """Read what `save` wrote, given the folder or one of its files; return the fields of `Embeddings`."""
    folder = folder if folder.is_dir() else folder.parent
    array, table, record = (folder / name for name in NAMES)
    for file in (array, table):
        if not file.is_file():
            raise UserError(f"{folder}: no {file.name} there; give a folder that `solo-hcsc embed` wrote")
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(table, columns=[name for name in pq.read_schema(table).names if name != "embedding"])
        vectors = np.load(array)
        levels = sum(name.startswith("cluster_") for name in rows.column_names)
        names = rows.column("label").to_pylist() if "label" in rows.column_names else None
        places: dict[str, Any] = {}
        if levels:
            places = {
                plural: np.stack([rows.column(f"{name}_{level + 1}").to_numpy() for level in range(levels)], axis=1)
                for plural, name in (("clusters", "cluster"), ("similarities", "similarity"))
            }
            places["outliers"] = rows.column("outlier").to_numpy()
        paths = rows.column("path").to_pylist()
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own are of these
        raise UserError(f"{folder}: not what `solo-hcsc embed` writes ({str(error).splitlines()[0]})") from error
    if len(paths) != len(vectors):
        raise UserError(f"{folder}: {len(vectors)} vectors and {len(paths)} rows; write them anew")
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    if names is not None:
        known = read_json(record).get("classes") if record.is_file() else None
        classes = tuple(known or sorted({*names} - {None}))
        numbers: dict[str | None, int] = {name: number for number, name in enumerate(classes)} | {None: -1}
        labels = np.array([numbers[name] for name in names], "int64")
    return {"paths": paths, "vectors": vectors, "labels": labels, "classes": classes, **places}


def npy_writer(file: BinaryIO, images: int) -> Keep:
    """Build a function that appends batches (b, D) to an NPY file of so many rows; holds none of them."""

    def keep(batch: np.ndarray) -> None:
        if file.tell() == 0:
            header = {"descr": "<f4", "fortran_order": False, "shape": (images, batch.shape[1])}
            np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(batch, dtype="<f4").data)

    return keep


def set_rows(file: BinaryIO, rows: int) -> None:
    """Set how many rows an NPY file has, where there are fewer than its header says; numpy leaves room for that."""
    file.seek(0)
    np.lib.format.read_magic(file)
    shape, _, _ = np.lib.format.read_array_header_1_0(file)
    start = file.tell()
    file.seek(0)
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, shape[1])}
    np.lib.format.write_array_header_1_0(file, header)
    assert file.tell() == start, "the header has grown"


def blocks(found: Embeddings, kind: str | None, neighbours: int, size: int) -> "Iterator[pa.Table]":
    """Yield the table, so many rows at a time, with a map of a `kind` and neighbours where they are asked for."""
    import pyarrow as pa

    rows = found.vectors
    place = fit_map(kind, rows) if kind else None
    for start in range(0, len(found), size):
        stop = min(start + size, len(found))
        columns: dict[str, Any] = {"path": found.paths[start:stop]}
        if found.labels is not None:
            columns["label"] = pa.array(found.classes_of(found.labels[start:stop]), pa.string())
        columns["embedding"] = _lists(rows[start:stop])
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
                [_lists(numbers), _lists((1 - cosines).clip(min=0))], ["ids", "distances"]
            )
        yield pa.table(columns)


def _lists(values: np.ndarray) -> "pa.Array":
    """Build a column of the rows (n, D)."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def write_table(file: Path, parts: "Iterator[pa.Table]", images: int) -> list[str]:
    """Write the parts of a table of so many rows one after the other; return the names of its columns."""
    import pyarrow.parquet as pq

    first = next(parts)
    with pq.ParquetWriter(file, first.schema, use_dictionary=["label"]) as writer:
        for (part,) in watch(((part,) for part in chain([first], parts)), images, "table"):
            writer.write_table(part)
    return first.column_names


def describe(found: Embeddings, columns: Sequence[str]) -> dict[str, Any]:
    """Collect for the record which encoder, how many images, and what the columns mean."""
    facts: dict[str, Any] = {}
    if found.origin is not None:
        encoder = found.origin.encoder
        facts = {
            "run": str(encoder.checkpoint),
            "checkpoint_sha256": encoder.fingerprint,
            "method": encoder.trained_with.get("method"),
            "encoder": encoder.name,
            "features": found.origin.features,
        }
    facts |= {"images": len(found), "dimensions": found.vectors.shape[1]}
    if found.similarities is not None:
        facts["outlier_below"] = far_below(found.similarities[:, 0])
    if found.labels is not None:
        facts["classes"] = list(found.classes)
    return facts | {"columns": {name: _meaning(name) for name in columns}}


def _meaning(column: str) -> str:
    """Explain a column."""
    name, _, level = column.partition("_")
    return MEANINGS[name].format(level=level)


def placed(embeddings: Embeddings, tree: Any) -> Embeddings:
    """Return the embeddings with their clusters in a tree, and how near the images are to the clusters' means."""
    points = as_unit_vectors(embeddings, "embeddings")
    clusters = as_clusters(getattr(tree, "levels", tree), len(points), "tree")
    similarities = np.empty(clusters.shape, "float32")
    for level, numbers in enumerate(clusters.T):
        means = normalise(means_of(points, numbers, int(numbers.max()) + 1))
        similarities[:, level] = np.einsum("nd,nd->n", points, means[numbers])
    outliers = similarities[:, 0] < far_below(similarities[:, 0])
    return replace(embeddings, clusters=clusters, similarities=similarities, outliers=outliers)


def far_below(values: np.ndarray) -> float:
    """Return Tukey's lower fence of values (N,): 1.5 interquartile ranges below the first quartile.

    Example:
        >>> far_below(np.array([0.5, 0.6, 0.7, 0.8, 0.9]))
        0.3
    """
    first, third = np.percentile(values.astype(float), [25, 75])
    return round(float(first - 1.5 * (third - first)), 6)
