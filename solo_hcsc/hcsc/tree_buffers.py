"""The tree in use, in buffers of fixed size, so that a checkpoint of any epoch loads strictly."""

from typing import Any, NamedTuple

import torch
from torch import nn

from solo_hcsc.hcsc.hierarchy import Hierarchy, Level
from solo_hcsc.hcsc.selection import similarity

COLUMNS = ("prototypes", "temperatures", "parents", "sizes")


class LevelInUse(NamedTuple):
    """A level's tensors as a step needs them."""

    prototypes: torch.Tensor  # (M_l, D)
    temperatures: torch.Tensor  # (M_l,)
    parents: torch.Tensor  # (M_l,); zeros at the top


class TreeBuffers(nn.Module):
    """A level's arrays are padded to the number of prototypes asked for, and `kept` says how many there are.

    Args:
        num_prototypes: M_l asked for, the bottom first.
        dim: D.
        images: how many images' clusters are kept, all N or 0.
    """

    assignments: torch.Tensor  # (N or 0, L) each image's cluster; -1 if it was not clustered

    def __init__(self, num_prototypes: tuple[int, ...], dim: int, images: int) -> None:
        super().__init__()
        self.kept: tuple[int, ...] = ()  # prototypes per level; empty before the first clustering
        self.highest: tuple[int, ...] = ()  # the highest cluster number that an image has, per level
        self.epoch = -1  # the one before which the tree was made
        # Per level: dropped, objective. Not the seconds: checkpoints of equal runs are equal to the bit.
        self._statistics: list[tuple[int, float]] = []
        self._parent_chances: dict[int, torch.Tensor] = {}  # these two are constant until the next clustering
        self._keep_chances: dict[int, torch.Tensor] = {}
        self.num_prototypes = num_prototypes
        self.register_buffer("assignments", torch.full((images, len(num_prototypes)), -1))
        for level, count in enumerate(num_prototypes):
            self.register_buffer(f"prototypes_{level}", torch.zeros(count, dim))
            self.register_buffer(f"temperatures_{level}", torch.ones(count))
            self.register_buffer(f"parents_{level}", torch.zeros(count, dtype=torch.long))
            self.register_buffer(f"sizes_{level}", torch.zeros(count, dtype=torch.long))

    def install(self, hierarchy: Hierarchy, epoch: int) -> None:
        """Put a tree to use."""
        counts = tuple(len(level.prototypes) for level in hierarchy.levels)
        wanted = self.num_prototypes
        if len(counts) != len(wanted) or any(count > most for count, most in zip(counts, wanted, strict=True)):
            given, most = (" ".join(map(str, numbers)) for numbers in (counts, wanted))
            raise ValueError(f"a tree of {given} prototypes does not fit `num_prototypes` {most}")
        for number, level in enumerate(hierarchy.levels):
            for name in COLUMNS:
                values = getattr(level, name)
                if values is not None:
                    self._padded(name, number)[: len(values)] = values
        assignments = hierarchy.assignments
        if assignments is None:  # images are then given the nearest prototype
            self.assignments.fill_(-1)
            self.highest = tuple(count - 1 for count in counts)
        else:
            if self.assignments.numel():
                self.assignments.copy_(assignments)
            self.highest = tuple(assignments.max(dim=0).values.tolist())
        self.kept, self.epoch = counts, epoch
        self._statistics = [(level.dropped, level.objective) for level in hierarchy.levels]
        self._forget_chances()

    def level(self, number: int) -> LevelInUse:
        return LevelInUse(*(self._column(name, number) for name in LevelInUse._fields))

    @property
    def hierarchy(self) -> Hierarchy | None:
        """Return the tree in use, copied to the CPU; None before the first clustering."""
        if not self.kept:
            return None
        levels = []
        for number, statistics in enumerate(self._statistics):
            prototypes, temperatures, parents, sizes = (self._column(name, number).cpu().clone() for name in COLUMNS)
            above = parents if number + 1 < len(self.kept) else None
            levels.append(Level(prototypes, temperatures, above, sizes, *statistics))
        return Hierarchy(tuple(levels), self.assignments.cpu().clone() if self.assignments.numel() else None)

    def parent_chances(self, number: int) -> torch.Tensor:
        """Compute Eq. 7: each prototype's chances (M_l, M_l+1) to belong to those above, added up along a row."""
        if number not in self._parent_chances:
            self._parent_chances[number] = self._belongs(number).cumsum(dim=1)
        return self._parent_chances[number]

    def keep_chances(self, number: int) -> torch.Tensor:
        """Compute Eq. 7 for queries of every parent: the probabilities (M_l+1, M_l) to keep each prototype."""
        if number not in self._keep_chances:
            self._keep_chances[number] = self._belongs(number).T.contiguous().neg_().add_(1)
        return self._keep_chances[number]

    def _belongs(self, number: int) -> torch.Tensor:
        upper = self.level(number + 1)
        return similarity(self.level(number).prototypes, upper.prototypes, upper.temperatures).softmax(dim=1)

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides the buffers."""
        return {
            "kept": list(self.kept),
            "highest": list(self.highest),
            "epoch": self.epoch,
            "statistics": [list(level) for level in self._statistics],
        }

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Take over what `facts` gave; `ValueError` where it does not fit the buffers, of a file that was changed."""
        kept, highest, epoch = tuple(facts["kept"]), tuple(facts["highest"]), facts["epoch"]
        statistics = [(int(dropped), float(objective)) for dropped, objective in facts["statistics"]]
        if not {*map(type, (*kept, *highest, epoch))} <= {int}:
            raise ValueError("its tree's kept, highest and epoch are not whole numbers")
        levels = len(self.num_prototypes) if kept else 0
        if not len(kept) == len(highest) == len(statistics) == levels or not all(
            -1 <= last < most and 0 < count <= most
            for last, count, most in zip(highest, kept, self.num_prototypes, strict=False)
        ):
            raise ValueError(f"its tree has {kept} clusters, where {self.num_prototypes} is the most that it may have")
        self.kept, self.highest, self.epoch, self._statistics = kept, highest, epoch, statistics
        self._forget_chances()

    def _forget_chances(self) -> None:
        self._parent_chances.clear()
        self._keep_chances.clear()

    def _column(self, name: str, number: int) -> torch.Tensor:
        return self._padded(name, number)[: self.kept[number]]

    def _padded(self, name: str, number: int) -> torch.Tensor:
        return self.get_buffer(f"{name}_{number}")
