"""Kills a run at random moments, again and again, and looks at what is left: kill -9, then --auto_resume.

After every kill the furthest checkpoint must be whole and have every epoch that the run had reported, and metrics.csv
beside it a row of every epoch that the checkpoint has finished. A run that comes to its end is compared bit for bit
with one that nobody killed, and the next one begins; the last is left alone.
"""

import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import measure
from solo_hcsc.__main__ import main as solo_hcsc
from solo_hcsc.data.digits import lay_out_digits
from solo_hcsc.encoders.checkpoints import finished_epochs, steps_and_time
from solo_hcsc.runs.results import read_metrics

FLAGS = (
    "--method hcsc --encoder vit_tiny --patch_size 8 --dataset digits --data_fraction 0.02 --crop_size 32"
    " --batch_size 8 --num_workers 0 --lr 0.03 --accelerator cpu --num_prototypes 4 2 --min_cluster_size 2"
    " --queue_size 64 --proto_warmup_epochs 1 --limit_val_batches 0 --auto_resume"
)


def main() -> None:
    parser = measure.parser(__doc__, repeats=1)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10, help="of the run")
    parser.add_argument("--every_n_steps", type=int, default=2, help="steps between checkpoints within an epoch")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a fork inherits no threads
    with tempfile.TemporaryDirectory() as folder:
        result = study(Path(folder), args.kills, args.epochs, args.every_n_steps, args.seed)
    measure.show(list(result), [list(result.values())])
    measure.write("kills", args, [result])


def study(folder: Path, kills: int, epochs: int, every: int, seed: int) -> dict[str, object]:
    draw = random.Random(seed)
    flags = [*FLAGS.split(), "--data_dir", str(folder), "--max_epochs", str(epochs)]
    flags += ["--checkpoint_every_n_steps", str(every)]
    lay_out_digits(folder)
    log = folder / "log"
    started = time.monotonic()
    wait(start([*flags, "--checkpoint_dir", str(folder / "whole")], log))
    alone = time.monotonic() - started
    whole = newest(folder / "whole")
    log.unlink()

    made = survived = writing = lost = rounds = identical = whole_files = 0
    parts: set[Path] = set()  # what earlier kills left unfinished
    runs = folder / "round 0"
    while made < kills or rounds == 0 or newest(runs) is not None:
        process = start([*flags, "--checkpoint_dir", str(runs)], log)
        if made < kills:
            time.sleep(draw.uniform(0, 3 * alone / epochs + 1))
            os.kill(process, signal.SIGKILL)
        if wait(process) == 0:
            identical += same(whole, newest(runs))
            whole_files += epochs_with_rows(newest(runs)) == list(range(epochs))
            rounds += 1
            runs = folder / f"round {rounds}"
        else:
            made += 1
            reported = max(map(int, re.findall(r"^epoch (\d+)/", log.read_text(), re.M)), default=0)
            left = newest(runs)
            writing += len(set(runs.rglob("*.part")) - parts) > 0
            parts.update(runs.rglob("*.part"))
            has = (finished_epochs(torch.load(left, weights_only=True)) if left else None) or 0
            survived += has >= reported and epochs_with_rows(left)[:has] == list(range(has))
            lost += max(0, reported - has)
        log.unlink()
    return {
        "kills made": made,
        "kills survived": survived,
        "of them while writing": writing,
        "finished epochs lost": lost,
        "runs that came to their end": rounds,
        "of them bit-identical": identical,
        "of them with all rows": whole_files,
    }


def start(flags: list[str], log: Path) -> int:
    """A process of its own that trains; a fork, which spares the imports."""
    process = os.fork()
    if process:
        return process
    with log.open("a") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        code = 1
        try:
            with mock.patch.object(sys, "argv", ["solo-hcsc", "pretrain", *flags]):
                solo_hcsc()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    raise AssertionError


def wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def newest(folder: Path) -> Path | None:
    return max(folder.rglob("*.ckpt"), key=steps_and_time, default=None)


def epochs_with_rows(checkpoint: Path | None) -> list[int]:
    """The epochs of which metrics.csv beside a checkpoint has the row that ends them."""
    if checkpoint is None or not checkpoint.with_name("metrics.csv").exists():  # nothing was logged yet
        return []
    found = read_metrics(checkpoint.with_name("metrics.csv"), lambda name: name == "epoch_seconds")
    return sorted(found.get("epoch_seconds", {}))


def same(one: Path | None, other: Path | None) -> bool:
    """Whether two checkpoints have the same weights, momenta, queue and tree to the bit."""
    states = [torch.load(path, weights_only=True) if path else {} for path in (one, other)]
    parts = [(state["state_dict"], state["optimizer_states"], state["lr_schedulers"]) for state in states]
    return differences(*parts) == []


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two checkpoints differ in any bit."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [where]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{where}: {one.keys() ^ other.keys()}"]
        return [found for key in one for found in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, (list, tuple)):
        pairs = zip(one, other, strict=True)
        return [found for i, (a, b) in enumerate(pairs) for found in differences(a, b, f"{where}/{i}")]
    return [] if one == other else [f"{where}: {one} {other}"]


if __name__ == "__main__":
    main()
