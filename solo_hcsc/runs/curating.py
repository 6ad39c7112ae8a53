"""Curating from files: embeddings that somebody has stored, and what the image files themselves tell."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from solo_hcsc.data.flaws import NO_PICTURE, duplicates_among, find_flaws
from solo_hcsc.data.images import list_images
from solo_hcsc.encoders.table import Embeddings
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.hcsc.vectors import as_vectors
from solo_hcsc.runs.treed import grouped
from solo_hcsc.settings import Settings
from solo_hcsc.trees.balancing import levels_by_name
from solo_hcsc.trees.curating import Curated, curate
from solo_hcsc.trees.stored import stored
from solo_hcsc.trees.tree import Tree


def stored_embeddings(file: Path, folder: Path | None) -> tuple[Embeddings, list[str] | None]:
    """Read embeddings, the paths of their images, and the image files where a folder has them.

    Args:
        file: an NPY or Parquet file, or a folder that `embed` wrote; a Parquet file may have a column `path`.
        folder: with the images. Vectors without paths are those of all its images, sorted by path.

    Returns:
        The embeddings, and N files; None without a folder.
    """
    vectors = as_vectors(stored(file, "embeddings"), "embeddings")
    names = paths_in(file)
    if names is not None and len(names) != len(vectors):
        raise UserError(f"`embeddings` {file}: {len(vectors)} vectors and {len(names)} paths; write the files anew")
    if folder is None:
        return Embeddings(names or [str(number) for number in range(len(vectors))], vectors), None
    if names is None:
        files = list_images(folder).images
        if len(files) != len(vectors):
            raise UserError(
                f"`embeddings` {file}: {len(vectors)} vectors without paths, and {len(files)} images in `data_dir` "
                f"{folder}; give a Parquet file with a column path, or vectors of all images sorted by path"
            )
        return Embeddings([on_one_line(Path(one).relative_to(folder)) for one in files], vectors), files
    files = [str(folder / name) for name in names]
    if not Path(files[0]).exists():
        raise UserError(f"`data_dir` {folder}: {names[0]} of `embeddings` {file} is not there; give its folder")
    return Embeddings(names, vectors), files


def curate_files(found: Embeddings, files: Sequence[str] | None, settings: Settings) -> Curated:
    """Curate embeddings; of image files those that show nothing are left out, and duplicates are compared by pixels.

    Args:
        found: the embeddings.
        files: N image files; None where there are none.
        settings: those of `frozen_settings.CURATING`.
    """
    if settings.format != "csv" and files is None and not (os.path.isabs(found.paths[0]) or "://" in found.paths[0]):
        raise ArgumentError(f"`data_dir` is missing: `format` {settings.format} needs the folder of the images")
    left_out, duplicates, same = {}, None, settings.same
    if files is not None:
        words = find_flaws(files)
        left_out = {number: all_words[0] for number, all_words in words.items() if all_words[0] in NO_PICTURE}
    if settings.duplicates == "pixels" and files is not None:
        duplicates = duplicates_among(files, found.vectors, [*left_out])
    elif settings.duplicates == "none":
        same = 2.0
    result = curate(
        found,
        settings.keep,
        settings.way,
        levels=settings.levels,
        clusters=_clusters(found, settings),
        duplicates=duplicates,
        same=same,
        outliers=settings.outliers or None,
        left_out=left_out,
        seed=settings.seed,
    )
    source = None if found.origin is None else found.origin.source
    if source is not None and source.is_stored:
        return replace(result, unreadable=tuple(on_one_line(one.path) for one in found.skipped))
    if source is None or not source.in_folders or found.origin is None:
        return result
    root = source.folder(found.origin.split)
    return replace(result, unreadable=tuple(on_one_line(os.path.relpath(one.path, root)) for one in found.skipped))


def _clusters(found: Embeddings, settings: Settings) -> np.ndarray | None:
    """Return the clusters of another tree than one of the features: the run's own, or one in a folder."""
    tree = settings.tree
    if settings.levels or (tree == "features" and vars(settings).get("saved") is None):
        return None
    if tree == "features":
        return grouped(found, settings).clusters
    if tree == "run":
        if found.clusters is None:
            raise ArgumentError("`tree` run: these embeddings are of no run with a tree; leave it out")
        return found.clusters
    return levels_by_name(load_tree(Path(tree), "tree"), found.paths, "tree")


def load_tree(folder: Path, argument: str) -> Tree:
    """Read a tree that `Tree.save` wrote; refuse anything else, by the name of the caller's argument."""
    try:
        return Tree.load(folder)
    except ValueError as error:
        raise ArgumentError(f"`{argument}` {error}") from None


def paths_in(file: Path) -> list[str] | None:
    """Return the column `path` of a Parquet file, or of the one beside the vectors of `embed`."""
    from pyarrow import parquet

    table = file / "embeddings.parquet" if file.is_dir() else file
    if table.suffix == ".npy" and (record := table.with_suffix(".json")).is_file():  # which `embed` writes beside
        table = table.with_suffix(".parquet") if "columns" in json.loads(record.read_text()) else table
    if table.suffix != ".parquet" or not table.is_file() or "path" not in parquet.read_schema(table).names:
        return None
    return parquet.read_table(table, columns=["path"]).column("path").to_pylist()
