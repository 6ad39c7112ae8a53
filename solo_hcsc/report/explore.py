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
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.files import check_replaceable, folder_written_whole
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.progress import watch
from solo_hcsc.report.findings import Findings, files_of, look_for, write_lists
from solo_hcsc.report.templating import render
from solo_hcsc.trees.naming import Namer, name_clusters
from solo_hcsc.trees.sorting import is_sorted
from solo_hcsc.trees.sorting import sort_into as write_sorted
from solo_hcsc.trees.tree import Tree

GENERATOR = "solo-hcsc explore"
ONE_FILE = 1000  # images at most
LARGE_UP_TO = 10_000  # images with larger pictures
SIDES = {True: (96, 144), False: (64, 96)}  # pixels of an image and of a medoid; large or not
COLUMNS = 10  # of a sheet, and its rows
BLOCK = 4096  # images whose names and figures are one part
QUALITY = 80  # of JPEG
SORTED_INTO = 50  # clusters at most where nobody says how many


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


@dataclass(frozen=True)
class Merged:
    """The nodes from the bottom level up to those below the root: what a tree is cut into at any number of clusters.

    At k clusters there are the nodes with above < k <= rank.
    """

    starts: np.ndarray  # (n,) as those of `Nodes`
    sizes: np.ndarray  # (n,)
    tightness: np.ndarray  # (n,)
    medoids: np.ndarray  # (n,)
    ranks: np.ndarray  # (n,) of how many clusters the tree has with this node still whole, the most; its own split next
    above: np.ndarray  # (n,) the same of the node that it is a part of


def merged_nodes(tree: Tree, points: np.ndarray) -> Merged:
    """Find the nodes above the bottom level, of unit vectors (N, D) in the tree's order."""
    bottom = tree.nodes(tree.level_sizes[0])
    ends = np.cumsum(tree.sizes[bottom])
    ranges = {
        int(node): (int(end - size), int(end)) for node, end, size in zip(bottom, ends, tree.sizes[bottom], strict=True)
    }
    ranks = dict.fromkeys(ranges, len(tree))
    above: dict[int, int] = {}
    for node in range(tree.root - len(bottom) + 2, tree.root + 1):  # the highest merges, from the lowest of them up
        ends_of = [ranges[child] for child in tree.children(node)]
        ranges[node] = min(ends_of)[0], max(ends_of)[1]
        ranks[node] = tree.root - node + 1
        above |= dict.fromkeys(tree.children(node), ranks[node])
    nodes = sorted(above, key=ranges.__getitem__)
    tightness, medoids = np.empty(len(nodes)), np.empty(len(nodes), int)
    for place, node in enumerate(nodes):
        start, end = ranges[node]
        mean = points[start:end].mean(axis=0)
        tightness[place] = np.linalg.norm(mean)  # the mean cosine of unit vectors to their mean
        medoids[place] = start + int((points[start:end] @ mean).argmax())
    starts, stops = np.array([ranges[node] for node in nodes]).reshape(-1, 2).T
    own, theirs = (np.array([of[node] for node in nodes], int) for of in (ranks, above))
    return Merged(starts, stops - starts, tightness, medoids, own, theirs)


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
    sort_into: str | Path | None = None,
    sort_by: str = "link",
    sort_clusters: int | None = None,
    cache: str | Path | None = None,
    batch_size: int = 128,
    num_workers: int = 0,
) -> Path:
    """Write a page to walk through a tree of images, with duplicates, outliers and likely wrong labels.

    Beside the page are `duplicates.csv`, `outliers.csv`, `mislabelled.csv` and `clusters.csv`.

    Args:
        embeddings: of the images, as `embed` returns them.
        tree: a `Tree` of the same images, or their clusters (N, L), the bottom level first; the clusters that the
            embeddings of an HCSC run have if not given.
        out: the folder of the page, new, empty or with an earlier page.
        title: of the page; the name of the folder of images if not given.
        images: the folder that the paths are below, or a data set of the same images; where they were read by `embed`
            if not given.
        sort_into: a folder where the images are sorted into folders by cluster (see `sort_into`); none if not given.
        sort_by: "link" or "copy".
        sort_clusters: into how many; those of the lowest level with at most 50 if not given.
        cache: the folder of a cache, where duplicates and the map are kept for the next page of the same images.
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
    check_places(out, sort_into, found.origin)
    whole = tree if isinstance(tree, Tree) else None
    files, numbers = files_of(dataset), None
    if sort_into is not None:
        numbers = clusters_to_sort(found, whole, sort_clusters)
        if files is None:
            raise UserError("`sort_into`: these images are no files of their own, and cannot be sorted")
    findings = look_for(found, files, None if cache is None else Path(cache))
    with folder_written_whole(Path(out), is_page) as folder:
        write_page(
            folder, found, dataset, Loading(batch_size, num_workers), title or _name(found, images), findings, whole
        )
    if sort_into is not None and files is not None and numbers is not None:
        write_sorted(sort_into, files, numbers, name_clusters(numbers, found.paths, found.names), sort_by)
    return Path(out)


def check_places(out: str | Path, sorted_into: str | Path | None, origin: Origin | None) -> None:
    """Refuse a page or sorted images among the images, or over other files."""
    images = _folder(origin)
    for argument, place, is_earlier in (("out", out, is_page), ("sort_into", sorted_into, is_sorted)):
        if place is None:
            continue
        check_replaceable(Path(place), is_earlier, argument)
        if images is not None and Path(place).resolve().is_relative_to(images.resolve()):
            raise ArgumentError(f"`{argument}` {place}: is among the images of {images}; give a folder outside of it")


def clusters_to_sort(found: Embeddings, tree: Tree | None, count: int | None) -> np.ndarray:
    """Return the clusters (N,) that images are sorted by: so many, or those of the lowest level with at most 50."""
    assert found.clusters is not None
    levels = [len(np.unique(level)) for level in found.clusters.T]
    if count is None:
        count = next((size for size in levels if size <= SORTED_INTO), levels[-1])
    if count in levels:
        return found.clusters[:, levels.index(count)]
    if tree is None:
        sizes = ", ".join(map(str, levels))
        raise ArgumentError(
            f"`sort_clusters` {count}: the levels of this tree have {sizes} clusters; give one of these"
        )
    if not 1 <= count <= len(tree.means):
        raise ArgumentError(f"`sort_clusters` {count}: give a number from 1 to {len(tree.means)}")
    return tree.cut(count)


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


def write_page(
    folder: Path,
    found: Embeddings,
    dataset: Dataset,
    loading: Loading,
    title: str,
    findings: Findings,
    tree: Tree | None = None,
) -> int:
    """Write index.html, what it loads, and the lists as CSV files into a folder.

    Args:
        folder: where; it is there.
        found: the images' paths, labels and places in a tree. Its vectors are looked at with a `Tree` alone.
        dataset: the same images, read by a transform.
        loading: how they are read.
        title: of the page.
        findings: what was found among them.
        tree: of which the clusters are levels, for a page that cuts it anywhere.

    Returns:
        How many nodes the page has.
    """
    assert found.clusters is not None
    assert found.similarities is not None
    order = tree_order(found.clusters, found.similarities)
    paths, places = [found.paths[i] for i in order], np.argsort(order)
    clusters, similarities = found.clusters[order], found.similarities[order]
    names = list(found.classes)
    labels = np.full(len(order), -1) if found.labels is None else found.labels[order]
    levels = [nodes_of(level + 1, clusters[:, level], similarities[:, level]) for level in range(clusters.shape[1])]
    levels.reverse()  # the page goes down
    short = short_names(names)
    namer = Namer(paths, [short[label] if label >= 0 else None for label in labels.tolist()])
    above = (
        None if tree is None or len(tree.means) < 2 else merged_nodes(tree, as_unit_vectors(found, "embeddings")[order])
    )
    columns = [_columns(levels, labels, namer)]
    if above is not None:
        columns.append(
            _columns_of(above, labels, namer) | {"rank": above.ranks.tolist(), "above": above.above.tolist()}
        )
    medoids = list(dict.fromkeys(place for column in columns for place in column["medoid"]))
    suspects = findings.suspects
    side, large = _sides(dataset, len(order))
    parts = Parts(folder, in_page=len(order) <= ONE_FILE)
    suspected = places[suspects.images].tolist(), suspects.suggested.tolist(), _thousandths(suspects.margins)
    parts.add("suspects", suspected)
    parts.add("outliers", places[findings.outliers].tolist())
    parts.add("classes", [counts for column in columns for counts in column.pop("classes")])
    groups = [[group.exact, *places[[group.keep, *group.others]].tolist()] for group in findings.groups or ()]
    parts.add("duplicates", groups)
    if findings.places is not None:
        parts.add("places", findings.places[order].T.tolist())
    for start in range(0, len(order), BLOCK):
        part = slice(start, start + BLOCK)
        figures = [_thousandths(column) for column in similarities[part].T]
        parts.add(f"block-{start // BLOCK}", [paths[part], labels[part].tolist(), figures])
    for name, which, pixels in (("medoids", order[medoids], large), ("images", order, side)):
        for number, sheet in enumerate(_sheets(dataset, which, pixels, loading, f"pictures of {name}")):
            parts.add_picture(f"{name}-{number}", sheet)
    cells = {medoid: cell for cell, medoid in enumerate(medoids)}
    write_lists(folder, findings, found, _cluster_rows(columns[0], levels, paths, names))
    for column in columns:
        column["medoid"] = [cells[medoid] for medoid in column["medoid"]]
    data = {
        "title": title,
        "images": len(order),
        "levels": len(levels),
        "classes": names,
        "shortNames": short,
        "classSizes": np.bincount(labels[labels >= 0], minlength=len(names)).tolist(),
        "nodes": columns[0],
        "merged": columns[1] if len(columns) > 1 else None,
        "duplicates": findings.groups is not None,
        "places": findings.places is not None,
        "sheetColumns": COLUMNS,
        "sides": {"images": side, "medoids": large},
        "block": BLOCK,
        "parts": parts.of_page,
    }
    (folder / "index.html").write_text(_page(title, data), encoding="utf-8")
    return len(columns[0]["level"])


def _class_counts(labels: np.ndarray) -> list[int]:
    """Return class, count, class, count, ... of a node's images, the commonest first."""
    classes, counts = np.unique(labels[labels >= 0], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return np.stack([classes[order], counts[order]], axis=1).ravel().tolist()


def _cluster_rows(
    column: dict[str, list[Any]], levels: Sequence[Nodes], paths: Sequence[str], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of clusters.csv: each level's clusters by size, the top level first."""
    first = 0
    for nodes in levels:
        for node in first + np.argsort(-nodes.sizes, kind="stable"):
            row = {
                "level": nodes.level,
                "cluster": column["number"][node],
                "name": column["name"][node],
                "images": column["size"][node],
                "tightness": column["tightness"][node] / 1000,
                "most_typical": paths[column["medoid"][node]],
            }
            commonest = column["commonest"][node]
            own = {"class": names[commonest] if commonest >= 0 else "", "purity": column["purity"][node] / 1000}
            yield row | (own if names else {})
        first += len(nodes.sizes)


def _columns(levels: Sequence[Nodes], labels: np.ndarray, namer: Namer) -> dict[str, list[Any]]:
    """Return columns of all nodes, the top level first; node 0 of the page is the root, which is not among them."""
    columns: dict[str, list[Any]] = {}
    first = 1  # node of the level
    above: Nodes | None = None
    for nodes in levels:
        within = 0 if above is None else first - len(above.sizes) + above.of_images[nodes.starts]
        more = _columns_of(nodes, labels, namer) | {
            "level": [nodes.level] * len(nodes.sizes),
            "number": nodes.numbers.tolist(),
            "parent": np.broadcast_to(within, nodes.sizes.shape).tolist(),
        }
        columns = {name: columns.get(name, []) + values for name, values in more.items()}
        first, above = first + len(nodes.sizes), nodes
    return columns


def _columns_of(nodes: Nodes | Merged, labels: np.ndarray, namer: Namer) -> dict[str, list[Any]]:
    """Return the columns that nodes of a level and of any cut have; images are in the tree's order."""
    ranges = [np.arange(start, start + size) for start, size in zip(nodes.starts, nodes.sizes, strict=True)]
    classes = [_class_counts(labels[images]) for images in ranges]
    return {
        "start": nodes.starts.tolist(),
        "size": nodes.sizes.tolist(),
        "tightness": _thousandths(nodes.tightness),
        "medoid": nodes.medoids.tolist(),
        "classes": classes,
        "commonest": [counts[0] if counts else -1 for counts in classes],
        "purity": [round(1000 * counts[1] / sum(counts[1::2])) if counts else 0 for counts in classes],
        "name": [namer.name(images) for images in ranges],
    }


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
