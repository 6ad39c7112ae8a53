"""Signs that a run has gone wrong though it goes on: what is wrong, and what to do.

Texts name arguments in backticks, as errors do.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.hcsc.measures import rankme, uniformity
from solo_hcsc.hcsc.options import Options

DUPLICATE = 0.9999  # the cosine from which two prototypes are one
LOW_RANK = 0.1  # RankMe of collapsed features, as a share of what it could be
CLOSE = -0.5  # their uniformity
LOOKED_AT = 1000  # prototypes that are compared with all others


class Sign(NamedTuple):
    """That something has gone wrong."""

    short: str  # for a table
    text: str  # what was seen and what to do


class Health:
    """Remembers which signs stand, so that each is news when it appears, and again only after it was gone.

    Example:
        >>> health, ill = Health(), Sign("ill", "it is ill")
        >>> [health.news(epoch, "tree", signs) for epoch, signs in enumerate([{"a": ill}, {"a": ill}, {}])]
        [['epoch 1: it is ill'], [], ['epoch 3: no longer: ill']]
    """

    def __init__(self) -> None:
        self._standing: dict[str, dict[str, Sign]] = {}

    def news(self, epoch: int, about: str, signs: Mapping[str, Sign]) -> list[str]:
        """Take note of all `signs` about something, and return a line for each that is new or gone.

        Args:
            epoch: when they were seen; the first is 0.
            about: what they are of; the signs of one thing do not end those of another.
            signs: by name, as `of_tree` and `of_epoch` give them.

        Returns:
            Lines to show to the user, in which epochs and levels count from 1.
        """
        standing, self._standing[about] = self._standing.get(about, {}), dict(signs)
        new = [f"epoch {epoch + 1}: {sign.text}" for name, sign in signs.items() if name not in standing]
        gone = [f"epoch {epoch + 1}: no longer: {sign.short}" for name, sign in standing.items() if name not in signs]
        return [*new, *gone]

    def as_dict(self) -> dict[str, dict[str, str]]:
        """Return what stands, in short, as a checkpoint keeps it."""
        return {about: {name: sign.short for name, sign in signs.items()} for about, signs in self._standing.items()}

    @classmethod
    def from_dict(cls, content: Any) -> "Health":
        """Restore what `as_dict` gave; of anything else, nothing stands.

        Example:
            >>> health = Health()
            >>> _ = health.news(0, "tree", {"a": Sign("ill", "it is ill")})
            >>> Health.from_dict(health.as_dict()).standing, Health.from_dict(None).standing
            ([Sign(short='ill', text='ill')], [])
        """
        health = cls()
        if isinstance(content, dict):
            for about, signs in content.items():
                known = signs.items() if isinstance(signs, dict) else ()
                health._standing[about] = {name: Sign(str(short), str(short)) for name, short in known}
        return health

    @property
    def standing(self) -> list[Sign]:
        """Return the signs that were seen when each thing was last looked at.

        Example:
            >>> health = Health()
            >>> _ = health.news(0, "tree", {"a": Sign("ill", "it is ill")})
            >>> [sign.short for sign in health.standing]
            ['ill']
        """
        return [sign for signs in self._standing.values() for sign in signs.values()]


def of_tree(hierarchy: Hierarchy, options: Options) -> dict[str, Sign]:
    """Return the signs of a new tree that its sizes alone show, by name.

    Example:
        >>> from solo_hcsc.hcsc.hierarchy import build_hierarchy
        >>> options = Options(num_prototypes=(9, 2), min_cluster_size=0)
        >>> list(of_tree(build_hierarchy(torch.eye(10), options), options))
        ['members 1']
    """
    signs = {}
    members = int(hierarchy.sizes(0).sum())
    for number, level in enumerate(hierarchy.levels, start=1):
        clusters = len(level.prototypes)
        if clusters > 0.8 * members:
            what = "prototypes" if number > 1 else "images"
            signs[f"members {number}"] = Sign(
                f"most clusters of level {number} have one member",
                f"level {number} has {clusters} clusters for {members} {what}, and most clusters have one member; "
                "ask for fewer `num_prototypes` there",
            )
        members = clusters
    return signs


def collapse_in_tree(hierarchy: Hierarchy, options: Options) -> dict[str, Sign]:
    """Return the signs of collapse in a tree, by name.

    Unbalanced images, and embeddings that have only begun to spread, make such a tree too: ask `collapse_of` as well.

    Example:
        >>> from solo_hcsc.hcsc.hierarchy import build_hierarchy
        >>> options = Options(num_prototypes=(4, 2), min_cluster_size=0)
        >>> list(collapse_in_tree(build_hierarchy(torch.eye(8)[:2].repeat(50, 1), options), options))
        ['duplicates 1']
    """
    signs = {}
    for number, (level, wanted) in enumerate(zip(hierarchy.levels, options.num_prototypes, strict=True), start=1):
        same = duplicates(level.prototypes)
        if same > 0.1:
            signs[f"duplicates {number}"] = Sign(
                f"collapsed: prototypes of level {number} equal each other",
                f"{same:.0%} of the prototypes of level {number} equal another one; the embeddings have collapsed. "
                "Start later (`proto_warmup_epochs`), lower `lr`, or ask for fewer `num_prototypes`",
            )
        largest = float(level.sizes.max() / level.sizes.sum())
        if largest > max(0.5, 2 / wanted):  # of two clusters one has half in any case
            signs[f"largest {number}"] = Sign(
                f"collapsed: one cluster of level {number} holds {largest:.0%} of the images",
                f"one of {len(level.prototypes)} clusters of level {number} holds {largest:.0%} of the images; the "
                "embeddings have collapsed. Start later (`proto_warmup_epochs`), lower `lr` or `proto_weight`",
            )
    return signs


def collapse_of(features: torch.Tensor) -> str | None:
    """Say how far the encoder's features (n, D) of n images have collapsed; None if they have not.

    They have collapsed if they fill hardly any directions and all lie close to one. The projector's embeddings are no
    evidence: in the first steps they come close together in runs that end well.

    Example:
        >>> collapse_of(torch.eye(64)), collapse_of(torch.ones(64, 64))
        (None, 'the features of 64 images have rank 1 and uniformity 0.00')
    """
    if len(features) < 2:
        return None
    if not features.any():
        return f"the features of {len(features)} images are all 0"
    rank, even = rankme(features), uniformity(features)
    if rank > LOW_RANK * min(features.shape) or even < CLOSE:
        return None
    return f"the features of {len(features)} images have rank {rank:.0f} and uniformity {even + 0.0:.2f}"


def duplicates(prototypes: torch.Tensor) -> float:
    """Return the share of prototypes (M, D) that equal another one."""
    count = len(prototypes)
    some = torch.arange(0, count, -(-count // LOOKED_AT), device=prototypes.device)
    cosine = prototypes[some] @ prototypes.T
    cosine[torch.arange(len(some)), some] = -1
    return float((cosine.max(dim=1).values > DUPLICATE).float().mean())


def of_epoch(means: Mapping[str, torch.Tensor], options: Options, epoch: int) -> dict[str, Sign]:
    """Look for signs of an epoch, by name, in the means of its `Coded.parts`.

    Example:
        >>> list(of_epoch({"left_out_0": torch.tensor(0.9)}, Options(), epoch=0))
        ['all left out 1']
    """
    signs = {}
    for level, clusters in enumerate(options.num_prototypes, start=1):
        share = float(means.get(f"left_out_{level - 1}", math.nan))
        if share > max(0.5, 1.5 / clusters):  # of two equal clusters half is left out
            signs[f"all left out {level}"] = Sign(
                f"level {level} leaves out most negatives",
                f"level {level} leaves out {share:.0%} of the negatives, which leaves little to learn from. Start "
                "later (`proto_warmup_epochs`), lower `proto_weight`, or ask for more prototypes",
            )
        if share < 0.1 / clusters:
            signs[f"none left out {level}"] = Sign(
                f"level {level} leaves out hardly any negative",
                f"level {level} leaves out {share:.2%} of the negatives, where {1 / clusters:.2%} would be chance; the "
                "queue is far from the queries. Lower `queue_size`, or the momentum (`base_tau_momentum`)",
            )
        loss = float(means.get(f"instance_loss_{level - 1}", math.nan))
        counted = options.left_out == "removed" and not math.isnan(share)
        chance = math.log(1 + options.negatives * (1 - share if counted else 1))
        if epoch > 0 and chance > 0 and loss > 0.99 * chance:  # in the first epoch nothing has been learnt yet
            signs["chance"] = Sign(
                "nothing is learnt: the loss is that of guessing",
                f"the instance loss is {loss:.2f}, and guessing gives {chance:.2f}; nothing is learnt. Lower `lr`, "
                "add `warmup_epochs`, or look at the images and augmentations",
            )
    return signs
