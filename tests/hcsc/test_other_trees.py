"""Trees by Ward's linkage, of the encoder's features and of true labels; negatives left out without chance."""

import numpy as np
import oracles
import pytest
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import fcluster, linkage

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.coding import SelectiveCoding, selection_quality
from solo_hcsc.hcsc.hierarchy import build_hierarchy, hierarchy_of_labels
from solo_hcsc.hcsc.options import PRESETS, Options

D, N = 8, 120
NEW = {
    "clustered_space": "projector", "tree_builder": "kmeans", "entry_cluster": "drawn", "oracle_labels": False,
}  # fmt: skip


def unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def options(**others):
    base = {"num_prototypes": (6, 3), "queue_size": 24, "min_cluster_size": 2, "proto_warmup_epochs": 0}
    return Options(**(base | others))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_without_them(preset):
    assert {name: getattr(Options(preset=preset), name) for name in NEW} == NEW


# ---- clusters of features ----


def test_clusters_are_those_of_the_features_and_prototypes_the_means_of_embeddings():
    groups = torch.arange(N) % 6
    features = F.normalize(torch.eye(6)[groups] + 0.01 * unit(N, 6), dim=1)
    embeddings = unit(N, D, seed=3)  # which know nothing of the groups
    tree = build_hierarchy(embeddings, options(), features=features)
    bottom, top = tree.assignments.T
    for cluster in range(6):
        assert len(groups[bottom == cluster].unique()) == 1
        mean = F.normalize(embeddings[bottom == cluster].mean(dim=0), dim=0)
        torch.testing.assert_close(tree.levels[0].prototypes[cluster], mean)
    assert torch.equal(tree.levels[0].parents[bottom], top)
    torch.testing.assert_close(tree.levels[1].prototypes[0], F.normalize(embeddings[top == 0].mean(dim=0), dim=0))


def test_features_that_are_the_embeddings_give_the_same_clusters():
    embeddings = unit(N, D)
    plain, other = (build_hierarchy(embeddings, options(), features=given) for given in (None, embeddings))
    assert torch.equal(plain.assignments, other.assignments)


@pytest.mark.parametrize("members", ["images", "children"])
@pytest.mark.parametrize("centre", ["prototype", "centroid"])
def test_temperatures_are_taken_among_embeddings(members, centre):
    chosen = options(temperature_members=members, temperature_centre=centre, temperature_scaling="none")
    tree = build_hierarchy(unit(N, D), chosen, features=unit(N, 20, seed=1))
    assert all(bool((level.temperatures > 0).all()) for level in tree.levels)
    of_one = (tree.assignments[:, 0] == 0).nonzero()[:, 0]
    centre_of_one = unit(N, D)[of_one].mean(dim=0)
    if centre == "prototype":
        centre_of_one = F.normalize(centre_of_one, dim=0)
    expected = (unit(N, D)[of_one] - centre_of_one).norm(dim=1).mean() / torch.log(torch.tensor(len(of_one) + 10.0))
    torch.testing.assert_close(tree.levels[0].temperatures[0], expected)


def test_coding_wants_features_where_they_are_clustered_and_nowhere_else():
    of_encoder = options(clustered_space="encoder", clustered_features="images")
    coding = SelectiveCoding(of_encoder, D, N)
    with pytest.raises(ValueError, match="give `features` where it is encoder"):
        coding.cluster(0, unit(N, D))
    assert coding.cluster(0, unit(N, D), features=unit(N, 20)).num_levels == 2
    with pytest.raises(ValueError, match="give `features` where it is encoder"):
        SelectiveCoding(options(), D, N).cluster(0, unit(N, D), features=unit(N, 20))


# ---- Ward's linkage ----


def test_levels_by_ward_are_scipys_cuts():
    embeddings = unit(N, D)
    chosen = options(num_prototypes=(12, 5, 2), min_cluster_size=0, tree_builder="ward", temperature_scaling="none")
    tree = build_hierarchy(embeddings, chosen)
    table = linkage(embeddings.double().numpy(), "ward")
    for number, count in enumerate(chosen.num_prototypes):
        theirs, ours = fcluster(table, count, "maxclust"), tree.assignments[:, number].numpy()
        assert len({*zip(theirs.tolist(), ours.tolist(), strict=True)}) == count  # the same clusters, renumbered
        means = np.stack([embeddings[ours == one].mean(dim=0).numpy() for one in range(count)])
        spread = np.square(embeddings.numpy() - means[ours]).sum()
        if not number:
            assert tree.levels[0].objective == pytest.approx(spread, rel=1e-5)
        torch.testing.assert_close(tree.levels[number].prototypes, F.normalize(torch.from_numpy(means), dim=1))
    bottom, middle, top = tree.assignments.T
    assert torch.equal(tree.levels[0].parents[bottom], middle)
    assert torch.equal(tree.levels[1].parents[middle], top)
    nearest = (embeddings - tree.levels[1].prototypes[middle]).norm(dim=1)[middle == 0]
    expected = nearest.mean() / torch.log(torch.tensor(len(nearest) + 10.0))
    torch.testing.assert_close(tree.levels[1].temperatures[0], expected)


def test_small_clusters_by_ward_are_dropped_and_their_images_go_to_the_nearest():
    tree = build_hierarchy(unit(N, D), options(num_prototypes=(40, 8), min_cluster_size=4, tree_builder="ward"))
    bottom = tree.levels[0]
    assert bottom.dropped > 0
    assert len(bottom.sizes) == 40 - bottom.dropped
    assert int(bottom.sizes.min()) >= 4
    assert int(bottom.sizes.sum()) == int(tree.levels[1].sizes.sum()) == N
    assert torch.equal(bottom.parents[tree.assignments[:, 0]], tree.assignments[:, 1])


def test_ward_takes_features_and_many_images(monkeypatch):
    monkeypatch.setattr("solo_hcsc.hcsc.linkage.EXACT", 50)
    groups = torch.arange(N) % 6
    features = F.normalize(torch.eye(300)[groups] + 0.01 * unit(N, 300), dim=1)
    tree = build_hierarchy(unit(N, D, seed=3), options(tree_builder="ward"), seed=2**40, features=features)
    bottom = tree.assignments[:, 0]
    assert all(len(groups[bottom == cluster].unique()) == 1 for cluster in range(6))
    mean = F.normalize(unit(N, D, seed=3)[bottom == 0].mean(dim=0), dim=0)
    torch.testing.assert_close(tree.levels[0].prototypes[0], mean)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_tree_by_ward_is_used_and_kept_like_any_other(preset):
    chosen = options(preset=preset, tree_builder="ward", batch_negatives=False, clustered_features="images")
    coding = SelectiveCoding(chosen, D, N)
    coding.cluster(0, unit(N, D))
    again = SelectiveCoding(chosen, D, N)
    again.load_state_dict(coding.state_dict())
    steps = [one.step([unit(8, D)], [unit(8, D, seed=1)], torch.arange(8), epoch=0, step=0) for one in (coding, again)]
    assert coding.kept == (6, 3)
    assert "prototype_loss_1" in steps[0].parts
    assert torch.equal(steps[0].loss, steps[1].loss)
    assert bool(steps[0].loss.isfinite())


# ---- true labels ----


def labelled(count=N):
    classes = torch.arange(count) % 4
    return torch.stack([classes, classes // 2], dim=1)


def test_true_labels_are_the_tree():
    of_labels = options(num_prototypes=(4, 2), oracle_labels=True)
    coding = SelectiveCoding(of_labels, D, N)
    tree = coding.cluster(0, unit(N, D), labels=labelled())
    assert torch.equal(tree.assignments, labelled())
    assert tree.levels[0].parents.tolist() == [0, 0, 1, 1]
    for level, labels in zip(tree.levels, labelled().T, strict=True):
        torch.testing.assert_close(level.prototypes[1], F.normalize(unit(N, D)[labels == 1].mean(dim=0), dim=0))
    with pytest.raises(ValueError, match="`oracle_labels` is True; give `labels` if true"):
        coding.cluster(0, unit(N, D))
    with pytest.raises(ValueError, match="`oracle_labels` is False"):
        SelectiveCoding(options(), D, N).cluster(0, unit(N, D), labels=labelled())


@pytest.mark.parametrize("preset", PRESETS)
def test_temperatures_of_true_labels_are_the_presets(preset):
    """By plain loops: over images or the prototypes below, around the prototype or the centroid."""
    chosen = options(num_prototypes=(4, 2), preset=preset, oracle_labels=True, temperature_scaling="none")
    tree = hierarchy_of_labels(unit(N, D), labelled(), chosen)
    images, children = unit(N, D).double().numpy(), tree.levels[0].prototypes.double().numpy()
    assert (chosen.temperature_members, chosen.temperature_centre) == (
        ("children", "centroid") if preset == "official" else ("images", "prototype")
    )
    for number, (level, labels) in enumerate(zip(tree.levels, labelled().T, strict=True)):
        for cluster in range(len(level.prototypes)):
            members = images[labels == cluster]
            centre = members.mean(axis=0)
            if chosen.temperature_centre == "prototype":
                centre = centre / (centre @ centre) ** 0.5
            if number and chosen.temperature_members == "children":
                members = children[2 * cluster : 2 * cluster + 2]  # the classes below
            expected = oracles.eq3_temperature(members, centre, chosen.epsilon)
            assert level.temperatures[cluster].item() == pytest.approx(expected, rel=1e-4)


def test_oracle_with_assigned_entries_leaves_out_every_false_negative_and_nothing_else():
    coding = SelectiveCoding(
        options(num_prototypes=(4, 2), oracle_labels=True, entry_cluster="assignment", batch_negatives=False), D, N
    )
    coding.install(hierarchy_of_labels(unit(N, D), labelled(), coding.options), epoch=0)
    classes = labelled()[:, 0]
    first, second = torch.arange(24), torch.arange(24, 36)
    coding.step([unit(24, D)], [unit(24, D, seed=1)], first, epoch=0, step=0, labels=classes[first])
    coded = coding.step([unit(12, D)], [unit(12, D, seed=2)], second, epoch=0, step=1, labels=classes[second])
    quality = selection_quality(coded.left_out()[0], classes[second], coded.queue_labels, coded.same_image)
    assert [value.item() for value in quality] == [1.0, 1.0, 1.0]


# ---- entries' clusters without chance ----


@pytest.mark.parametrize("temperature", [0.2, 0.01])  # by shared draws, and pair by pair
def test_assigned_entries_are_left_out_for_queries_of_their_images_cluster(temperature):
    coding = SelectiveCoding(options(entry_cluster="assignment", temperature=temperature), D, N)
    tree = coding.cluster(0, unit(N, D))
    index = torch.arange(24)
    coded = coding.step([unit(24, D, seed=1)], [unit(24, D, seed=2)], index, epoch=0, step=0)
    for left_out, clusters in zip(coded.left_out(), tree.assignments.T, strict=True):
        expected = clusters[index][:, None] == clusters[index][None]
        assert torch.equal(left_out, expected & ~torch.eye(24, dtype=torch.bool))
    shares = [coded.parts[f"left_out_{level}"].item() for level in range(2)]
    assert shares == pytest.approx([out.float().sum().item() / 24 / 23 for out in coded.left_out()])


def test_new_tree_moves_the_entries_of_the_queue():
    coding = SelectiveCoding(options(entry_cluster="assignment"), D, N)
    coding.cluster(0, unit(N, D))
    index = torch.arange(24)
    coding.step([unit(24, D, seed=1)], [unit(24, D, seed=2)], index, epoch=0, step=0)
    other = coding.cluster(1, unit(N, D, seed=9))
    assert torch.equal(coding.queue.clusters[:, : len(index)], other.assignments[index].T)


def test_entries_without_an_image_have_their_nearest_cluster():
    coding = SelectiveCoding(options(entry_cluster="assignment"), D, N)
    coding.cluster(0, unit(N, D))
    nearest = (coding.queue.keys @ coding.level(0).prototypes.T).argmax(dim=1)
    assert torch.equal(coding.queue.clusters[0], nearest), "the random ones of the start"


def test_queue_without_the_option_is_as_it_was():
    assert "queue.images" not in SelectiveCoding(options(), D, N).state_dict()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"clustered_space": "encoder"}, "add `clustered_features` images"),
        ({"entry_cluster": "assignment", "query_cluster": "cosine"}, "add `query_cluster` assignment"),
        ({"entry_cluster": "assignment", "clamp_probabilities": True}, "add `clamp_probabilities` false"),
        ({"oracle_labels": True, "cluster_sample": 50}, "leave out `cluster_sample`"),
        ({"oracle_labels": True, "tree_builder": "ward"}, "`oracle_labels` are the clusters"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given, told):
    with pytest.raises(ArgumentError, match=told):
        options(**given)


def test_few_images_are_enough_where_nothing_is_clustered():
    Options(instance_selection=False, prototype_loss=False).check_images(50)
    with pytest.raises(ArgumentError, match="needs 30000 images"):
        Options().check_images(50)
