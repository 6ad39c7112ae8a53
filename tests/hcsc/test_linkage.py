"""Ward's linkage is scipy's; along a graph it is nearly so; equal and equidistant points take no time."""

import time

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, is_valid_linkage, linkage
from sklearn.metrics import adjusted_rand_score

from solo_hcsc.hcsc.linkage import ward, ward_along_graph


def groups(count, each, dim=16, spread=0.2, seed=0):
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((count, dim))
    points = np.repeat(centres, each, axis=0) + spread * draw.standard_normal((count * each, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype("float32")


def test_ward_is_scipys():
    points = np.random.default_rng(0).standard_normal((400, 12)).astype("float32")
    ours, theirs = ward(points), linkage(points, "ward")
    assert np.array_equal(ours[:, :2], np.sort(theirs[:, :2], axis=1))
    assert ours[:, 2] == pytest.approx(theirs[:, 2], abs=1e-5)
    assert np.array_equal(ours[:, 3], theirs[:, 3])


def test_a_weight_stands_for_as_many_equal_points():
    points = np.random.default_rng(1).standard_normal((40, 6)).astype("float32")
    weights = np.random.default_rng(2).integers(1, 6, size=40)
    whole = linkage(np.repeat(points, weights, axis=0), "ward")
    weighted = ward(points, weights)
    assert weighted[:, 2] == pytest.approx(whole[-39:, 2], abs=1e-5)
    assert weighted[-1, 3] == weights.sum()


def test_power_0_is_the_distance_of_means_whatever_the_sizes():
    points, weights = np.float32([[0], [1], [5]]), np.array([10, 1, 1])
    assert ward(points, weights, power=0)[:, 2] == pytest.approx([2**0.5, 2**0.5 * (5 - 1 / 11)])


def test_along_a_graph_groups_are_found_that_the_graph_does_not_join():
    points, truth = groups(20, 30), np.repeat(np.arange(20), 30)
    table = ward_along_graph(points, neighbours=5, exact=1)
    assert is_valid_linkage(table)
    assert adjusted_rand_score(truth, fcluster(table, 20, "maxclust")) == 1


def test_along_a_graph_finished_exactly_agrees_with_the_exact_linkage():
    points = groups(12, 40, spread=0.6)
    exact, along = ward(points), ward_along_graph(points, exact=100)
    for k in (12, 5):
        assert adjusted_rand_score(fcluster(exact, k, "maxclust"), fcluster(along, k, "maxclust")) > 0.8


def test_many_points_are_searched_in_lists(monkeypatch):
    monkeypatch.setattr("solo_hcsc.hcsc.linkage.FLAT", 500)
    points, truth = groups(10, 200), np.repeat(np.arange(10), 200)
    tables = [ward_along_graph(points, exact=50, seed=3) for _ in range(2)]
    assert np.array_equal(*tables)
    assert adjusted_rand_score(truth, fcluster(tables[0], 10, "maxclust")) == 1


@pytest.mark.parametrize("linked", [ward, ward_along_graph])
def test_equal_points_merge_first_and_fast(linked):
    points = np.repeat(np.eye(3, dtype="float32"), 2000, axis=0)
    started = time.process_time()
    table = linked(points)
    assert time.process_time() - started < 3
    assert (table[:-2, 2] == 0).all()
    assert (table[-2:, 2] > 0).all()
    assert sorted(np.bincount(fcluster(table, 3, "maxclust"))[1:]) == [2000] * 3


def test_equidistant_points_merge_in_few_rounds():
    rounds = []
    table = ward(np.eye(600, dtype="float32"), progress=lambda done, of: rounds.append((done, of)))
    assert is_valid_linkage(table)
    assert len(rounds) < 100
    assert rounds[-1] == (599, 599)


def test_one_point_has_no_merges():
    assert ward(np.ones((1, 3), "float32")).shape == (0, 4)
