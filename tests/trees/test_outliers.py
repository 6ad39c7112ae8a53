"""Outliers are far from their neighbours, whatever the number of images and of copies."""

import numpy as np
import pytest

from solo_hcsc.errors import ArgumentError
from solo_hcsc.trees.outliers import find_outliers


def crowd(count=300, strange=3):
    draw = np.random.default_rng(0)
    points = np.repeat(draw.standard_normal((5, 24)), count // 5, axis=0) + 0.1 * draw.standard_normal((count, 24))
    points[:strange] = draw.standard_normal((strange, 24))
    return points


def test_what_is_unlike_all_others_is_an_outlier():
    found = find_outliers(crowd())
    assert set(found.images[:3]) == {0, 1, 2}
    assert len(found.images) < 20
    assert (np.diff(found.distances[found.images]) <= 0).all()


def test_distances_are_the_mean_to_the_nearest_others():
    points = crowd(60)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    apart = np.sort(np.linalg.norm(points[:, None] - points[None], axis=2), axis=1)
    assert find_outliers(points, neighbours=4).distances == pytest.approx(apart[:, 1:5].mean(axis=1), abs=1e-3)


def test_equal_images_are_no_outliers():
    found = find_outliers(np.ones((40, 3)))
    assert found.distances == pytest.approx(np.zeros(40), abs=1e-3)
    assert len(found.images) == 0


def test_search_in_lists_finds_them_too(monkeypatch):
    monkeypatch.setattr("solo_hcsc.trees.neighbours.APPROXIMATE", 100)
    assert set(find_outliers(crowd()).images[:3]) == {0, 1, 2}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_images(count):
    assert find_outliers(np.eye(count)).distances.shape == (count,)


def test_no_neighbours_are_refused():
    with pytest.raises(ArgumentError, match="`neighbours` 0"):
        find_outliers(np.eye(3), neighbours=0)
