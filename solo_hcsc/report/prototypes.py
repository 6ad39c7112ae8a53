"""Prototypes and their images: chains from the top level down, and a sub-tree.

Shapes: `N` images, `D` embedding size, `M_l` prototypes at level `l` (the bottom is level 0).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.progress import say
from solo_hcsc.report import figures
from solo_hcsc.report.figures import Picture
from solo_hcsc.report.gallery import GAP, LINE, Thumbnails, line, place_row, place_text, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHAINS = 3
NEAREST = 5  # images of a prototype in a chain
CHILDREN = 3  # of a prototype in the sub-tree
IN_TREE = 3  # images of a prototype there
TREE_LEVELS = 3


@dataclass(frozen=True)
class Assigned:
    """Images and their clusters in a run's tree."""

    tree: Hierarchy
    embeddings: np.ndarray  # (N, D) unit vectors, of the kind that was clustered
    clusters: Sequence[np.ndarray]  # per level (N,)
    labels: np.ndarray  # (N,), -1 without classes
    names: Sequence[str]  # of the classes; none without
    files: Sequence[str] | None = None  # the images' paths, if they are files

    @property
    def top(self) -> int:
        """Return the number of the top level."""
        return len(self.clusters) - 1

    def named(self, images: Iterable[int]) -> list[str | int]:
        """Name the images by their files, or by their indexes where they have none."""
        return [int(index) if self.files is None else self.files[index] for index in images]


@dataclass(frozen=True)
class Node:
    """A prototype and the images that have it."""

    level: int  # counted from 1 at the bottom, as the paper does
    prototype: int
    images: int
    classes: list[tuple[str, float]]  # names and shares of its images, the largest first; none without labels
    nearest: list[int]  # its images, the nearest to it first

    def shares(self, most: int) -> str:
        """Return the commonest classes and their shares."""
        return ", ".join(f"{figures.short(name, 16)} {share:.0%}" for name, share in self.classes[:most])


@dataclass(frozen=True)
class Branch:
    """A node and those below it."""

    node: Node
    children: list["Branch"]

    @property
    def leaves(self) -> int:
        """Count the nodes that have none below them."""
        return sum(child.leaves for child in self.children) or 1


def describe(assigned: Assigned, level: int, prototype: int, nearest: int) -> Node:
    """Describe a prototype with its images, the `nearest` of them by index."""
    members = np.flatnonzero(assigned.clusters[level] == prototype)
    vector = assigned.tree.levels[level].prototypes[prototype].cpu().numpy()
    order = np.argsort(-(assigned.embeddings[members] @ vector), kind="stable")
    labels = assigned.labels[members]
    counts = np.bincount(labels[labels >= 0], minlength=len(assigned.names))
    classes = [number for number in np.argsort(-counts, kind="stable") if counts[number]]
    return Node(
        level + 1,
        prototype,
        len(members),
        [(str(assigned.names[number]), float(counts[number] / len(members))) for number in classes],
        members[order[:nearest]].tolist(),
    )


def chains(assigned: Assigned) -> list[list[Node]]:
    """Follow the largest cluster within each of the largest top clusters, down to the bottom.

    A prototype that has the same images as its child is left out: it would show nothing new.
    """
    found = []
    for top in largest(assigned.clusters[-1])[:CHAINS]:
        prototype = largest(assigned.clusters[0][assigned.clusters[-1] == top])[0]
        chain: list[Node] = []
        for level, number in enumerate(assigned.tree.path(prototype)):
            node = describe(assigned, level, number, NEAREST)
            if not chain or node.images > chain[-1].images:
                chain.append(node)
        found.append(chain[::-1])
    return found


def sub_tree(assigned: Assigned) -> Branch:
    """Choose the largest of the top prototypes with most to show below it; its largest children and theirs."""
    tops = largest(assigned.clusters[-1])
    branches = [_branch(assigned, assigned.top, prototype, TREE_LEVELS) for prototype in tops]
    return max(branches, key=lambda branch: (branch.leaves, branch.node.images))


def _branch(assigned: Assigned, level: int, prototype: int, depth: int) -> Branch:
    """Build a prototype and what is below it, `depth` nodes deep; an only child, with the same images, replaces it."""
    below = _children(assigned, level, prototype)
    while len(below) == 1:
        level, prototype = level - 1, below[0]
        below = _children(assigned, level, prototype)
    shown = below[:CHILDREN] if depth > 1 else []
    children = [_branch(assigned, level - 1, child, depth - 1) for child in shown]
    return Branch(describe(assigned, level, prototype, IN_TREE), children)


def _children(assigned: Assigned, level: int, prototype: int) -> list[int]:
    """Return the prototypes below one that have images, the largest first; none at the bottom."""
    if level == 0:
        return []
    return largest(assigned.clusters[level - 1][assigned.clusters[level] == prototype])


def largest(clusters: np.ndarray) -> list[int]:
    """Return the clusters that have images, the largest first."""
    sizes = np.bincount(clusters)
    return [int(number) for number in np.argsort(-sizes, kind="stable") if sizes[number]]


def _numbers_of_node(node: Node, assigned: Assigned) -> dict[str, Any]:
    return asdict(node) | {"nearest": assigned.named(node.nearest)}


def _numbers_of(branch: Branch, assigned: Assigned) -> dict[str, Any]:
    children = [_numbers_of(child, assigned) for child in branch.children]
    return _numbers_of_node(branch.node, assigned) | {"children": children}


# ---- pictures ----


def draw_chains(found: list[list[Node]], thumbnails: Thumbnails) -> "Figure":
    """Draw a block for each chain, a row for each of its prototypes, and an arrow down from row to row."""
    left, side, gap = 0.25, 0.62, 0.2
    row = LINE + side + 0.1
    rows = sum(len(chain) for chain in found)
    figure, axes = sheet(left + NEAREST * (side + GAP), rows * row + (len(found) - 1) * gap)
    y = 0.0
    for chain in found:
        for number, one in enumerate(chain):
            shares = f": {one.shares(2)}" if one.classes else ""
            place_text(axes, f"Level {one.level}, {one.images} images{shares}", left, y)
            place_row(axes, [thumbnails.of(index, side) for index in one.nearest], left, y + LINE, side)
            if number:
                axes.annotate(
                    "",
                    (0.12, y + LINE + side * 0.3),
                    (0.12, y - row + LINE + side * 0.7),
                    arrowprops={"arrowstyle": "->", "color": figures.ink(), "linewidth": 0.8},
                )
            y += row
        y += gap
    return figure


def draw_tree(root: Branch, thumbnails: Thumbnails) -> "Figure":
    """Draw the top prototype on the left, its children beside it, and theirs beside them."""
    levels = 1
    below = root.children
    while below:
        levels += 1
        below = [child for branch in below for child in branch.children]
    side, gap = 0.38, 0.22
    node_width, node_height = IN_TREE * (side + GAP) - GAP, 2 * LINE + side
    column, row = node_width + gap, node_height + 0.12
    figure, axes = sheet(levels * column - gap, root.leaves * row - 0.12)

    def draw(branch: Branch, depth: int, first: float) -> float:
        """Draw a branch whose rows start at `first`; return the height at which lines meet it."""
        x, y = depth * column, first + (branch.leaves - 1) / 2 * row
        middle = y + 2 * LINE + side / 2
        lines = [f"{branch.node.images} images", *([branch.node.shares(1)] if branch.node.classes else [])]
        for number, text in enumerate(reversed(lines), start=1):  # the last one right above the images
            place_text(axes, text, x, y + (2 - number * 0.95) * LINE)
        place_row(axes, [thumbnails.of(index, side) for index in branch.node.nearest], x, y + 2 * LINE, side)
        for child in branch.children:
            height = draw(child, depth + 1, first)
            line(
                axes,
                [x + node_width + 0.04, x + node_width + gap / 2, x + node_width + gap / 2, x + column - 0.04],
                [middle, middle, height, height],
            )
            first += child.leaves * row
        return middle

    draw(root, 0, 0.0)
    return figure


# ---- for an analysis: numbers are added to `numbers`, pictures returned ----


def show_prototypes(assigned: Assigned, thumbnails: Thumbnails, numbers: dict[str, Any]) -> list[Picture]:
    """Draw chains of prototypes from the top down, and a part of the tree if it has levels."""
    found = chains(assigned)
    numbers["chains"] = [[_numbers_of_node(one, assigned) for one in chain] for chain in found]
    pictures = [_of_chains(found, thumbnails)]
    if assigned.top == 0:
        say("no sub-tree is shown: the run has one level of prototypes")
        return pictures
    branch = sub_tree(assigned)
    numbers["tree"] = _numbers_of(branch, assigned)
    return [*pictures, _of_tree(branch, thumbnails)]


def _of_chains(found: list[list[Node]], thumbnails: Thumbnails) -> Picture:
    labelled = bool(found[0][0].classes)
    caption = (
        "Each block starts with one of the largest top-level prototypes and goes down to the largest bottom-level "
        "prototype below it. A row shows the images nearest to one prototype and says how many images it has"
        f"{' and which two classes are the most common' if labelled else ''}. Levels count from 1 at the bottom. A "
        "level that has the same images as the level below it is left out."
    )
    if labelled:
        top, bottom = (np.mean([chain[end].classes[0][1] for chain in found]) for end in (0, -1))
        caption += f" The most common class has {top:.0%} of the first row's images and {bottom:.0%} of the last row's,"
        caption += " on average."
    return Picture("chain", "From top-level prototypes down", caption, lambda: draw_chains(found, thumbnails))


def _of_tree(branch: Branch, thumbnails: Thumbnails) -> Picture:
    caption = (
        f"A top-level prototype of {branch.node.images} images is on the left. To its right are its largest children, "
        "and theirs. Each has its number of images, "
        f"{'its most common class, ' if branch.node.classes else ''}and the images nearest to it."
    )
    return Picture("tree", "A part of the tree of prototypes", caption, lambda: draw_tree(branch, thumbnails))
