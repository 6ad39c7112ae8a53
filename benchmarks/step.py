"""Selection and both losses of a step, forward and backward, with the new keys entering the queue.

Five ways side by side: the released code's (a softmax of the whole queue against all prototypes in every step), ours of
the same loss (preset `official`), the paper's equations pair by pair, ours of these (preset `recommended`), and
solo-learn's MoCo InfoNCE by autograd, which selects nothing. One thread is timed by the processor's clock, several by
the clock on the wall.
"""

import time
from argparse import Namespace

import torch
from solo.losses.moco import moco_loss_func

from benchmarks import measure
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.options import Options


class Step:
    """A batch, and the step of each way on it."""

    def __init__(self, batch: int, queue: int, prototypes: tuple[int, ...], dim: int, seed: int) -> None:
        vectors = measure.embeddings(batch * 2 + queue + prototypes[0] * 4, seed, dim=dim)
        self.z, self.key, entries, images = vectors.split([batch, batch, queue, prototypes[0] * 4])
        self.index = torch.arange(batch)
        flags = {"num_prototypes": prototypes, "queue_size": queue, "min_cluster_size": 0, "kmeans_iterations": 2}
        options = Options(**flags)
        self.tree = build_hierarchy(images, options, seed)
        self.ours = self._coding(options, entries)
        self.pairs = self._coding(options, entries)
        self.pairs.shares_draws = False
        official = Options(**flags, preset="official", kmeans_restarts=1)
        self.official = self._coding(official, entries)
        self.released = self._coding(official, entries)
        self.released.shares_draws = False
        self.queue = entries.T.contiguous()

    def _coding(self, options: Options, entries: torch.Tensor) -> SelectiveCoding:
        coding = SelectiveCoding(options, entries.size(1), self.tree.assignments.size(0), seed=0)
        coding.queue.keys.copy_(entries)
        coding.install(self.tree, epoch=0)
        return coding

    def code(self, coding: SelectiveCoding) -> float:
        z = self.z.clone().requires_grad_()
        first = coding.options.batch_negatives
        own = coding.enqueue(self.key, self.index, 0)[:, None] if first else None
        coded = coding(z, self.key, self.index, [], 1.0, own)
        if not first:
            coding.enqueue(self.key, self.index, 0)
        coded.loss.backward()
        return float(sum(value for name, value in coded.parts.items() if name.startswith("left_out"))) / 3

    def moco(self) -> None:
        z = self.z.clone().requires_grad_()
        loss = moco_loss_func(z, self.key, self.queue.clone(), 0.2)
        self.queue[:, : len(z)] = self.key.T
        loss.backward()


def main() -> None:
    args = measure.parser(__doc__, repeats=15).parse_args()
    sizes = (8, 64, (12, 6, 3), 16) if args.small else (256, 16384, (3000, 2000, 1000), 128)
    print("batch {}, queue {}, prototypes {}, embedding {}".format(*sizes))
    step = Step(*sizes, args.seed)
    ways = {
        "released code": lambda: step.code(step.released),
        "solo_hcsc, official": lambda: step.code(step.official),
        "pair by pair": lambda: step.code(step.pairs),
        "solo_hcsc": lambda: step.code(step.ours),
        "MoCo, no selection": step.moco,
    }
    memory = dict.fromkeys(ways, 0)
    for name, way in ways.items():
        memory[name] = measure.peak_memory(way)
    print(f"left out: {step.code(step.ours):.2%} of the negatives")
    rows = [row for number in args.threads for row in timed(ways, memory, number, args)]
    measure.show(
        ["threads", "way", "ms", "least ms", "x MoCo", "released code / it", "by the least", "extra MB"],
        [
            (
                *(r["threads"], r["way"], r["median_seconds"] * 1e3, r["least_seconds"] * 1e3, r["ratio"]),
                *(r["speed_up"], r["speed_up_by_least"], r["peak_bytes"] / 1e6),
            )
            for r in rows
        ],
    )
    measure.write(
        "step", args, rows, sizes=dict(zip(("batch", "queue", "prototypes", "embedding"), sizes, strict=True))
    )


def timed(ways: dict, memory: dict[str, int], number: int, args: Namespace) -> list[dict]:
    with measure.threads(number):
        clock = time.process_time if number == 1 else time.perf_counter
        seconds = measure.side_by_side(ways, args.repeats, clock=clock)
    rows = [measure.row(name, taken, seconds["MoCo, no selection"], threads=number) for name, taken in seconds.items()]
    return [
        row
        | {
            "speed_up": rows[0]["median_seconds"] / row["median_seconds"],
            "speed_up_by_least": rows[0]["least_seconds"] / row["least_seconds"],
            "peak_bytes": memory[row["way"]],
        }
        for row in rows
    ]


if __name__ == "__main__":
    main()
