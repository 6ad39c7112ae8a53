"""What is wrong with a folder of images before anybody trains on it: leaks between its splits, and worse."""

import io
import json
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from solo_hcsc.data.flaws import UNREADABLE, duplicates_among, find_flaws
from solo_hcsc.data.folders import class_of
from solo_hcsc.data.images import UnreadableImage, decode, list_images, opened
from solo_hcsc.data.source import ClassLevel, check_folder, class_folders
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.files import written_together
from solo_hcsc.hcsc.vectors import as_vectors
from solo_hcsc.report.names import KINDS
from solo_hcsc.report.templating import render
from solo_hcsc.runs.curating import paths_in
from solo_hcsc.tables import data_frame, table
from solo_hcsc.trees.duplicates import Group
from solo_hcsc.trees.stored import stored
from solo_hcsc.typed import typed

if TYPE_CHECKING:
    import pandas

SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
NAMES = ("check.json", "check.html")
SHOWN = 60  # groups, or images, of each kind on the page
SIDE = 96  # pixels of a picture there
TITLES = {  # of each kind, and what a group or an image of it is
    "leak": "The same picture in several splits",
    "labels": "The same picture with different labels",
    "unreadable": "Cannot be read",
    "classes": "Classes without validation images, or without training images",
    "duplicate": "The same picture several times in one split",
    "blank": "Blank",
    "tiny": "Tiny",
    "dark": "Dark",
    "blurred": "Blurred",
    "size": "Of an odd size",
}


class Seen(NamedTuple):
    """An image of a folder: its path below it, its split and its class, "" for none."""

    path: str
    split: str
    label: str


@dataclass(frozen=True)
class Same:
    """Images that show the same.

    Args:
        images: at least two, the best one first.
        exact: whether the files are the same byte for byte.
    """

    images: tuple[Seen, ...]
    exact: bool


@dataclass(frozen=True, eq=False)
class Checked:
    """What was found in a folder of images.

    Args:
        folder: the one that was looked at.
        images: all of them.
        groups: those that show the same.
        flaws: what is wrong with single images: their numbers, and words as `find_flaws` has them.
    """

    folder: Path
    images: tuple[Seen, ...]
    groups: tuple[Same, ...]
    flaws: dict[int, tuple[str, ...]]

    @cached_property
    def leaks(self) -> tuple[Same, ...]:
        """Return groups with images in several splits."""
        return tuple(group for group in self.groups if len({image.split for image in group.images}) > 1)

    @cached_property
    def duplicates(self) -> tuple[Same, ...]:
        """Return groups with several images in one split."""
        counts = (Counter(image.split for image in group.images) for group in self.groups)
        return tuple(group for group, count in zip(self.groups, counts, strict=True) if max(count.values()) > 1)

    @cached_property
    def conflicts(self) -> tuple[Same, ...]:
        """Return groups with images of several classes."""
        return tuple(group for group in self.groups if len({image.label for image in group.images if image.label}) > 1)

    @cached_property
    def classes(self) -> dict[str, dict[str, int]]:
        """Return how many images each class has in each split."""
        counts = Counter((image.label, image.split) for image in self.images if image.label)
        names = sorted({label for label, _ in counts})
        return {name: {split: counts[name, split] for split in self.splits} for name in names}

    @cached_property
    def splits(self) -> dict[str, int]:
        """Return how many images each split has; one is called "" where the folder has none."""
        counts = Counter(image.split for image in self.images)
        return {split: counts[split] for split in ("train", "val", "test", "") if counts[split]}

    @cached_property
    def lacking(self) -> tuple[str, ...]:
        """Return classes without images of training, or without any of validation where others have some."""
        needed = [split for split in ("train", "val") if split in self.splits]
        return tuple(name for name, counts in self.classes.items() if any(not counts[split] for split in needed))

    @property
    def problems(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        words = Counter(word for found in self.flaws.values() for word in found)
        own = {"leak": self.leaks, "labels": self.conflicts, "classes": self.lacking, "duplicate": self.duplicates}
        flaws = {"unreadable": UNREADABLE, "size": "odd size"}
        return {kind: len(own[kind]) if kind in own else words[flaws.get(kind, kind)] for kind in KINDS}

    def table(self) -> str:
        """Return how many there are of each kind."""
        return table(("", "found"), [(TITLES[kind], count) for kind, count in self.problems.items()])

    def rows(self) -> list[dict[str, Any]]:
        """Return what was found: a row for each image, with its kind, path, split, class and group."""
        rows: list[dict[str, Any]] = []
        for kind, groups in (("leak", self.leaks), ("labels", self.conflicts), ("duplicate", self.duplicates)):
            for number, group in enumerate(groups):
                rows += [
                    {"kind": kind, **image._asdict(), "group": number, "exact": group.exact} for image in group.images
                ]
        kinds = {UNREADABLE: "unreadable", "odd size": "size"}
        for number, words in self.flaws.items():
            rows += [{"kind": kinds.get(word, word), **self.images[number]._asdict()} for word in words]
        return rows

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a table of pandas."""
        return data_frame(self.rows())

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        groups = {"leaks": self.leaks, "labels": self.conflicts, "duplicates": self.duplicates}
        return {
            "folder": str(self.folder),
            "images": len(self.images),
            "splits": self.splits,
            "problems": self.problems,
            **{name: [_group(group) for group in found] for name, found in groups.items()},
            "flaws": [{**self.images[number]._asdict(), "flaws": words} for number, words in self.flaws.items()],
            "classes": self.classes,
            "classes_lacking": list(self.lacking),
        }

    def save(self, folder: str | Path) -> Path:
        """Write check.json, and the page check.html with pictures, into a folder."""
        folder = Path(folder)
        page = render("check.html.j2", **self._page())
        with written_together(folder, NAMES) as (record, html):
            record.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8", errors="surrogateescape")
            html.write_text(page, encoding="utf-8")
        return folder

    def _page(self) -> dict[str, Any]:
        sections = []
        groups = {"leak": self.leaks, "labels": self.conflicts, "duplicate": self.duplicates}
        words = {"unreadable": UNREADABLE, "size": "odd size"}
        for kind, count in self.problems.items():
            own: list[list[Seen]] = [[*group.images] for group in groups.get(kind, ())]
            if kind not in (*groups, "classes"):
                word = words.get(kind, kind)
                own = [[self.images[number]] for number, found in self.flaws.items() if word in found]
            if count:
                shown = [[self._picture(image) for image in group[:8]] for group in own[:SHOWN]]
                lacking = self.lacking if kind == "classes" else ()
                section = {"title": TITLES[kind], "count": count, "groups": shown, "names": lacking}
                sections.append(section | {"more": count - len(shown) - len(lacking)})
        columns = [split or "images" for split in self.splits]
        sizes = [(name, [*counts.values()]) for name, counts in self.classes.items()]
        return {
            "title": self.folder.resolve().name or "images",
            "facts": {split or "images": count for split, count in self.splits.items()} | {"classes": len(sizes)},
            "sections": sections,
            "columns": columns,
            "classes": sorted(sizes, key=lambda row: -sum(row[1])),
        }

    def _picture(self, image: Seen) -> dict[str, str]:
        label = f"{image.label} ({image.split})" if image.label and image.split else image.label or image.split
        return {"path": image.path, "label": label, "source": thumbnail(self.folder / image.path)}


@typed
def check(folder: str | os.PathLike[str], embeddings: Any = None, class_level: ClassLevel = None) -> Checked:
    """Look for what is wrong with a folder of images: leaks between its splits, duplicates, labels, broken files.

    Args:
        folder: with `train`, `val` and `test` below it, or some of these; or any folder of images. Class folders are
            below these.
        embeddings: (N, D) features of all its images: `Embeddings`, a file, or an array; rows without paths are sorted
            by path. With them cropped copies are found, too.
        class_level: which folder is an image's class: 1, the first below the split's, 2 the second, ..., or "leaf".

    Returns:
        What was found: `.problems`, `.leaks`, `.conflicts`, `.to_pandas()`, and `.save(folder)` for a page and a JSON.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "val"):
        ...         os.makedirs(f"{folder}/{split}/cats")
        ...         Image.effect_noise((64, 64), 50).save(f"{folder}/{split}/cats/1.png")
        ...     _ = Path(f"{folder}/val/cats/2.png").write_bytes(Path(f"{folder}/train/cats/1.png").read_bytes())
        ...     found = check(folder)
        >>> [image.path for image in found.leaks[0].images]
        ['train/cats/1.png', 'val/cats/2.png']
    """
    folder = Path(folder)
    check_folder("folder", folder)
    files, images = images_by_split(folder, class_level)
    if not images:
        raise UserError(f"`folder`: {folder} has no images")
    features = None if embeddings is None else _in_order(embeddings, images)
    flaws = find_flaws(files)
    # Blank images are all alike, and no copies of each other.
    leave = [number for number, words in flaws.items() if {UNREADABLE, "blank"} & {*words}]
    groups = duplicates_among(files, features, leave).groups
    return Checked(folder, tuple(images), tuple(_same(group, images) for group in groups), flaws)


def images_by_split(folder: Path, class_level: ClassLevel = None) -> tuple[list[str], list[Seen]]:
    """Return the image files below a folder, sorted by path, and where they are."""
    below = class_folders(folder)
    named = {name: SPLITS[name.lower()] for name in below if name.lower() in SPLITS}
    named = named if "train" in named.values() and len({*named.values()}) > 1 else {}
    files, images = list_images(folder).images, []
    for file in files:
        path = os.path.relpath(file, folder)
        first = path.split(os.sep)[0]
        split = named.get(first, "")
        root = folder / first if split else folder
        images.append(Seen(on_one_line(path), split, on_one_line(class_of(file, root, class_level))))
    if not named:
        return files, images
    kept = [place for place, image in enumerate(images) if image.split]
    return [files[place] for place in kept], [images[place] for place in kept]


def thumbnail(file: Path) -> str:
    """Return a small picture for a page's source, nothing for a file that cannot be read."""
    try:
        with opened(str(file)) as image:
            picture = decode(image, min(image.size) / (2 * SIDE))
    except UnreadableImage:
        return ""
    picture.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{b64encode(out.getvalue()).decode()}"


def _in_order(embeddings: Any, images: Sequence[Seen]) -> np.ndarray:
    """Return features (N, D) of the images in their order; zeros for those that the embeddings do not have."""
    value = stored(embeddings, "embeddings")
    found = as_vectors(value, "embeddings")
    is_file = isinstance(embeddings, str | os.PathLike)
    paths = paths_in(Path(embeddings)) if is_file else getattr(value, "paths", None)
    if paths is None or len(paths) != len(found):
        if len(found) != len(images):
            told = f"`embeddings` has {len(found)} rows and the folder {len(images)} images"
            raise ArgumentError(f"{told}: give one of each, or a file with paths")
        return found
    rows = {path: row for row, path in enumerate(paths)}
    places = np.array([rows.get(image.path, -1) for image in images])
    if (places < 0).all():
        told = f"`embeddings`: none of their paths, such as {on_one_line(paths[0])}, is in the folder"
        raise ArgumentError(f"{told}; give the one that they are below")
    return np.where(places[:, None] >= 0, found[places], 0)


def _same(group: Group, images: Sequence[Seen]) -> Same:
    return Same(tuple(images[number] for number in (group.keep, *group.others)), group.exact)


def _group(group: Same) -> dict[str, Any]:
    return {"exact": group.exact, "images": [image._asdict() for image in group.images]}
