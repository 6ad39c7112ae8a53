"""A training epoch of HCSC, clustering included, beside one-sided MoCo and solo-learn's own MoCo v2+ and SwAV.

Same images, encoder, batch, augmentations and loader; one process, the methods taking turns epoch by epoch.
"""

import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pytorch_lightning import Callback, LightningModule, Trainer

from benchmarks import measure
from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.training.pretraining import prepare, resolve

WAYS = {
    "one-sided MoCo": "--method hcsc --instance_selection false --prototype_loss false --batch_negatives false",
    "HCSC": "--method hcsc",
    "HCSC, all images": "--method hcsc --clustered_features images",
    "HCSC, a quarter": "--method hcsc --clustered_features images --cluster_sample {quarter}",
    "HCSC, preset official": "--method hcsc --preset official",
    "MoCo v2+ (solo-learn)": "--method mocov2plus --proj_hidden_dim 512",
    "SwAV (solo-learn)": "--method swav --proj_hidden_dim 512 --queue_size 3840 --epoch_queue_starts 0",
}
HCSC = "--num_prototypes {prototypes} --queue_size {queue} --proto_warmup_epochs 1 --proto_ramp_epochs 0"
SAME = (
    "--dataset custom --train_dir train --encoder {encoder} --crop_size 32 --num_workers 0 --accelerator cpu --lr 0.01"
)
# The first epoch has no tree yet, the second makes one from nothing.
UNTIMED = 2


class EpochTimer(Callback):
    """The last epoch's seconds, from before the clustering to after the last step."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = time.perf_counter() - self._started


class Pretraining:
    """A method that trains one epoch at a time."""

    def __init__(self, flags: list[str]) -> None:
        job = resolve(parse(flags))
        work = prepare(job)
        self.model = work.model
        self.loader = job.loading.repeatable(work.train_set, job.loop.seed, job.devices.shards)
        self.timer = EpochTimer()
        self.trainer = Trainer(
            max_epochs=0,
            accelerator=job.devices.accelerator,
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[self.timer],
        )

    def epoch(self) -> float:
        self.trainer.fit_loop.max_epochs = self.trainer.current_epoch + 1
        self.trainer.fit(self.model, self.loader)
        # Lightning makes both anew for the next epoch; of seven methods that wait for their turn they are much memory.
        self.model.zero_grad()
        self.trainer.strategy.optimizers, self.trainer.strategy.lr_scheduler_configs = [], []
        return self.timer.seconds


def sizes_of(args: Namespace) -> dict[str, Any]:
    if args.small:
        encoder = "vit_tiny --patch_size 16"
        return {"encoder": encoder, "images": 24, "batch": 8, "queue": 32, "prototypes": "2 1", "quarter": 20}
    return {
        "encoder": "resnet18",
        "images": 512,
        "batch": 64,
        "queue": 16384,
        "prototypes": "12 6 3",
        "quarter": 128,
    }


def make_images(folder: Path, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    target = folder / "train" / "all"
    target.mkdir(parents=True)
    for number in range(count):
        blocks = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize((32, 32), Image.Resampling.BICUBIC).save(target / f"{number:05d}.png")


def flags_of(way: str, folder: Path, args: Namespace, sizes: dict[str, Any]) -> list[str]:
    text = f"{SAME} --data_dir {folder} --batch_size {sizes['batch']} --seed {args.seed} {WAYS[way]}"
    if "--method hcsc" in text:
        text += f" {HCSC}"
    elif "mocov2plus" in text:
        text += " --queue_size {queue}"
    return text.format(**sizes).split()


def main() -> None:
    args = measure.parser(__doc__, repeats=9).parse_args()
    sizes = sizes_of(args)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, sizes["images"], args.seed)
        rows = [row for number in args.threads for row in timed(folder, number, args, sizes)]
    measure.show(
        ["threads", "method", "seconds per epoch", "x one-sided MoCo"],
        [(r["threads"], r["way"], r["median_seconds"], r["ratio"]) for r in rows],
    )
    measure.write("epoch", args, rows, sizes=sizes)


def timed(folder: Path, number: int, args: Namespace, sizes: dict[str, Any]) -> list[dict[str, Any]]:
    with measure.threads(number):
        runs = {way: Pretraining(flags_of(way, folder, args, sizes)) for way in WAYS}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for repeat in range(UNTIMED + args.repeats):
            for way, run in runs.items():
                seconds[way].append(run.epoch())
            rounds = f"{repeat + 1}/{UNTIMED + args.repeats}"
            print(f"{number} threads, round {rounds}: {sum(s[-1] for s in seconds.values()):.0f} s", flush=True)
    counted = {way: taken[UNTIMED:] for way, taken in seconds.items()}
    return [measure.row(way, taken, counted["one-sided MoCo"], threads=number) for way, taken in counted.items()]


if __name__ == "__main__":
    main()
