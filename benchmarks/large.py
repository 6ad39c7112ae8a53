"""What clustering takes for millions of images: memory, traffic and time, from constants measured here.

Measures fast clusterings of growing numbers of embeddings, whose seconds and bytes are fitted by a straight line, and
how fast gloo gathers embeddings from a second process; then multiplies.
"""

import os
import tempfile
import threading
import time
from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks import measure
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.options import Options

EMBEDDING = 128 * 4  # bytes
DATA_SETS = {"ImageNet": 1_281_167, "100 M": 100_000_000, "1 B": 1_000_000_000}
SAMPLE = 1_000_000
PROTOTYPES = (3000, 2000, 1000)


def main() -> None:
    parser = measure.parser(__doc__, repeats=3)
    parser.add_argument("--really", type=int, default=0, help="also cluster so many, to see how far the line holds")
    args = parser.parse_args()
    args.threads = args.threads[-1:]
    counts = [500, 1000, 2000] if args.small else [100_000, 200_000, 400_000]
    with measure.threads(args.threads[0]):
        seconds, peaks = clusterings(counts, args.repeats, args)
        real = clusterings([args.really], 1, args) if args.really else None
    each, once = np.polyfit(counts, seconds, 1)
    each_byte, once_byte = np.polyfit(counts, peaks, 1)
    speed = gather_speed(counts[0], args.repeats)
    for count, taken, peak in zip(counts, seconds, peaks, strict=True):
        print(f"{count} embeddings: {taken:.2f} s, {peak / 1e6:.0f} MB")
    if real:
        foreseen = once + each * args.really, once_byte + each_byte * args.really
        print(f"{args.really} embeddings: {real[0][0]:.2f} s, {real[1][0] / 1e6:.0f} MB")
        print(f"  as the line has it: {foreseen[0]:.2f} s, {foreseen[1] / 1e6:.0f} MB")
    print(f"gathering through gloo: {speed / 1e6:.0f} MB/s")

    rows = []
    for name, images in DATA_SETS.items():
        for what, clustered in (("all", images), ("a sample", min(SAMPLE, images))):
            rows.append(
                {
                    "images": name,
                    "clustered": what,
                    "embeddings": clustered,
                    "gathered_bytes": clustered * EMBEDDING,
                    "gather_seconds": clustered * EMBEDDING / speed,
                    "process_bytes": clustered * EMBEDDING + once_byte + each_byte * clustered,
                    "clustering_seconds": once + each * clustered,
                }
            )
    measure.show(
        ["images", "clustered", "embeddings", "traffic GB", "gather s", "memory GB", "clustering s"],
        [
            (
                row["images"],
                row["clustered"],
                row["embeddings"],
                row["gathered_bytes"] / 1e9,
                row["gather_seconds"],
                row["process_bytes"] / 1e9,
                row["clustering_seconds"],
            )
            for row in rows
        ],
    )
    constants = {
        "counts": counts,
        "seconds": seconds,
        "bytes": peaks,
        "seconds_per_image": each,
        "bytes_per_image": each_byte,
        "gather_bytes_per_second": speed,
        "really": real and {"embeddings": args.really, "seconds": real[0][0], "bytes": real[1][0]},
    }
    measure.write("large", args, rows, constants=constants)


def clusterings(counts: list[int], repeats: int, args: Namespace) -> tuple[list[float], list[float]]:
    """Median seconds of a clustering of so many embeddings, and bytes beyond them."""
    prototypes = (30, 20, 10) if args.small else PROTOTYPES
    options = Options(num_prototypes=prototypes)
    ways: dict[str, Any] = {}
    for count in counts:
        ways[str(count)] = partial(build_hierarchy, measure.embeddings(count, args.seed), options, 1)
    seconds = measure.side_by_side(ways, repeats, settle=False)
    return [float(np.median(taken)) for taken in seconds.values()], [_resident_growth(way) for way in ways.values()]


def _resident_growth(way: Any) -> float:
    """Bytes by which this process grows while it works; faiss and NumPy do not use torch's memory."""
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * page

    before, highest, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.01):
            highest = max(highest, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    way()
    done.set()
    watcher.join()
    return float(max(0, highest - before))


def gather_speed(count: int, repeats: int) -> float:
    """Bytes per second that the first of two processes gets from the second."""
    queue = mp.get_context("spawn").Queue()
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(_gather, (count, repeats, folder, queue), nprocs=2, join=False)
        while not context.join():  # raises what a process raised
            pass
        taken = queue.get()
    return count * EMBEDDING / float(np.median(taken))


def _gather(rank: int, count: int, repeats: int, folder: str, queue: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    own = torch.ones(count, EMBEDDING // 4)
    taken = []
    for _ in range(repeats + 1):
        dist.barrier()
        started = time.perf_counter()
        dist.gather(own, [torch.empty_like(own) for _ in range(2)] if rank == 0 else None, dst=0)
        taken.append(time.perf_counter() - started)
    if rank == 0:
        queue.put(taken[1:])  # the first one connects
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
