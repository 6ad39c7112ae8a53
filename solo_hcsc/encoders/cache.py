"""Features on disk, so that no unchanged image is embedded twice by the same encoder.

A cache is a folder. Below it each encoder has a folder for each folder of images, with blocks: files of the features of
some images. A block is written whole and never changed, so that a killed process loses no more than its last block, and
several processes may write at the same time. What is in a block holds as long as the images' sizes and times are those
that it tells.

Shapes: `n` images of a block, `D` features.
"""

import json
import os
import re
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from solo_hcsc.errors import UserError
from solo_hcsc.files import remove_abandoned, written_whole
from solo_hcsc.progress import note

KIND = "solo_hcsc.features"  # the entry of a block's metadata that says what the file is
MOST_BYTES = 5 * 10**9  # of the default place; what was used longest ago goes first
KEPT_SECONDS = 24 * 3600  # what was used since is never removed: another process may be at it
_BLOCKS = "block-*.safetensors"
_VALUES = 100  # of a name that are kept, the newest
_ROWS_AT_MOST, _SECONDS_AT_MOST = 2048, 15.0  # of a block: what a kill may cost


class Stamp(NamedTuple):
    """What tells that an image's file has not changed."""

    size: int
    time: int  # of its last change, in nanoseconds


def default_cache() -> Path:
    """Return the folder where commands keep features: `solo_hcsc` below the user's folder for caches."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "solo_hcsc" / "features"


def chosen_cache(settings: Any) -> Path | None:
    """Return the folder of the cache that settings `cache` and `no_cache` mean; None for none.

    In the default place what was used longest ago is removed if there are more than `MOST_BYTES`. Where it cannot be
    written, nothing is kept, and a note says so.
    """
    if settings.no_cache or settings.cache is not None:
        return None if settings.no_cache else settings.cache
    place = default_cache()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        note(f"{place} cannot be written ({error.strerror}): the embeddings are not kept; `cache` names another folder")
        return None
    make_room(place)
    return place


def stamp_of(file: str) -> Stamp:
    """Return a file's stamp; one that no file has where it is gone."""
    try:
        status = os.stat(file)
    except OSError:
        return Stamp(-1, -1)
    return Stamp(status.st_size, status.st_mtime_ns)


def remembered(cache: Path | None, name: str, of: Sequence[str], compute: Callable[[], Any]) -> Any:
    """Return what `compute` gives, a value of JSON, or what it gave before for the same facts.

    Args:
        cache: the folder of a cache; None for none.
        name: what it is, such as `places`.
        of: texts that tell all that it depends on.
        compute: computes it.
    """
    if cache is None:
        return compute()
    folder = cache / "values"
    file = folder / f"{name}-{sha256(json.dumps([name, *of]).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):  # it is not there, or was written by half: it is computed
        return json.loads(file.read_text(encoding="utf-8"))
    found = compute()
    with suppress(OSError):  # a full disk costs time, no page
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(file) as part:
            part.write_text(json.dumps(found), encoding="utf-8")
        kept = sorted(folder.glob(f"{name}-*.json"), key=lambda one: one.stat().st_mtime, reverse=True)
        for old in kept[_VALUES:]:
            old.unlink(missing_ok=True)
    return found


class Store:
    """The features of a folder's images, as one encoder makes them.

    Args:
        cache: the folder of the cache.
        maker: what makes the features: encoder, weights and transform, as one text.
        images: the folder of the images, or another text that tells what their names are relative to.
    """

    def __init__(self, cache: Path, maker: str, images: str) -> None:
        self._maker = sha256(f"{maker}\0{images}".encode(errors="surrogateescape")).hexdigest()
        self.folder = cache / self._maker[:32]
        self._blocks: list[Callable[[], np.ndarray]] = []  # each maps a block's features
        self._places: dict[str, tuple[int, int, Stamp]] = {}  # block, row, and the image's stamp
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(self.folder)
            os.utime(self.folder)  # last used now
        except OSError as error:
            raise UserError(
                f"`cache` {cache}: cannot be written ({error.strerror}); give another folder, or `no_cache`"
            ) from error
        broken = [file for file in sorted(self.folder.glob(_BLOCKS)) if not self._read(file)]
        if broken:
            note(f"{len(broken)} broken or foreign files in the cache {self.folder}: their images are embedded anew")
        for file in broken:
            file.unlink(missing_ok=True)

    def find(self, names: Sequence[str], stamps: Sequence[Stamp]) -> np.ndarray:
        """Return the block and the row of each image, (N, 2); -1 where the cache has none of it as it is."""
        places = (self._places.get(name, (-1, -1, None)) for name in names)
        found = [place[:2] if place[2] == stamp else (-1, -1) for place, stamp in zip(places, stamps, strict=True)]
        return np.array(found, "int64").reshape(-1, 2)

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the features (N, D) of images at places (N, 2) that `find` gave."""
        parts = []
        for block in np.unique(places[:, 0]):
            own = np.flatnonzero(places[:, 0] == block)
            parts.append((own, self._blocks[block]()[places[own, 1]]))
        found = np.empty((len(places), parts[0][1].shape[1]), "float32")
        for own, rows in parts:
            found[own] = rows
        return found

    def add(self, names: Sequence[str], stamps: Sequence[Stamp], vectors: np.ndarray) -> None:
        """Write a block of features (n, D)."""
        vectors = np.ascontiguousarray(vectors, "<f4")
        facts = {"maker": self._maker, "names": list(names), "stamps": stamps, "check": zlib.crc32(vectors.data)}
        file = self.folder / _BLOCKS.replace("*", f"{time.time_ns()}-{os.getpid()}")
        try:
            with written_whole(file) as part:
                save_file({"vectors": vectors}, part, metadata={KIND: json.dumps(facts)})
        except OSError as error:
            raise UserError(
                f"`cache` {self.folder.parent}: cannot be written ({error.strerror or error}); give another folder, "
                "or `no_cache`"
            ) from error
        self._read(file)

    def _read(self, file: Path) -> bool:
        """Take in a block, whose features stay on the disk; return whether it is whole and of this encoder."""
        try:
            with file.open("rb") as content:
                (length,) = struct.unpack("<Q", content.read(8))
                header = json.loads(content.read(min(length, file.stat().st_size)))
            facts = json.loads(header["__metadata__"][KIND])
            shape, start = header["vectors"]["shape"], header["vectors"]["data_offsets"][0]
            names, stamps = facts["names"], [Stamp(*stamp) for stamp in facts["stamps"]]
            # Mapped anew each time: what was read counts as this process's memory for as long as the map lives.
            mapped = partial(np.memmap, file, "<f4", "r", 8 + length + start, tuple(shape))
            vectors = mapped()
            same = facts["maker"] == self._maker and zlib.crc32(vectors.data) == facts["check"]
            if not same or vectors.ndim != 2 or not len(names) == len(stamps) == len(vectors):
                return False
        except (OSError, ValueError, LookupError, TypeError, OverflowError, struct.error):
            return False
        number = len(self._blocks)
        self._blocks.append(mapped)
        self._places |= {
            name: (number, row, stamp) for row, (name, stamp) in enumerate(zip(names, stamps, strict=True))
        }
        return True


class Writer:
    """Gathers features for a store, and writes them in blocks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: list[str] = []
        self._stamps: list[Stamp] = []
        self._vectors: list[np.ndarray] = []
        self._since = time.monotonic()

    def add(self, names: Sequence[str], stamps: Sequence[Stamp], vectors: np.ndarray) -> None:
        """Take the features (b, D) of some images."""
        self._names += names
        self._stamps += stamps
        self._vectors.append(vectors)
        if len(self._names) >= _ROWS_AT_MOST or time.monotonic() - self._since > _SECONDS_AT_MOST:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        if self._names:
            self._store.add(self._names, self._stamps, np.concatenate(self._vectors))
        self._names, self._stamps, self._vectors, self._since = [], [], [], time.monotonic()


def make_room(cache: Path, most: int = MOST_BYTES) -> None:
    """Remove what was used longest ago from a cache until it has no more than so many bytes; keep what is in use."""
    stores = sorted(_stores(cache), key=lambda one: one[1], reverse=True)
    in_all = 0
    for folder, used, size in stores:
        in_all += size
        if in_all > most and time.time() - used > KEPT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _stores(cache: Path) -> Iterator[tuple[Path, float, int]]:
    """Yield the folders of stores in a cache, with when each was last used, and their bytes."""
    for folder in cache.glob("*"):
        with suppress(OSError):  # another process removes it
            if re.fullmatch("[0-9a-f]{32}", folder.name) and folder.is_dir():
                yield folder, folder.stat().st_mtime, sum(file.stat().st_size for file in folder.glob(_BLOCKS))
