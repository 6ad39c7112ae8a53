"""Loaders whose batches can be repeated: they follow from the seed and the epoch, not from what came before.

An image's crops depend on the seed, the epoch and the image. A resumed run therefore needs no generator's state, and
the number of workers changes nothing.
"""

import os
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from solo_hcsc.data.images import OrSkipped, Skipped
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.interrupts import deferred
from solo_hcsc.trees.balancing import draw


def derive_seed(*place: int) -> int:
    """Return one 64-bit seed for a tuple of numbers."""
    return random.Random(" ".join(map(str, place))).getrandbits(63)


def seed_host(*place: int) -> None:
    """Seed what augmentations draw from: Python, NumPy and torch on the CPU."""
    seed = derive_seed(*place)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


# An epoch, an index and, from its second time in the epoch on, how often the image has been before; the index alone, as
# Lightning's own samplers have it, is epoch 0's.
Place = tuple[int, ...] | int


def split_place(place: Place) -> tuple[int, ...]:
    return place if isinstance(place, tuple) else (0, place)


class RepeatableImages(Dataset):
    """A data set of which item `(epoch, index)` is the image as that epoch sees it."""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitem__(self, place: Place) -> Any:
        epoch, index, *times = split_place(place)
        seed_host(self.seed, epoch, index, *times)
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


def epoch_order(images: int, seed: int, epoch: int, rank: int, processes: int) -> torch.Tensor:
    """Return a process's indexes in an epoch: process r of P has r, r + P, ... of the epoch's own order.

    So the processes' batches together are the one batch that a single process of the same total size would take. What
    does not divide is left out.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(images, generator=generator)
    return order[rank::processes][: images // processes].contiguous()  # of several processes no one keeps it whole


class EpochSampler(DistributedSampler):
    """Every epoch's own order, of which each process takes its share."""

    def __init__(self, dataset: Dataset, seed: int, shards: bool) -> None:
        super().__init__(dataset, num_replicas=1, rank=0, seed=seed)  # a torch sampler, or Lightning replaces it
        self.shards = shards
        self._skipped = 0

    def skip(self, images: int) -> None:
        """Leave out so many at the start, which have been trained on."""
        self._skipped = images

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        images = len(self.dataset)  # type: ignore[arg-type]
        order = epoch_order(images, self.seed, self.epoch, *self._place())[self._skipped :]
        return ((self.epoch, int(index)) for index in order.numpy())  # a tensor would make one of each at once

    def __len__(self) -> int:
        return len(self.dataset) // self._place()[1]  # type: ignore[arg-type]

    def _place(self) -> tuple[int, int]:
        return place_among_processes() if self.shards else (0, 1)


@dataclass(frozen=True)
class Shares:
    """How often each image is drawn in an epoch.

    Args:
        weights: (N,) float32 of sum N, as `balanced_weights` gives them.
        clusters: (N,) int32 numbers by which images that belong together are side by side, as `bottom_nodes` does.
    """

    weights: torch.Tensor
    clusters: torch.Tensor


class BalancedSampler(EpochSampler):
    """As many images in every epoch as there are, drawn by their shares; each process takes its own of them.

    The order follows from the seed, the epoch and the shares. While there are none, it is that of `EpochSampler`.
    """

    shares: Shares | None = None

    def balance(self, shares: Shares | None) -> None:
        """Draw by these shares from the next epoch on."""
        self.shares = shares

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        if self.shares is None:
            return super().__iter__()
        rank, processes = self._place()
        generator = np.random.default_rng(derive_seed(self.seed, self.epoch))
        order = draw(self.shares.weights.double().numpy(), self.shares.clusters.numpy(), generator)
        times = occurrences(order)
        own = slice(rank, len(order) // processes * processes, processes)
        drawn = zip(order[own][self._skipped :], times[own][self._skipped :], strict=True)
        # Another view of the image each time.
        return ((self.epoch, int(index), *([int(time)] if time else [])) for index, time in drawn)


def occurrences(order: np.ndarray) -> np.ndarray:
    """Return for each of some numbers how often it has been before.

    Example:
        >>> occurrences(np.array([5, 3, 5, 5, 3])).tolist()
        [0, 0, 1, 2, 1]
    """
    by_number = np.argsort(order, kind="stable")
    ordered = order[by_number]
    starts = np.searchsorted(ordered, ordered)
    found = np.empty(len(order), dtype=np.int64)
    found[by_number] = np.arange(len(order)) - starts
    return found


class EachOnce(DistributedSampler):
    """Every image once, process r of P taking r, r + P, ...; torch's own sampler repeats some to make shares equal."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, num_replicas=1, rank=0)  # a torch sampler, or Lightning replaces it

    def __iter__(self) -> Iterator[int]:
        rank, processes = place_among_processes()
        return iter(range(rank, len(self.dataset), processes))  # type: ignore[arg-type]

    def __len__(self) -> int:
        rank, processes = place_among_processes()
        return len(range(rank, len(self.dataset), processes))  # type: ignore[arg-type]


def place_among_processes() -> tuple[int, int]:
    """Return this process's rank and how many there are; they know of each other only in training."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Loader(DataLoader):
    """torch's loader, of which Ctrl-C breaks no worker that is just being started."""

    def __iter__(self) -> Any:
        with deferred():
            return super().__iter__()


class Resumable(ABC):
    """A loader that Lightning restores within an epoch: it goes on with the batches that were left.

    How many were done the trainer knows better than a loader that reads ahead: `training.saving` fills it in.
    """

    _done = 0
    waited = 0.0  # seconds that asking for the next batch took, of all epochs

    @abstractmethod
    def batches(self, skipped: int) -> Iterator[Any]:
        """Yield the epoch's batches after the first `skipped`."""

    def __iter__(self) -> Iterator[Any]:
        skipped, self._done = self._done, 0
        asked = time.monotonic()
        for batch in self.batches(skipped):
            self.waited += time.monotonic() - asked
            yield batch
            asked = time.monotonic()

    def state_dict(self) -> dict[str, int]:
        return {"done": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._done = state["done"]


class ResumableLoader(Resumable, Loader):  # type: ignore[misc]
    """torch's loader over an EpochSampler."""

    def batches(self, skipped: int) -> Iterator[Any]:
        if isinstance(self.sampler, EpochSampler):  # --overfit_batches puts another one there
            self.sampler.skip(skipped * (self.batch_size or 1))
        return Loader.__iter__(self)


def _collate_readable(items: list[Any]) -> tuple[Any, list[Skipped]]:
    """Return a batch of the readable items, or None where there are none, and the others."""
    there = [item for item in items if not isinstance(item, Skipped)]
    return default_collate(there) if there else None, [item for item in items if isinstance(item, Skipped)]


def leave_signals_to_parent(_: int) -> None:
    """Ignore Ctrl-C and SIGTERM in a loader's worker: they reach all processes, and only the main one has a say.

    A worker that ended by itself would make torch raise an error in the midst of what the main process does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # else, on macOS, nothing tells who has sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_wait_for_parents_word, daemon=True).start()


def _wait_for_parents_word() -> None:
    """End this process when its parent terminates it; pass over SIGTERM from elsewhere."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


@dataclass(frozen=True)
class Loading:
    """How images are read."""

    batch_size: int
    num_workers: int
    skip_unreadable: bool = False  # go on without an image that cannot be read, which else ends the command

    def repeatable(
        self, dataset: Dataset, seed: int, shards: bool, collate: Callable | None = None, balanced: bool = False
    ) -> ResumableLoader:
        """Load shuffled full batches, the same in every run of this seed; `balanced`: by a `BalancedSampler`."""
        images = RepeatableImages(dataset, seed)
        sampler = (BalancedSampler if balanced else EpochSampler)(images, seed, shards)
        return ResumableLoader(images, sampler=sampler, drop_last=True, collate_fn=collate, **self._shared)

    def in_order(self, dataset: Dataset) -> DataLoader:
        """Load every image once."""
        return Loader(dataset, **self._shared)

    def readable(self, dataset: Dataset, skipped: list[Skipped], needs_one: bool = True) -> Iterable[Any]:
        """Load every image once, in order; with `skip_unreadable`, add those that cannot be read to `skipped`.

        `needs_one`: refuse images of which none can be read.
        """
        return self._readable(dataset, skipped, needs_one) if self.skip_unreadable else self.in_order(dataset)

    def _readable(self, dataset: Dataset, skipped: list[Skipped], needs_one: bool) -> Iterator[Any]:
        before = len(skipped)
        for batch, unreadable in Loader(OrSkipped(dataset), collate_fn=_collate_readable, **self._shared):
            skipped += unreadable
            if batch is not None:
                yield batch
        if needs_one and len(skipped) - before == len(dataset):  # type: ignore[arg-type]
            raise UserError(
                f"none of the {len(skipped) - before} images can be read, such as {on_one_line(skipped[-1].path)}"
            )

    def validation(
        self, dataset: Dataset, processes: int, collate: Callable | None = None, flag: str = "`val_dir`"
    ) -> DataLoader:
        """Load every image once, over all processes together. `flag`: where the images come from."""
        images = len(dataset)  # type: ignore[arg-type]
        if images < processes:
            raise UserError(f"{flag}: {images} images cannot be shared by {processes} processes; use fewer `devices`")
        return Loader(dataset, sampler=EachOnce(dataset), collate_fn=collate, **self._shared)

    @property
    def _shared(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "pin_memory": torch.cuda.is_available(),  # else torch warns
            "worker_init_fn": leave_signals_to_parent,
        }
