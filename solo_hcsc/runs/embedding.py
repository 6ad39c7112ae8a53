"""The table of embeddings that `solo-hcsc embed` writes: any number of images, with a map and neighbours."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders import table
from solo_hcsc.encoders.embedding import Embedder, Embeddings
from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.runs.results import describe_data, versions
from solo_hcsc.trees.neighbours import BLOCK
from solo_hcsc.trees.plane import FEWEST, has_umap


def check_table(images: int, map: str | None, neighbours: int) -> None:
    """Refuse a map or neighbours that so many images cannot have, or that this environment cannot compute."""
    if neighbours:
        import_faiss("`neighbours` searches")
    if neighbours and neighbours >= images:
        raise ArgumentError(f"`neighbours` {neighbours}: {images} images have {images - 1} others each at most")
    if map and images < FEWEST:
        raise ArgumentError(f"`map` {map}: {images} images are too few for a map; it takes {FEWEST}")
    if map == "umap" and not has_umap():
        raise ArgumentError("`map` umap: UMAP is not installed; run: pip install 'solo_hcsc[umap]', or use `map` pca")


def write_table(
    embedder: Embedder,
    folder: Path,
    loading: Loading,
    map: str | None = None,
    neighbours: int = 0,
    command: str = "",
    grow: Callable[[Embeddings], Embeddings] | None = None,
) -> tuple[Embeddings, float]:
    """Embed images and write the table; few of them are in memory at a time, unless a tree is grown of all.

    Args:
        embedder: what embeds which images.
        folder: where the three files go.
        loading: how the images are read.
        map: `pca` or `umap` for columns x and y: each image's place in a map of all.
        neighbours: how many nearest images of each are found.
        command: what asked for it, for the record.
        grow: gives embeddings, all in memory, their clusters in a tree that is no run's own.

    Returns:
        The embeddings, whose vectors are read from the disk when they are asked for, and the images per second.
    """
    check_table(len(embedder.images), map, neighbours)
    started, speed = time.monotonic(), 0.0

    def compute(keep: table.Keep) -> Embeddings:
        nonlocal speed
        found = embedder.stream(loading, keep) if grow is None else embedder.embeddings(loading)
        speed = len(found) / (time.monotonic() - started)
        if grow is None:
            return found
        found = grow(found)
        for start in range(0, len(found), BLOCK):
            keep(found.vectors[start : start + BLOCK])
        return found

    def facts(found: Embeddings) -> dict[str, Any]:
        return {
            "data": described(found),
            "versions": versions("pyarrow", "umap-learn"),
            "images_per_second": round(speed, 1),
            "command": command,
        }

    return table.save(folder, compute, len(embedder.images), map, neighbours, facts), speed


def described(found: Embeddings) -> dict[str, Any]:
    """Return which images these are of, for the record."""
    source = None if found.origin is None else found.origin.source
    if source is None or found.origin is None:
        return {"name": "images", "images": len(found)}
    seen = {} if source.has_own_colours else {"mean": source.mean, "std": source.std}
    return describe_data(source, None, found.skipped, **{found.origin.split: len(found)}) | seen
