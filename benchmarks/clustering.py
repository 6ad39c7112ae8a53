"""The tree of prototypes for 50,000 embeddings of several kinds: the released settings, and ours.

Both cluster the same embeddings, in one process, taking turns. Inertia is compared level by level with that of the
released settings on the same points. Seconds are those of the processor, which other processes do not change.
"""

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import measure
from solo_hcsc.hcsc.hierarchy import Hierarchy, build_hierarchy
from solo_hcsc.hcsc.options import Options


def main() -> None:
    flags = measure.parser(__doc__, repeats=5)
    flags.set_defaults(threads=[1])
    flags.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="embeddings to make")
    flags.add_argument("--embeddings", type=Path, nargs="*", default=[], help="unit vectors (N, D) in .npy files too")
    args = flags.parse_args()
    levels, count = ((12, 6, 3), 500) if args.small else ((3000, 2000, 1000), 50_000)
    makers: dict[str, Callable[[], torch.Tensor]] = {
        kind: partial(KINDS[kind], count, args.seed) for kind in args.kinds
    }
    makers |= {file.stem: lambda file=file: torch.from_numpy(np.load(file)) for file in args.embeddings}
    rows = [row for name, make in makers.items() for row in compared(name, make(), levels, args)]
    measure.write("clustering", args, rows, prototypes=levels)


def compared(kind: str, vectors: torch.Tensor, levels: tuple[int, ...], args: Namespace) -> list[dict[str, Any]]:
    """Rows of both ways to cluster one kind of embeddings (N, D)."""
    options = {
        "released settings": Options(preset="official", num_prototypes=levels),
        "solo_hcsc": Options(num_prototypes=levels, min_cluster_size=0),
    }
    leading = variance_of_16(vectors)
    print(
        f"\n{kind}: {tuple(vectors.shape)} into {levels}; 16 directions hold {leading:.0%} of the variance", flush=True
    )
    ways = {name: partial(build_hierarchy, vectors, of_way, args.seed) for name, of_way in options.items()}
    trees = {name: way() for name, way in ways.items()}
    plain = options["released settings"]
    reference = trees["released settings"].levels[0].objective
    changes = {name: inertia_changes(tree, reference, plain, args.seed) for name, tree in trees.items()}
    about = {"embeddings": kind, "shape": list(vectors.shape), "variance_of_16": leading}
    rows = [about | row for number in args.threads for row in timed(ways, changes, number, args.repeats)]
    measure.show(
        ["threads", "way", "seconds", "times faster", "by least", *(f"inertia, {count}" for count in levels)],
        [
            (
                r["threads"],
                r["way"],
                r["median_seconds"],
                1 / r["ratio"],
                r["times_faster_by_least"],
                *(f"{v:+.2%}" for v in r["inertia_change"]),
            )
            for r in rows
        ],
    )
    return rows


def timed(ways: dict, changes: dict[str, list[float]], number: int, repeats: int) -> list[dict[str, Any]]:
    with measure.threads(number):
        seconds = measure.side_by_side(ways, repeats, settle=False, clock=time.process_time)
    plain = seconds["released settings"]
    return [
        measure.row(
            name,
            taken,
            plain,
            threads=number,
            times_faster_by_least=min(plain) / min(taken),
            inertia_change=changes[name],
        )
        for name, taken in seconds.items()
    ]


def inertia_changes(tree: Hierarchy, reference: float, released: Options, seed: int) -> list[float]:
    """A tree's inertia at every level, relative to the released settings' on the same points."""
    changes = [tree.levels[0].objective / reference - 1]
    for below, level in pairwise(tree.levels):
        alone = replace(released, num_prototypes=(len(level.prototypes),))
        changes.append(level.objective / build_hierarchy(below.prototypes, alone, seed).levels[0].objective - 1)
    return changes


def variance_of_16(vectors: torch.Tensor) -> float:
    variances = torch.linalg.eigvalsh(vectors.T.cov())
    return (variances[-16:].sum() / variances.sum()).item()


# ---- kinds of embeddings: unit vectors (count, 128) ----


def mixture(count: int, seed: int, spread: float, dim: int = 128) -> torch.Tensor:
    """1000 groups; `spread`: the length of a point's way from its group's centre, which has length 1."""
    draw = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(1000, dim, generator=draw), dim=1)
    points = centres[torch.randint(1000, (count,), generator=draw)]
    return F.normalize(points + spread / dim**0.5 * torch.randn(count, dim, generator=draw), dim=1)


def directions(count: int, seed: int, number: int, dim: int = 128) -> torch.Tensor:
    """Points that vary alike in some directions; in all of them: uniform ones."""
    draw = torch.Generator().manual_seed(seed)
    points = torch.randn(count, number, generator=draw)
    return F.normalize(points if number == dim else points @ torch.randn(number, dim, generator=draw), dim=1)


KINDS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "low rank": measure.embeddings,
    "mixture": partial(mixture, spread=0.5),
    "wide mixture": partial(mixture, spread=1.0),
    "64 directions": partial(directions, number=64),
    "uniform": partial(directions, number=128),
}


if __name__ == "__main__":
    main()
