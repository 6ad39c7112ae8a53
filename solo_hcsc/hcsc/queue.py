"""What is kept of keys: a queue of the newest, as negatives, and averages of each image's, to cluster.

Shapes: `Q` queue length, `D` embedding size, `L` levels, `N` images.
"""

import torch
import torch.nn.functional as F
from torch import nn

NEWEST = 0.5  # the share of an epoch's keys in the averages that are clustered


class Queue(nn.Module):
    """A ring of the newest keys; it starts with random ones.

    Args:
        size: Q.
        dim: D.
        levels: L, for the clusters that entries draw.
        seed: of the random start.
        partitions: whether `partitions` are kept, which probabilities that are clamped need.
        images: whether `images` are kept, which clusters that are not drawn need.

    Example:
        >>> queue = Queue(size=4, dim=2, levels=1, seed=0)
        >>> queue.enqueue(torch.eye(2), labels=torch.tensor([5, 6]), step=0).tolist()
        [0, 1]
        >>> queue.labels.tolist()
        [5, 6, -1, -1]
    """

    keys: torch.Tensor  # (Q, D)
    pointer: torch.Tensor  # () where the next key goes
    labels: torch.Tensor  # (Q,) -1 where unknown
    steps: torch.Tensor  # (Q,) the step at which an entry came in; -1 for the random ones of the start
    clusters: torch.Tensor  # (L, Q) each entry's drawn cluster; -1 before the first clustering
    partitions: torch.Tensor | None  # (L, Q) the logarithms of Eq. 4's denominators for each entry
    images: torch.Tensor | None  # (Q,) the indexes of the entries' images; -1 for the random ones of the start

    def __init__(
        self, size: int, dim: int, levels: int, seed: int, partitions: bool = False, images: bool = False
    ) -> None:
        super().__init__()
        start = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("keys", F.normalize(start, dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("steps", torch.full((size,), -1))
        self.register_buffer("clusters", torch.full((levels, size), -1))
        self.register_buffer("partitions", torch.zeros(levels, size) if partitions else None)
        self.register_buffer("images", torch.full((size,), -1) if images else None)

    @torch.no_grad()
    def enqueue(
        self, keys: torch.Tensor, labels: torch.Tensor, step: int, images: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Replace the oldest entries.

        Args:
            keys: (n, D).
            labels: (n,), -1 where unknown.
            step: the number of this step.
            images: (n,) their images' indexes, where these are kept.

        Returns:
            The places (n,) of the keys; of more than the queue holds, those of the last ones, (Q,).
        """
        size = len(self.keys)
        places = (self.pointer + torch.arange(len(keys), device=self.pointer.device))[-size:] % size
        self.pointer.copy_((self.pointer + len(keys)) % size)
        self.keys[places] = keys[-size:].to(self.keys.dtype)
        self.labels[places] = labels[-size:]
        self.steps[places] = step
        if self.images is not None and images is not None:
            self.images[places] = images[-size:]
        return places

    def age(self, step: int) -> torch.Tensor:
        """Return the mean number of steps since the entries came in, (), without the random ones of the start."""
        return mean_age(self.steps, step)


def mean_age(steps: torch.Tensor, step: int) -> torch.Tensor:
    """Return the mean () of what has passed by `step` since `steps` (Q,), negative ones aside."""
    real = steps >= 0
    return ((step - steps) * real).sum() / real.sum().clamp(min=1)


class KeyMemory(nn.Module):
    """Averages of images' keys.

    A key shows one crop in one light; an average over epochs clusters almost as a pass over centre crops would.

    Args:
        size: S, how many images have an average: those at equal distances in the data set.
        dim: D.
        num_images: N.

    Example:
        >>> memory = KeyMemory(size=3, dim=2, num_images=3)
        >>> memory.remember(torch.eye(2), index=torch.tensor([2, 0]))
        >>> averages, images = memory.remembered()
        >>> averages.tolist(), images.tolist()
        ([[0.0, 1.0], [1.0, 0.0]], [0, 2])
    """

    averages: torch.Tensor  # (S + 1, D), 0 before an image's first; the last row is of images without one

    def __init__(self, size: int, dim: int, num_images: int) -> None:
        super().__init__()
        self.size, self.num_images = size, num_images
        self.register_buffer("averages", torch.zeros(size + 1 if size else 0, dim))

    @torch.no_grad()
    def remember(self, keys: torch.Tensor, index: torch.Tensor) -> None:
        """Move the averages of images towards new keys.

        Args:
            keys: (n, D).
            index: (n,) the indexes of their images.
        """
        if not self.size:
            return
        rows = -(-index * self.size // self.num_images)
        rows = torch.where(rows * self.num_images // self.size == index, rows, self.size)
        self.averages[rows] = self.averages[rows].lerp(keys.to(self.averages.dtype), NEWEST)

    def remembered_rows(self) -> torch.Tensor:
        """Return the rows (n,) of `averages` that have one."""
        return self.averages[:-1].any(dim=1).nonzero()[:, 0]

    def remembered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the averages (n, D), as unit vectors, and the indexes (n,) of their images."""
        rows = self.remembered_rows()
        averages = self.averages[rows]
        F.normalize(averages, dim=1, out=averages)
        return averages, rows * self.num_images // max(1, self.size)
