"""Tiny data, and runs of the entry points on it."""

import ctypes
import gc
import resource
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from solo_hcsc.__main__ import main
from solo_hcsc.progress import Reporter, listen
from solo_hcsc.study.job import Job

ROOT = Path(__file__).parent.parent
SMALL = ["--crop_size", "32", "--batch_size", "8", "--num_workers", "0", "--accelerator", "cpu", "--lr", "0.03"]


def make_images(folder: Path, classes: int, per_class: int, seed: int = 0) -> Path:
    """A folder of random pictures, one colour per class."""
    random = np.random.default_rng(seed)
    for label in range(classes):
        target = folder / f"class {label}"
        target.mkdir(parents=True)
        for index in range(per_class):
            pixels = random.integers(0, 100, (40, 36, 3)) + 150 * (np.arange(3) == label % 3)
            Image.fromarray(pixels.astype("uint8")).save(target / f"{index}.png")
    return folder


def where(root: Path, train: str = "train") -> list[str]:
    """The flags of a run on a folder of images that writes beside them."""
    return [
        "--dataset",
        "custom",
        "--data_dir",
        str(root),
        "--train_dir",
        train,
        "--checkpoint_dir",
        str(root / "runs"),
    ]


def run(command: str, *flags: object, cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user does, in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-m", "solo_hcsc", command, *map(str, flags)], cwd=cwd, capture_output=True, text=True
    )
    assert result.returncode == expect, result.stdout + result.stderr
    return result


def run_here(command: str, *flags: object) -> None:
    """Runs a command in this process, which spares the seconds of imports."""
    try:
        with mock.patch.object(sys, "argv", ["solo-hcsc", command, *map(str, flags)]):
            main()
    finally:
        listen(Reporter())  # else what the library tells in the next test would be printed
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown()  # else the next command in this process writes where this one did
        give_memory_back()


def call_here(job: Job) -> None:
    """Does a study's job in this process."""
    try:
        job.call()
    finally:
        give_memory_back()


def give_memory_back() -> None:
    """A Trainer and its model refer to each other, and what they leave stays with the process unless it is told."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def resident() -> float:
    """Bytes that this process has in memory now."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0.0


def only(folder: Path, pattern: str) -> Path:
    """The one file below `folder` that matches."""
    found = list(folder.rglob(pattern))
    assert len(found) == 1, found
    return found[0]
