"""The passes of a training step on small images: plain convolutions, and those that skip padding, channels last.

ResNet-18 with the ImageNet stem; one forward and backward pass of the encoder and one forward pass of the momentum
encoder. One thread is timed by the processor's clock, several by the clock on the wall.
"""

import time

import torch
from torch import nn
from torchvision.models import resnet18

from benchmarks import measure
from solo_hcsc.training.convolutions import make_fast


class Passes:
    """An encoder, its momentum copy and a batch."""

    def __init__(self, batch: int, fast: bool, seed: int) -> None:
        torch.manual_seed(seed)
        self.encoder, self.momentum_encoder = (_encoder(fast) for _ in range(2))
        self.images = torch.randn(batch, 3, 32, 32)

    def __call__(self) -> None:
        self.encoder.zero_grad()
        self.encoder(self.images).square().mean().backward()
        with torch.no_grad():
            self.momentum_encoder(self.images)


def _encoder(fast: bool) -> nn.Module:
    encoder = resnet18()
    encoder.fc = nn.Identity()
    if fast:
        make_fast(encoder)
    return encoder


def main() -> None:
    args = measure.parser(__doc__, repeats=9).parse_args()
    batch = 4 if args.small else 128
    ways = {"plain": Passes(batch, False, args.seed), "trimmed, channels last": Passes(batch, True, args.seed)}
    rows = []
    for number in args.threads:
        with measure.threads(number):
            clock = time.process_time if number == 1 else time.perf_counter
            seconds = measure.side_by_side(ways, args.repeats, clock=clock)
        for name, taken in seconds.items():
            row = measure.row(name, taken, seconds["plain"], threads=number)
            pairs = sorted(round(plain / own, 3) for plain, own in zip(seconds["plain"], taken, strict=True))
            rows.append(row | {"images_per_second": batch / row["median_seconds"], "speed_ups": pairs})
    measure.show(
        ["threads", "way", "images/s", "times faster", "least", "most"],
        [
            (r["threads"], r["way"], r["images_per_second"], 1 / r["ratio"], r["speed_ups"][0], r["speed_ups"][-1])
            for r in rows
        ],
    )
    measure.write("convolutions", args, rows, sizes={"batch": batch, "side": 32, "encoder": "resnet18"})


if __name__ == "__main__":
    main()
