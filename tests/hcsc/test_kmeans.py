"""k-means: the plain one, and the fast one where a clustering is large."""

import faiss
import numpy as np
import pytest

from solo_hcsc.errors import MissingPackage
from solo_hcsc.hcsc import kmeans
from solo_hcsc.hcsc.kmeans import fast_kmeans, nearest
from solo_hcsc.hcsc.options import Options

FAST = Options(num_prototypes=[100], min_cluster_size=0)
RELEASED = Options(preset="official", num_prototypes=[100])
N, D, K = 2000, 64, 100


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("float32")


def low_rank(draw):
    return unit(draw.normal(size=(N, 6)) @ draw.normal(size=(6, D)) + 0.1 * draw.normal(size=(N, D)))


def mixture(draw):
    return unit(draw.normal(size=(60, D))[draw.integers(60, size=N)] + 0.5 * draw.normal(size=(N, D)))


def uniform(draw):
    return unit(draw.normal(size=(N, D)))


def encoded(draw):
    """What a random network of two layers makes of points in 32 directions."""
    hidden = np.maximum(draw.normal(size=(N, 32)) @ draw.normal(size=(32, 256)), 0)
    return unit(hidden @ draw.normal(size=(256, D)))


def two_scales(draw):
    """Groups of points of which half lie close and half far around: k-means++ takes the far ones, one by one."""
    spread = draw.choice([0.05, 1.0], size=(N, 1))
    return unit(draw.normal(size=(10, D))[draw.integers(10, size=N)] + spread * draw.normal(size=(N, D)))


KINDS = [low_rank, mixture, uniform, encoded]


@pytest.fixture
def large(monkeypatch):
    """Every clustering counts as a large one; gives a function that says what `settle` was called with."""
    monkeypatch.setattr(kmeans, "SMALL", 0)
    seen, original = [], kmeans.settle

    def spied(points, centroids, most):
        seen.append(points.shape)
        return original(points, centroids, most)

    monkeypatch.setattr(kmeans, "settle", spied)
    return seen


def made(kind, seed=0):
    return kind(np.random.default_rng(seed))


def inertia(points, centroids):
    return nearest(points, centroids)[0].sum(dtype=np.float64)


# ---- plain, and small ----


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_plain_is_what_faiss_finds_with_the_released_settings(preset):
    points = made(mixture)
    settings = {"niter": 20, "nredo": 5, "seed": 3, "max_points_per_centroid": 1000, "min_points_per_centroid": 1}
    reference = faiss.Kmeans(D, K, **settings)
    reference.train(points)
    found = kmeans.kmeans(points, K, Options(preset=preset, num_prototypes=[K]), 3)
    assert np.array_equal(found, reference.centroids)


def test_small_clustering_starts_from_k_means_plus_plus():
    points = made(mixture)
    assert N * K <= kmeans.SMALL
    assert np.array_equal(fast_kmeans(points, K, FAST, 3), kmeans.kmeans(points, K, FAST, 3, start="kmeans++"))


def test_old_faiss_is_refused_before_training(monkeypatch):
    monkeypatch.delattr("faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS")
    with pytest.raises(MissingPackage, match=r"clusters with faiss 1\.14\.2 or newer"):
        kmeans.import_faiss()


# ---- fast ----


@pytest.mark.parametrize("kind", KINDS)
def test_large_clustering_is_as_good_as_restarts(kind, large):
    points = made(kind)
    plain = inertia(points, kmeans.kmeans(points, K, RELEASED, 0))
    for seed in range(3):
        assert inertia(points, fast_kmeans(points, K, FAST, seed)) <= 1.005 * plain


def test_random_points_are_tried_where_k_means_plus_plus_takes_outliers(large, monkeypatch):
    points = made(two_scales)
    guarded = inertia(points, fast_kmeans(points, K, FAST, 0))
    assert len(large) == 2
    plain = kmeans.kmeans(points, K, Options(preset="official", num_prototypes=[K], kmeans_restarts=1), 0)
    assert guarded <= 1.005 * inertia(points, plain)
    monkeypatch.setattr(kmeans, "ALONE", 1.0)
    assert inertia(points, fast_kmeans(points, K, FAST, 0)) > 1.01 * guarded
    assert len(large) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_centroids(kind, large):
    points = made(kind)
    first, again, other = (fast_kmeans(points, K, FAST, seed) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_few_directions_are_settled_first(large):
    fast_kmeans(made(low_rank), K, FAST, 0)
    assert large == [(N, kmeans.COARSE), (N, D)]
    large.clear()
    fast_kmeans(made(uniform), K, FAST, 0)
    assert large == [(N, D)]


def test_as_few_dimensions_as_there_are(large):
    assert fast_kmeans(made(uniform)[:, :8].copy(), K, FAST, 0).shape == (K, 8)
    assert large == [(N, 8), (N, 8)]


REPEATED = {
    "all alike": lambda points: np.tile(points[:1], (N, 1)),
    "fewer than clusters": lambda points: points[np.arange(N) % 40],
    "half alike": lambda points: np.where(np.arange(N)[:, None] % 2, points, points[:1]),
    "nearly all alike": lambda points: np.where(np.arange(N)[:, None] % 20, points[:1], points),
    "as many as clusters": lambda points: points[:K],
    "all zero": np.zeros_like,
}


@pytest.mark.parametrize("name", REPEATED)
def test_points_that_are_alike(name, large):
    points = np.ascontiguousarray(REPEATED[name](made(uniform)))
    found = fast_kmeans(points, K, FAST, 0)
    assert found.shape == (K, D)
    assert np.isfinite(found).all()
    assert inertia(points, found) <= 1.005 * inertia(points, kmeans.kmeans(points, K, RELEASED, 0)) + 1e-4


def test_best_of_the_restarts_counts(large):
    points = made(mixture)
    alone = [fast_kmeans(points, K, FAST, seed) for seed in (5, 6, 7)]
    best = fast_kmeans(points, K, Options(num_prototypes=[K], kmeans_restarts=3), 5)
    assert [np.array_equal(best, one) for one in alone].count(True) == 1
    assert inertia(points, best) <= 1.001 * min(inertia(points, one) for one in alone)


def test_no_more_points_are_read_than_asked_for(large):
    fast_kmeans(made(uniform), K, Options(num_prototypes=[K], kmeans_points=7), 0)
    assert large == [(7 * K, D)]


def test_iterations_end_where_points_settle_and_where_they_must():
    points = made(mixture)
    start = kmeans.plus_plus(points, K, 0)
    done = kmeans.settle(points, start, 20)
    assert done.objective <= kmeans.settle(points, start, 2).objective
    again = kmeans.settle(points, done.centroids, 20)
    assert (nearest(points, done.centroids)[1] != nearest(points, again.centroids)[1]).mean() < 0.05
    once = kmeans.settle(points, start, 1)  # one step, and it does not overshoot
    distances, clusters = nearest(points, start)
    assert np.array_equal(once.centroids, kmeans.means(points, clusters, distances, K))


def test_cluster_without_points_takes_one_that_is_far_from_its_own():
    points = np.array([[1.0, 0], [3, 0], [0, 5]], dtype="float32")
    found = kmeans.means(points, np.array([2, 2, 0]), np.array([0.1, 0.2, 0.0]), 4)
    assert found.tolist() == [[0, 5], [3, 0], [2, 0], [1, 0]]
