"""Pretraining on millions of images in shards: what starting takes, and which memory grows with the images.

Writes tiny JPEGs into shards, twice: a few and many. The same run is started on both, each in a process of its own;
what differs, divided by the images, is what an image takes. `pack` and `index` are timed on the few.
"""

import io
import os
import tarfile
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import measure
from solo_hcsc import index_shards, pack, pretrain

SIDE, CLASSES = 16, 100
START = "start and one step"


def jpegs(images: int, seed: int) -> Iterator[bytes]:
    """Pictures of four by four colours, all of them different."""
    draw = np.random.default_rng(seed)
    for _ in range(images):
        colours, out = draw.integers(0, 255, (4, 4, 3), dtype=np.uint8), io.BytesIO()
        Image.fromarray(colours).resize((SIDE, SIDE)).save(out, "JPEG", quality=80, optimize=True)
        yield out.getvalue()


def write(folder: Path, images: int, per_shard: int, seed: int) -> None:
    """Shards as others write them; one that is there is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(-(-images // per_shard)):
        file = folder / f"tiny-{shard:05d}.tar"
        if file.exists():
            continue
        unfinished = file.with_suffix(".part")
        with tarfile.open(unfinished, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, jpeg in enumerate(jpegs(min(per_shard, images - shard * per_shard), seed + shard)):
                for ending, content in (("jpg", jpeg), ("cls", str(number % CLASSES).encode())):
                    member = tarfile.TarInfo(f"{shard * per_shard + number:010d}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        unfinished.rename(file)


def taken(work: Callable[[], Any]) -> dict[str, Any]:
    """CPU seconds, wall seconds and bytes at most that a process of its own has in `work`, beyond what it begins with.

    `own` is its memory, `mapped` the files it looks at, which processes share.
    """
    context = get_context("fork")
    answer, asked = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(work, asked))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError("the process failed; its message is above")
    return dict(answer.recv())


def _measured(work: Callable[[], Any], answer: Connection) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, started, wall = (_status("RssAnon"), _status("RssFile")), _cpu(), time.monotonic()
    work()
    found = {"cpu_seconds": _cpu() - started, "wall_seconds": time.monotonic() - wall}
    mapped = _status("RssFile")
    answer.send(found | {"mapped_bytes": mapped - before[1], "own_bytes": _status("VmHWM") - mapped - before[0]})


def _cpu() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def run(shards: Path, out: Path, steps: int, args: Namespace) -> None:
    """A run of HCSC with a tree of a sample, clustered before its second epoch."""
    small = args.small
    pretrain(
        shards,
        dataset="shards",
        encoder="timm/test_resnet.r160_in1k",
        out=out,
        epochs=2,
        batch_size=32 if small else 512,
        limit_train_batches=max(1, steps // 2),
        crop_size=[SIDE],
        num_prototypes=[4, 2] if small else [300, 100, 30],
        cluster_sample=64 if small else 50_000,
        clustered_features="images",
        min_cluster_size=1,
        queue_size=32 if small else 16_384,
        num_workers=0,
        accelerator="cpu",
        image_backend="fast",
        lr=0.03,
        max_steps=steps,
    )


def packing(shards: Path, folder: Path) -> Callable[[], Any]:
    """Pack the same images as files."""
    photos = folder / "photos"
    photos.mkdir()
    for file in shards.glob("*.tar"):
        with tarfile.open(file) as tar:
            tar.extractall(photos, [one for one in tar if one.name.endswith(".jpg")], filter="data")
    return partial(pack, photos, folder / "packed", no_labels=True, num_workers=0)


def main() -> None:
    parser = measure.parser(__doc__, repeats=1)
    parser.add_argument("--images", type=int, default=2_000_000)
    parser.add_argument("--few", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100, help="of the longer run, in two epochs")
    parser.add_argument("--shards", type=Path, help="a folder of many images in shards, instead of writing them")
    args = parser.parse_args()
    args.threads = [1]
    counts = {"few": 300, "many": 1200} if args.small else {"few": args.few, "many": args.images}
    with tempfile.TemporaryDirectory() as temporary, measure.threads(1):
        folder = Path(temporary)
        folders = {"few": folder / "few", "many": args.shards or folder / "many"}
        for name, images in counts.items():
            if folders[name] != args.shards:
                write(folders[name], images, 100 if args.small else 10_000, args.seed)
        works: dict[tuple[str, str], Callable[[], Any]] = {
            ("index", name): partial(index_shards, shards, num_workers=0) for name, shards in folders.items()
        }
        works["pack", "few"] = packing(folders["few"], folder)
        starts = {name: partial(run, shards, folder / f"start {name}", 1, args) for name, shards in folders.items()}
        works |= {(START, name): start for name, start in starts.items()}
        steps = 4 if args.small else args.steps
        works["a run", "many"] = partial(run, folders["many"], folder / "run", steps, args)
        rows = [{"what": what, "images": counts[name], **taken(work)} for (what, name), work in works.items()]
    few, many = (row for row in rows if row["what"] == START)
    more = many["images"] - few["images"]
    each = {key: (many[key] - few[key]) / more for key in ("cpu_seconds", "own_bytes", "mapped_bytes")}
    cells = [
        (row["what"], row["images"], row["cpu_seconds"], row["own_bytes"] / 1e6, row["mapped_bytes"] / 1e6)
        for row in rows
    ]
    measure.show(["what", "images", "CPU s", "own MB", "mapped MB"], cells)
    microseconds = 1e6 * each["cpu_seconds"]
    print(f"at the start, an image takes {each['own_bytes']:.1f} bytes of a process and {microseconds:.2f} us")
    args.shards = args.shards and args.shards.name
    measure.write("many", args, rows, each=each)


if __name__ == "__main__":
    main()
