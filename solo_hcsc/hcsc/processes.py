"""Which of several processes this is, and how it gets the others' rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


def _only_ours(values: torch.Tensor) -> torch.Tensor:
    return values


@dataclass(frozen=True)
class Processes:
    """The processes that train together, each on its part of a batch; one, if nothing is given.

    Args:
        rank: the number of this process.
        count: how many there are.
        gather: gives the rows (count * B, ...) of all, one process after the other, for those (B, ...) of this one.

    Example:
        >>> both = Processes(rank=1, count=2, gather=lambda ours: torch.tensor([0, 2, 1, 3]))
        >>> rows = both.rows_of_all(torch.tensor([1, 3]))
        >>> rows.tolist(), both.rows_of_this(rows).tolist()
        ([0, 1, 2, 3], [1, 3])
    """

    rank: int = 0
    count: int = 1
    gather: Callable[[torch.Tensor], torch.Tensor] = _only_ours

    def rows_of_all(self, values: torch.Tensor) -> torch.Tensor:
        """Gather all processes' rows (count * B, ...), in the order that one process with the whole batch has."""
        return self.gather(values).unflatten(0, (self.count, -1)).transpose(0, 1).flatten(0, 1)

    def rows_of_this(self, values: torch.Tensor) -> torch.Tensor:
        """Return this process's rows (B, ...) of those of all."""
        return values[self.rank :: self.count]
