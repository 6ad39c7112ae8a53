"""Which negatives a run leaves out for a query (Eq. 4 and 5), counted and shown on images whose classes are known.

Shapes: `n` images, each a query and a candidate for the others; `D` embedding size.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.report import figures
from solo_hcsc.report.figures import Picture
from solo_hcsc.report.gallery import GAP, LINE, SIDE, Thumbnails, place, say, sheet
from solo_hcsc.report.prototypes import Assigned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCK = 1024  # queries at a time
SHOWN = 7  # left-out images of a query and level in the picture
RIGHT, WRONG = figures.COLOURS[2], figures.COLOURS[1]


@dataclass(frozen=True)
class OfLevel:
    """What a level leaves out, over all pairs of a query and a candidate."""

    share: float  # of the candidates
    precision: float  # of the left-out, the share with the query's class
    recall: float  # of those with the query's class, the share left out
    preservation: float  # of those with another class, the share kept


@dataclass(frozen=True)
class LeftOut:
    """What all levels leave out."""

    levels: list[OfLevel]
    chance: float  # share of the candidates that have the query's class: the precision of leaving out anything
    queries: dict[int, list[np.ndarray]]  # of some queries, the candidates left out at each level


def query_clusters(coding: SelectiveCoding, z: torch.Tensor) -> list[torch.Tensor]:
    """c(z) at every level (n,), found as the run finds it."""
    tree = coding.hierarchy
    if tree is None:
        raise ValueError("the run has no tree: it had not clustered yet")
    if coding.options.query_cluster == "assignment":  # the run knows its training images' only; the tree any image's
        return list(tree.assign(z))
    return coding.find_clusters(coding.cosines(z), torch.arange(len(z)))


def find_left_out(coding: SelectiveCoding, embeddings: np.ndarray, labels: np.ndarray, shown: Sequence[int]) -> LeftOut:
    """Takes each of `embeddings` (n, D) for a query and all others for its candidates; selects as the run does.

    `shown`: the queries of which the candidates that are left out are kept.
    """
    z, classes = torch.from_numpy(embeddings), torch.from_numpy(labels)
    clusters = query_clusters(coding, z)
    everyone = torch.arange(len(z))
    left_out, hits = np.zeros(len(clusters)), np.zeros(len(clusters))
    alike = 0
    queries: dict[int, list[np.ndarray]] = {number: [] for number in shown}
    for rows in everyone.split(BLOCK):
        others = rows[:, None] != everyone
        same = (classes[rows, None] == classes) & others
        alike += int(same.sum())
        for level, mask in enumerate(coding.left_out([of_level[rows] for of_level in clusters], z)):
            out = mask & others
            left_out[level] += int(out.sum())
            hits[level] += int((out & same).sum())
            for number in queries:
                if rows[0] <= number <= rows[-1]:
                    queries[number].append(out[number - int(rows[0])].nonzero()[:, 0].numpy())
    pairs = len(z) * (len(z) - 1)
    true = pairs - alike
    levels = [
        OfLevel(out / pairs, hit / max(out, 1), hit / max(alike, 1), (true - (out - hit)) / max(true, 1))
        for out, hit in zip(left_out, hits, strict=True)
    ]
    return LeftOut(levels, alike / pairs, queries)


def choose_queries(labels: np.ndarray, count: int) -> list[int]:
    """The first image of each class (n,), in their order; then the second of each, and so on."""
    seen: dict[int, int] = {}
    turns = []
    for label in labels.tolist():
        turns.append(seen.get(label, 0))
        seen[label] = turns[-1] + 1
    return np.argsort(turns, kind="stable")[:count].tolist()


def draw_negatives(
    found: LeftOut, images: np.ndarray, labels: np.ndarray, names: Sequence[str], thumbnails: Thumbnails
) -> "Figure":
    """Each query on the left; beside it, level by level, what was left out for it. `images` (n,): their indexes."""
    large, row, gap = 0.9, LINE + SIDE + 0.1, 0.22
    left = large + 0.2
    block = max(len(found.levels) * row, LINE + large) + gap
    figure, axes = sheet(left + SHOWN * (SIDE + GAP), len(found.queries) * block - gap)
    y = 0.0
    for query, levels in found.queries.items():
        say(axes, figures.short(names[labels[query]], 14), 0, y)
        place(axes, thumbnails.of(int(images[query])), 0, y + LINE, large)
        for number, candidates in enumerate(levels):
            right = labels[candidates] == labels[query]
            top = y + number * row
            rest = f", {len(candidates) - SHOWN} not shown" if len(candidates) > SHOWN else ""
            text = f"Level {number + 1}: {len(candidates)} left out, {right.sum()} rightly{rest}"
            say(axes, text if len(candidates) else f"Level {number + 1}: none left out", left, top)
            for column, candidate in enumerate(candidates[:SHOWN]):
                frame = RIGHT if right[column] else WRONG
                place(
                    axes, thumbnails.of(int(images[candidate])), left + column * (SIDE + GAP), top + LINE, frame=frame
                )
        y += block
    return figure


# ---- for an analysis: numbers are added to `numbers`, pictures returned ----


def show_negatives(
    coding: SelectiveCoding,
    assigned: Assigned,
    sample: np.ndarray,
    queries: int,
    thumbnails: Thumbnails,
    numbers: dict[str, Any],
) -> list[Picture]:
    """Each image of `sample` (n,) as a query, and `queries` of them in the picture; nothing without selection."""
    if not coding.options.instance_selection:
        print("left-out negatives are not shown: the run was trained without instance selection")
        return []
    print(f"negatives: each of {len(sample)} images as a query, the others as candidates", flush=True)
    labels = assigned.labels[sample]
    found = find_left_out(coding, assigned.embeddings[sample], labels, choose_queries(labels, queries))
    numbers["negatives"] = _numbers_of(found, sample)
    precision, share, recall, preservation = (
        " / ".join(f"{getattr(level, name):.1%}" for level in found.levels)
        for name in ("precision", "share", "recall", "preservation")
    )
    caption = (
        "Query images on the left, and beside each the negatives that the run's selection leaves out for it at each "
        "level, chosen by chance as in training. Green frame: an image of the query's class, rightly left out; "
        f"orange: of another class. Over {len(sample)} queries, from the bottom level to the top: {share} of the "
        f"candidates are left out, with precision {precision} (chance: {found.chance:.1%}) and recall {recall}; of the "
        f"images of other classes {preservation} are kept."
    )
    arguments = found, sample, labels, assigned.names, thumbnails
    return [Picture("negatives", "Negatives left out for a query", caption, lambda: draw_negatives(*arguments))]


def _numbers_of(found: LeftOut, sample: np.ndarray) -> dict[str, Any]:
    return {
        "queries": len(sample),
        "chance": found.chance,
        "levels": [{"level": number} | asdict(level) for number, level in enumerate(found.levels, start=1)],
        "shown": [
            {"image": int(sample[query]), "left_out": [sample[candidates].tolist() for candidates in levels]}
            for query, levels in found.queries.items()
        ],
    }
