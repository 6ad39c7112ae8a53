"""Even shares down a tree: of images to keep, and of what a sampler draws."""

import numpy as np
import pytest

from solo_hcsc.errors import ArgumentError
from solo_hcsc.trees.balancing import balanced_weights, down_the_tree, draw, effective_clusters, split_evenly


def loop_oracle(clusters: np.ndarray, target: int) -> dict[tuple, int]:
    """Hand out one image at a time: at every node to the child that has least so far and room, from the root down."""
    paths = [tuple(row[::-1]) for row in clusters.tolist()]
    room: dict[tuple, int] = {}
    for path in paths:
        for depth in range(len(path) + 1):
            room[path[:depth]] = room.get(path[:depth], 0) + 1
    given = dict.fromkeys(room, 0)
    for _ in range(min(target, len(paths))):
        node: tuple = ()
        given[node] += 1
        while len(node) < clusters.shape[1]:
            children = {path[: len(node) + 1] for path in room if path[: len(node)] == node and len(path) > len(node)}
            free = [child for child in children if given[child] < room[child]]
            node = min(free, key=lambda child: (given[child], child))
            given[node] += 1
    return {node: count for node, count in given.items() if len(node) == clusters.shape[1]}


def some_tree(seed: int = 0, images: int = 200) -> np.ndarray:
    draws = np.random.default_rng(seed)
    bottom = np.minimum(draws.geometric(0.15, images) - 1, 11)
    return np.stack([bottom, np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3])[bottom]], axis=1)


@pytest.mark.parametrize("target", [1, 7, 40, 111, 199, 500])
def test_shares_are_those_of_handing_out_one_by_one(target):
    clusters = some_tree()
    nodes, shares = down_the_tree(clusters, target)
    oracle = loop_oracle(clusters, target)
    assert shares.sum() == min(target, len(clusters))
    for node, share in enumerate(shares.tolist()):
        path = tuple(clusters[nodes == node][0][::-1].tolist())
        assert share <= (nodes == node).sum()
        assert abs(share - oracle[path]) <= 2  # of each parent's odd ones another child may have one more


def test_no_child_gets_less_than_a_fuller_one_that_has_room():
    room = np.array([3, 50, 7, 1, 20])
    found = split_evenly(40, room)
    assert found.sum() == 40
    assert found.tolist()[3] == 1
    free = found[found < room]
    assert free.max() - free.min() <= 1


def test_weights_are_even_over_the_top_and_capped():
    clusters = some_tree()
    weights = balanced_weights(clusters, most=1000)
    top = np.bincount(clusters[:, 1], weights)
    assert np.allclose(top, len(clusters) / len(top))
    assert np.isclose(weights.sum(), len(clusters))
    capped = balanced_weights(clusters, most=2)
    assert capped.max() <= 2 + 1e-9
    assert np.isclose(capped.sum(), len(clusters))


def test_strength_goes_from_uniform_to_even():
    clusters = some_tree()
    spreads = [balanced_weights(clusters, strength).std() for strength in (0, 0.5, 1)]
    assert spreads[0] == 0
    assert spreads[0] < spreads[1] < spreads[2]


def test_images_without_a_cluster_are_drawn_once():
    clusters = some_tree()
    clusters[:10] = -1
    weights = balanced_weights(clusters)
    assert (weights[:10] == 1).all()
    assert np.isclose(weights.sum(), len(clusters))


def test_draws_follow_the_weights_within_one_and_reach_every_image_in_time():
    clusters = some_tree()
    weights = balanced_weights(clusters)
    nodes, shares = down_the_tree(clusters, float(len(clusters)), most=30)
    counts = np.zeros(len(clusters))
    for epoch in range(40):
        drawn = np.bincount(draw(weights, nodes, np.random.default_rng(epoch)), minlength=len(clusters))
        assert drawn.sum() == len(clusters)
        assert (drawn >= np.floor(weights - 1e-9)).all()
        assert (drawn <= np.ceil(weights + 1e-9)).all()
        assert np.abs(np.bincount(nodes, drawn) - shares).max() <= 1
        counts += drawn
    assert (counts > 0).all()
    assert np.abs(counts / 40 - weights).max() < 0.5


def test_effective_clusters_of_equal_ones_is_their_number():
    assert effective_clusters(np.repeat(np.arange(7), 5)) == pytest.approx(7)
    assert effective_clusters(np.array([0] * 99 + [1])) < 1.1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"clusters": [1, 2]}, "`clusters` has shape"),
        ({"clusters": [[1.5]]}, "give whole numbers"),
        ({"strength": 1.5}, "`strength` 1.5"),
        ({"most": 0.5}, "`most` 0.5"),
    ],
)
def test_bad_arguments_are_named(arguments, said):
    with pytest.raises(ArgumentError, match=said):
        balanced_weights(**({"clusters": [[0], [1]]} | arguments))
