"""The tree of prototypes for 50,000 embeddings: the released settings, our first clustering, and our later ones.

All cluster the same embeddings. A later one goes on from the tree of these embeddings before the encoder moved. Inertia
is compared level by level with that of the released settings on the same points.
"""

from argparse import Namespace
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measure
from solo_hcsc.hcsc.hierarchy import Hierarchy, build_hierarchy
from solo_hcsc.hcsc.options import Options


def main() -> None:
    flags = measure.parser(__doc__, repeats=9)
    flags.add_argument("--moved", type=float, default=0.5, help="share by which the encoder's weights have changed")
    flags.add_argument("--directions", type=int, default=8, help="in how many directions the images vary")
    flags.add_argument(
        "--embeddings",
        type=Path,
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="unit vectors (N, D) in .npy files instead",
    )
    flags.add_argument("--name", default="clustering", help="of the record")
    args = flags.parse_args()
    levels, count = ((12, 6, 3), 500) if args.small else ((3000, 2000, 1000), 50_000)
    if args.embeddings:
        before, after = (torch.from_numpy(np.load(file)) for file in args.embeddings)
    else:
        before, after = (
            measure.embeddings(count, args.seed, moved, directions=args.directions) for moved in (0.0, args.moved)
        )
    cosine, leading = (before * after).sum(dim=1).mean().item(), variance_of_16(after)
    print(f"{tuple(after.shape)} into {levels}; 16 directions hold {leading:.0%} of the variance")
    print(f"cosine to the embeddings before the encoder moved: {cosine:.3f}", flush=True)

    released = Options(preset="official", num_prototypes=levels)
    ours = Options(num_prototypes=levels, min_cluster_size=0)
    last = [level.prototypes for level in build_hierarchy(before, ours, args.seed).levels]
    ways = {
        "released settings": partial(build_hierarchy, after, released, args.seed),
        "solo_hcsc, first": partial(build_hierarchy, after, ours, args.seed),
        "solo_hcsc, later": partial(build_hierarchy, after, ours, args.seed, last),
    }
    trees = {name: way() for name, way in ways.items()}
    reference = trees["released settings"].levels[0].objective
    changes = {name: inertia_changes(tree, reference, released, args.seed) for name, tree in trees.items()}
    rows = [row for number in args.threads for row in timed(ways, changes, number, args)]
    measure.show(
        ["threads", "way", "seconds", "times faster", *(f"inertia, {count}" for count in levels)],
        [
            (r["threads"], r["way"], r["median_seconds"], 1 / r["ratio"], *(f"{v:+.2%}" for v in r["inertia_change"]))
            for r in rows
        ],
    )
    more = {"cosine": cosine, "variance_of_16": leading, "embeddings": list(after.shape), "prototypes": levels}
    measure.write("clustering", args, rows, file=args.name, **more)


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


def timed(ways: dict, changes: dict[str, list[float]], number: int, args: Namespace) -> list[dict[str, Any]]:
    with measure.threads(number):
        seconds = measure.side_by_side(ways, args.repeats, settle=False)
    return [
        measure.row(name, taken, seconds["released settings"], threads=number, inertia_change=changes[name])
        for name, taken in seconds.items()
    ]


if __name__ == "__main__":
    main()
