"""Prototypes and their images: chains from the bottom level to the top, and a sub-tree.

Shapes: `N` images, `D` embedding size, `M_l` prototypes at level `l` (the bottom is level 0).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.report import figures
from solo_hcsc.report.figures import Picture
from solo_hcsc.report.gallery import GAP, LINE, SIDE, Thumbnails, line, place_row, say, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHAINS = 3
NEAREST = 6  # images of a prototype in a chain
CHILDREN = 3  # of a prototype in the sub-tree
IN_TREE = 3  # images of a prototype there
TREE_LEVELS = 3


@dataclass(frozen=True)
class Assigned:
    """Images and their clusters in a run's tree."""

    tree: Hierarchy
    embeddings: np.ndarray  # (N, D) unit vectors, of the kind that was clustered
    clusters: Sequence[np.ndarray]  # per level (N,)
    labels: np.ndarray  # (N,)
    names: Sequence[str]  # of the classes

    @property
    def top(self) -> int:
        """The number of the top level."""
        return len(self.clusters) - 1


@dataclass(frozen=True)
class Node:
    """A prototype and the images that have it."""

    level: int  # counted from 1 at the bottom, as the paper does
    prototype: int
    images: int
    classes: list[tuple[str, float]]  # names and shares of its images, the largest first
    nearest: list[int]  # its images, the nearest to it first

    def shares(self, most: int) -> str:
        """The commonest classes and their shares."""
        return ", ".join(f"{figures.short(name)} ({share:.0%})" for name, share in self.classes[:most])


@dataclass(frozen=True)
class Branch:
    """A node and those below it."""

    node: Node
    children: list["Branch"]

    @property
    def leaves(self) -> int:
        """How many nodes have none below them."""
        return sum(child.leaves for child in self.children) or 1


def describe(assigned: Assigned, level: int, prototype: int, nearest: int) -> Node:
    """A prototype with its images, `nearest` of them by name."""
    members = np.flatnonzero(assigned.clusters[level] == prototype)
    vector = assigned.tree.levels[level].prototypes[prototype].cpu().numpy()
    order = np.argsort(-(assigned.embeddings[members] @ vector), kind="stable")
    counts = np.bincount(assigned.labels[members], minlength=len(assigned.names))
    classes = [number for number in np.argsort(-counts, kind="stable") if counts[number]]
    return Node(
        level + 1,
        prototype,
        len(members),
        [(str(assigned.names[number]), float(counts[number] / len(members))) for number in classes],
        members[order[:nearest]].tolist(),
    )


def chains(assigned: Assigned) -> list[list[Node]]:
    """Of the largest top clusters, the largest bottom cluster and its parents up to the top."""
    found = []
    for top in largest(assigned.clusters[-1])[:CHAINS]:
        prototype = largest(assigned.clusters[0][assigned.clusters[-1] == top])[0]
        path = enumerate(assigned.tree.path(prototype))
        found.append([describe(assigned, level, number, NEAREST) for level, number in path])
    return found


def sub_tree(assigned: Assigned) -> Branch:
    """The top prototype with most to show below it, and of these the largest; its largest children and theirs."""
    branches = [_branch(assigned, assigned.top, prototype) for prototype in largest(assigned.clusters[-1])]
    return max(branches, key=lambda branch: (branch.leaves, branch.node.images))


def _branch(assigned: Assigned, level: int, prototype: int) -> Branch:
    children: list[Branch] = []
    if level > max(0, assigned.top + 1 - TREE_LEVELS):
        below = largest(assigned.clusters[level - 1][assigned.clusters[level] == prototype])
        children = [_branch(assigned, level - 1, child) for child in below[:CHILDREN]]
    return Branch(describe(assigned, level, prototype, IN_TREE), children)


def largest(clusters: np.ndarray) -> list[int]:
    """The clusters that have images, the largest first."""
    sizes = np.bincount(clusters)
    return [int(number) for number in np.argsort(-sizes, kind="stable") if sizes[number]]


def _numbers_of(branch: Branch) -> dict[str, Any]:
    return asdict(branch.node) | {"children": [_numbers_of(child) for child in branch.children]}


# ---- pictures ----


def draw_chains(found: list[list[Node]], thumbnails: Thumbnails) -> "Figure":
    """A block for each chain, a row for each of its prototypes, and an arrow from row to row."""
    left, side, gap = 0.25, 0.62, 0.2
    row = LINE + side + 0.1
    rows = sum(len(chain) for chain in found)
    figure, axes = sheet(left + NEAREST * (side + GAP), rows * row + (len(found) - 1) * gap)
    y = 0.0
    for chain in found:
        for number, one in enumerate(chain):
            say(axes, f"Level {one.level}: {one.images} images; {one.shares(2)}", left, y)
            place_row(axes, [thumbnails.of(index) for index in one.nearest], left, y + LINE, side)
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
    """The top prototype on the left, its children beside it, and theirs beside them."""
    levels = 1
    below = root.children
    while below:
        levels += 1
        below = [child for branch in below for child in branch.children]
    node_width, node_height = IN_TREE * (SIDE + GAP) - GAP, 2 * LINE + SIDE
    column, row = node_width + 0.35, node_height + 0.12
    figure, axes = sheet(levels * column - 0.35, root.leaves * row - 0.12)

    def draw(branch: Branch, depth: int, first: float) -> float:
        """Draws a branch whose rows start at `first`; returns the height at which lines meet it."""
        x, y = depth * column, first + (branch.leaves - 1) / 2 * row
        middle = y + 2 * LINE + SIDE / 2
        say(axes, f"{branch.node.images} images", x, y, size=7.5)
        say(axes, branch.node.shares(1), x, y + LINE * 0.9, size=7.5)
        place_row(axes, [thumbnails.of(index) for index in branch.node.nearest], x, y + 2 * LINE)
        for child in branch.children:
            height = draw(child, depth + 1, first)
            line(
                axes,
                [x + node_width + 0.05, x + node_width + 0.17, x + node_width + 0.17, x + column - 0.06],
                [middle, middle, height, height],
            )
            first += child.leaves * row
        return middle

    draw(root, 0, 0.0)
    return figure


# ---- for an analysis: numbers are added to `numbers`, pictures returned ----


def show_prototypes(assigned: Assigned, thumbnails: Thumbnails, numbers: dict[str, Any]) -> list[Picture]:
    """Chains of prototypes from the bottom to the top, and a part of the tree if it has levels."""
    found = chains(assigned)
    numbers["chains"] = [[asdict(one) for one in chain] for chain in found]
    pictures = [_of_chains(found, thumbnails)]
    if assigned.top == 0:
        print("no sub-tree is shown: the run has one level of prototypes")
        return pictures
    branch = sub_tree(assigned)
    numbers["tree"] = _numbers_of(branch)
    return [*pictures, _of_tree(branch, thumbnails)]


def _of_chains(found: list[list[Node]], thumbnails: Thumbnails) -> Picture:
    bottom, top = (np.mean([chain[end].classes[0][1] for chain in found]) for end in (0, -1))
    caption = (
        "Each block starts with a bottom-level prototype and goes up to the prototypes above it; each row has the "
        "images nearest to one, its number of images and its two commonest classes. Shown are the largest clusters "
        f"of the top level, and within each the largest of the bottom level. The commonest class has {bottom:.0%} of "
        f"a cluster at the bottom and {top:.0%} at the top, on average over these."
    )
    return Picture(
        "chain",
        "Chains of prototypes from the bottom level to the top",
        caption,
        lambda: draw_chains(found, thumbnails),
    )


def _of_tree(branch: Branch, thumbnails: Thumbnails) -> Picture:
    caption = (
        f"A top-level prototype of {branch.node.images} images on the left, its largest children beside it, and theirs "
        "beside them; each with its number of images, its commonest class, and the images nearest to it."
    )
    return Picture("tree", "A part of the tree of prototypes", caption, lambda: draw_tree(branch, thumbnails))
