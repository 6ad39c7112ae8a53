"""Which images `pick` takes, against plain loops; how labels spread; which images `fewlabels` labels."""

import csv
from dataclasses import dataclass

import numpy as np
import pandas
import pytest
import torch

from solo_hcsc import ArgumentError
from solo_hcsc.evaluation import budgets
from solo_hcsc.evaluation.knn import knn
from solo_hcsc.evaluation.labelled import as_labelled
from solo_hcsc.trees.picking import pick, sizes_for
from solo_hcsc.trees.pool import centred, cluster
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
    tree = cluster(centred(features), sizes_for(len(features), budget + len(already)))
    for clusters in reversed(tree.T):
        for number in sorted(set(clusters), key=lambda one: -(clusters == one).sum()):
            members = [image for image in range(len(points)) if clusters[image] == number]
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
    picks = pick(features, 4, clusters=np.stack([labels, labels // 3], axis=1))
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
    found = spread(features, dict(zip(known, labels[known], strict=True)))
    shares = found.shares
    assert found.labels.tolist() == shares.argmax(axis=1).tolist()
    assert found.given.nonzero()[0].tolist() == sorted(known)
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
    found = spread(features, {0: "a", 1: "b"}, clusters=np.array([[0], [1], [0], [1]]))
    assert found.labels.tolist() == ["a", "b", "a", "b"]
    assert found.shares[2] == pytest.approx([0.5 * 0.5 + 0.5 * 0.75, 0.5 * 0.5 + 0.5 * 0.25], abs=1e-3)


def test_knn_shares_are_those_of_the_evaluation():
    features, labels = blobs(noise=1.0)
    known, others = np.arange(0, len(labels), 4), np.arange(1, len(labels), 4)
    expected = knn((features[known], labels[known]), (features[others], labels[others])).metrics["acc1"]
    points = features / np.linalg.norm(features, axis=1, keepdims=True)
    shares = knn_shares(points[others], points[known], labels[known], 6)
    assert accuracy(shares, labels[others]) == pytest.approx(expected)


# ---- choices ----


def test_stratified_choice_has_each_class_equally_often():
    pool = as_labelled(blobs(), "train")
    for budget in (6, 15, 60):
        chosen = budgets.choose(pool, "stratified", budget, np.random.default_rng(0))
        counts = np.bincount(pool.labels[chosen], minlength=6)
        assert len({*chosen.tolist()}) == budget == counts.sum()
        assert counts.max() - counts.min() <= 1


def test_every_choice_and_classifier_is_measured_in_every_draw(capsys):
    features, labels = blobs()
    train, val = (features[::2], labels[::2]), (features[1::2], labels[1::2])
    found = budgets.fewlabels(train, val, budgets=[12, 6], draws=2)
    scores = found.settings["scores"]
    assert {(one["budget"], one["choice"], one["classifier"]) for one in scores} == {
        (b, c, k) for b in (6, 12) for c in budgets.CHOICES for k in budgets.CLASSIFIERS
    }
    assert all(len(one["accuracies"]) == len(one["surer_half"]) == 2 for one in scores)
    assert scores == budgets.fewlabels(train, val, budgets=[12, 6], draws=2).settings["scores"]
    picked = [value for one in scores if (one["choice"], one["classifier"]) == ("picked", "linear")
              for value in one["accuracies"]]  # fmt: skip
    assert found.metrics["picked"] == pytest.approx(np.mean(picked))
    assert [(row["labels"], row["chosen"]) for row in found.rows] == [(b, c) for b in (6, 12) for c in budgets.CHOICES]
    assert len(found.table().splitlines()) == 8
    assert capsys.readouterr().out == ""


def test_own_clusters_are_picked_from_if_asked_for():
    features, labels = blobs()
    train = Embedded(features, labels, clusters=np.stack([labels, labels // 3], axis=1))
    own, other = (
        budgets.fewlabels(train, (features, labels), budgets=[6], draws=1, own_tree=own).settings
        for own in (True, False)
    )
    assert (own["tree"], other["tree"]) == ("run", "features")
    assert own["scores"][0] != other["scores"][0]


@dataclass
class Embedded:
    """What `embed` returns, as far as it is read here."""

    vectors: np.ndarray
    labels: np.ndarray | None = None
    paths: list[str] | None = None
    clusters: np.ndarray | None = None


@dataclass
class Cut:
    """A tree, as far as it is read here: each image is a leaf, and clusters are runs of images."""

    means: np.ndarray
    level_sizes: tuple[int, ...] = (6, 2)

    @property
    def leaves(self):
        return np.arange(len(self.means))

    @property
    def keys(self):
        return tuple(f"{number}.jpg" for number in self.leaves)

    def cut(self, k):
        return self.leaves * k // len(self.means)


def test_arrays_tensors_and_embeddings_are_taken_alike():
    features, labels = blobs()
    known = [0, 40, 80, 120]
    of_known = dict(zip(known, labels[known].tolist(), strict=True))
    embeddings = Embedded(features, paths=[f"{number}.jpg" for number in range(len(features))])
    expected = pick(features, 5, known).images, spread(features, of_known)
    for given, as_kind in ((torch.from_numpy(features), torch.tensor), (embeddings, np.array)):
        assert pick(given, 5, as_kind(known)).images == expected[0]
        np.testing.assert_array_equal(spread(given, of_known).shares, expected[1].shares)
    named = {f"{number}.jpg": label for number, label in of_known.items()}
    picks = pick(embeddings, 5, named)
    assert [one.path for one in picks] == [f"{number}.jpg" for number in expected[0]]
    np.testing.assert_array_equal(spread(embeddings, named).shares, expected[1].shares)


def test_a_tree_is_cut_where_it_is_picked_from_and_spread_along():
    features, labels = blobs()
    tree = Cut(features)
    picks = pick(tree, 6)
    assert (
        picks.images
        == pick(features, 6, clusters=np.stack([tree.cut(k) for k in sizes_for(len(features), 6)], 1)).images
    )
    known = {one.path: int(labels[one.image]) for one in picks}
    levels = np.stack([tree.cut(6), tree.cut(2)], axis=1)
    expected = spread(features, {one.image: int(labels[one.image]) for one in picks}, clusters=levels)
    np.testing.assert_array_equal(spread(tree, known).shares, expected.shares)


def test_files_are_those_of_the_commands_and_tables_have_the_same(tmp_path):
    features, labels = blobs(each=4)
    embeddings = Embedded(features, paths=[f"=class/{number}.jpg" for number in range(len(features))])
    picks = pick(embeddings, 8)
    rows = list(csv.DictReader(picks.save(tmp_path / "labels.csv").open(encoding="utf-8")))
    assert [row["path"] for row in rows] == [f"'{one.path}" for one in picks]  # no formula
    assert picks.to_pandas().reason.tolist() == [one.reason for one in picks]
    found = spread(embeddings, {one.path: str(labels[one.image]) for one in picks}, abstain=0.5)
    table = pandas.read_parquet(found.save(tmp_path / "out") / "labels.parquet")
    pandas.testing.assert_frame_equal(table, found.to_pandas(), check_dtype=False)
    assert table.label.isna().sum() == round(0.5 * (len(features) - 8))
    assert found.confidences[found.given].min() == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("images", "photos"), ("images", np.zeros(4)), ("budget", 0), ("budget", 2.5), ("already", [999]),
     ("already", [0.5]), ("already", ["a.jpg"]), ("way", "best"), ("clusters", [[0.5]]),
     ("clusters", np.zeros((2, 3), int))],
)  # fmt: skip
def test_what_pick_cannot_take_is_named(name, value):
    features, _ = blobs()
    with pytest.raises(ArgumentError, match=f"^`{name}` "):
        pick(**({"images": features, "budget": 3} | {name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("images", None), ("labels", {0: 1, 999: 0}), ("labels", {}), ("labels", [0, 1]), ("labels", {0: "a", 40: "a"}),
     ("labels", {"a.jpg": 0, "b.jpg": 1}), ("abstain", 2), ("clusters", np.zeros((1, 2), int))],
)  # fmt: skip
def test_what_spread_cannot_take_is_named(name, value):
    features, _ = blobs()
    with pytest.raises(ArgumentError, match=f"`{name}` "):
        spread(**({"images": features, "labels": {0: 0, 40: 1, 80: 2}} | {name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("budgets", [0]), ("budgets", [999]), ("draws", 0), ("own_tree", True), ("way", "best"),
     ("train", (np.eye(8), [1] * 8)), ("budgets", [1])],
)  # fmt: skip
def test_what_fewlabels_cannot_take_is_named(name, value):
    with pytest.raises(ArgumentError, match=f"`{name}`"):
        budgets.fewlabels(**({"train": blobs(), "val": blobs(seed=1), "budgets": [6], "draws": 1} | {name: value}))
