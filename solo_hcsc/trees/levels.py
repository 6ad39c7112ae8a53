"""How many levels a tree has, and of how many clusters, told by the gaps between the heights of its merges.

Where K groups are real, the merges inside of them are much lower than the first merge of two of them: the height jumps
from the merge that leaves K clusters to the next. Without groups, heights fall with the number of clusters by a power
law, and the jump at K, times K, is spread exponentially; on features of four image sets with a mean of 0.36 to 0.41. A
jump that such a spread makes in about one of 25 trees is a level of the data.
"""

import numpy as np

RATE = 0.35  # the least mean of K times the jump at K; data with lower ones inside of its groups have it above them
RARE = 5.0  # a jump counts above this many means, and log K more because of the many K that are looked at
APART = 1.5  # neighbouring levels differ by this factor at least: of nearer ones the clearer counts
LEAST_IMAGES = 4  # in a cluster, on average
TOP = 30  # the most clusters of a top level
STEP = 4  # about how many times fewer clusters each level has where the data do not say
FLOOR = 1e-3  # of the highest merge: lower ones are of images that are the same
MOST_LEVELS = 5


def choose_levels(heights: np.ndarray, images: int) -> tuple[int, ...]:
    """Return the numbers of clusters at each level, the bottom first.

    These are where the heights jump. Where they do not, and above a lowest level of many clusters, each level has about
    a quarter of the clusters of the one below it, at the clearest jump near that number; the bottom then has about
    0.7 times N to the power of 2/3 clusters, such as 134 of 2,640 images.

    Args:
        heights: (M - 1,) of the merges of M leaves, rising.
        images: N, how many are in the leaves.

    Example:
        >>> heights = np.concatenate([np.linspace(1, 2, 190), np.linspace(10, 12, 9)])  # ten groups of 20
        >>> choose_levels(heights, images=200)
        (10,)
    """
    sizes, scores = jumps(heights, images)
    if not len(sizes):
        return (max(1, min(images // LEAST_IMAGES, len(heights) + 1)),)
    found = clear_jumps(sizes, scores)
    if found and found[-1] <= TOP:
        return tuple(found)
    bottom = found[-1] if found else min(0.7 * images ** (2 / 3), int(sizes[-1]))
    top = min(12.0, bottom)
    steps = min(MOST_LEVELS - 1, round(float(np.log(bottom / top) / np.log(STEP))))
    wanted = np.geomspace(bottom, top, steps + 1) if steps else np.array([bottom])
    near = APART**0.5
    more = []
    for one in wanted[1:] if found else wanted:
        window = (sizes >= one / near) & (sizes <= one * near)
        more.append(int(sizes[window][scores[window].argmax()]) if window.any() else max(1, round(float(one))))
    return tuple(sorted({*found, *more}, reverse=True))


def jumps(heights: np.ndarray, images: int) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of clusters K, rising from 2, and K times the logarithm of the jump at each."""
    leaves = len(heights) + 1
    sizes = np.arange(2, min(leaves - 1, images // LEAST_IMAGES) + 1)
    logs = np.log(np.maximum(heights, FLOOR * heights[-1])) if len(sizes) and heights[-1] > 0 else np.zeros(leaves - 1)
    return sizes, sizes * (logs[leaves - sizes] - logs[leaves - sizes - 1])


def clear_jumps(sizes: np.ndarray, scores: np.ndarray) -> list[int]:
    """Return the numbers of clusters, falling, where the jump is larger than chance makes it."""
    rate = max(RATE, float(np.median(scores)) / np.log(2))
    clear = np.flatnonzero(scores > rate * (RARE + np.log(sizes)))
    found: list[int] = []
    for size in sizes[clear[np.argsort(-scores[clear])]].tolist():
        if all(max(size, other) >= APART * min(size, other) for other in found):
            found.append(size)
    return sorted(found, reverse=True)[:MOST_LEVELS]
