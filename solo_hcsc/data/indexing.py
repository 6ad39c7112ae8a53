"""Make the index of shards that others wrote, or that were changed, and compare shards with their checksums."""

import hashlib
import json
import os
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from solo_hcsc.data.images import image_endings
from solo_hcsc.data.parallel import in_processes
from solo_hcsc.data.settings import INDEXING
from solo_hcsc.data.shard_index import NO_LABEL, ROW, read_index, write_index
from solo_hcsc.data.shard_writing import Packed, write_manifest
from solo_hcsc.data.shards import MANIFEST, TAR, UNFINISHED, find_shards, index_of, tars_in
from solo_hcsc.data.source import check_folder
from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.files import check_folder_to_write, read_json
from solo_hcsc.progress import say, watch
from solo_hcsc.settings import Settings, settle
from solo_hcsc.typed import typed

_LABELS = ("label", "cls", "class")  # keys that KEY.json may have the label under, if none is given
_OFTEN = 30  # seconds from one line about how far it is to the next
_PARTS = ("train", "val", "validation", "test")


@typed
def index_shards(folder: str | PathLike[str], **settings: Any) -> Packed:
    """Make the index of the shards in a folder: where each image is, its label, key and checksum.

    An index that fits its shard is kept, so that the same call goes on after a kill, and takes in single new shards.

    Args:
        folder: of tar files in WebDataset's layout, KEY.jpg with KEY.cls or KEY.json; or one with `train` and `val`.
        **settings: any other setting of `solo-hcsc index` by name, such as `label_key="class"` or `check=True`.

    Returns:
        What is there, as a value.

    Raises:
        UserError: names a shard that is cut off, compressed, or has an image twice, and shards of equal content.

    Example:
        >>> index_shards("imagenet-shards", num_workers=8).images  # doctest: +SKIP
        1281167
    """
    return index_as(settle(INDEXING, {"folder": folder, **settings}))


def index_as(settings: Settings) -> Packed:
    """Make indexes as settings say, or compare shards with theirs."""
    check_indexing(settings)
    started = time.monotonic()
    folders = [folder for folder in (settings.folder, *(settings.folder / part for part in _PARTS)) if tars_in(folder)]
    if not folders:
        find_shards(settings.folder, "folder")  # which says what is wrong
        raise UserError(f"`folder`: {settings.folder} has no shards")
    work = _compared if settings.check else _indexed
    found = [work(folder, settings) for folder in folders]
    whole = found[0]
    for one in found[1:]:
        whole += one
    return replace(whole, seconds=time.monotonic() - started)


def check_indexing(settings: Settings) -> None:
    """Refuse a folder that is not there, or in which no index can be written."""
    check_folder("", settings.folder)
    if not settings.check:
        check_folder_to_write(settings.folder, "the index cannot be written:")


def _indexed(folder: Path, settings: Settings) -> Packed:
    if (folder / UNFINISHED).is_file() and not (folder / MANIFEST).is_file():
        raise UserError(f"{folder}: packing has not been finished there; give the same command `pack` again")
    tars = tars_in(folder)
    before = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    about = {name: before[name] for name in ("plan", "packed_from") if isinstance(before, dict) and name in before}
    # A label that `pack` wrote is a number; where a shard's index is lost, only the list has the classes' names.
    known = {entry["sha256"] for entry in before["shards"]} if about else set[str]()
    names = tuple(before["classes"] or ()) if about else ()
    work = partial(_index, label_key=settings.label_key, names=names, known=frozenset(known))
    kept, said = 0, time.monotonic()
    for number, one in enumerate(in_processes(work, tars, min(settings.num_workers, len(tars))), 1):
        kept += one.kept
        if time.monotonic() - said > _OFTEN:
            said = time.monotonic()
            say(f"{number} of {len(tars)} shards have an index")
    _refuse_copies(tars)
    return replace(write_manifest(folder, tars, about), kept=kept)


def _compared(folder: Path, settings: Settings) -> Packed:
    shards = find_shards(folder, "folder")
    hashes = in_processes(_sha256, [shard.path for shard in shards.shards], settings.num_workers)
    rows = ((one, range(shard.images)) for one, shard in zip(hashes, shards.shards, strict=True))
    found = [one for one, _ in watch(rows, len(shards), "comparing checksums")]
    other = [shard.path.name for shard, one in zip(shards.shards, found, strict=True) if one != shard.sha256]
    if other:
        more = f" and {len(other) - 1} more have" if len(other) > 1 else " has"
        raise UserError(f"{folder}: {other[0]}{more} another content than when it was indexed; restore it")
    count, size = len(shards.shards), sum(shard.bytes for shard in shards.shards)
    classes = None if shards.classes is None else len(shards.classes)
    return Packed((folder,), count, count, len(shards), size, classes)


@dataclass(frozen=True)
class _Done:
    """A shard that has an index."""

    images: int
    kept: bool


def _index(tar: Path, label_key: str | None, names: Sequence[str], known: frozenset[str]) -> _Done:
    """Write the index of a shard unless it has one that fits.

    Args:
        tar: the shard.
        label_key: of JSON files.
        names: of the classes, in shards whose labels are numbers of these.
        known: the checksums of such shards.
    """
    state, file = tar.stat(), index_of(tar)
    digest = ""
    if file.is_file():
        found = read_index(file)
        asked = found.facts.get("label_key") == label_key or "plan" in found.facts
        if asked and found.facts["bytes"] == state.st_size:
            modified = found.facts.get("modified") == state.st_mtime_ns
            digest = "" if modified else _sha256(tar)
            if modified or digest == found.facts["sha256"]:
                return _Done(len(found.rows), True)
    scanned = _scan(tar, label_key)
    digest = digest or _sha256(tar)
    numbered = {str(label): name for label, name in enumerate(names)} if digest in known and names else None
    facts = {
        "bytes": state.st_size,
        "sha256": digest,
        "classes": scanned.classes or numbered,
        "modified": state.st_mtime_ns,
        "label_key": label_key,
        "others": scanned.others,
    }
    write_index(file, np.array(scanned.rows, ROW), scanned.names, facts)
    return _Done(len(scanned.rows), False)


@dataclass(frozen=True)
class _Scanned:
    rows: list[tuple[int, int, int, int]]
    names: list[tuple[bytes, bytes]]
    classes: dict[str, str] | None
    others: int


def _scan(path: Path, label_key: str | None) -> _Scanned:
    """Read a shard's members: its images and their labels."""
    images: dict[str, list[tarfile.TarInfo]] = {}
    labels: dict[str, str | int] = {}
    others, endings, seen = 0, image_endings(), set[str]()
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                key, ending = _split(member.name)
                if not member.isfile() or not ending:
                    others += not member.isdir()
                    continue
                if member.name in seen:
                    raise UserError(f"{path}: has {on_one_line(member.name)} twice; write the shard anew")
                seen.add(member.name)
                if ending == "cls":
                    labels[key] = _class(_bytes(tar, member))
                elif ending == "json":
                    found = _from_json(_bytes(tar, member), label_key, f"{path}: {on_one_line(member.name)}")
                    if found is not None:
                        labels.setdefault(key, found)
                elif "." + ending.rpartition(".")[2] in endings:
                    images.setdefault(key, []).append(member)
                else:
                    others += 1
            end = tar.offset
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(
            f"{path}: cannot be read as a {TAR} file ({on_one_line(str(error))}); write or copy it anew"
        ) from error
    with path.open("rb") as file:
        file.seek(end)
        if len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise UserError(f"{path}: was cut off (it has no end); write or copy it anew")
        chosen = [(key, min(members, key=_plainness)) for key, members in images.items()]
        names = sorted({label for key, _ in chosen if isinstance(label := labels.get(key), str)})
        if names and any(isinstance(labels.get(key), int) for key, _ in chosen):
            raise UserError(f"{path}: some labels are numbers and others names, such as {names[0]!r}; make them alike")
        numbers = {name: number for number, name in enumerate(names)}
        rows, keys = [], []
        for key, member in sorted(chosen, key=lambda one: one[1].offset_data):
            file.seek(member.offset_data)
            label = labels.get(key, NO_LABEL)
            number = numbers[label] if isinstance(label, str) else label
            rows.append((member.offset_data, member.size, number, zlib.crc32(file.read(member.size))))
            keys.append((_fs(key), _fs(_split(member.name)[1])))
    classes = {str(number): name for name, number in numbers.items()} or None
    more = sum(len(members) - 1 for members in images.values())
    return _Scanned(rows, keys, classes, others + more)


def _split(name: str) -> tuple[str, str]:
    """Return a member's key and ending, which begins after the first dot of its file's name, as WebDataset has it."""
    folder, slash, file = name.rpartition("/")
    base, _, ending = file.partition(".")
    return (folder + slash + base, ending.lower()) if base else (name, "")


def _plainness(member: tarfile.TarInfo) -> tuple[int, str]:
    """Return what puts KEY.jpg before KEY.mask.png."""
    return member.name.rpartition("/")[2].count("."), member.name


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    assert content is not None  # of a regular file
    return content.read()


def _class(text: bytes) -> str | int:
    """Return the class that a KEY.cls has: a number, or a name."""
    found = text.decode(errors="surrogateescape").strip()
    return int(found) if found.isdecimal() and len(found) < 10 else found


def _from_json(text: bytes, label_key: str | None, where: str) -> str | int | None:
    """Return the label that a KEY.json has, if any."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not readable as JSON ({error})") from error
    known = found if isinstance(found, dict) else {}
    names = _LABELS if label_key is None else (label_key,)
    name = next((name for name in names if known.get(name) is not None), None)
    if name is None:
        return None
    if isinstance(known[name], bool) or not isinstance(known[name], int | str):
        raise ArgumentError(f"{where}: {name} is neither a number nor a name; give another `label_key`")
    if isinstance(known[name], int) and known[name] < 0:
        return None
    return known[name]


def _fs(text: str) -> bytes:
    return os.fsencode(text)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _slowly(file)


def _slowly(file: Any) -> str:
    """Do what `hashlib.file_digest` does, which Python has from 3.11 on."""
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


def _refuse_copies(tars: Sequence[Path]) -> None:
    """Refuse shards of equal content, which would count their images twice."""
    hashes = {tar: read_index(index_of(tar)) for tar in tars}
    counts = Counter(found.facts["sha256"] for found in hashes.values() if len(found.rows))
    same = [tar for tar, found in hashes.items() if len(found.rows) and counts[found.facts["sha256"]] > 1]
    if same:
        raise UserError(f"{same[1]}: has the same content as {same[0].name}; remove one of them")
