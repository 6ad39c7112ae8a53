"""Write the images of a folder as shards; what a kill left unfinished is gone on with."""

import hashlib
import json
import os
import tarfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from solo_hcsc.data.folders import LabelledImages
from solo_hcsc.data.images import UnreadableImage, decode, list_images, opened, upright_size
from solo_hcsc.data.parallel import in_processes
from solo_hcsc.data.settings import PACKING
from solo_hcsc.data.shard_index import NO_LABEL, ROW, read_index, write_index
from solo_hcsc.data.shard_writing import Packed, write_manifest
from solo_hcsc.data.shards import MANIFEST, TAR, UNFINISHED, find_shards, index_of
from solo_hcsc.data.source import check_packing, class_folders, splits_in
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import read_json, write_whole, written_whole
from solo_hcsc.progress import say, watch
from solo_hcsc.settings import Settings, settle
from solo_hcsc.typed import typed

_FEWEST, _MOST = 256, 10_000  # images of a shard by default
_SHARDS = 64  # by default, if that makes them neither smaller nor larger than that
_REST = 2  # times the size asked for that a scaled decode leaves to the filter
_RECORD = tarfile.RECORDSIZE


@typed
def pack(folder: str | PathLike[str], out: str | PathLike[str], **settings: Any) -> Packed:
    """Write the images of a folder as shards: tar files in WebDataset's layout, with an index beside each.

    Files are taken as they are, in the order of their paths, so that a run on the shards is the run on the folder.
    Interrupted or killed, the same call goes on with the shards that are missing.

    Args:
        folder: of images, in class folders or not; with `train` and `val` below it, each becomes shards of its own.
        out: the folder of the shards, new or empty.
        **settings: any other setting of `solo-hcsc pack` by name, such as `shorter_side=512` or `num_workers=8`.

    Returns:
        What was written, as a value; `shards.json` in each folder has it too, with the shards' checksums.

    Raises:
        UserError: where an image cannot be read and `skip_unreadable` is not given, or `out` holds something else.

    Example:
        >>> pack("photos", "shards", shorter_side=512).images  # doctest: +SKIP
        120000
    """
    return pack_as(settle(PACKING, {"folder": folder, "out": out, **settings}))


def pack_as(settings: Settings) -> Packed:
    """Write shards as settings say."""
    folder, out = settings.folder, settings.out
    check_packing(settings)
    parts = [Path(name) for name in class_folders(folder)] if splits_in(folder)[0] != Path() else [Path()]
    plans = [_plan(settings, folder / part, out / part) for part in parts]
    for plan in plans:
        plan.check_place()
    started, written = time.monotonic(), [plan.write() for plan in plans]
    whole = written[0]
    for one in written[1:]:
        whole += one
    return replace(whole, seconds=time.monotonic() - started)


@dataclass(frozen=True)
class Source:
    """A file that becomes a member of a shard."""

    path: str
    key: str
    label: int


@dataclass(frozen=True)
class Part:
    """A shard to be written: its images, and how."""

    file: Path
    images: Sequence[Source]
    classes: dict[str, str] | None  # names by numbers, of those that the shard has
    shorter_side: int | None
    quality: int
    skip_unreadable: bool
    plan: str

    @property
    def is_finished(self) -> bool:
        """Return whether it has been written before, all of it."""
        index = index_of(self.file)
        if not (index.is_file() and self.file.is_file()):
            return False
        facts = read_index(index).facts
        return facts.get("plan") == self.plan and facts["bytes"] == self.file.stat().st_size


@dataclass(frozen=True)
class Plan:
    """What becomes of a folder of images."""

    settings: Settings
    folder: Path
    out: Path
    images: Sequence[Source]
    classes: Sequence[str] | None
    others: int  # files that are no images
    hash: str  # of the images and of what is done to them

    @property
    def shards(self) -> int:
        return -(-len(self.images) // self._per_shard)

    @property
    def _per_shard(self) -> int:
        usual = min(_MOST, max(_FEWEST, -(-len(self.images) // _SHARDS)))
        return self.settings.images_per_shard or usual

    def check_place(self) -> None:
        """Refuse a folder that holds anything but these shards, finished or not."""
        there = [path.name for path in self.out.iterdir()] if self.out.is_dir() else []
        known = next((self.out / name for name in (MANIFEST, UNFINISHED) if name in there), None)
        if known is None and there and self.settings.out == self.out:
            raise UserError(f"`out` {self.out}: has other files in it; give a new or an empty folder")
        if known is not None and read_json(known).get("plan") != self.hash:
            raise UserError(
                f"`out` {self.out}: has shards of other images, or made otherwise; give another folder, or remove it"
            )

    def write(self) -> Packed:
        """Write the shards that are missing, and then their list."""
        if (self.out / MANIFEST).is_file():
            found = find_shards(self.out, "out")
            say(f"nothing to do: all {len(found.shards)} shards are in {self.out}")
            return replace(
                write_manifest(self.out, [one.path for one in found.shards], self._facts, True), kept=len(found.shards)
            )
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.out / UNFINISHED, json.dumps(self._facts))
        parts = list(self._parts())
        missing = [part for part in parts if not part.is_finished]
        if len(missing) < len(parts):
            say(f"going on: {len(parts) - len(missing)} of {len(parts)} shards are in {self.out}")
        done = in_processes(_write, missing, min(self.settings.num_workers, len(missing)))
        left = sum(len(part.images) for part in missing)
        for _ in watch(((range(count),) for count in done), left, f"packing {self.folder.name}"):
            pass
        packed = write_manifest(self.out, [part.file for part in parts], self._facts, True)
        (self.out / UNFINISHED).unlink()
        return replace(packed, kept=len(parts) - len(missing), others=self.others)

    @property
    def _facts(self) -> dict[str, Any]:
        asked = {name: getattr(self.settings, name) for name in ("shorter_side", "quality", "shuffle")}
        return {"plan": self.hash, "packed_from": on_one_line(self.folder), **asked}

    def _parts(self) -> Iterator[Part]:
        width = max(6, len(str(self.shards)))
        for number in range(self.shards):
            images = self.images[number * self._per_shard : (number + 1) * self._per_shard]
            labels = sorted({image.label for image in images})
            classes = None if self.classes is None else {str(label): self.classes[label] for label in labels}
            yield Part(
                self.out / f"shard-{number:0{width}}{TAR}",
                images,
                classes,
                self.settings.shorter_side,
                self.settings.quality,
                self.settings.skip_unreadable,
                self.hash,
            )


def _plan(settings: Settings, folder: Path, out: Path) -> Plan:
    """List the images, give each a key, and put them in order."""
    classes: Sequence[str] | None = None
    if settings.no_labels or not class_folders(folder):
        listing = list_images(folder)
        listed = [(path, NO_LABEL) for path in listing.images]
        others = listing.others.total()
        told = listing.left_out()
    else:
        found = LabelledImages(folder, str, settings.class_level)
        listed, classes, told = found.samples, found.classes, found.left_out
        others = 0
    if told:
        say(f"{on_one_line(folder)}: {told}")
    if not listed:
        raise UserError(f"{folder}: no images there")
    digest, used = hashlib.sha256(), set[str]()
    asked = (
        settings.shorter_side,
        settings.quality,
        settings.images_per_shard,
        settings.shuffle,
        settings.skip_unreadable,
    )
    digest.update(repr(asked).encode())
    images = []
    for path, label in listed:
        below = os.path.relpath(path, folder)
        digest.update(f"{below}\0{label}\0{os.stat(path).st_size}\n".encode(errors="surrogateescape"))
        images.append(Source(path, _key(below, used), label))
    if settings.shuffle:
        Random(0).shuffle(images)
    return Plan(settings, folder, out, images, classes, others, digest.hexdigest())


def _key(below: str, used: set[str]) -> str:
    """Return a key for a path that no other image has; in WebDataset's layout it ends before the first dot."""
    folder, name = os.path.split(os.path.splitext(below)[0])
    key = wanted = os.path.join(folder, name.replace(".", "_"))
    number = 1
    while key in used:
        number += 1
        key = f"{wanted}_{number}"
    used.add(key)
    return key


def _write(part: Part) -> int:
    """Write a shard and then its index, which says that it is whole; return how many images it was to have."""
    rows, names, unreadable, resized = [], [], [], 0
    part.file.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(part.file) as unfinished, unfinished.open("wb") as raw:
        tar = _Tar(raw)
        for image in part.images:
            try:
                content, ending, smaller = _content(image.path, part.shorter_side, part.quality)
            except UnreadableImage as error:
                if not part.skip_unreadable:
                    raise
                unreadable.append(on_one_line(error.path))
                continue
            start = tar.add(f"{image.key}.{ending}", content)
            if image.label != NO_LABEL:
                tar.add(f"{image.key}.cls", str(image.label).encode())
            rows.append((start, len(content), image.label, zlib.crc32(content)))
            names.append((os.fsencode(image.key), ending.encode()))
            resized += smaller
        tar.end()
    facts = {"bytes": tar.size, "sha256": tar.digest.hexdigest(), "classes": part.classes, "plan": part.plan}
    write_index(index_of(part.file), np.array(rows, ROW), names, facts | {"resized": resized, "unreadable": unreadable})
    return len(part.images)


def _content(path: str, side: int | None, quality: int) -> tuple[bytes, str, bool]:
    """Return an image's file, how its name ends, and whether it was made smaller."""
    if side is not None:
        with opened(path) as file:
            height, width = upright_size(file)
            short = min(height, width)
            if short > side:
                image = decode(file, short / side / _REST)
                size = max(side, round(width * side / short)), max(side, round(height * side / short))
                out = BytesIO()
                image.resize(size, Image.Resampling.LANCZOS).save(out, "JPEG", quality=quality)
                return out.getvalue(), "jpg", True
    try:
        return Path(path).read_bytes(), os.path.splitext(path)[1][1:].lower(), False
    except OSError as error:
        raise UnreadableImage(
            f"{on_one_line(path)}: cannot be read ({error.strerror}); remove it, or add `skip_unreadable`", path
        ) from error


class _Tar:
    """Writes the members of a tar file that is the same wherever and whenever it is written, and hashes it."""

    def __init__(self, out: BinaryIO) -> None:
        self.out, self.size, self.digest = out, 0, hashlib.sha256()

    def add(self, name: str, content: bytes) -> int:
        """Write a member; return where its bytes begin."""
        member = tarfile.TarInfo(name)
        member.size = len(content)
        self._write(member.tobuf(errors="surrogateescape"))
        start = self.size
        self._write(content + bytes(-len(content) % tarfile.BLOCKSIZE))
        return start

    def end(self) -> None:
        """Write the mark of the end."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._write(bytes(-self.size % _RECORD))

    def _write(self, content: bytes) -> None:
        self.out.write(content)
        self.digest.update(content)
        self.size += len(content)
