"""Which images `pick` takes, against plain loops; how labels spread; which images `fewlabels` labels."""

import numpy as np
import pytest
import torch

from solo_hcsc import ArgumentError
from solo_hcsc.evaluation import budgets
from solo_hcsc.evaluation.embedding import Embeddings
from solo_hcsc.evaluation.knn import knn_accuracy
from solo_hcsc.trees.picking import centred, clusters_for, pick
from solo_hcsc.trees.spreading import accuracy, knn_shares, spread


def blobs(classes=6, each=30, size=8, noise=0.35, seed=0):
    """Features of classes that overlap a little, of unequal sizes, and their classes."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), [each + 5 * label for label in range(classes)])
    centres = random.normal(size=(classes, size))
    return (3 + centres[labels] + noise * random.normal(size=(len(labels), size))).astype("float32"), labels


def unit(features):
    points = features - features.mean(axis=0)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def loop(features, budget, way, already=()):
    """The rule as it is told: levels from the top, large clusters first, one of each without any."""
    points, chosen = unit(features), [*already]
    paths = clusters_for(centred(features), budget + len(already))
    for clusters in reversed(paths):
        for cluster in sorted(set(clusters), key=lambda one: -(clusters == one).sum()):
            members = [image for image in range(len(points)) if clusters[image] == cluster]
            if len(chosen) - len(already) == budget or set(members) & set(chosen):
                continue
            scores = {}
            for image in members:
                others = sorted(np.linalg.norm(points[image] - points[other]) for other in members if other != image)
                scores[image] = (
                    np.mean(others[:20]) if way == "typical" else -points[image] @ points[members].sum(axis=0)
                )
            chosen.append(min(scores, key=scores.get) if len(members) > 1 else members[0])
    return chosen[len(already) :]


@pytest.mark.parametrize("way", ["typical", "nearest"])
@pytest.mark.parametrize("already", [(), (0, 50, 100)])
def test_tree_is_walked_from_the_top(way, already):
    features, _ = blobs()
    picks, expected = pick(features, 12, already, way), loop(features, 12, way, already)
    assert len(expected) >= 11  # two that are labelled may be of one cluster
    assert [one.image for one in picks][: len(expected)] == expected
    assert ["next" in one.reason for one in picks] == [False] * len(expected) + [True] * (12 - len(expected))


def test_farthest_first_is_the_plain_loop():
    features, _ = blobs()
    points = unit(features)
    chosen = [int((points @ points.mean(axis=0)).argmax())]
    while len(chosen) < 10:
        chosen.append(max(range(len(points)), key=lambda image: min(1 - points[chosen] @ points[image])))
    assert [one.image for one in pick(features, 10, way="farthest")] == chosen


@pytest.mark.parametrize("way", ["typical", "nearest", "farthest"])
def test_picks_are_the_same_each_time_and_never_duplicates(way):
    features, _ = blobs(each=4)
    twice = np.concatenate([features, features])
    picks = [one.image for one in pick(twice, len(twice), way=way)]
    assert sorted(image % len(features) for image in picks) == list(range(len(features)))  # each once, then no more
    assert picks == [one.image for one in pick(twice, len(twice), way=way)]


@pytest.mark.parametrize("way", ["typical", "nearest", "farthest"])
def test_labelled_images_and_their_duplicates_are_not_picked(way):
    features, _ = blobs(each=4)
    twice = np.concatenate([features, features])
    picks = {one.image % len(features) for one in pick(twice, 20, already=[0, 1, 2], way=way)}
    assert len(picks) == 20
    assert not picks & {0, 1, 2}


def test_tree_that_is_given_is_walked():
    features, labels = blobs()
    picks = pick(features, 4, paths=np.stack([labels, labels // 3]))
    assert [labels[one.image] // 3 for one in picks[:2]] == [1, 0]  # the larger half of the classes first
    assert len({labels[one.image] for one in picks}) == 4
    assert "cluster 1 of 2 by size at level 2" in picks[0].reason


def test_first_picks_are_of_all_classes():
    features, labels = blobs(noise=0.05)
    assert {labels[one.image] for one in pick(features, 6)} == set(range(6))


# ---- spreading ----


def test_spread_is_surer_where_it_is_right_and_better_than_knn():
    features, labels = blobs(each=80, noise=1.2)
    known = [one.image for one in pick(features, 24)]
    shares = spread(features, known, labels[known])
    points = unit(features).astype("float32")
    assert np.allclose(shares.sum(axis=1), 1)
    assert (shares[known].argmax(axis=1) == labels[known]).all()
    assert (shares[known].max(axis=1) == 1).all()
    halves = [accuracy(shares, labels, part) for part in (0.25, 0.5, 1)]
    assert halves == sorted(halves, reverse=True)
    assert halves[0] > halves[-1] + 5
    assert halves[-1] > accuracy(knn_shares(points, points[known], labels[known], 6), labels)


def test_clusters_decide_where_neighbours_are_undecided():
    """Two images between two labelled ones, which only a tree puts with one of them."""
    features = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]], "float32")
    shares = spread(features, [0, 1], np.array([0, 1]), np.array([[0, 1, 0, 1]]))
    assert shares.argmax(axis=1).tolist() == [0, 1, 0, 1]
    assert shares[2] == pytest.approx([0.5 * 0.5 + 0.5 * 0.75, 0.5 * 0.5 + 0.5 * 0.25], abs=1e-3)


def test_knn_shares_are_those_of_the_evaluation():
    features, labels = blobs(noise=1.0)
    known, others = np.arange(0, len(labels), 4), np.arange(1, len(labels), 4)
    rows = torch.from_numpy(features), torch.from_numpy(labels)
    expected = knn_accuracy(rows[0][known], rows[1][known], rows[0][others], rows[1][others])
    points = features / np.linalg.norm(features, axis=1, keepdims=True)
    shares = knn_shares(points[others], points[known], labels[known], 6)
    assert accuracy(shares, labels[others]) == pytest.approx(expected)


# ---- choices ----


def test_stratified_choice_has_each_class_equally_often():
    pool = budgets.Labelled(*blobs())
    for budget in (6, 15, 60):
        chosen = budgets.choose(pool, "stratified", budget, np.random.default_rng(0))
        counts = np.bincount(pool.classes[chosen], minlength=6)
        assert len({*chosen.tolist()}) == budget == counts.sum()
        assert counts.max() - counts.min() <= 1


def test_every_choice_and_classifier_is_measured_in_every_draw():
    features, labels = blobs()
    pool, judged = budgets.Labelled(features[::2], labels[::2]), budgets.Labelled(features[1::2], labels[1::2])
    scores = budgets.measure(pool, judged, [6, 12], draws=2, way="typical")
    found = {(one.budget, one.choice, one.classifier) for one in scores}
    assert found == {(b, c, k) for b in (6, 12) for c in budgets.CHOICES for k in budgets.CLASSIFIERS}
    assert all(len(one.accuracies) == len(one.surer_half) == 2 for one in scores)
    assert scores == budgets.measure(pool, judged, [6, 12], draws=2, way="typical")


def test_arrays_tensors_and_embeddings_are_taken_alike():
    features, labels = blobs()
    known = [0, 40, 80, 120]
    embeddings = Embeddings([str(number) for number in range(len(features))], None, features)
    expected = [one.image for one in pick(features, 5, known)], spread(features, known, labels[known])
    for given, as_kind in ((torch.from_numpy(features), torch.tensor), (embeddings, list)):
        assert [one.image for one in pick(given, 5, as_kind(known))] == expected[0]
        np.testing.assert_array_equal(spread(given, as_kind(known), as_kind(labels[known])), expected[1])


@pytest.mark.parametrize(
    ("name", "value"),
    [("features", "photos"), ("features", np.zeros(4)), ("budget", 0), ("budget", 2.5), ("already", [999]),
     ("already", [0.5]), ("already", ["a.jpg"]), ("way", "best"), ("paths", np.zeros((2, 3), int)), ("paths", [[0.5]])],
)  # fmt: skip
def test_what_pick_cannot_take_is_named(name, value):
    features, _ = blobs()
    with pytest.raises(ArgumentError, match=f"^`{name}` "):
        pick(**({"features": features, "budget": 3} | {name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("features", None), ("labelled", [0, 999, 3]), ("labelled", [0, 1]), ("labelled", []), ("classes", ["a", "b"]),
     ("classes", [1, 1, 1]), ("classes", [-1, 0, 1]), ("paths", np.zeros((1, 2), int))],
)  # fmt: skip
def test_what_spread_cannot_take_is_named(name, value):
    features, _ = blobs()
    with pytest.raises(ArgumentError, match=f"`{name}` "):
        spread(**({"features": features, "labelled": [0, 40, 80], "classes": [0, 1, 2]} | {name: value}))
