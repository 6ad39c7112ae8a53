"""Shards: tar files in WebDataset's layout with an index beside each. Found and checked here, without torch or NumPy.

A folder of shards has a file shards.json, which names them in order with their sizes and checksums. An image's number
is its place in that order, whoever reads it.
"""

import glob
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import read_json

MANIFEST, UNFINISHED = "shards.json", "unfinished.json"
TAR, INDEX = ".tar", ".index.npy"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/.*")  # pathlib has made one slash of two
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class Shard:
    """A tar file of images, as it was when its index was made."""

    path: Path
    images: int
    bytes: int
    sha256: str

    @property
    def index(self) -> Path:
        """Return the file of its index."""
        return index_of(self.path)


@dataclass(frozen=True)
class Shards:
    """Shards in order, which together are a data set."""

    where: Path  # a folder, a shard or a pattern
    shards: tuple[Shard, ...]
    classes: tuple[str, ...] | None  # None without labels
    numeric: bool  # whether labels are numbers by themselves, rather than numbers of named classes
    unique: bool  # whether no two images have the same key
    unlabelled: int  # images without a label

    def __len__(self) -> int:
        return sum(shard.images for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the shards' checksums and their order."""
        digest = sha256()
        for shard in self.shards:
            digest.update(f"{shard.sha256}\0{shard.images}\n".encode())
        return digest.hexdigest()


def index_of(tar: Path) -> Path:
    return tar.with_name(tar.name.removesuffix(TAR) + INDEX)


def tars_in(folder: Path) -> list[Path]:
    """Return the tar files of a folder, sorted by name; hidden ones are being written."""
    return sorted(path for path in folder.glob(f"*{TAR}") if not path.name.startswith("."))


def holds_shards(folder: Path) -> bool:
    """Return whether a folder, or a part of it such as train/, is one of shards."""
    return any(
        (place / MANIFEST).is_file() or (place / UNFINISHED).is_file() or tars_in(place)
        for place in (folder, *(folder / part for part in ("train", "val")))
        if place.is_dir()
    )


def is_pattern(where: Path) -> bool:
    """Return whether a path stands for several, as in `train-{000..127}.tar` or `train-*.tar`."""
    return bool(re.search(r"[{*?\[]", str(where))) and not where.exists()


def find_shards(where: Path, name: str = "data_dir") -> Shards:
    """Find the shards of a folder or a pattern; refuse missing, cut, additional and repeated ones.

    Args:
        where: a folder with a shards.json, one of its shards, or a pattern such as `train-{000..127}.tar`.
        name: the argument that gives it.
    """
    if _ADDRESS.fullmatch(str(where)):
        raise UserError(f"`{name}`: {where} is an address; shards are read in any order, so copy them to a disk first")
    files = _named(where, name) if is_pattern(where) or where.is_file() else None
    if files is None and not where.is_dir():
        raise UserError(f"`{name}`: {where} does not exist; give a folder of shards")
    folders = [where] if files is None else list(dict.fromkeys(file.parent for file in files))
    read = {folder: _read(folder) for folder in folders}
    if files is None:
        _refuse_others(where, read[where])
        files = [where / entry["file"] for entry in read[where]["shards"]]
    known = {folder / entry["file"]: entry for folder, found in read.items() for entry in found["shards"]}
    shards = tuple(_shard(file, known) for file in files)
    _refuse_copies(shards)
    first, *others = read.values()
    if any((one["classes"], one["numeric"]) != (first["classes"], first["numeric"]) for one in others):
        raise UserError(f"`{name}`: {where} has shards of different classes; index them in one folder")
    classes = None if first["classes"] is None else tuple(first["classes"])
    unique = first["unique"] and not others
    return Shards(where, shards, classes, first["numeric"], unique, sum(one["unlabelled"] for one in read.values()))


def _named(where: Path, name: str) -> list[Path]:
    found: list[Path] = []
    for text in expanded(str(where)):
        matches = sorted(glob.glob(text)) if re.search(r"[*?\[]", text) else [text]
        found += [Path(match) for match in matches if match.endswith(TAR)]
        if not matches or not Path(matches[0]).is_file():
            raise UserError(f"`{name}`: there is no shard {on_one_line(text)}; restore it, or give another pattern")
    if not found:
        raise UserError(f"`{name}`: {where} names no shards; their names end in {TAR}")
    return list(dict.fromkeys(found))


def expanded(text: str) -> Iterator[str]:
    """Yield what a shell makes of the braces of a pattern.

    Example:
        >>> list(expanded("a-{08..10}.tar")), list(expanded("{train,val}/0.tar"))
        (['a-08.tar', 'a-09.tar', 'a-10.tar'], ['train/0.tar', 'val/0.tar'])
    """
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    span = _RANGE.fullmatch(braces[1])
    if span:
        width = len(span[1]) if span[1].startswith("0") else 0
        choices: Iterable[str] = (f"{number:0{width}}" for number in range(int(span[1]), int(span[2]) + 1))
    else:
        choices = braces[1].split(",")
    for choice in choices:
        yield from expanded(text[: braces.start()] + choice + text[braces.end() :])


def _read(folder: Path) -> dict[str, Any]:
    """Return what shards.json says; refuse a folder without one."""
    file = folder / MANIFEST
    if not file.is_file():
        if (folder / UNFINISHED).is_file():
            raise UserError(f"{folder}: packing has not been finished there; give the same command `pack` again")
        if tars_in(folder):
            raise UserError(f"{folder}: its shards have no index; make it with: solo-hcsc index {folder}")
        packed = sorted(path.name for path in folder.iterdir() if path.name.endswith((".tar.gz", ".tgz", ".tar.zst")))
        told = f"{packed[0]} is compressed, unpack it to a {TAR}" if packed else f"no {TAR} files in it"
        raise UserError(f"{folder}: no shards there ({told})")
    found = read_json(file)
    lacks = {"shards", "classes", "numeric", "unique", "unlabelled"} - found.keys() if isinstance(found, dict) else True
    if lacks or not found["shards"]:
        raise UserError(f"{file}: no list of shards; make it anew with: solo-hcsc index {folder}")
    return found


def _refuse_others(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse a folder that has other tar files than those that were indexed."""
    listed = {entry["file"] for entry in manifest["shards"]}
    new = [path.name for path in tars_in(folder) if path.name not in listed]
    if new:
        more = f" and {len(new) - 1} more are" if len(new) > 1 else " is"
        raise UserError(
            f"{folder}: {on_one_line(new[0])}{more} not in {MANIFEST}; remove what is a copy, or take all in with: "
            f"solo-hcsc index {folder}"
        )


def _shard(file: Path, known: dict[Path, dict[str, Any]]) -> Shard:
    """Return a shard; refuse one that is not as it was indexed."""
    again = f"solo-hcsc index {file.parent}"
    if file not in known:
        raise UserError(f"{file}: is not in {MANIFEST}; take it in with: {again}")
    entry = known[file]
    shard = Shard(file, entry["images"], entry["bytes"], entry["sha256"])
    try:
        size = file.stat().st_size
    except OSError as error:
        raise UserError(
            f"{file}: a shard that cannot be read ({error.strerror}); restore it, or leave it out with: {again}"
        ) from error
    if size != shard.bytes:
        told = "it was cut off" if size < shard.bytes else "it was changed"
        raise UserError(
            f"{file}: has {size} bytes instead of {shard.bytes}, so {told}; restore it, or index it anew with: {again}"
        )
    if not shard.index.is_file():
        raise UserError(f"{shard.index}: an index that is missing; make it with: {again}")
    return shard


def _refuse_copies(shards: Iterable[Shard]) -> None:
    """Refuse shards of equal content."""
    first: dict[str, Path] = {}
    for shard in shards:
        same = first.setdefault(shard.sha256, shard.path)
        if same != shard.path and shard.images:
            raise UserError(f"{shard.path}: has the same content as {same.name}; remove one, and index the others anew")
