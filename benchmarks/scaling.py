"""How cost grows: a step with queue, prototypes and batch, a clustering with images; exponents beside the paper's.

The paper counts O(N M_1 + M_1 M_2 + M_2 M_3) for a clustering ("Time Complexity Analysis"), that is O(B M_1) for each
step of an epoch, on top of MoCo, whose loss is O(B Q).
"""

import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.step import Step
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.options import Options

EXPECTED = {  # what the exponent belongs to, and the paper's
    "queue": "at most 1: O(B Q) for the loss, 0 for the selection",
    "prototypes": "at most 1: O(B M_1)",
    "batch": "1: O(B M_1 + B Q)",
    "images": "1: O(N M_1)",
}


def main() -> None:
    args = measure.parser(__doc__, repeats=9).parse_args()
    args.threads = args.threads[-1:]
    sizes = {
        "queue": [4096, 8192, 16384, 32768, 65536],
        "prototypes": [1000, 2000, 4000, 8000],
        "batch": [64, 128, 256, 512, 1024],
        "images": [12_500, 25_000, 50_000, 100_000],
    }
    if args.small:
        sizes = {"queue": [32, 64], "prototypes": [8, 16], "batch": [8, 16], "images": [100, 200]}
    rows = []
    with measure.threads(args.threads[0]):
        for name, values in sizes.items():
            ways = {value: prepare(name, value, args) for value in values}
            seconds = measure.side_by_side({str(value): way for value, way in ways.items()}, args.repeats)
            medians = [statistics.median(seconds[str(value)]) for value in values]
            rows.append(
                {"against": name, "values": values, "median_seconds": medians, "exponent": exponent(values, medians)}
            )
            print(f"{name}: {', '.join(f'{v}: {s * 1e3:.1f} ms' for v, s in zip(values, medians, strict=True))}")
    measure.show(
        ["time of", "against", "exponent", "the paper's"],
        [
            ("clustering" if r["against"] == "images" else "step", r["against"], r["exponent"], EXPECTED[r["against"]])
            for r in rows
        ],
    )
    measure.write("scaling", args, rows)


def prepare(name: str, value: int, args: Namespace) -> Callable[[], Any]:
    """A step or a clustering with one size changed."""
    if name == "images":
        options = Options(num_prototypes=(8, 4) if args.small else (1000, 500, 250), min_cluster_size=0)
        return partial(build_hierarchy, measure.embeddings(value, args.seed), options, args.seed)
    base = (
        {"batch": 8, "queue": 32, "prototypes": 8} if args.small else {"batch": 256, "queue": 16384, "prototypes": 3000}
    )
    chosen = base | {name: value}
    levels = (chosen["prototypes"], chosen["prototypes"] * 2 // 3, chosen["prototypes"] // 3)
    step = Step(chosen["batch"], chosen["queue"], levels, 16 if args.small else 128, args.seed)
    return lambda: step.code(step.ours)


def exponent(values: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of a line through the logarithms."""
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


if __name__ == "__main__":
    main()
