"""A tree as a value: cuts are nested, new images are placed, files hold all of it, wrong arguments are named."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from solo_hcsc.errors import ArgumentError, NotFinite
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.tree import Tree

POINTS = np.random.default_rng(0).standard_normal((300, 12)).astype("float32")
KEYS = [f"folder/{number}.jpg" for number in range(300)]


@pytest.fixture(scope="module")
def tree():
    return build_tree(POINTS, levels=(40, 12, 3), keys=KEYS)


def test_each_cut_splits_the_one_above(tree):
    for k in range(1, 300, 7):
        below, above = tree.cut(k + 1), tree.cut(k)
        assert np.array_equal(np.unique(below), np.arange(k + 1))
        assert len(np.unique(below * 1000 + above)) == k + 1


def test_levels_are_cuts(tree):
    assert tree.levels.shape == (300, 3)
    assert np.array_equal(tree.levels[:, 1], tree.cut(12))
    assert tree.level_sizes == (40, 12, 3)


def test_nodes_members_sizes_and_centroids_agree_with_the_cut(tree):
    clusters, nodes = tree.cut(12), tree.nodes(12)
    unit = POINTS / np.linalg.norm(POINTS, axis=1, keepdims=True)
    for number, node in enumerate(nodes):
        members = tree.members(node)
        assert np.array_equal(members, np.flatnonzero(clusters == number))
        assert tree.sizes[node] == len(members)
        assert tree.centroids([node])[0] == pytest.approx(unit[members].mean(axis=0), abs=1e-6)


def test_walking_up_and_down(tree):
    path = tree.path("folder/7.jpg")
    assert path == tree.path(7)
    assert [int(np.flatnonzero(tree.nodes(k) == node)[0]) for k, node in zip((40, 12, 3), path, strict=True)] == (
        tree.levels[7].tolist()
    )
    node, climbed = 7, []
    while node is not None:
        climbed.append(node)
        node = tree.parent(node)
    assert climbed[-1] == tree.root
    assert [node for node in climbed if node in path] == sorted(set(path))
    assert all(tree.parent(child) == tree.root for child in tree.children(tree.root))
    assert tree.children(7) == ()
    assert (np.diff(tree.heights[climbed]) >= 0).all()


def test_images_of_the_tree_are_assigned_where_they_are(tree):
    assert np.array_equal(tree.assign(torch.from_numpy(POINTS)), tree.levels)


def test_new_images_are_assigned_to_their_groups():
    corners = np.eye(6, dtype="float32")
    draw = np.random.default_rng(0)
    tree = build_tree(np.repeat(corners, 20, axis=0) + 0.05 * draw.standard_normal((120, 6)), levels=(6,))
    assert np.array_equal(tree.assign(corners)[:, 0], tree.levels[::20, 0])


def test_a_saved_tree_is_loaded_whole(tree, tmp_path):
    tree.save(tmp_path / "tree")
    same = Tree.load(tmp_path / "tree")
    for name in ("merges", "leaves", "means", "levels"):
        assert np.array_equal(getattr(same, name), getattr(tree, name))
    assert (same.keys, same.level_sizes) == (tree.keys, tree.level_sizes)
    assert sorted(path.name for path in (tmp_path / "tree").iterdir()) == ["images.parquet", "tree.safetensors"]


def test_names_that_are_not_text_are_kept(tmp_path):
    keys = ["\udcff.jpg", "ä.jpg"]
    build_tree(np.eye(2), levels=(2,), keys=keys).save(tmp_path)
    assert Tree.load(tmp_path).keys == tuple(keys)


def test_half_of_a_saved_tree_is_refused(tree, tmp_path):
    tree.save(tmp_path / "one")
    build_tree(POINTS[::-1], levels=(40, 12, 3), keys=KEYS).save(tmp_path / "other")
    (tmp_path / "other/images.parquet").replace(tmp_path / "one/images.parquet")
    with pytest.raises(ValueError, match="not of the same tree"):
        Tree.load(tmp_path / "one")
    with pytest.raises(ValueError, match="missing"):
        Tree.load(tmp_path / "other")
    (tmp_path / "one/tree.safetensors").write_bytes(b"no tree")
    with pytest.raises(ValueError, match=r"not a tree that Tree\.save wrote"):
        Tree.load(tmp_path / "one")


def test_a_file_of_other_tensors_is_no_tree(tree, tmp_path):
    tree.save(tmp_path)
    save_file(load_file(tmp_path / "tree.safetensors"), tmp_path / "tree.safetensors")
    with pytest.raises(ValueError, match=r"solo_hcsc\.tree"):
        Tree.load(tmp_path)


def test_merges_that_are_no_tree_are_refused(tree):
    merges = tree.merges.copy()
    merges[0, 0] = merges[1, 0]
    with pytest.raises(ValueError, match="join every node"):
        Tree(merges, tree.leaves, tree.means, tree.level_sizes)


def test_show_has_the_levels_and_the_largest_clusters(tree):
    lines = tree.show(most=2).splitlines()
    assert lines[0] == "tree of 300 images: levels of 40, 12 and 3 clusters"
    assert len(lines) == 4
    assert lines[1].startswith("├─ ")
    assert ".jpg" in lines[1]
    assert lines[3].startswith("└─ 1 smaller cluster of")


@pytest.mark.parametrize("builder", ["exact", "graph", "kmeans"])
def test_the_same_seed_gives_the_same_tree(builder):
    trees = [build_tree(POINTS, levels=(20, 5), builder=builder, seed=4) for _ in range(2)]
    assert np.array_equal(trees[0].merges, trees[1].merges)
    assert np.array_equal(trees[0].levels, trees[1].levels)


def test_a_large_tree_has_clusters_for_leaves(monkeypatch):
    monkeypatch.setattr("solo_hcsc.trees.building.MOST_LEAVES", 50)
    whole, lumped = build_tree(POINTS[:200]), build_tree(POINTS, levels=(20, 5), builder="exact")
    assert lumped.means.shape == (50, 12)
    assert len(lumped) == 300
    monkeypatch.undo()
    full = build_tree(POINTS, levels=(20, 5), builder="exact")
    for k in (50, 20, 5):
        assert len(np.unique(full.cut(k) * 1000 + lumped.cut(k))) == k
    assert len(whole) == 200
    with pytest.raises(ArgumentError, match=r"`k` 51: give a number of clusters from 1 to 50"):
        lumped.cut(51)


def test_wide_vectors_are_narrowed_for_the_graph():
    draw = np.random.default_rng(0)
    corners = draw.standard_normal((8, 300))
    points = np.repeat(corners, 40, axis=0) + 0.3 * draw.standard_normal((320, 300))
    tree = build_tree(points, levels=(8,), builder="graph")
    assert tree.means.shape == (320, 300)
    assert sorted(tree.sizes[tree.nodes(8)]) == [40] * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": (3, 3)}, r"`levels` \(3, 3\): give fewer clusters at each level"),
        ({"levels": (301,)}, r"`levels` \(301,\): give numbers of clusters from 1 to 300"),
        ({"levels": ()}, r"`levels` \(\)"),
        ({"levels": (2.5,)}, r"`levels` is \(2.5,\): give several whole numbers"),
        ({"builder": "average"}, "`builder` average: give auto, exact, graph, kmeans"),
        ({"keys": ["a"]}, "`keys` has 1 names and `vectors` 300 rows"),
        ({"power": 2}, "`power` 2"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        build_tree(POINTS, **arguments)


def test_wrong_questions_are_named(tree):
    for ask, message in [
        (lambda: tree.cut(0), "`k` 0"),
        (lambda: tree.path("no.jpg"), "`image` no.jpg: the tree has no image of this name"),
        (lambda: tree.path(300), "`image` 300: give a number from 0 to 299"),
        (lambda: tree.members(599), "`node` 599: give a number from 0 to 598"),
        (lambda: tree.assign(POINTS[:, :3]), "`vectors` has rows of 3 and the tree's have 12"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            ask()
    with pytest.raises(NotFinite):
        build_tree(np.full((3, 2), np.nan))
