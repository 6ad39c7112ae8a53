"""The list of a folder's shards, shards.json, made of their indexes; and what a user is told of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.shard_index import NO_LABEL, read_index
from solo_hcsc.data.shards import MANIFEST, index_of
from solo_hcsc.errors import UserError
from solo_hcsc.files import write_whole

_MOST_COMPARED = 5_000_000  # images whose keys are compared with each other; those of more go by their shards' names


@dataclass(frozen=True)
class Packed:
    """Shards that were written or indexed.

    Args:
        folders: where they are.
        shards: how many there are.
        kept: how many of them had been finished before.
        images: how many there are.
        bytes: of all shards.
        classes: how many there are; None for images without labels.
        resized: images that were made smaller.
        unreadable: files that are left out since they cannot be read.
        others: files or members that are no images.
        seconds: that it took.
    """

    folders: tuple[Path, ...]
    shards: int
    kept: int
    images: int
    bytes: int
    classes: int | None
    resized: int = 0
    unreadable: tuple[str, ...] = ()
    others: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Packed") -> "Packed":
        """Return both together."""
        known = [one for one in (self.classes, other.classes) if one is not None]
        return Packed(
            self.folders + other.folders,
            self.shards + other.shards,
            self.kept + other.kept,
            self.images + other.images,
            self.bytes + other.bytes,
            max(known, default=None),
            self.resized + other.resized,
            self.unreadable + other.unreadable,
            self.others + other.others,
            self.seconds + other.seconds,
        )

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Return the files that are left out, as evaluations list them."""
        return tuple(Skipped(number, path) for number, path in enumerate(self.unreadable))

    def table(self) -> str:
        """Return what there is, in lines."""
        classes = "without labels" if self.classes is None else f"{self.classes} classes"
        where = " and ".join(map(str, self.folders))
        lines = [f"{self.images} images ({classes}) in {self.shards} shards, {self.bytes / 1e6:.1f} MB: {where}"]
        told = {
            "shards had been finished before": self.kept,
            "images were made smaller": self.resized,
            "files are no images and left out": self.others,
        }
        return "\n".join([*lines, *(f"{count} {what}" for what, count in told.items() if count)])


def write_manifest(
    folder: Path, tars: Sequence[Path], facts: Mapping[str, Any] | None = None, unique: bool | None = None
) -> Packed:
    """Write shards.json of shards that all have an index.

    Args:
        folder: where they are.
        tars: the shards, in order.
        facts: what it is to have beside.
        unique: whether all keys differ; they are compared if not given.
    """
    entries, counted = [], {"labels": 0, "resized": 0, "others": 0}
    names, unreadable = list[np.ndarray](), list[str]()
    highest, classes = NO_LABEL, set[str]()
    kinds: dict[bool, Path] = {}  # a shard whose labels are numbers by themselves, and one whose are names
    indexes = ((tar, read_index(index_of(tar))) for tar in tars)
    for tar, (rows, keys, own) in indexes:
        entries.append({"file": tar.name, "images": len(rows), "bytes": own["bytes"], "sha256": own["sha256"]})
        present = np.unique(rows["label"])
        counted["labels"] += int((rows["label"] != NO_LABEL).sum())
        highest = max(highest, int(present.max(initial=NO_LABEL)))
        if present.max(initial=NO_LABEL) != NO_LABEL:
            kinds.setdefault(own["classes"] is None, tar)
        classes |= {*(own["classes"] or {}).values()}
        unreadable += own.get("unreadable", ())
        counted["resized"] += own.get("resized", 0)
        counted["others"] += own.get("others", 0)
        names.append(keys)
    images = sum(map(len, names))
    if unique is None:
        unique = images <= _MOST_COMPARED and _all_differ(names)
    if len(kinds) > 1:
        raise UserError(
            f"{kinds[True]}: its labels are numbers, and those of {kinds[False].name} are names; these are different "
            "data sets, or the names were lost with an index"
        )
    numeric = False not in kinds
    named = [str(number) for number in range(highest + 1)] if numeric else sorted(classes)
    labelled = counted["labels"] > 0
    found = {
        **(facts or {}),
        "images": images,
        "classes": named if labelled else None,
        "numeric": numeric,
        "unique": unique,
        "unlabelled": images - counted["labels"] if labelled else 0,
        "resized": counted["resized"],
        "unreadable": unreadable,
        "shards": entries,
    }
    write_whole(folder / MANIFEST, json.dumps(found, indent=1) + "\n")
    size = sum(entry["bytes"] for entry in entries)
    count = len(named) if labelled else None
    return Packed(
        (folder,), len(entries), 0, images, size, count, counted["resized"], tuple(unreadable), counted["others"]
    )


def _all_differ(names: Iterable[np.ndarray]) -> bool:
    """Return whether no two images have the same key and ending."""
    keys = [np.char.add(np.char.add(one["key"], b"."), one["ending"]) for one in names if len(one)]
    return not keys or len(np.unique(np.concatenate(keys))) == sum(map(len, keys))
