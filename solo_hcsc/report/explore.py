"""The page of `solo-hcsc explore`: its data and its sprites.

Images are in the tree's order: every node's images are one range, and on the same few sheets. The page itself holds the
nodes; what one look at them does not need is in parts, files that the page loads when they are asked for. A page of few
images holds its parts, too, and is one file.

Shapes: `N` images, `L` levels, `n` nodes of a level.
"""

import hashlib
import json
import os
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image, ImageOps
from torch.utils.data import Dataset, Subset

from solo_hcsc.data.folders import BareImages, short_names, with_transform
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.sets import one_split
from solo_hcsc.data.stored import stored_images
from solo_hcsc.encoders.embedding import Embeddings, Origin
from solo_hcsc.encoders.table import placed
from solo_hcsc.errors import ArgumentError, on_one_line
from solo_hcsc.files import check_replaceable, folder_written_whole
from solo_hcsc.progress import watch
from solo_hcsc.report.templating import render
from solo_hcsc.trees.mislabelled import find_suspects

GENERATOR = "solo-hcsc explore"
ONE_FILE = 1000  # images at most
LARGE_UP_TO = 10_000  # images with larger pictures
SIDES = {True: (96, 144), False: (64, 96)}  # pixels of an image and of a medoid; large or not
COLUMNS = 10  # of a sheet, and its rows
BLOCK = 4096  # images whose names and figures are one part
QUALITY = 80  # of JPEG


def is_page(folder: Path) -> bool:
    """Return whether a folder has a page that `write_page` wrote."""
    page = folder / "index.html"
    return page.is_file() and f'content="{GENERATOR}"' in page.read_text(encoding="utf-8", errors="replace")[:1000]


@dataclass(frozen=True)
class Nodes:
    """The nodes of a level that have images, in the tree's order."""

    level: int  # from 1, the bottom
    numbers: np.ndarray  # (n,) of their prototypes
    starts: np.ndarray  # (n,) where their images start; they end where the next ones start
    sizes: np.ndarray  # (n,)
    tightness: np.ndarray  # (n,) mean cosine to the prototype
    medoids: np.ndarray  # (n,) the place of the image that is nearest to the prototype

    @property
    def of_images(self) -> np.ndarray:
        """Return (N,) the node of each image, counted from 0 in its level."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


def tree_order(clusters: np.ndarray, similarities: np.ndarray) -> np.ndarray:
    """Sort images (N,) by their top cluster, then by the next, ..., and the nearest to its bottom prototype first.

    Example:
        >>> tree_order(np.array([[1, 0], [0, 1], [1, 0]]), np.array([[0.5, 0.4], [0.9, 0.8], [0.7, 0.6]])).tolist()
        [2, 0, 1]
    """
    return np.lexsort((-similarities[:, 0], *clusters.T))


def nodes_of(level: int, clusters: np.ndarray, similarities: np.ndarray) -> Nodes:
    """Find the nodes of a level in its column of images in the tree's order (N,).

    Example:
        >>> nodes = nodes_of(1, np.array([4, 4, 2]), np.array([0.5, 0.7, 0.9]))
        >>> nodes.numbers.tolist(), nodes.sizes.tolist(), nodes.tightness.tolist(), nodes.medoids.tolist()
        ([4, 2], [2, 1], [0.6, 0.9], [1, 2])
    """
    starts = np.flatnonzero(np.diff(clusters, prepend=-1))
    sizes = np.diff(starts, append=len(clusters))
    nodes = Nodes(level, clusters[starts], starts, sizes, np.add.reduceat(similarities, starts) / sizes, starts)
    nearest_first = np.lexsort((-similarities, nodes.of_images))
    return Nodes(level, nodes.numbers, starts, sizes, nodes.tightness, nearest_first[starts])


def explore(
    embeddings: Embeddings,
    tree: Any = None,
    out: str | Path = "explore",
    *,
    title: str | None = None,
    images: str | Path | Dataset | None = None,
    batch_size: int = 128,
    num_workers: int = 0,
) -> Path:
    """Write a page to walk through a tree of images: clusters in clusters down to single images.

    Args:
        embeddings: of the images, as `embed` returns them.
        tree: a `Tree` of the same images, or their clusters (N, L), the bottom level first; the clusters that the
            embeddings of an HCSC run have if not given.
        out: the folder of the page, new, empty or with an earlier page.
        title: of the page; the name of the folder of images if not given.
        images: the folder that the paths are below, or a data set of the same images; where they were read by `embed`
            if not given.
        batch_size: images that are read at once.
        num_workers: processes that read images.

    Returns:
        The folder, in which index.html opens by double click and needs no network.

    Example:
        >>> explore(embed("trained_models/hcsc", "photos"), out="page")  # doctest: +SKIP
        PosixPath('page')
    """
    if not isinstance(embeddings, Embeddings):
        raise ArgumentError(f"`embeddings` is {type(embeddings).__name__}: give `Embeddings`, which `embed` returns")
    found = embeddings if tree is None else placed(embeddings, tree)
    if found.clusters is None:
        raise ArgumentError("`tree`: these embeddings have no clusters; give the tree that `build_tree` makes of them")
    dataset = images if isinstance(images, Dataset) else _dataset(found, images)
    check_place(Path(out), found.origin)
    with folder_written_whole(Path(out), is_page) as folder:
        write_page(folder, found, dataset, Loading(batch_size, num_workers), title or _name(found, images))
    return Path(out)


def check_place(out: Path, origin: Origin | None) -> None:
    """Refuse a page among the images, and one over other files."""
    check_replaceable(out, is_page)
    folder = _folder(origin)
    if folder is not None and out.resolve().is_relative_to(folder.resolve()):
        raise ArgumentError(f"`out` {out}: is among the images of {folder}; give a folder outside of it")


def _folder(origin: Origin | None) -> Path | None:
    """Return the folder that the images were read from."""
    if origin is None or origin.source is None or not origin.source.in_folders:
        return None
    return origin.source.folder(origin.split)


def _name(embeddings: Embeddings, images: Any) -> str:
    """Return the name of the images, for the title."""
    folder = Path(images) if isinstance(images, str | Path) else _folder(embeddings.origin)
    if folder is not None:
        return on_one_line(folder.resolve().name)
    source = None if embeddings.origin is None else embeddings.origin.source
    return "images" if source is None else source.dataset


def _dataset(embeddings: Embeddings, folder: str | Path | None) -> Dataset:
    """Return the images that were embedded as a data set, in the same order."""
    below = _folder(embeddings.origin) if folder is None else Path(folder)
    source = None if embeddings.origin is None else embeddings.origin.source
    if below is not None:
        listed = BareImages(below, str).images
        files = {on_one_line(os.path.relpath(file, below)): file for file in listed}
    elif source is not None and source.is_stored and embeddings.origin is not None:
        dataset: Any = stored_images(replace(source, no_labels=True), embeddings.origin.split, str)
        places = {on_one_line(name): number for number, name in enumerate(dataset.names())}
        return Subset(dataset, [places[path] for path in embeddings.paths])
    elif source is not None and embeddings.origin is not None:
        numbers = [int(path.rpartition("/")[2]) for path in embeddings.paths]
        return Subset(one_split(source, embeddings.origin.split), numbers)
    else:
        files = {path: path for path in embeddings.paths if Path(path).is_file()}
    missing = [path for path in embeddings.paths if path not in files]
    if missing:
        raise ArgumentError(f"`images`: there is no {missing[0]}; give the folder that the paths are below")
    return BareImages.listed([str(files[path]) for path in embeddings.paths], str)


def write_page(folder: Path, found: Embeddings, dataset: Dataset, loading: Loading, title: str) -> int:
    """Write index.html, and what it loads, into a folder.

    Args:
        folder: where; it is there.
        found: the images' paths, labels and places in a tree. Its vectors are not looked at.
        dataset: the same images, read by a transform.
        loading: how they are read.
        title: of the page.

    Returns:
        How many nodes the page has.
    """
    assert found.clusters is not None
    assert found.similarities is not None
    assert found.outliers is not None
    order = tree_order(found.clusters, found.similarities)
    paths, outliers = [found.paths[i] for i in order], np.flatnonzero(found.outliers[order])
    clusters, similarities = found.clusters[order], found.similarities[order]
    names = list(found.classes)
    labels = np.full(len(order), -1) if found.labels is None else found.labels[order]
    levels = [nodes_of(level + 1, clusters[:, level], similarities[:, level]) for level in range(clusters.shape[1])]
    levels.reverse()  # the page goes down
    classes = [counts for nodes in levels for counts in _class_counts(nodes, labels)]
    suspects = find_suspects(labels, clusters)
    medoids = list(dict.fromkeys(np.concatenate([nodes.medoids for nodes in levels]).tolist()))
    side, large = _sides(dataset, len(order))
    parts = Parts(folder, in_page=len(order) <= ONE_FILE)
    parts.add("suspects", [suspects.images.tolist(), suspects.suggested.tolist(), _thousandths(suspects.margins)])
    parts.add("outliers", outliers.tolist())
    parts.add("classes", classes)
    for start in range(0, len(order), BLOCK):
        part = slice(start, start + BLOCK)
        figures = [_thousandths(column) for column in similarities[part].T]
        parts.add(f"block-{start // BLOCK}", [paths[part], labels[part].tolist(), figures])
    for name, which, pixels in (("medoids", order[medoids], large), ("images", order, side)):
        for number, sheet in enumerate(_sheets(dataset, which, pixels, loading, f"pictures of {name}")):
            parts.add_picture(f"{name}-{number}", sheet)
    tree = {
        "title": title,
        "images": len(order),
        "levels": len(levels),
        "classes": names,
        "shortNames": short_names(names),
        "classSizes": np.bincount(labels[labels >= 0], minlength=len(names)).tolist(),
        "nodes": _columns(levels, classes, medoids),
        "suspects": len(suspects.images),
        "outliers": len(outliers),
        "sheetColumns": COLUMNS,
        "sides": {"images": side, "medoids": large},
        "block": BLOCK,
        "parts": parts.of_page,
    }
    (folder / "index.html").write_text(_page(title, tree), encoding="utf-8")
    return len(classes)


def _class_counts(nodes: Nodes, labels: np.ndarray) -> list[list[int]]:
    """Return class, count, class, count, ... of each node, the commonest first."""
    known = labels >= 0
    pairs, counts = np.unique(np.stack([nodes.of_images[known], labels[known]]), axis=1, return_counts=True)
    found: list[list[int]] = [[] for _ in nodes.sizes]
    for i in np.argsort(-counts, kind="stable").tolist():
        found[pairs[0, i]] += [int(pairs[1, i]), int(counts[i])]
    return found


def _columns(levels: Sequence[Nodes], classes: Sequence[Sequence[int]], medoids: Sequence[int]) -> dict[str, list[int]]:
    """Return columns of all nodes, the top level first; node 0 of the page is the root, which is not among them."""
    cells = {medoid: cell for cell, medoid in enumerate(medoids)}
    columns: dict[str, list[int]] = {name: [] for name in ("level", "number", "parent", "start", "size", "tightness")}
    first = 1  # node of the level
    above: Nodes | None = None
    for nodes in levels:
        within = 0 if above is None else first - len(above.sizes) + above.of_images[nodes.starts]
        columns["level"] += [nodes.level] * len(nodes.sizes)
        columns["number"] += nodes.numbers.tolist()
        columns["parent"] += np.broadcast_to(within, nodes.sizes.shape).tolist()
        columns["start"] += nodes.starts.tolist()
        columns["size"] += nodes.sizes.tolist()
        columns["tightness"] += _thousandths(nodes.tightness)
        first, above = first + len(nodes.sizes), nodes
    columns["medoid"] = [cells[medoid] for nodes in levels for medoid in nodes.medoids.tolist()]
    columns["commonest"] = [counts[0] if counts else -1 for counts in classes]
    columns["purity"] = [round(1000 * counts[1] / sum(counts[1::2])) if counts else 0 for counts in classes]
    return columns


# ---- pictures ----


def _sides(dataset: Dataset, images: int) -> tuple[int, int]:
    """Return the sides of an image's and of a medoid's picture in pixels: not more than the images have.

    In whole blocks of a JPEG, or neighbours on a sheet would colour each other.
    """
    sizes: Any = with_transform(dataset, _shorter_side)
    most = max(sizes[number][0] for number in range(0, images, max(1, images // 16)))
    image, medoid = (max(16, min(most, side) // 16 * 16) for side in SIDES[images <= LARGE_UP_TO])
    return image, medoid


def _shorter_side(image: Image.Image) -> int:
    return min(image.size)


def _square(image: Image.Image, side: int) -> np.ndarray:
    return np.array(ImageOps.fit(image.convert("RGB"), (side, side)))


def _sheets(dataset: Dataset, which: np.ndarray, side: int, loading: Loading, title: str) -> Iterator[bytes]:
    """Yield images of these indexes side by side, in JPEGs of COLUMNS x COLUMNS; the last may have fewer rows."""
    images = Subset(with_transform(dataset, partial(_square, side=side)), which.tolist())
    waiting = np.empty((0, side, side, 3), np.uint8)
    for pictures, _ in watch(loading.in_order(images), len(which), title):
        waiting = np.concatenate([waiting, pictures.numpy()])
        while len(waiting) >= COLUMNS**2:
            yield _sheet(waiting[: COLUMNS**2])
            waiting = waiting[COLUMNS**2 :]
    if len(waiting):
        yield _sheet(waiting)


def _sheet(pictures: np.ndarray) -> bytes:
    count, side = pictures.shape[:2]
    rows = -(-count // COLUMNS)
    cells = np.zeros((rows * COLUMNS, side, side, 3), np.uint8)
    cells[:count] = pictures
    sheet = cells.reshape(rows, COLUMNS, side, side, 3).swapaxes(1, 2).reshape(rows * side, COLUMNS * side, 3)
    file = BytesIO()
    Image.fromarray(sheet).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


# ---- files ----


class Parts:
    """Parts of the page that it loads on demand: files of `data` beside it, or entries of the page itself."""

    def __init__(self, folder: Path, in_page: bool) -> None:
        self._folder = folder / "data"
        self.of_page: dict[str, Any] | None = {} if in_page else None
        if not in_page:
            self._folder.mkdir()

    def add(self, name: str, content: Any) -> None:
        if self.of_page is not None:
            self.of_page[name] = content
        else:  # a script, since a page from the disk may load nothing else
            (self._folder / f"{name}.js").write_text(f"loaded({_json(name)},{_json(content)})\n", encoding="utf-8")

    def add_picture(self, name: str, content: bytes) -> None:
        if self.of_page is not None:
            self.of_page[name] = f"data:image/jpeg;base64,{b64encode(content).decode()}"
        else:
            (self._folder / f"{name}.jpg").write_bytes(content)


def _page(title: str, tree: dict[str, Any]) -> str:
    script, style = (files("solo_hcsc.report").joinpath(f"explore.{end}").read_text("utf-8") for end in ("js", "css"))
    return render(
        "explore.html.j2",
        title=title,
        generator=GENERATOR,
        look=Markup(style),
        script=Markup(script),
        digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        tree=Markup(_json(tree).replace("<", "\\u003c")),  # which ends no script
    )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _thousandths(values: np.ndarray) -> list[int]:
    return np.rint(values.astype(float) * 1000).astype(int).tolist()
