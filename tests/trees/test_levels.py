"""Levels come from the data: planted ones are found, and data without any have a ladder of sizes."""

from itertools import pairwise

import numpy as np
import pytest

from solo_hcsc.trees.building import build_tree


def nested(branches, each, seed, uneven=False, dim=64):
    """Gaussian groups of groups on the sphere; returns unit vectors and how many groups each level has."""
    draw, centres, sizes = np.random.default_rng(seed), np.zeros((1, dim)), []
    for level, branch in enumerate(branches):
        many = draw.integers(branch // 2 + 1, branch * 3 // 2 + 1, len(centres)) if uneven else branch
        centres = np.repeat(centres, many, axis=0)
        centres = centres + 0.5**level * draw.standard_normal(centres.shape) / dim**0.5
        sizes.append(len(centres))
    points = np.repeat(centres, draw.integers(each // 2, each * 2, len(centres)) if uneven else each, axis=0)
    points = points + 0.4 * 0.5 ** (len(branches) - 1) * draw.standard_normal(points.shape) / dim**0.5
    return points, sizes[::-1]


@pytest.mark.parametrize("seed", range(3))
def test_planted_levels_are_found(seed):
    points, sizes = nested((6, 5, 4), 15, seed)
    assert list(build_tree(points).level_sizes) == sizes == [120, 30, 6]


@pytest.mark.parametrize("seed", range(3))
def test_uneven_planted_levels_are_found_within_a_tenth(seed):
    points, sizes = nested((6, 6, 5), 16, seed, uneven=True)
    found = build_tree(points).level_sizes
    assert all(min(abs(one - size) for one in found) <= 0.1 * size for size in sizes)
    assert len(found) <= len(sizes) + 1


def test_one_planted_level_is_the_only_one():
    points, _ = nested((10,), 60, 0)
    assert build_tree(points).level_sizes == (10,)


def test_many_groups_without_groups_of_groups_get_levels_above():
    points, _ = nested((60,), 20, 0)
    bottom, *above = build_tree(points).level_sizes
    assert bottom == 60
    assert above
    assert above[-1] <= 30


def test_noise_has_a_ladder_of_levels():
    noise = np.random.default_rng(0).standard_normal((1000, 32))
    sizes = build_tree(noise).level_sizes
    assert len(sizes) >= 2
    assert 40 <= sizes[0] <= 100
    assert all(2 <= below / above <= 8 for below, above in pairwise(sizes))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 17])
def test_few_images_have_a_level_too(count):
    tree = build_tree(np.random.default_rng(0).standard_normal((count, 4)))
    assert tree.levels.shape == (count, tree.num_levels)
    assert 1 <= tree.level_sizes[-1] <= tree.level_sizes[0] <= count
