"""A part of many images: even over a tree, without duplicates and outliers, with a reason for each."""

import numpy as np
import pandas
import pytest

from solo_hcsc.errors import ArgumentError
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.curating import curate, near_copies
from solo_hcsc.trees.duplicates import Duplicates, Group


@pytest.fixture(scope="module")
def uneven() -> tuple[np.ndarray, np.ndarray]:
    """Four groups of 300, 90, 30 and 10 vectors, and their numbers."""
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), (300, 90, 30, 10))
    return 6 * np.eye(16)[groups] + draw.normal(size=(len(groups), 16)), groups


def test_what_is_kept_is_more_even_than_all(uneven):
    vectors, groups = uneven
    found = curate(vectors, 80, outliers=None)
    counts = np.bincount(groups[found.kept], minlength=4)
    assert counts.sum() == len(found) == 80
    assert counts[2] >= 20
    assert counts[3] == 10
    assert found.after.effective[-1] > found.before.effective[-1]
    assert found.after.largest[-1] < found.before.largest[-1]
    random = np.bincount(groups[np.random.default_rng(0).permutation(len(groups))[:80]], minlength=4)
    assert counts[3] > random[3]


def test_every_image_has_one_reason_and_copies_go_first(uneven):
    vectors, _ = uneven
    copies = vectors[:20] + 1e-3
    found = curate(np.concatenate([vectors, copies]), 0.5, outliers=None, same=0.999)
    assert found.before.duplicates == 20
    assert found.after.duplicates == 0
    assert [found.reasons[len(vectors) + number] for number in range(20)] == [
        f"duplicate of {number}" for number in range(20)
    ]
    assert found.counts() == {"kept": 225, "its cluster has enough": 205, "duplicate": 20}


def test_chains_of_alike_images_are_not_one_duplicate():
    angles = np.linspace(0, np.pi / 2, 40)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    ring = np.concatenate([ring, -ring]).astype("float32")  # of mean 0
    found = near_copies(ring, 0.95, np.ones(80, dtype=bool))
    kept = np.flatnonzero(found < 0)
    assert 6 <= len(kept) <= 12
    original = np.where(found < 0, np.arange(80), found)
    assert (np.einsum("nd,nd->n", ring, ring[original]) >= 0.949).all()


def test_outliers_and_images_left_out_have_their_reasons(uneven):
    vectors, _ = uneven
    far = np.concatenate([vectors, -40 * np.eye(16)[[5]]])
    found = curate(far, 100, left_out={0: "blank", 1: "tiny"}, duplicates=Duplicates((), ("",) * len(far)))
    assert found.reasons[:2] == ("blank", "tiny")
    assert found.reasons[-1] == "outlier"
    assert not {0, 1, len(vectors)} & {*found.kept.tolist()}


def test_known_duplicates_keep_the_best_that_may_be_kept(uneven):
    vectors, _ = uneven
    groups = (Group(3, (4, 5), False), Group(6, (7,), True))
    paths = tuple(f"{number}.jpg" for number in range(len(vectors)))
    found = curate(vectors, len(vectors), duplicates=Duplicates(groups, paths), left_out={3: "blank"}, outliers=None)
    assert [found.reasons[number] for number in (3, 4, 5, 6, 7)] == [
        "blank",
        "kept",
        "duplicate of 4",
        "kept",
        "duplicate of 6",
    ]


def test_ways_take_the_nearest_and_the_farthest_of_a_cluster():
    angles = 0.02 * np.arange(9)
    line = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    only = {"clusters": [[0]] * 9, "outliers": None, "same": 2}
    assert 4 in curate(line, 1, "nearest", **only).kept
    assert curate(line, 1, "farthest", **only).kept[0] in (0, 8)
    draws = {int(curate(line, 1, "random", seed=seed, **only).kept[0]) for seed in range(20)}
    assert len(draws) > 3


def test_a_tree_gives_its_own_clusters_and_names(uneven):
    vectors, _ = uneven
    tree = build_tree(vectors, levels=(20, 4), keys=[f"a/{number}.jpg" for number in range(len(vectors))])
    found = curate(tree, 40, outliers=None)
    assert (found.clusters == tree.levels).all()
    assert np.bincount(tree.levels[found.kept, 1]).tolist() == [10] * 4
    assert found.to_pandas().path[3] == "a/3.jpg"


def test_same_call_keeps_the_same_images(uneven):
    vectors, _ = uneven
    assert (curate(vectors, 50).kept == curate(vectors, 50).kept).all()


def test_list_and_tables_are_saved_together(uneven, tmp_path):
    vectors, _ = uneven
    names = [f"=x/{number} ä.jpg" for number in range(len(vectors))]
    found = curate(build_tree(vectors, keys=names), 50)
    found.save(tmp_path / "new" / "kept.txt")
    listed = (tmp_path / "new" / "kept.txt").read_text().splitlines()
    assert listed == [names[number] for number in found.kept]
    table = pandas.read_parquet(tmp_path / "new" / "kept.parquet")
    assert table.path[table.kept].tolist() == listed
    assert table.reason.tolist() == list(found.reasons)
    assert (tmp_path / "new" / "kept.csv").read_text().splitlines()[1].startswith('"\'=x/0 ä.jpg",')


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keep": 0}, "`keep` is 0"),
        ({"keep": 1.5}, "`keep` is 1.5"),
        ({"way": "best"}, "`way` is 'best'"),
        ({"left_out": {9: "x"}}, "other images than 0 to 3"),
        ({"clusters": [[0]]}, "`clusters` has shape"),
        ({"duplicates": Duplicates((), ("a",))}, "`duplicates` are of 1 images"),
        ({"left_out": dict.fromkeys(range(4), "x")}, "none of the 4 is left"),
    ],
)
def test_bad_arguments_are_named(arguments, said):
    with pytest.raises(ArgumentError, match=said):
        curate(**({"images": np.eye(4), "keep": 2} | arguments))
