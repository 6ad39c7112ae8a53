"""Algorithm 1 and the cluster temperatures."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import oracles
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from solo_hcsc.hcsc import hierarchy
from solo_hcsc.cli.errors import UserError
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.options import check_images, resolve_options

SMALL = {"num_prototypes": [12, 6, 2], "min_cluster_size": 3}


def blobs(clusters=12, per_cluster=20, dim=16, spread=0.05, seed=0):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(clusters, dim))
    points = np.repeat(centres, per_cluster, axis=0) + spread * random.normal(size=(clusters * per_cluster, dim))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return torch.tensor(points, dtype=torch.float32), np.repeat(np.arange(clusters), per_cluster)


def test_k_means_finds_separated_clusters_and_chains_them_upwards():
    points, labels = blobs(clusters=4, per_cluster=60)
    flags = {"num_prototypes": [4, 3, 2], "kmeans_restarts": 30}
    tree = build_hierarchy(points, resolve_options(flags))
    assert adjusted_rand_score(labels, tree.assignments[0]) > 0.99
    assert tree.assignments.shape == (3, 240)
    for lower, upper in ((0, 1), (1, 2)):
        parents = tree.levels[lower].parents
        assert torch.equal(parents[tree.assignments[lower]], tree.assignments[upper])
    assert tree.levels[2].parents is None
    for level in tree.levels:
        torch.testing.assert_close(level.prototypes.norm(dim=1), torch.ones(len(level.prototypes)))
        assert level.sizes.sum() == 240


@pytest.mark.parametrize("levels", [[5], [9, 4], [16, 8, 4, 2]])
def test_any_number_of_levels(levels):
    points, _ = blobs()
    tree = build_hierarchy(points, resolve_options({"num_prototypes": levels, "min_cluster_size": 0}))
    assert [len(level.prototypes) for level in tree.levels] == levels


def test_objective_is_what_plain_loops_say():
    points, _ = blobs(per_cluster=5)
    options = resolve_options({"num_prototypes": [4], "min_cluster_size": 0, "kmeans": "plain"})
    centroids = hierarchy.kmeans(points.numpy(), 4, options, seed=0)
    objective = build_hierarchy(points, options).levels[0].objective
    assert objective == pytest.approx(oracles.lloyd_objective(points.numpy(), centroids), rel=1e-5)


def test_nearest_agrees_with_plain_loops():
    points, _ = blobs(per_cluster=3)
    centroids = points[::7].numpy()
    expected = [int(np.argmin([((p - c) ** 2).sum() for c in centroids])) for p in points.numpy()]
    assert hierarchy.nearest(points.numpy(), centroids)[1].tolist() == expected


@pytest.mark.parametrize("members", ["images", "children"])
@pytest.mark.parametrize("centre", ["prototype", "centroid"])
def test_temperatures_are_eq_3(members, centre):
    points, _ = blobs(spread=0.3)
    flags = SMALL | {"temperature_members": members, "temperature_centre": centre, "temperature_scaling": "none"}
    tree = build_hierarchy(points, resolve_options(flags))
    images = points.double().numpy()
    for number, level in enumerate(tree.levels):
        per_image = number == 0 or members == "images"
        data = images if per_image else tree.levels[number - 1].prototypes.double().numpy()
        owner = tree.assignments[number] if per_image else tree.levels[number - 1].parents
        for c in range(len(level.prototypes)):
            own = data[(owner == c).numpy()]
            target = level.prototypes[c].double().numpy()
            if centre == "centroid":  # the mean of what k-means clustered here, unless clusters were dropped
                if level.dropped:
                    continue
                children = data if number == 0 else tree.levels[number - 1].prototypes.double().numpy()
                parents = tree.assignments[0] if number == 0 else tree.levels[number - 1].parents
                target = children[(parents == c).numpy()].mean(axis=0)
            expected = max(oracles.eq3_temperature(own, target, 10), hierarchy.MIN_TEMPERATURE)
            if len(own) > 1 or members == "images":
                assert level.temperatures[c].item() == pytest.approx(
                    expected, rel=2e-2 if centre == "centroid" else 1e-4
                )


def test_temperatures_of_adversarial_clusters():
    points = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1], [0.6, 0.8]])
    clusters = np.array([0, 0, 0, 1, 1])
    centres = np.array([[1.0, 0], [0, 1], [0, -1]])
    literal = hierarchy.cluster_temperatures(points, centres, clusters, 10)
    far = np.linalg.norm([0.6, -0.2]) / 2 / np.log(12)
    assert literal == pytest.approx([0, far, far])  # the third has no member: the largest of all
    lonely = hierarchy.cluster_temperatures(points[2:], centres, clusters[2:], 10, lonely="maximum")
    assert lonely == pytest.approx([far, far, far])  # a single member too, as in the released code
    tree = build_hierarchy(
        torch.ones(40, 4) / 2, resolve_options({"num_prototypes": [2], "temperature_scaling": "none"})
    )
    assert (tree.levels[0].temperatures == np.float32(hierarchy.MIN_TEMPERATURE)).all()


def test_clipping_keeps_the_mean_and_narrows_the_range():
    temperatures = np.array([0.01, 0.1, 0.12, 0.13, 0.11, 0.1, 0.12, 0.1, 0.11, 3.0])
    scaled = hierarchy.clip_and_rescale(temperatures, 0.2)
    assert scaled.mean() == pytest.approx(0.2)
    assert scaled.max() / scaled.min() < 5
    assert hierarchy.clip_and_rescale(np.zeros(4), 0.2) == pytest.approx([0.2] * 4)


def test_small_clusters_are_dropped_and_their_images_move_to_the_nearest():
    points, _ = blobs(clusters=4, per_cluster=30, spread=0.01)
    loner = torch.nn.functional.normalize(-points[:1] + 0.01, dim=1)
    everything = torch.cat([points, loner])
    tree = build_hierarchy(everything, resolve_options({"num_prototypes": [5, 2], "kmeans_restarts": 9}))
    bottom = tree.levels[0]
    assert bottom.dropped == 1
    assert len(bottom.prototypes) == 4
    assert (bottom.sizes >= 10).all()
    assert tree.assignments[0, -1] == (bottom.prototypes @ loner[0]).argmax()
    assert bottom.parents.max() < len(tree.levels[1].prototypes)
    everyone = build_hierarchy(everything, resolve_options({"num_prototypes": [5, 2], "min_cluster_size": 0}))
    assert len(everyone.levels[0].prototypes) == 5


def test_fewer_clusters_kept_than_the_level_above_asks_for():
    points, _ = blobs(clusters=3, per_cluster=30, spread=0.001)
    tree = build_hierarchy(points, resolve_options({"num_prototypes": [8, 7], "min_cluster_size": 10}))
    assert len(tree.levels[1].prototypes) <= len(tree.levels[0].prototypes)
    assert torch.equal(tree.levels[0].parents[tree.assignments[0]], tree.assignments[1])


def test_same_seed_same_tree():
    points, _ = blobs()
    options = resolve_options(SMALL)
    first, again, other = (build_hierarchy(points, options, seed) for seed in (3, 3, 4))
    assert torch.equal(first.levels[0].prototypes, again.levels[0].prototypes)
    assert not torch.equal(first.levels[0].prototypes, other.levels[0].prototypes)
    by_level = replace(options, kmeans_seed="level")
    seeds = [build_hierarchy(points, by_level, seed).levels[0].prototypes for seed in (3, 4)]
    assert torch.equal(*seeds)


def flat(count=400, dim=32, rank=6, seed=0):
    """Unit vectors that vary in few directions."""
    draw = torch.Generator().manual_seed(seed)
    groups = torch.randn(20, rank, generator=draw)[torch.randint(20, (count,), generator=draw)]
    latent = groups + 0.2 * torch.randn(count, rank, generator=draw)
    points = latent @ torch.randn(rank, dim, generator=draw) + 0.02 * torch.randn(count, dim, generator=draw)
    return torch.nn.functional.normalize(points, dim=1)


def round_ones(count=400, dim=32, seed=0):
    """Unit vectors that vary in all directions alike."""
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def moved(points, by=0.03, seed=5):
    noise = torch.randn(points.shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(points + by * noise, dim=1)


def starts(monkeypatch, points, last=()):
    """The number of directions and the kind of start of each k-means of a large level."""
    monkeypatch.setattr(hierarchy, "SMALL", 0)
    seen, kmeans = [], hierarchy.kmeans

    def spied(*args, start, **kwargs):
        seen.append((args[0].shape[1], start if isinstance(start, str) else "given"))
        return kmeans(*args, start=start, **kwargs)

    monkeypatch.setattr(hierarchy, "kmeans", spied)
    options = resolve_options({"num_prototypes": [30], "min_cluster_size": 0})
    tree = build_hierarchy(points, options, last=last)
    monkeypatch.undo()
    return seen, tree


def test_large_clustering_goes_from_few_directions_to_all(monkeypatch):
    points = flat()
    seen, tree = starts(monkeypatch, points)
    assert seen == [(16, "kmeans++"), (32, "given")]
    assert len(tree.levels[0].prototypes) == 30
    later, _ = starts(monkeypatch, moved(points), last=[tree.levels[0].prototypes])
    assert later == [(16, "given"), (32, "given")]


def test_large_clustering_of_embeddings_that_vary_in_all_directions_goes_on_from_the_last(monkeypatch):
    points = round_ones()
    seen, tree = starts(monkeypatch, points)
    assert seen == [(32, "kmeans++")]
    later, after = starts(monkeypatch, moved(points), last=[tree.levels[0].prototypes])
    assert later == [(32, "given")]
    # each prototype is still about the one that it started from
    assert ((tree.levels[0].prototypes * after.levels[0].prototypes).sum(dim=1) > 0.9).all()


def test_large_clustering_of_few_dimensions(monkeypatch):
    seen, tree = starts(monkeypatch, round_ones(dim=8), last=[round_ones(count=30, dim=8, seed=1)])
    assert seen == [(8, "given"), (8, "given")]
    assert len(tree.levels[0].prototypes) == 30


def test_old_faiss_is_refused_before_training(monkeypatch):
    monkeypatch.delattr("faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS")
    with pytest.raises(UserError, match=r"clusters with faiss 1\.14\.2 or newer"):
        hierarchy.import_faiss()


@pytest.mark.parametrize("make", [flat, round_ones])
def test_large_clustering_is_as_good_as_restarts_first_and_later(make, monkeypatch):
    before, after = make(), moved(make())
    options = resolve_options({"num_prototypes": [30], "min_cluster_size": 0, "kmeans": "plain", "kmeans_restarts": 5})
    best = build_hierarchy(after, options).levels[0].objective
    _, first = starts(monkeypatch, before)
    for last in ((), [first.levels[0].prototypes]):
        _, tree = starts(monkeypatch, after, last)
        assert tree.levels[0].objective < 1.03 * best


def test_small_clustering_starts_anew(monkeypatch):
    points = flat()
    options = resolve_options({"num_prototypes": [30, 10], "min_cluster_size": 0})
    tree = build_hierarchy(points, options, seed=1)
    last = [torch.zeros_like(level.prototypes) for level in tree.levels]
    assert torch.equal(build_hierarchy(points, options, 1, last).levels[1].prototypes, tree.levels[1].prototypes)


def test_prototypes_that_were_dropped_are_made_up_for(monkeypatch):
    points = flat()
    _, tree = starts(monkeypatch, points)
    for again in (points, round_ones()):
        _, later = starts(monkeypatch, again, last=[tree.levels[0].prototypes[:20]])
        assert len(later.levels[0].prototypes) == 30


def test_means_leave_out_clusters_without_points():
    points = np.array([[1.0, 0], [3, 0], [0, 5]], dtype="float32")
    assert hierarchy.means(points, np.array([2, 2, 0]), 4).tolist() == [[0, 5], [2, 0]]


def test_result_is_frozen_and_has_its_statistics():
    points, _ = blobs()
    tree = build_hierarchy(points, resolve_options(SMALL))
    with pytest.raises(FrozenInstanceError):
        tree.levels = ()
    assert tree.seconds > 0
    assert all(level.objective >= 0 and level.imbalance >= 1 for level in tree.levels)


def test_too_many_prototypes_are_refused_with_both_numbers():
    with pytest.raises(
        UserError, match=r"--num_prototypes 300: needs 3000 images .* there are 1437; ask for at most 143"
    ):
        check_images(resolve_options({"num_prototypes": [300, 20]}), 1437)
    check_images(resolve_options({"num_prototypes": [143, 20]}), 1437)
