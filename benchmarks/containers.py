"""Images of folders, shards, a stream of tar files and Parquet, read and decoded, by CPU time; the decode is the limit.

The same photos lie in each, as they are and 64 px wide. A warm pass has all files in memory. Before a cold one the
system is asked to forget the pages of these files, no others; as the disk is shared, not seconds but the bytes that
come from it are counted. Libraries that are not installed are left out.
"""

import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from solo_hcsc.data.images import Encoded, list_images, read_image
from solo_hcsc.data.packing import pack
from solo_hcsc.data.shard_index import ShardedImages

FOLDER, LIMIT = "folder", "the decode alone (the limit)"
ROWS_OF_A_GROUP = 100  # as Hugging Face writes images to Parquet
Ways = dict[str, tuple[Path | None, Callable[[], Iterator[Encoded]]]]  # where its files are, and what reads them


def make_photos(originals: Path, args: Namespace, folder: Path) -> dict[str, Path]:
    """A folder for each size, with names of numbers."""
    found = list_images(originals).images[: 24 if args.small else args.images]
    sizes = {"as they are": folder / "large", "64 px": folder / "little"}
    for part in sizes.values():
        part.mkdir()
    for number, path in enumerate(found):
        (sizes["as they are"] / f"{number:06d}.jpg").write_bytes(_jpeg(path, 0))
        (sizes["64 px"] / f"{number:06d}.jpg").write_bytes(_jpeg(path, 64))
    return sizes


def _jpeg(path: str, side: int) -> bytes:
    if not side and path.endswith(".jpg"):
        return Path(path).read_bytes()
    image, out = read_image(path), BytesIO()
    (image.resize((side, side)) if side else image).save(out, "JPEG", quality=90)
    return out.getvalue()


def ways(photos: Path, folder: Path, args: Namespace) -> Ways:
    """What each container gives, in the same order for all that can be read in any."""
    folder.mkdir()
    files = sorted(map(str, photos.iterdir()))
    order = np.random.default_rng(args.seed).permutation(len(files)).tolist()
    held = [Encoded(file, Path(file).read_bytes()) for file in files]
    pack(photos, folder / "shards", no_labels=True, num_workers=0, images_per_shard=-(-len(files) // 8))
    shards = ShardedImages.found(folder / "shards")
    found: Ways = {
        LIMIT: (None, lambda: (held[number] for number in order)),
        FOLDER: (photos, lambda: (Encoded(files[n], Path(files[n]).read_bytes()) for n in order)),
        "our shards, at random": (folder / "shards", lambda: map(shards.image, order)),
        "our shards, in order": (folder / "shards", lambda: map(shards.image, range(len(files)))),
    }
    if find_spec("webdataset"):
        found["WebDataset's stream, in order"] = folder / "shards", partial(_streamed, folder / "shards")
    if find_spec("pyarrow"):
        found["Parquet, at random"] = _parquet(held, folder / "parquet", order)
    if find_spec("datasets"):
        found["Hugging Face's Arrow, at random"] = _arrow(held, folder / "arrow", order)
    return found


def _streamed(shards: Path) -> Iterator[Encoded]:
    import webdataset

    stream = webdataset.WebDataset(sorted(map(str, shards.glob("*.tar"))), shardshuffle=False)
    return (Encoded(sample["__key__"], sample["jpg"]) for sample in stream)


def _parquet(held: list[Encoded], folder: Path, order: list[int]) -> tuple[Path, Callable[[], Iterator[Encoded]]]:
    """One row group stays in memory: of many, the next image is seldom in the last one."""
    from pyarrow import parquet, table

    folder.mkdir()
    images = table({"image": [one.content for one in held]})
    parquet.write_table(images, folder / "all.parquet", row_group_size=ROWS_OF_A_GROUP, compression="none")

    def read() -> Iterator[Encoded]:
        file = parquet.ParquetFile(folder / "all.parquet")
        group = lru_cache(1)(lambda number: file.read_row_group(number).column("image"))
        for number in order:
            yield Encoded(str(number), group(number // ROWS_OF_A_GROUP)[number % ROWS_OF_A_GROUP].as_py())

    return folder, read


def _arrow(held: list[Encoded], folder: Path, order: list[int]) -> tuple[Path, Callable[[], Iterator[Encoded]]]:
    """A saved data set, as `--dataset hf` reads it."""
    import datasets

    from solo_hcsc.data.hugging_face import TableImages

    datasets.disable_progress_bars()
    rows = {"image": [{"bytes": one.content, "path": None} for one in held]}
    datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()})).save_to_disk(str(folder))
    return folder, lambda: map(TableImages(folder).image, order)


def decoded(read: Callable[[], Iterator[Encoded]]) -> None:
    for image in read():
        read_image(image)


def drained(read: Callable[[], Iterator[Encoded]]) -> None:
    for _ in read():
        pass


def from_disk(where: Path, read: Callable[[], Iterator[Encoded]]) -> int | None:
    """Bytes that come from the disk if none of the files is in memory; None where the system keeps them there."""
    files = [path for path in where.rglob("*") if path.is_file()]
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # what is not written yet cannot be forgotten
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = _read_bytes()
    drained(read)
    return _read_bytes() - before or None


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def timed(name: str, photos: Path, folder: Path, args: Namespace) -> list[dict[str, Any]]:
    made = ways(photos, folder, args)
    count, size = len(list(photos.iterdir())), sum(path.stat().st_size for path in photos.iterdir())
    both = {way: partial(decoded, read) for way, (_, read) in made.items()}
    seconds = measure.side_by_side(both, args.repeats, clock=time.process_time)
    reads = {way: partial(drained, read) for way, (_, read) in made.items()}
    alone = measure.side_by_side(reads, args.repeats, clock=time.process_time)
    rows = []
    for way, (where, read) in made.items():
        cold = None if where is None else from_disk(where, read)
        taken = statistics.median(seconds[way])
        figures = {
            "images_per_second": count / taken,
            "of_limit": statistics.median(seconds[LIMIT]) / taken,
            "read_microseconds": 1e6 * statistics.median(alone[way]) / count,
            "disk_bytes_per_image": cold and cold / count,
            "image_bytes": size / count,
        }
        rows.append(measure.row(way, seconds[way], seconds[FOLDER], photos=name, images=count, **figures))
    return rows


def main() -> None:
    parser = measure.parser(__doc__, repeats=3)
    parser.add_argument("--data_dir", type=Path, required=True, help="a folder of photos")
    parser.add_argument("--images", type=int, default=2000)
    args = parser.parse_args()
    args.threads = [1]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, measure.threads(1):
        for name, photos in make_photos(args.data_dir, args, Path(folder)).items():
            rows += timed(name, photos, photos.with_name(f"{photos.name} in containers"), args)
    header = ["photos", "way", "images per CPU second", "of the limit", "us to read", "KB from disk", "KB"]
    cells = [
        (
            r["photos"],
            r["way"],
            r["images_per_second"],
            r["of_limit"],
            r["read_microseconds"],
            r["disk_bytes_per_image"] and r["disk_bytes_per_image"] / 1e3,
            r["image_bytes"] / 1e3,
        )
        for r in rows
    ]
    measure.show(header, cells)
    args.data_dir = args.data_dir.name
    measure.write("containers", args, rows)


if __name__ == "__main__":
    main()
