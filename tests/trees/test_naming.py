"""Names of clusters: their classes, or the words of their files."""

import pytest

from solo_hcsc.errors import ArgumentError
from solo_hcsc.trees.naming import name_clusters


def test_commonest_class_names_a_cluster_and_two_do_where_it_is_less_than_half():
    labels = ["cat"] * 3 + ["dog"] * 2 + [None] + ["a"] * 4 + ["b"] * 3 + ["c"] * 2
    paths = [f"{number}.jpg" for number in range(len(labels))]
    assert name_clusters([0] * 6 + [1] * 9, paths, labels) == {0: "cat", 1: "a, b"}
    assert name_clusters([5] * 4, paths[:4], ["a", "b", "c", "d"]) == {5: "a, b"}
    assert name_clusters([5] * 5, paths[:5], ["a", "b", "c", "d", "e"]) == {5: "a, b, …"}


def test_words_of_files_name_a_cluster_if_others_do_not_have_them():
    paths = [f"holiday/IMG_{n}_redSquare.png" for n in range(4)] + [f"holiday/IMG_{n}_blue.png" for n in range(8)]
    assert name_clusters([0] * 4 + [1] * 4 + [2] * 4, paths) == {0: "red square", 1: "", 2: ""}
    assert name_clusters([0] * 12, paths) == {0: ""}
    paths[4:8] = [f"holiday/green {n}.png" for n in range(4)]
    assert name_clusters([0] * 4 + [1] * 4 + [2] * 4, paths) == {0: "red square", 1: "green", 2: "blue"}


def test_clusters_of_other_images_are_refused():
    with pytest.raises(ArgumentError, match="`paths` has 1"):
        name_clusters([0, 1], ["a"])
