"""Short names of clusters: their commonest classes, or the words that their files' names have and others' have not.

Shapes: `N` images, `n` images of a cluster.
"""

import os
import re
from collections.abc import Sequence

import numpy as np

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.vectors import as_numbers
from solo_hcsc.typed import typed

_WORD = re.compile(r"[^\W\d_]{3,}")
_CAMEL = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])")
COMMON = 0.4  # the least share of a cluster's images that have the word that names it
TIMES = 3.0  # how much more often than other images
WORDS = 2  # of a name at most


class Namer:
    """Names any of the clusters of some images.

    Args:
        paths: N, of which a word in a folder's or a file's name may name a cluster.
        labels: N names of classes, None for none; without them, and where a cluster has none, words name it.
    """

    def __init__(self, paths: Sequence[str], labels: Sequence[str | None] | None = None) -> None:
        self._words = _Texts([_words_in(path) for path in paths])
        self._classes = _Texts([[] if label is None else [label] for label in labels or [None] * len(paths)])

    def name(self, images: np.ndarray) -> str:
        """Return the name of a cluster of images (n,), given by their numbers; "" where nothing tells one."""
        classes, counts = self._classes.counts(images)
        if len(classes):
            first = self._classes.names[classes[0]]
            if counts[0] * 2 >= counts.sum():
                return first
            second = self._classes.names[classes[1]]
            return f"{first}, {second}" if counts[:2].sum() * 2 >= counts.sum() else f"{first}, {second}, …"
        return self._of_words(images)

    def _of_words(self, images: np.ndarray) -> str:
        words, counts = self._words.counts(images)
        others = len(self._words) - len(images)
        if not others:
            return ""
        here, elsewhere = counts / len(images), (self._words.totals[words] - counts) / others
        telling = np.flatnonzero((here >= COMMON) & (here >= TIMES * elsewhere))
        clear = here[telling] * np.log(here[telling] / np.maximum(elsewhere[telling], 1 / len(self._words)))
        best = telling[np.argsort(-clear, kind="stable")]
        return " ".join(self._words.names[word] for word in np.sort(words[best[:WORDS]]))  # as first seen in a path


class _Texts:
    """Texts of images as numbers, in the order in which they are first seen."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        numbers: dict[str, int] = {}
        self._ids = np.array([numbers.setdefault(text, len(numbers)) for own in texts for text in own], dtype=int)
        self._ends = np.cumsum([len(own) for own in texts], dtype=int)
        self._lengths = np.array([len(own) for own in texts], dtype=int)
        self.names = list(numbers)
        self.totals = np.bincount(self._ids, minlength=len(numbers))

    def __len__(self) -> int:
        return len(self._lengths)

    def counts(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which texts some images have, the commonest first, and how many have each."""
        lengths = self._lengths[images]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        found = self._ids[np.repeat(self._ends[images] - lengths, lengths) + within]
        texts, counts = np.unique(found, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return texts[order], counts[order]


def _words_in(path: str) -> list[str]:
    """Return the different words of a path, without its ending, in lower case.

    Example:
        >>> _words_in("Fruit/GrannySmith_001.jpg")
        ['fruit', 'granny', 'smith']
    """
    words = _WORD.findall(_CAMEL.sub(" ", os.path.splitext(path)[0]))
    return list(dict.fromkeys(word.lower() for word in words))


@typed
def name_clusters(
    clusters: np.ndarray | Sequence[int], paths: Sequence[str], labels: Sequence[str | None] | None = None
) -> dict[int, str]:
    """Give each cluster of images a short name, of its classes, or else of words in its files' names.

    A class that half of the labelled images have names the cluster, or the two commonest classes do. Without labels it
    is the one or two words that most images of the cluster have in their paths, and few others.

    Args:
        clusters: (N,) the cluster of each image, such as `tree.cut(20)`.
        paths: N paths of the images.
        labels: N names of classes, None for none, such as the `names` of `Embeddings`.

    Returns:
        The name of each cluster by its number: "" where neither classes nor words tell one. Two may have the same.

    Example:
        >>> name_clusters([0, 0, 0, 1, 1], ["Apple1.jpg", "red-apple_2.jpg", "old apple.jpg", "IMG_1.jpg", "IMG_2.jpg"])
        {0: 'apple', 1: 'img'}
        >>> name_clusters([0, 0, 0], ["1.jpg", "2.jpg", "3.jpg"], ["cat", "cat", "dog"])
        {0: 'cat'}
    """
    numbers = as_numbers(clusters, "clusters")
    for name, given in (("paths", paths), ("labels", labels)):
        if given is not None and (numbers.ndim != 1 or len(given) != len(numbers)):
            raise ArgumentError(
                f"`{name}` has {len(given)} and `clusters` shape {numbers.shape}: give one of each image"
            )
    namer = Namer(paths, labels)
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    parts = np.split(order, starts[1:])
    return {int(number): namer.name(part) for number, part in zip(found, parts, strict=True)}
