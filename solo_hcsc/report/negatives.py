"""Which negatives a run leaves out for a query (Eq. 4 and 5), counted and shown; and how many have its class.

Shapes: `n` images, each a query and a candidate for the others; `D` embedding size.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.progress import say
from solo_hcsc.report import figures
from solo_hcsc.report.figures import Picture
from solo_hcsc.report.gallery import GAP, LINE, SIDE, Thumbnails, place, place_text, sheet
from solo_hcsc.report.prototypes import Assigned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLOCK = 1024  # queries at a time
SHOWN = 5  # left-out images of a query and level in the picture
QUERY = 0.93  # inches of a query's image
SIZE = 9  # of letters in points: the sheet is as narrow as a phone
SAME_CLASS, OTHER_CLASS = figures.COLOURS[2], figures.COLOURS[1]


@dataclass(frozen=True)
class OfLevel:
    """Left-out negatives of a level, over all pairs of a query and a candidate; without labels, only their share."""

    share: float  # of the candidates
    precision: float | None = None  # of the left-out, the share with the query's class
    recall: float | None = None  # of those with the query's class, the share left out
    preservation: float | None = None  # of those with another class, the share kept


@dataclass(frozen=True)
class LeftOut:
    """Left-out negatives of all levels."""

    levels: list[OfLevel]
    chance: float | None  # share of the candidates with the query's class: the precision of leaving out anything
    queries: dict[int, list[np.ndarray]]  # of some queries, the candidates left out at each level


def query_clusters(coding: SelectiveCoding, z: torch.Tensor) -> list[torch.Tensor]:
    """Return c(z) at every level (n,), found as the run finds it."""
    tree = coding.hierarchy
    if tree is None:
        raise ValueError("the run has no tree: it had not clustered yet")
    if coding.options.query_cluster == "assignment":  # the run knows its training images' only; the tree any image's
        return list(tree.assign(z).T)
    return coding.find_clusters(coding.cosines(z), torch.arange(len(z)))


def find_left_out(coding: SelectiveCoding, embeddings: np.ndarray, labels: np.ndarray, shown: Sequence[int]) -> LeftOut:
    """Take each of `embeddings` (n, D) for a query and all others for its candidates; select as the run does.

    `labels` (n,) are -1 where there are none. `shown`: the queries of which the candidates that are left out are kept.
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
    if (labels < 0).all():
        return LeftOut([OfLevel(out / pairs) for out in left_out], None, queries)
    true = pairs - alike
    levels = [
        OfLevel(out / pairs, hit / max(out, 1), hit / max(alike, 1), (true - (out - hit)) / max(true, 1))
        for out, hit in zip(left_out, hits, strict=True)
    ]
    return LeftOut(levels, alike / pairs, queries)


def choose_queries(labels: np.ndarray, count: int) -> list[int]:
    """Return the first image of each class (n,), in their order; then the second of each, and so on."""
    seen: dict[int, int] = {}
    turns = []
    for label in labels.tolist():
        turns.append(seen.get(label, 0))
        seen[label] = turns[-1] + 1
    return np.argsort(turns, kind="stable")[:count].tolist()


def draw_negatives(found: LeftOut, sample: np.ndarray, assigned: Assigned, thumbnails: Thumbnails) -> "Figure":
    """Draw each query on the left; beside it, by level, what was left out for it. `sample` (n,): their indexes."""
    row, gap, left = LINE + SIDE + 0.1, 0.22, QUERY + 0.12
    block = max(len(found.levels) * row, LINE + QUERY) + gap
    figure, axes = sheet(left + SHOWN * (SIDE + GAP) + 0.3, len(found.queries) * block - gap)
    y = 0.0
    for query, levels in found.queries.items():
        label = assigned.labels[sample[query]]
        place_text(axes, "Query" if label < 0 else figures.short(assigned.names[label], 12), 0, y, SIZE)
        place(axes, thumbnails.of(int(sample[query]), QUERY), 0, y + LINE, QUERY)
        for number, candidates in enumerate(levels):
            _draw_level(axes, number, sample[candidates], label, assigned.labels, thumbnails, left, y + number * row)
        y += block
    return figure


def _draw_level(
    axes: "Axes",
    number: int,
    images: np.ndarray,
    label: int,
    labels: np.ndarray,
    thumbnails: Thumbnails,
    x: float,
    y: float,
) -> None:
    """Draw a line of text and the first of the `images` that a level leaves out for a query with this label."""
    same = labels[images] == label
    counted = f", {same.sum()} of this class" if label >= 0 and len(images) else ""
    place_text(axes, f"Level {number + 1}: {len(images) or 'none'} left out{counted}", x, y, SIZE)
    for column, image in enumerate(images[:SHOWN]):
        frame = None if label < 0 else SAME_CLASS if same[column] else OTHER_CLASS
        place(axes, thumbnails.of(int(image)), x + column * (SIDE + GAP), y + LINE, frame=frame)
    if len(images) > SHOWN:
        place_text(axes, f"+{len(images) - SHOWN}", x + SHOWN * (SIDE + GAP), y + LINE + SIDE / 3, SIZE)


# ---- for an analysis: numbers are added to `numbers`, pictures returned ----


def show_negatives(
    coding: SelectiveCoding,
    assigned: Assigned,
    sample: np.ndarray,
    queries: int,
    thumbnails: Thumbnails,
    numbers: dict[str, Any],
) -> list[Picture]:
    """Take each image of `sample` (n,) as a query, and draw `queries` of them; nothing without selection."""
    if not coding.options.instance_selection:
        say("left-out negatives are not shown: the run was trained without instance selection")
        return []
    say(f"negatives: each of {len(sample)} images as a query, the others as candidates")
    labels = assigned.labels[sample]
    found = find_left_out(coding, assigned.embeddings[sample], labels, choose_queries(labels, queries))
    numbers["negatives"] = _numbers_of(found, sample, assigned)
    arguments = found, sample, assigned, thumbnails
    return [
        Picture(
            "negatives",
            "Negatives left out for a query",
            _caption(found, len(sample)),
            lambda: draw_negatives(*arguments),
        )
    ]


def _caption(found: LeftOut, queries: int) -> str:
    def by_level(name: str) -> str:
        return " / ".join(f"{getattr(level, name):.1%}" for level in found.levels)

    frames = " Green frame: an image of the query's class. Orange frame: of another class."
    caption = (
        "Queries are on the left. Beside each are negatives that the run's selection leaves out for it at each level. "
        f"They are drawn at random, as in training.{'' if found.chance is None else frames} Over {queries} queries, "
        f"from the bottom level to the top, {by_level('share')} of the candidates are left out."
    )
    if found.chance is None:
        return caption
    return (
        f"{caption} Precision: {by_level('precision')} of them have the query's class (chance: {found.chance:.1%}). "
        f"Recall: {by_level('recall')} of the candidates with the query's class are left out. Preservation: "
        f"{by_level('preservation')} of the candidates of other classes are kept."
    )


def _numbers_of(found: LeftOut, sample: np.ndarray, assigned: Assigned) -> dict[str, Any]:
    chance = {} if found.chance is None else {"chance": found.chance}
    levels = [
        {"level": number} | {name: value for name, value in asdict(level).items() if value is not None}
        for number, level in enumerate(found.levels, start=1)
    ]
    shown = [
        {
            "image": assigned.named([sample[query]])[0],
            "left_out": [assigned.named(sample[candidates]) for candidates in of_levels],
        }
        for query, of_levels in found.queries.items()
    ]
    return {"queries": len(sample), **chance, "levels": levels, "shown": shown}
