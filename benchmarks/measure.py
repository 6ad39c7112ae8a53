"""What the benchmarks share: data, timing side by side, memory, and the record of a run."""

import json
import os
import platform
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from solo_hcsc.runs.results import versions
from solo_hcsc.study.tally import processor
from solo_hcsc.tables import table

RESULTS = Path(__file__).parent / "results"


def parser(description: str, repeats: int) -> ArgumentParser:
    flags = ArgumentParser(description=description)
    flags.add_argument("--repeats", type=int, default=repeats, help="timings of each way, of which the median counts")
    flags.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads to measure with")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--small", action="store_true", help="tiny sizes: shows that it works, measures nothing")
    flags.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON record")
    return flags


# ---- data ----


def embeddings(count: int, seed: int, dim: int = 128, directions: int = 8) -> torch.Tensor:
    """Unit vectors (count, dim): a random network's view of images that come in groups of groups.

    `directions`: in how many the images vary.
    """
    draw = torch.Generator().manual_seed(seed)
    groups = torch.randn(20, directions, generator=draw).repeat(50, 1)
    groups += 0.7 * torch.randn(1000, directions, generator=draw)
    images = groups[torch.randint(1000, (count,), generator=draw)]
    images += 0.7 * torch.randn(count, directions, generator=draw)
    layers = [torch.randn(directions, 512, generator=draw), torch.randn(512, dim, generator=draw)]
    return F.normalize((images @ layers[0]).relu() @ layers[1], dim=1)


# ---- timing and memory ----


def side_by_side(
    ways: Mapping[str, Callable[[], Any]],
    repeats: int,
    settle: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each way, `repeats` times, taking turns so that the machine's moods hit all alike.

    With `settle` a way runs once before each of its timings, so that it does not pay for the caches and the memory that
    the one before has left behind. `clock`: what tells the seconds; of one thread that is best `time.process_time`,
    which other processes do not slow down.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            if settle:
                way()
            started = clock()
            way()
            seconds[name].append(clock() - started)
    return seconds


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Torch and faiss with so many threads."""
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(number)
    faiss.omp_set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        faiss.omp_set_num_threads(before[1])


def peak_memory(work: Callable[[], Any]) -> int:
    """Bytes that torch held at most during `work`, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    allocations = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([0, *(size for _, size in allocations)])))


# ---- the record ----


def row(name: str, seconds: Sequence[float], reference: Sequence[float], **more: Any) -> dict[str, Any]:
    """A way's median and its ratio to a reference's; and its least."""
    median = statistics.median(seconds)
    return {
        "way": name,
        "median_seconds": median,
        "least_seconds": min(seconds),
        "seconds": [round(s, 6) for s in seconds],
        "ratio": median / statistics.median(reference),
        **more,
    }


def write(name: str, args: Namespace, rows: Sequence[Mapping[str, Any]], file: str = "", **more: Any) -> None:
    """Writes the record and says where it is."""
    record = {
        "benchmark": name,
        "command": " ".join(["python", "-m", f"benchmarks.{name}", *map(os.path.basename, sys.argv[1:])]),
        "arguments": {name: shown(value) for name, value in vars(args).items() if name not in ("out", "embeddings")},
        "machine": machine(),
        "versions": versions(),
        "rows": list(rows),
        **more,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{file or name}.json"
    path.write_text(json.dumps(record, indent=1, default=str) + "\n")
    print(f"\nrecord: {path}")


def shown(value: Any) -> Any:
    """An argument without this machine's folders."""
    return value.name if isinstance(value, Path) else value


def show(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print("\n" + table(header, rows), flush=True)


def machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
