"""The index of a shard, and the images of shards by their number: any order, few bytes of memory for each.

An index is an NPY file of three arrays, one after the other: a row for each image (offset and length of its bytes in
the shard, label, CRC-32), which `numpy.load` reads; its key and ending; and facts about the shard, as JSON. It is
mapped into memory, so that processes share it and hold only what they read.
"""

import json
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from solo_hcsc.data.images import Encoded, UnreadableImage
from solo_hcsc.data.shards import Shard, Shards, find_shards
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import written_whole

ROW = np.dtype([("offset", "<u8"), ("length", "<u4"), ("label", "<i4"), ("crc32", "<u4")])
NO_LABEL = -1
_OPEN_FILES, _OPEN_INDEXES = 128, 4096  # systems allow 1024 files and 65530 mappings to a process


class Index(NamedTuple):
    """Where a shard's images are: N rows."""

    rows: np.ndarray  # (N,) of ROW
    names: np.ndarray  # (N,) with the fields key and ending, as bytes
    facts: dict[str, Any]  # bytes and sha256 of the shard, and classes: names by the labels' numbers, or None


def write_index(file: Path, rows: np.ndarray, names: list[tuple[bytes, bytes]], facts: Mapping[str, Any]) -> None:
    """Write an index that is never half there."""
    widths = [max([1, *(len(name[column]) for name in names)]) for column in range(2)]
    named = np.array(names, dtype=[("key", f"S{widths[0]}"), ("ending", f"S{widths[1]}")])
    with written_whole(file) as part, part.open("wb") as out:
        for array in (rows, named, np.frombuffer(json.dumps(facts).encode(), "u1")):
            np.save(out, array)


def read_index(file: Path) -> Index:
    """Map an index into memory; refuse one that is cut off or another file."""
    try:
        content = np.memmap(file, mode="r")
        arrays = []
        with file.open("rb") as header:
            for _ in range(3):
                np.lib.format.read_magic(header)
                (count,), _, dtype = np.lib.format.read_array_header_1_0(header)
                start, size = header.tell(), count * dtype.itemsize
                if start + size > len(content):
                    raise ValueError("it is cut off")
                arrays.append(content[start : start + size].view(np.ndarray).view(dtype))
                header.seek(size, os.SEEK_CUR)
        rows, names, facts = arrays
        if rows.dtype != ROW or len(names) != len(rows):
            raise ValueError("it has other columns")
        return Index(rows, names, json.loads(facts.tobytes()))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file}: an index that cannot be read ({on_one_line(str(error))}); make it anew with: "
            f"solo-hcsc index {file.parent}"
        ) from error


class ShardedImages:
    """The images of shards, by number.

    Args:
        shards: which ones, as `find_shards` returns them.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.classes = shards.classes
        self.unlabelled = shards.unlabelled
        self._starts = np.cumsum([0, *(shard.images for shard in shards.shards)])
        self._numbers = {name: number for number, name in enumerate(shards.classes or ())}
        self._index = lru_cache(_OPEN_INDEXES)(self._read_index)
        self._file = lru_cache(_OPEN_FILES)(lambda shard: _File(self.shards.shards[shard].path))
        self._refuse_exchanged()

    @classmethod
    def found(cls, where: Path) -> "ShardedImages":
        """Open the shards of a folder or a pattern."""
        return cls(find_shards(where))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardedImages, (self.shards,)

    @property
    def fingerprint(self) -> str:
        return self.shards.fingerprint

    def image(self, number: int) -> Encoded:
        """Return an image's file; raise `UnreadableImage` where its bytes are not those that were indexed."""
        shard, place = self._place(number)
        row, name = self._index(shard)[0][place], self._name(shard, place)
        whole = f"{self.shards.shards[shard].path}: {on_one_line(name)}"
        try:
            content = os.pread(self._file(shard).number, int(row["length"]), int(row["offset"]))
        except OSError as error:
            raise UnreadableImage(f"{whole}: cannot be read ({error.strerror}); restore the shard", name) from error
        if zlib.crc32(content) != row["crc32"]:
            raise UnreadableImage(
                f"{whole}: is not what was indexed (its checksum is another one); restore the shard, or add "
                "`skip_unreadable`",
                name,
            )
        return Encoded(name, content)

    def label(self, number: int) -> int:
        """Return the number of an image's class; -1 for none."""
        shard, place = self._place(number)
        label = int(self._index(shard)[0]["label"][place])
        return int(self._index(shard)[2][label]) if self._named and label != NO_LABEL else label

    def labels(self) -> np.ndarray:
        """Return the numbers of all images' classes (N,)."""
        found = np.empty(len(self), "<i4")
        for shard, start in enumerate(self._starts[:-1]):
            own = self._index(shard)[0]["label"]
            # The last one is for images without a label, whose number is -1.
            numbers = np.append(self._index(shard)[2], NO_LABEL) if self._named else None
            found[start : start + len(own)] = own if numbers is None else numbers[own]
        return found

    def names(self) -> list[str]:
        """Return what the images are called: their key and ending, after their shard's name if keys are repeated."""
        return [self._name(shard, place) for shard, one in enumerate(self.shards.shards) for place in range(one.images)]

    def _place(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        return shard, number - int(self._starts[shard])

    def _name(self, shard: int, place: int) -> str:
        key, ending = self._index(shard)[1][place]
        name = os.fsdecode(bytes(key) + b"." + bytes(ending))
        return name if self.shards.unique else f"{self.shards.shards[shard].path.stem}/{name}"

    @property
    def _named(self) -> bool:
        """Return whether labels are numbers of classes, which differ from shard to shard."""
        return self.classes is not None and not self.shards.numeric

    def _read_index(self, shard: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, names, and the numbers of the classes that the shard's own numbers stand for."""
        one = self.shards.shards[shard]
        rows, names, facts = read_index(one.index)
        if len(rows) != one.images or facts["sha256"] != one.sha256:
            raise UserError(
                f"{one.index}: is the index of another shard; make it with: solo-hcsc index {one.path.parent}"
            )
        own = facts["classes"] or {}
        highest = int(rows["label"].max(initial=NO_LABEL)) if self._named else NO_LABEL
        numbers = [self._numbers.get(own.get(str(label), ""), NO_LABEL) for label in range(highest + 1)]
        return rows, names, np.array(numbers, "<i4")

    def _refuse_exchanged(self) -> None:
        """Refuse shards that stand in each other's place; only those of equal size have not been told apart before."""
        sizes = Counter(shard.bytes for shard in self.shards.shards)
        for number, shard in enumerate(self.shards.shards):
            if sizes[shard.bytes] > 1 and shard.images:
                self._check_first(number, shard)

    def _check_first(self, number: int, shard: Shard) -> None:
        try:
            self.image(int(self._starts[number]))
        except UnreadableImage as error:
            raise UserError(
                f"{shard.path}: is not the shard that was indexed (another one's name, or other content); restore it, "
                f"or index the shards anew with: solo-hcsc index {shard.path.parent}"
            ) from error


class _File:
    """A file that is open as long as this is there."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)
