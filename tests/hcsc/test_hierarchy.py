"""Algorithm 1 and the cluster temperatures."""

from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import oracles
import pytest
import torch
from safetensors.torch import save
from sklearn.metrics import adjusted_rand_score

from solo_hcsc.errors import ArgumentError, NotFinite
from solo_hcsc.hcsc import hierarchy, kmeans
from solo_hcsc.hcsc.hierarchy import Hierarchy, build_hierarchy
from solo_hcsc.hcsc.options import Options

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
    tree = build_hierarchy(points, Options(**flags))
    assert adjusted_rand_score(labels, tree.assignments[:, 0]) > 0.99
    assert tree.assignments.shape == (240, 3)
    for lower, upper in ((0, 1), (1, 2)):
        parents = tree.levels[lower].parents
        assert torch.equal(parents[tree.assignments[:, lower]], tree.assignments[:, upper])
    assert tree.levels[2].parents is None
    for level in tree.levels:
        torch.testing.assert_close(level.prototypes.norm(dim=1), torch.ones(len(level.prototypes)))
        assert level.sizes.sum() == 240


@pytest.mark.parametrize("levels", [[5], [9, 4], [16, 8, 4, 2]])
def test_any_number_of_levels(levels):
    points, _ = blobs()
    tree = build_hierarchy(points, Options(**{"num_prototypes": levels, "min_cluster_size": 0}))
    assert [len(level.prototypes) for level in tree.levels] == levels


def test_objective_is_what_plain_loops_say():
    points, _ = blobs(per_cluster=5)
    options = Options(**{"num_prototypes": [4], "min_cluster_size": 0, "kmeans": "plain"})
    centroids = kmeans.kmeans(points.numpy(), 4, options, seed=0)
    objective = build_hierarchy(points, options).levels[0].objective
    assert objective == pytest.approx(oracles.lloyd_objective(points.numpy(), centroids), rel=1e-5)


def test_nearest_agrees_with_plain_loops():
    points, _ = blobs(per_cluster=3)
    centroids = points[::7].numpy()
    expected = [int(np.argmin([((p - c) ** 2).sum() for c in centroids])) for p in points.numpy()]
    assert kmeans.nearest(points.numpy(), centroids)[1].tolist() == expected


@pytest.mark.parametrize("members", ["images", "children"])
@pytest.mark.parametrize("centre", ["prototype", "centroid"])
def test_temperatures_are_eq_3(members, centre):
    points, _ = blobs(spread=0.3)
    flags = SMALL | {"temperature_members": members, "temperature_centre": centre, "temperature_scaling": "none"}
    tree = build_hierarchy(points, Options(**flags))
    images = points.double().numpy()
    for number, level in enumerate(tree.levels):
        per_image = number == 0 or members == "images"
        data = images if per_image else tree.levels[number - 1].prototypes.double().numpy()
        owner = tree.assignments[:, number] if per_image else tree.levels[number - 1].parents
        for c in range(len(level.prototypes)):
            of_cluster = data[(owner == c).numpy()]
            target = level.prototypes[c].double().numpy()
            if centre == "centroid":  # the mean of what k-means clustered here, unless clusters were dropped
                if level.dropped:
                    continue
                children = data if number == 0 else tree.levels[number - 1].prototypes.double().numpy()
                parents = tree.assignments[:, 0] if number == 0 else tree.levels[number - 1].parents
                target = children[(parents == c).numpy()].mean(axis=0)
            expected = max(oracles.eq3_temperature(of_cluster, target, 10), hierarchy.MIN_TEMPERATURE)
            if len(of_cluster) > 1 or members == "images":
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
    tree = build_hierarchy(torch.ones(40, 4) / 2, Options(**{"num_prototypes": [2], "temperature_scaling": "none"}))
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
    tree = build_hierarchy(everything, Options(**{"num_prototypes": [5, 2], "kmeans_restarts": 9}))
    bottom = tree.levels[0]
    assert bottom.dropped == 1
    assert len(bottom.prototypes) == 4
    assert (bottom.sizes >= 10).all()
    assert tree.assignments[-1, 0] == (bottom.prototypes @ loner[0]).argmax()
    assert bottom.parents.max() < len(tree.levels[1].prototypes)
    everyone = build_hierarchy(everything, Options(**{"num_prototypes": [5, 2], "min_cluster_size": 0}))
    assert len(everyone.levels[0].prototypes) == 5


def test_fewer_clusters_kept_than_the_level_above_asks_for():
    points, _ = blobs(clusters=3, per_cluster=30, spread=0.001)
    tree = build_hierarchy(points, Options(**{"num_prototypes": [8, 7], "min_cluster_size": 10}))
    assert len(tree.levels[1].prototypes) <= len(tree.levels[0].prototypes)
    assert torch.equal(tree.levels[0].parents[tree.assignments[:, 0]], tree.assignments[:, 1])


def test_same_seed_same_tree():
    points, _ = blobs()
    options = Options(**SMALL)
    first, again, other = (build_hierarchy(points, options, seed) for seed in (3, 3, 4))
    assert torch.equal(first.levels[0].prototypes, again.levels[0].prototypes)
    assert not torch.equal(first.levels[0].prototypes, other.levels[0].prototypes)
    by_level = replace(options, kmeans_seed="level")
    seeds = [build_hierarchy(points, by_level, seed).levels[0].prototypes for seed in (3, 4)]
    assert torch.equal(*seeds)


def round_ones(count=400, dim=32, seed=0):
    """Unit vectors that vary in all directions alike."""
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_result_is_frozen_and_has_its_statistics():
    points, _ = blobs()
    tree = build_hierarchy(points, Options(**SMALL))
    with pytest.raises(FrozenInstanceError):
        tree.levels = ()
    assert tree.seconds > 0
    assert all(level.objective >= 0 and level.imbalance >= 1 for level in tree.levels)


def test_too_many_prototypes_are_refused_with_both_numbers():
    with pytest.raises(
        ArgumentError, match=r"`num_prototypes` 300: needs 3000 images .* there are 1437; ask for at most 143"
    ):
        Options(num_prototypes=[300, 20]).check_images(1437)
    Options(num_prototypes=[143, 20]).check_images(1437)


# ---- the tree as a value ----


@pytest.fixture(scope="module")
def tree():
    return build_hierarchy(blobs()[0], Options(**SMALL))


def same(first, second):
    """Whether two trees are equal in everything."""
    names = ("prototypes", "temperatures", "parents", "sizes", "dropped", "objective", "seconds", "imbalance")
    for ours, theirs in zip(first.levels, second.levels, strict=True):
        for a, b in ((getattr(ours, name), getattr(theirs, name)) for name in names):
            if not (torch.equal(a, b) and a.dtype == b.dtype if torch.is_tensor(a) else a == b):
                return False
    known = [one.assignments is not None for one in (first, second)]
    return torch.equal(first.assignments, second.assignments) if all(known) else not any(known)


def test_file_has_the_whole_tree(tree, tmp_path):
    file = tmp_path / "tree.safetensors"
    tree.save(file)
    assert same(Hierarchy.load(file), tree)
    without = replace(tree, assignments=None)
    without.save(str(file))  # over the old one
    assert same(Hierarchy.load(str(file)), without)
    assert list(tmp_path.iterdir()) == [file]


def test_failed_save_leaves_the_old_file_alone(tree, tmp_path, monkeypatch):
    file = tmp_path / "tree.safetensors"
    tree.save(file)
    before = file.read_bytes()

    def full(*args, **kwargs):
        (tmp_path / ".half").touch()
        raise OSError("no space left on device")

    monkeypatch.setattr(hierarchy, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        replace(tree, assignments=None).save(file)
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".half", "tree.safetensors"]


OTHER_FILES = {
    "empty": b"",
    "text": b"not a tree",
    "weights": save({"weight": torch.zeros(2)}),
    "weights of another program": save({"weight": torch.zeros(2)}, {"format": "pt"}),
    "no JSON": save({}, {hierarchy.KIND: "{"}),
    "no tensors": save({}, {hierarchy.KIND: "[{}]"}),
    "no levels": save({}, {hierarchy.KIND: "[]"}),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_other_files_are_refused(name, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(OTHER_FILES[name])
    with pytest.raises(ValueError, match=r"x\.safetensors: not a tree that Hierarchy\.save wrote"):
        Hierarchy.load(tmp_path / "x.safetensors")


def test_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Hierarchy.load(tmp_path / "nowhere.safetensors")


def test_levels_that_do_not_fit_together_are_refused(tree):
    bottom, middle, top = tree.levels
    for levels, reason in (
        ((), "at least one level"),
        ((replace(bottom, sizes=bottom.sizes[1:]), middle, top), "level 0 of the tree does not have"),
        ((bottom, middle), "level 1 of the tree must have parents, and the top level none"),
        ((replace(bottom, parents=bottom.parents + 9), middle, top), "level 0 .* not in the level above"),
    ):
        with pytest.raises(ValueError, match=reason):
            Hierarchy(levels, None)
    with pytest.raises(ValueError, match="3 levels and assignments of 2"):
        Hierarchy(tree.levels, tree.assignments[:, :2])
    assert Hierarchy((top,), None).num_levels == 1


def test_other_images_are_assigned_to_the_nearest_then_its_parents(tree):
    others = round_ones(count=50, dim=16, seed=3)
    found = tree.assign(others)
    assert found.shape == (50, 3)
    for image, vector in enumerate(others):
        distances = [float((vector - prototype).square().sum()) for prototype in tree.levels[0].prototypes]
        number = distances.index(min(distances))
        assert found[image].tolist() == tree.path(number)


def test_walk_agrees_with_plain_loops(tree):
    assert tree.num_levels == 3
    for level, of_level in enumerate(tree.levels):
        assert torch.equal(tree.sizes(level), of_level.sizes)
        for number in range(len(of_level.prototypes)):
            members = [i for i in range(240) if tree.assignments[i, level] == number]
            assert tree.members(level, number).tolist() == members
            assert len(members) == tree.sizes(level)[number]
            parent = None if level == 2 else int(of_level.parents[number])
            assert tree.parent(level, number) == parent
            below = range(len(tree.levels[level - 1].prototypes)) if level else []
            children = [child for child in below if tree.parent(level - 1, child) == number]
            assert tree.children(level, number) == children
            if level:
                of_children = torch.cat([tree.members(level - 1, child) for child in children])
                assert sorted(of_children.tolist()) == members
    for number in range(len(tree.levels[0].prototypes)):
        middle = tree.parent(0, number)
        assert tree.path(number) == [number, middle, tree.parent(1, middle)]
    with pytest.raises(ValueError, match="kept without its images' clusters"):
        replace(tree, assignments=None).members(0, 0)


def test_tree_of_some_images_among_all(tree):
    images = torch.randperm(500, generator=torch.Generator().manual_seed(0))[:240]
    among = tree.over(images, 500)
    assert among.assignments.shape == (500, 3)
    assert torch.equal(among.assignments[images], tree.assignments)
    assert (among.assignments == -1).sum() == 3 * 260
    assert among.members(0, 0).tolist() == sorted(images[tree.members(0, 0)].tolist())


@pytest.mark.parametrize("kind", ["plain", "fast"])
@pytest.mark.parametrize("values", [[np.nan], [np.inf], [np.inf, -np.inf]])
def test_embeddings_that_are_not_finite_are_counted(kind, values):
    points = torch.nn.functional.normalize(torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    points[[3, 20], : len(values)] = torch.tensor(values)
    with pytest.raises(NotFinite, match="`embeddings`: 2 of 60 rows have NaN or infinite values"):
        build_hierarchy(points, Options(num_prototypes=(4, 2), min_cluster_size=0, kmeans=kind))


@dataclass(frozen=True)
class Embedded:
    """As `embed` returns it: features of any length."""

    vectors: np.ndarray


@pytest.mark.parametrize(
    "form",
    [
        torch.Tensor.numpy,
        lambda points: points.double().numpy(),
        lambda points: np.asfortranarray(points.numpy()),
        lambda points: points.clone().requires_grad_(),
        lambda points: points.tolist(),
        lambda points: Embedded(points.numpy()),
    ],
)
def test_vectors_are_clustered_alike_in_every_form(form):
    points, _ = blobs()
    expected, found = (build_hierarchy(given, Options(**SMALL)) for given in (points, form(points)))
    assert torch.equal(expected.assignments, found.assignments)
    assert torch.equal(expected.levels[0].prototypes, found.levels[0].prototypes)
    assert torch.equal(found.assign(form(points))[0], expected.assign(points)[0])


def test_vectors_of_any_length_are_brought_to_unit_length():
    points, _ = blobs()
    expected = build_hierarchy(points, Options(**SMALL))
    lengths = torch.logspace(-20, 20, len(points))[:, None]
    long = Embedded((points * lengths).numpy())
    before = long.vectors.copy()
    found = build_hierarchy(long, Options(**SMALL))
    assert torch.equal(expected.assignments, found.assignments)
    for level, same in zip(expected.levels, found.levels, strict=True):
        torch.testing.assert_close(level.temperatures, same.temperatures)
    assert torch.equal(found.assign(long), expected.assign(points))
    np.testing.assert_array_equal(long.vectors, before)  # the caller's own


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"embeddings": "photos"}, "`embeddings` is str: give a tensor, a NumPy array or `Embeddings`"),
        ({"embeddings": None}, "`embeddings` is NoneType: give"),
        ({"embeddings": [[1.0], [1.0, 2.0]]}, "`embeddings` is list: give"),
        ({"embeddings": np.array([["a", "b"]])}, "`embeddings` is ndarray: give .* not of <U1"),
        ({"embeddings": np.ones((4, 2), complex)}, "`embeddings` is ndarray: give .* not of complex128"),
        ({"embeddings": torch.eye(4).to_sparse()}, "`embeddings` is a torch.sparse_coo tensor"),
        ({"embeddings": torch.ones(8)}, r"`embeddings` has shape \(8,\): give \(N, D\)"),
        ({"embeddings": np.ones((0, 8))}, r"`embeddings` has shape \(0, 8\)"),
        ({"embeddings": np.full((4, 2), 1e300)}, "`embeddings`: 4 of 4 rows have NaN or infinite values"),
        ({"features": torch.ones(3, 4, 5)}, r"`features` has shape \(3, 4, 5\)"),
        ({"features": torch.ones(3, 4)}, "`features` has 3 rows and `embeddings` 240"),
        ({"options": {"num_prototypes": [4]}}, "`options` is dict: give `Options`"),
        ({"seed": "first"}, "`seed` is str: give a whole number"),
    ],
)
def test_what_cannot_be_clustered_is_named(given, message):
    with pytest.raises(ArgumentError, match=message):
        build_hierarchy(**({"embeddings": blobs()[0], "options": Options(**SMALL)} | given))


def test_embeddings_of_another_size_than_the_tree(tree):
    with pytest.raises(ArgumentError, match="`embeddings` has rows of 5 and the tree's have 16"):
        tree.assign(np.ones((3, 5)))


def test_no_cluster_that_is_large_enough():
    with pytest.raises(ArgumentError, match="`min_cluster_size` 300: no cluster of the 240 images has as many"):
        build_hierarchy(blobs()[0], Options(num_prototypes=[4], min_cluster_size=300))
