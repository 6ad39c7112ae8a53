"""Images sorted into folders by cluster, as links or copies.

Shapes: `N` images.
"""

import csv
import os
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from solo_hcsc.cells import as_cell, from_cell
from solo_hcsc.errors import ArgumentError
from solo_hcsc.files import folder_written_whole
from solo_hcsc.hcsc.vectors import as_numbers
from solo_hcsc.progress import watch
from solo_hcsc.trees.names import SORT_BY
from solo_hcsc.typed import typed

LIST = "sorted.csv"  # in the folder: what is where
HEAD = ["path", "sorted_as"]
MOST_BYTES = 80  # of a folder's name
MOST_FILE_BYTES = 240
_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*…]+')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # of Windows


@typed
def sort_into(
    folder: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    clusters: np.ndarray | Sequence[int],
    names: Mapping[int, str] | None = None,
    by: str = "link",
) -> Path:
    """Sort images into folders, one for each cluster, with a list `sorted.csv` of what is where.

    The folder appears when all of it is written, in place of what an earlier call sorted. A folder with any other file
    is refused.

    Args:
        folder: where the folders go; it holds none of the files.
        files: N image files; they stay where they are.
        clusters: (N,) the cluster of each, such as `tree.cut(20)`.
        names: of the clusters by number, such as `name_clusters` returns; made safe for a file system. A cluster
            without one is called `cluster 7`, and of two with the same name the smaller gets a number.
        by: "link" for symbolic links, which take no space, or "copy".

    Returns:
        The folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     for name in ("a.jpg", "b.jpg"):
        ...         _ = Path(place, name).write_text(name)
        ...     found = sort_into(f"{place}/sorted", [f"{place}/a.jpg", f"{place}/b.jpg"], [0, 1], {0: "cats"})
        ...     sorted(str(path.relative_to(found)) for path in found.rglob("*.jpg"))
        ['cats/a.jpg', 'cluster 1/b.jpg']
    """
    out, numbers = Path(folder), as_numbers(clusters, "clusters")
    sources = [os.path.abspath(file) for file in files]
    if numbers.shape != (len(sources),):
        raise ArgumentError(f"`clusters` has shape {numbers.shape} and `files` {len(sources)}: give one of each image")
    if by not in SORT_BY:
        raise ArgumentError(f"`by` {by}: give {' or '.join(SORT_BY)}")
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"`folder` {out}: is a file; give a folder")
    inside = next((file for file in sources if Path(file).resolve().is_relative_to(out.resolve())), None)
    if inside is not None:
        raise ArgumentError(f"`folder` {out}: {inside} is in it; give a folder without these images")
    places = _places(sources, numbers.tolist(), names or {})
    with folder_written_whole(out, is_sorted, "folder") as part:
        for place in dict.fromkeys(os.path.dirname(place) for place in places):
            (part / place).mkdir()
        pairs = zip(sources, places, strict=True)
        for ((source, place),) in watch(([pair] for pair in pairs), len(sources), "sorting"):
            if by == "link":
                os.symlink(source, part / place)
            else:
                shutil.copy2(source, part / place)
        with (part / LIST).open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            rows = ([as_cell(source), as_cell(place)] for source, place in zip(sources, places, strict=True))
            csv.writer(file).writerows([HEAD, *rows])
    return out


def is_sorted(folder: Path) -> bool:
    """Return whether a folder has what `sort_into` wrote, and no other file."""
    try:
        with (folder / LIST).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            head, *rows = csv.reader(file)
    except (OSError, ValueError, csv.Error):
        return False
    known = {from_cell(row[1]) for row in rows if len(row) == 2} | {LIST}
    there = (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
    return head == HEAD and all(os.path.relpath(path, folder) in known for path in there)


def _places(files: Sequence[str], clusters: Sequence[int], names: Mapping[int, str]) -> list[str]:
    """Return where each file goes below the folder: no two to the same place, also where case does not count."""
    taken = {LIST}
    folders = {}
    for cluster, _ in Counter(clusters).most_common():
        folders[cluster] = _free(safe_name(names.get(cluster, "")) or f"cluster {cluster}", "", taken)
    used: dict[int, set[str]] = {cluster: set() for cluster in folders}
    places = []
    for file, cluster in zip(files, clusters, strict=True):
        stem, ending = os.path.splitext(os.path.basename(file))
        places.append(os.path.join(folders[cluster], _free(stem, ending, used[cluster])))
    return places


def safe_name(name: str) -> str:
    """Return a name for a folder on any system; "" where nothing is left.

    Example:
        >>> safe_name("a/b: c…"), safe_name("../.."), safe_name("CON"), safe_name("é漢字")
        ('a_b_ c', '', '_CON', 'é漢字')
    """
    clean = _cut(_UNSAFE.sub("_", " ".join(name.split())), MOST_BYTES).strip(" ._,")
    return f"_{clean}" if _RESERVED.fullmatch(clean) else clean


def _free(stem: str, ending: str, taken: set[str]) -> str:
    """Return a name that is not taken, with a number where it is needed; take it."""
    stem, number = _cut(stem, MOST_FILE_BYTES - len(os.fsencode(ending))), 1
    name = f"{stem}{ending}"
    while (key := unicodedata.normalize("NFC", name).casefold()) in taken:
        number += 1
        name = f"{stem} {number}{ending}"
    taken.add(key)
    return name


def _cut(text: str, most: int) -> str:
    """Return text of so many bytes at most, without half a character."""
    while len(os.fsencode(text)) > most:
        text = text[:-1]
    return text
