import json
import math
import shlex
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import oracles
import pytest
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from tiny import ROOT, only, run_here
from torchvision.models import resnet18
from trees import checkpoint_of, raw_embeddings, spread_prototypes

from solo_hcsc.cli.commands.clustering import parse
from solo_hcsc.data import label_hierarchy
from solo_hcsc.data.sets import one_split
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.evaluation import analysed
from solo_hcsc.evaluation import clusters as scores_of_clusters
from solo_hcsc.evaluation.analysed import Analysed
from solo_hcsc.evaluation.clusters import agreement, clustering, clusters_for, compare_tree, score_kmeans
from solo_hcsc.runs.methods import load_tree
from solo_hcsc.runs.results import Result
from solo_hcsc.runs.run import open_run
from solo_hcsc.settings import take
from solo_hcsc.tables import score
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.purity import dendrogram_purity, leaf_purity, matched_accuracy

FLAGS = "--crop_size 32 --batch_size 16 --num_workers 0 --accelerator cpu".split()
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()


# ---- the scores ----


def plain_nmi(labels, clusters):
    """Mutual information over the mean of the two entropies, by its definition."""
    images = len(labels)
    joint, rows, columns = Counter(zip(labels, clusters, strict=True)), Counter(labels), Counter(clusters)
    mutual = 0.0
    for (label, cluster), count in joint.items():
        mutual += count / images * math.log(count * images / (rows[label] * columns[cluster]))
    entropies = [-sum(n / images * math.log(n / images) for n in side.values()) for side in (rows, columns)]
    return mutual / (sum(entropies) / 2)


def test_scores_are_scikit_learns_and_the_definitions():
    random = np.random.default_rng(0)
    classes = random.integers(0, 5, 60)
    clusters = np.where(random.random(60) < 0.6, classes * 3, random.integers(0, 15, 60))  # numbers with gaps
    coarse = classes // 2
    found = agreement(clusters, [classes, coarse], "test")
    assert found == {  # without accuracy: there are more clusters than classes
        "clusters": len(set(clusters.tolist())),
        "nmi": normalized_mutual_info_score(classes, clusters),
        "ami": adjusted_mutual_info_score(classes, clusters),
        "ami_levels": [adjusted_mutual_info_score(coarse, clusters)],
    }
    assert found["nmi"] == pytest.approx(plain_nmi(classes.tolist(), clusters.tolist()), abs=1e-12)
    assert 0.2 < found["ami"] < found["nmi"] < 1


def test_scores_of_equal_partitions_are_1_and_of_chance_0():
    classes = np.arange(2000) % 10
    assert agreement((classes + 3) % 10, [classes], "test")["ami"] == pytest.approx(1)
    chance = agreement(np.random.default_rng(0).integers(0, 200, 2000), [classes], "test")
    assert abs(chance["ami"]) < 0.02  # its deviation is 0.0045 here
    assert chance["nmi"] > 0.1  # many clusters agree with anything, which AMI corrects for
    assert score(-1e-9) == "0.000"


def tree_of(random, images, sizes):
    """Clusters of images in a random tree, the bottom first."""
    levels = [random.integers(0, sizes[0], images)]
    for below, size in pairwise(sizes):
        levels.append(random.integers(0, size, below)[levels[-1]])
    return levels


@pytest.mark.parametrize("sizes", [(12, 5, 2), (6,), (40, 3), (1, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_purities_are_those_of_a_loop_over_all_pairs(sizes, seed):
    random = np.random.default_rng(seed)
    levels = tree_of(random, 60, sizes)
    classes = np.where(random.random(60) < 0.5, levels[0] % 4, random.integers(0, 4, 60)) * 2  # of unequal size
    plain = [level.tolist() for level in levels], classes.tolist()
    assert dendrogram_purity(levels, classes) == pytest.approx(oracles.dendrogram_purity(*plain), abs=1e-12)
    assert leaf_purity(levels[0], classes) == pytest.approx(oracles.leaf_purity(plain[0][0], plain[1]), abs=1e-12)


def test_purity_is_1_of_pure_subtrees_and_the_class_share_without_a_tree():
    classes = np.arange(40) // 10
    halves = classes // 2
    assert dendrogram_purity([np.arange(40) // 5, classes, halves], classes) == leaf_purity(classes, classes) == 1
    assert dendrogram_purity([np.arange(40)], classes) == 0.25  # all pairs meet in the root
    assert dendrogram_purity([halves], classes) == leaf_purity(halves, classes) == 0.5
    assert dendrogram_purity([np.zeros(3, int)], np.arange(3)) == 1  # no two images of one class


def test_purity_of_many_images_takes_no_pairs():
    classes = np.arange(10**6) % 1000
    clusters = np.random.default_rng(0).integers(0, 25_000, len(classes))
    assert dendrogram_purity([clusters, clusters // 25], classes) < 0.01  # 5 * 10^8 pairs


@pytest.mark.parametrize(("clusters", "classes"), [(3, 3), (2, 4), (4, 2)])
def test_accuracy_is_that_of_the_best_names_for_clusters(clusters, classes):
    random = np.random.default_rng(clusters)
    for _ in range(5):
        found, labels = random.integers(0, clusters, 25) * 7, random.integers(0, classes, 25) * 5
        assert matched_accuracy(found, labels) == oracles.matched_accuracy(found.tolist(), labels.tolist())
    assert matched_accuracy((np.arange(30) % 3 + 1) % 3, np.arange(30) % 3) == 1


def test_best_labels_of_each_level_of_the_tree_are_marked():
    purity = {"dendrogram_purity": 0.5, "leaf_purity": 0.625, "dendrogram_purity_levels": [0.75, 0.8]}
    purity |= {"leaf_purity_levels": [0.875, 1.0], "best_labels": [1, 1]}
    levels = [
        {"kind": "hierarchy", "level": 1, "ami": 0.5, "ami_levels": [0.4, 0.2]},
        {"kind": "hierarchy", "level": 2, "ami": 0.3, "ami_levels": [0.25, 0.2]},
    ]
    settings = {"tree": purity, "all": levels, "label_groups": [4, 2]}
    result = Result("clustering", {}, settings, {"name": "arrays", "classes": 9})
    assert compare_tree(result).splitlines() == [
        "tree against  dendrogram purity  leaf purity  AMI, level 1  AMI, level 2",
        "------------  -----------------  -----------  ------------  ------------",
        "9 classes                 0.500        0.625  0.500 *       0.300 *",
        "4 groups                  0.750        0.875  0.400         0.250",
        "2 groups                  0.800        1.000  0.200         0.200",
        "* The tree agrees best at level 1 with the 9 classes, level 2 with the 9 classes: 1 of 2 with the labels' "
        "level of the same number.",
    ]
    alone = {name: [] if name.endswith("_levels") else value for name, value in purity.items()}
    settings = {"tree": alone, "all": [{**levels[0], "ami_levels": []}], "label_groups": []}
    plain = compare_tree(replace(result, settings=settings))
    assert plain.splitlines()[2:] == ["9 classes                 0.500        0.625         0.500"]


# ---- the function ----


def test_clusters_are_compared_without_a_run_or_a_word(capsys):
    draw = np.random.default_rng(0)
    labels = np.arange(90) % 3
    vectors = 3 * np.eye(8)[labels] + 0.1 * draw.normal(size=(90, 8))
    names = np.array(["fruit/apple", "fruit/mango", "milk"])[labels]
    clusters = np.stack([np.arange(90) % 6, np.minimum(labels, 1)], axis=1)
    for given in (vectors, torch.from_numpy(vectors)):
        found = clustering((given, names), clusters, k=[3, 4])
        assert [row["name"] for row in found.rows] == [
            "k-means k=3", "Ward k=3", "tree k=3", "k-means k=4", "Ward k=4", "tree k=4",
            "hierarchy level 1 (6 prototypes)", "k-means k=6", "Ward k=6", "tree k=6",
            "hierarchy level 2 (2 prototypes)", "k-means k=2", "Ward k=2", "tree k=2",
        ]  # fmt: skip
        assert [row["kind"] for row in found.settings["all"]] == ["k-means", "k-means", "hierarchy", "hierarchy"]
        assert found.metrics == {"nmi": 1.0, "ami": 1.0, "accuracy": 1.0}
        assert found.settings["tree"]["leaf_purity"] == 1
        assert found.settings["label_groups"] == [2]  # fruit, and milk
        assert found.table().splitlines()[0].split("  ")[-1] == "AMI, 2 groups"
    assert clustering((vectors, labels)).settings["k"] == 3
    assert capsys.readouterr() == ("", "")


def test_a_tree_of_the_features_stands_beside_k_means_and_ward_at_equal_numbers_of_clusters():
    draw = np.random.default_rng(1)
    labels = np.repeat(np.arange(6), (60, 40, 30, 10, 8, 6))
    vectors = F.normalize(torch.eye(6)[labels] + 0.25 * torch.from_numpy(draw.normal(size=(len(labels), 6))), dim=1)
    tree = build_tree(vectors, levels=(12, 5))
    built, given = clustering((vectors, labels)), clustering((vectors, labels), tree, k=6)
    sizes = build_tree(vectors).level_sizes
    assert [row["name"] for row in built.settings["all"][1:]] == [
        f"tree level {number} ({size} clusters)" for number, size in enumerate(sizes, start=1)
    ]
    assert [row["name"] for row in given.rows[3:]] == [
        "tree level 1 (12 clusters)", "k-means k=12", "Ward k=12",
        "tree level 2 (5 clusters)", "k-means k=5", "Ward k=5",
    ]  # fmt: skip
    scipys = fcluster(linkage(vectors.double().numpy(), "ward"), 12, "maxclust")
    by_name = {row["name"]: row for row in given.rows}
    assert by_name["Ward k=12"]["ami"] == pytest.approx(adjusted_mutual_info_score(labels, scipys))
    assert by_name["tree k=6"]["ami"] == pytest.approx(adjusted_mutual_info_score(labels, tree.cut(6)))
    assert given.settings["tree"]["leaf_purity"] == leaf_purity(tree.cut(12), labels)


@pytest.mark.parametrize(
    ("name", "value"),
    [("k", 1), ("k", 91), ("k", [2.5]), ("tree", np.zeros((2, 90), int)), ("embeddings", np.eye(3)),
     ("embeddings", (np.eye(3), [1, 1, 1])), ("label_hierarchy", "labels.txt")],
)  # fmt: skip
def test_what_clustering_cannot_take_is_named(name, value):
    images = np.random.default_rng(0).normal(size=(90, 8)), np.arange(90) % 3
    with pytest.raises(ArgumentError, match=f"`{name}`"):
        clustering(**({"embeddings": images} | {name: value}))


# ---- label hierarchies ----


def test_label_levels_by_hand(tmp_path):
    """Three levels above the classes; chains end at different heights, and one class is another's parent."""
    file = tmp_path / "labels.txt"
    file.write_text(
        "# animals\n\n"
        "tabby cat: cat\n"
        "  siamese :  cat  # inline\n"
        "wolf: dog-like\n"
        "cat: carnivore\n"
        "dog-like: carnivore\n"
        "carnivore: animal: of any kind\n"
        "oak: tree\n"
        "C#: language\n"
        "not in the data: cat\n"
    )
    parents = label_hierarchy.read(file)
    assert parents["siamese"] == "cat"
    assert parents["carnivore"] == "animal: of any kind"
    classes = ["wolf", "tabby cat", "oak", "cat", "siamese", "C#"]
    found = label_hierarchy.levels(parents, classes)
    by_class = [[level.names[group] for group in level.groups] for level in found]
    top = "animal: of any kind"
    assert by_class == [
        classes,
        ["dog-like", "cat", "oak", "cat", "cat", "C#"],  # what lies less deep stands for itself
        ["carnivore", "carnivore", "oak", "carnivore", "carnivore", "C#"],
        [top, top, "tree", top, top, "language"],
    ]
    assert [len(level.names) for level in found] == [6, 4, 3, 3]


def test_folders_are_a_hierarchy_of_their_own():
    classes = ["Fruit/Apple/Gala", "Fruit/Apple/Pink", "Fruit/Mango", "Packages/Milk/Oat"]
    by_class = [[level.names[group] for group in level.groups] for level in label_hierarchy.folder_levels(classes)]
    assert by_class == [
        classes,
        ["Fruit/Apple", "Fruit/Apple", "Fruit/Mango", "Packages/Milk"],  # and not `Fruit` beside `Fruit/Apple`
        ["Fruit", "Fruit", "Fruit", "Packages"],
    ]
    assert label_hierarchy.folder_levels(["Fruit", "Packages"]) == []


@pytest.mark.parametrize(
    ("dataset", "classes", "groups"),
    [("cifar10", CIFAR10, [10, 7, 2]), ("digits", [str(n) for n in load_digits().target_names], [10, 3, 2])],
)
def test_shipped_hierarchy_covers_exactly_its_classes(dataset, classes, groups):
    parents = label_hierarchy.read(label_hierarchy.shipped(dataset))
    assert sorted(parents.keys() - set(parents.values())) == sorted(classes)
    assert [len(level.names) for level in label_hierarchy.levels(parents, classes)] == groups


def test_other_data_sets_have_no_hierarchy():
    assert label_hierarchy.shipped("custom") is None


def test_class_that_the_file_does_not_mention():
    with pytest.raises(UserError, match=r"x\.txt: no line for class 'd' and 1 other classes"):
        label_hierarchy.levels({"a": "b", "b": "c"}, ["a", "e", "d", "c"], "x.txt")


# ---- whole runs ----


@pytest.fixture
def run_copy(hcsc_run, tmp_path):
    """The run in a folder of its own, because an evaluation writes there."""
    return Path(shutil.copytree(hcsc_run, tmp_path / "run"))


def test_rows_are_those_of_the_checkpoints_tensors(run_copy, images, custom, tmp_path, monkeypatch, capsys):
    checkpoint = checkpoint_of(run_copy, 1)
    spread_prototypes(checkpoint, images / "train")
    (tmp_path / "labels.txt").write_text("class 0: red\nclass 1: not red\nclass 2: not red\n")
    seen = []

    def spy(embeddings, *rest):
        row, found = score_kmeans(embeddings, *rest)
        seen.append((embeddings, found))
        return row, found

    monkeypatch.setattr(scores_of_clusters, "score_kmeans", spy)
    where = ["--pretrained_feature_extractor", checkpoint, "--label_hierarchy", tmp_path / "labels.txt"]
    run_here("clustering", *custom, *FLAGS, *where, "--k", 5, 3, 5)
    result = json.loads(only(run_copy, "clustering-custom-*.json").read_text())
    rows = result["settings"]["all"]

    expected, labels = raw_embeddings(checkpoint, images / "train", "", project=False)
    groups = np.minimum(labels, 1)

    def scores(clusters):
        few = len(set(clusters.tolist())) <= 3
        accuracy = {"accuracy": pytest.approx(oracles.matched_accuracy(clusters.tolist(), labels.tolist()))}
        return {
            **(accuracy if few else {}),
            "clusters": len(set(clusters.tolist())),
            "nmi": pytest.approx(normalized_mutual_info_score(labels, clusters)),
            "ami": pytest.approx(adjusted_mutual_info_score(labels, clusters)),
            "ami_levels": [pytest.approx(adjusted_mutual_info_score(groups, clusters))],
        }

    assert [len(set(clusters.tolist())) for _, clusters in seen] == [5, 3, 2]  # 2 as the upper level has
    for row, k, (embeddings, clusters) in zip(rows, (5, 3), seen, strict=False):
        assert np.allclose(embeddings, expected, atol=1e-5)
        assert row == {"name": f"k-means k={k}", "kind": "k-means", "k": k, **scores(clusters)}

    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    kept = state["coding._extra_state"]["tree"]["kept"]
    z, _ = raw_embeddings(checkpoint, images / "train", "momentum_", project=True)
    bottom = (z @ state["coding.tree.prototypes_0"][: kept[0]].T).argmax(dim=1)
    top = state["coding.tree.parents_0"][bottom]
    assert rows[2:] == [
        {
            "name": f"hierarchy level 1 ({kept[0]} prototypes)",
            "kind": "hierarchy",
            "level": 1,
            "prototypes": kept[0],
            **scores(bottom.numpy()),
        },
        {
            "name": f"hierarchy level 2 ({kept[1]} prototypes)",
            "kind": "hierarchy",
            "level": 2,
            "prototypes": kept[1],
            **scores(top.numpy()),
        },
    ]
    assert (len(set(bottom.tolist())), len(set(top.tolist()))) == (3, 2)  # else this test would hold little

    levels = [level.tolist() for level in (bottom, top)]
    purity = result["settings"]["tree"]
    assert purity["dendrogram_purity"] == pytest.approx(oracles.dendrogram_purity(levels, labels.tolist()))
    assert purity["leaf_purity_levels"] == [pytest.approx(oracles.leaf_purity(levels[0], groups.tolist()))]
    assert purity["best_labels"] == [1 + (row["ami_levels"][0] > row["ami"]) for row in rows[2:]]

    assert result["metrics"] == {"nmi": rows[0]["nmi"], "ami": rows[0]["ami"]}
    assert result["data"]["train_images"] == 36
    assert (result["evaluation"], result["method"], result["dataset"]) == ("clustering", "hcsc", "custom")
    out = capsys.readouterr().out
    assert "k-means k=5: clustering 36 embeddings of size 512" in out
    table, _, ending = out.partition("\n\ntree against")
    assert any(line.startswith("clusters ") and line.endswith("  AMI, 2 groups") for line in table.splitlines())
    cells = [f"{rows[3][name]:.3f}" for name in ("nmi", "ami", "accuracy")] + [f"{rows[3]['ami_levels'][0]:.3f}"]
    of_top = next(line for line in table.splitlines() if line.startswith("hierarchy level 2 ") and ":" not in line)
    assert of_top.split() == ["hierarchy", "level", "2", f"({kept[1]}", "prototypes)", *cells]
    assert ending.splitlines()[2].split()[:3] == ["3", "classes", f"{purity['dendrogram_purity']:.3f}"]
    assert "with the labels' level of the same number." in ending


@pytest.mark.parametrize("side", ["momentum", "online"])
def test_tree_is_looked_up_in_the_embeddings_that_were_clustered(side, run_copy, images):
    checkpoint, args = checkpoint_of(run_copy, 1), run_copy / "args.json"
    state = torch.load(checkpoint, weights_only=True)
    if side == "online":  # as --clustered_encoder online would have left it
        recorded = json.loads(args.read_text())
        recorded["hcsc_options"] |= {"clustered_encoder": "online", "clustered_features": "images"}
        args.write_text(json.dumps(recorded))
        state["state_dict"]["coding.memory.averages"] = torch.zeros(0, 128)
        state["state_dict"]["projector.2.bias"] += torch.linspace(-1, 1, 128)  # a tiny run leaves the two sides alike
        torch.save(state, checkpoint)
    clustered = load_tree(checkpoint).side.eval()
    prefix = "momentum_" if side == "momentum" else ""
    expected, _ = raw_embeddings(checkpoint, images / "val", prefix, project=True)
    other, _ = raw_embeddings(checkpoint, images / "val", "" if prefix else "momentum_", project=True)
    flags = f"--dataset custom --data_dir {images} --val_dir val --split val --pretrained_feature_extractor x"
    source = take(ImageSource, parse([*flags.split(), *FLAGS]))
    with torch.no_grad():
        found = F.normalize(clustered(torch.stack([image for image, _ in one_split(source, "val")])), dim=1)
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, other, atol=1e-5)


def test_run_without_a_tree_gets_one_of_its_features(run_copy, custom, capsys):
    where = ["--pretrained_feature_extractor", checkpoint_of(run_copy, 0)]
    run_here("clustering", *custom, *FLAGS, *where, "--features", "projector", "--split", "val")
    captured = capsys.readouterr()
    assert "carries no tree, since it is from before the run's first clustering" in captured.err
    result = json.loads(only(run_copy, "clustering-projector-val-custom-*.json").read_text())
    assert {row["kind"] for row in result["settings"]["all"]} == {"k-means", "level"}
    assert result["settings"]["all"][0]["k"] == 3  # as many as classes
    assert result["data"]["val_images"] == 9
    assert "clustering 9 embeddings of size 128" in captured.out
    assert "groups" not in captured.out


def test_other_methods_get_a_tree_of_their_features_and_digits_have_their_hierarchy(tmp_path, capsys):
    torch.save(resnet18().state_dict(), tmp_path / "weights.pth")
    assert load_tree(tmp_path / "weights.pth") is None
    (tmp_path / "args.json").write_text(json.dumps({"method": "mocov2plus", "encoder": "resnet18"}))
    where = ["--dataset", "digits", "--data_dir", tmp_path, "--pretrained_feature_extractor", tmp_path / "weights.pth"]
    run_here("clustering", *where, *FLAGS, "--split", "val")
    result = json.loads(only(tmp_path, "clustering-val-digits-*.json").read_text())
    assert result["method"] == "mocov2plus"
    first, *levels = result["settings"]["all"]
    assert (first["kind"], first["k"]) == ("k-means", 10)
    assert [row["kind"] for row in levels] == ["level"] * len(levels)
    assert [row["name"] for row in result["settings"]["equal"]][:2] == ["Ward k=10", "tree k=10"]
    assert result["settings"]["label_groups"] == [3, 2]
    captured = capsys.readouterr()
    assert "AMI, 3 groups  AMI, 2 groups" in captured.out
    assert not captured.err


def test_seed_decides_k_means():
    points = F.normalize(torch.randn(200, 8, generator=torch.Generator().manual_seed(0)), dim=1).numpy()
    labels = [np.arange(200) % 5]
    first, again, other = (score_kmeans(points, 20, seed, labels)[1] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(("images", "k"), [(10, 2), (36, 3), (99, 9), (100, 10), (10**6, 10)])
def test_without_classes_clusters_follow_the_number_of_images(images, k):
    assert clusters_for(images) == k


def test_images_are_named_by_their_files_and_need_no_labels(hcsc_run, images, monkeypatch):
    run = open_run(checkpoint_of(hcsc_run, 1))
    flags = f"--dataset custom --data_dir {images} --train_dir train --pretrained_feature_extractor x"
    source = take(ImageSource, parse([*flags.split(), *FLAGS]))
    labelled = Analysed.load(run, source, "train", accelerator="cpu")
    bare = Analysed.load(run, replace(source, no_labels=True), "train", accelerator="cpu")
    expected = [str(file.relative_to(images / "train")) for file in sorted((images / "train").rglob("*.png"))]
    assert labelled.files == bare.files == expected
    assert (len(labelled.classes), len(bare.classes), len(bare.levels)) == (3, 0, 0)
    assert labelled.description == bare.description | {"classes": 3}
    monkeypatch.setattr(analysed, "one_split", lambda *_: labelled.dataset)
    of_torchvision = replace(source, dataset="stl10")
    assert Analysed.load(run, of_torchvision, "train", accelerator="cpu").files is None


@pytest.mark.parametrize("script", ["imagenet", "cifar"])
def test_flags_of_the_scripts_make_sense(script):
    text = (ROOT / "scripts" / "clustering" / f"{script}.sh").read_text().partition("\nsolo-hcsc clustering")[2]
    words = [word for word in shlex.split(text.replace("$1", "cifar10")) if word.strip() and "@" not in word]
    assert parse(words).k == ([25000, 1000] if script == "imagenet" else None)


# ---- bad input ----

REFUSED = {
    "one cluster": (["--k", "3", "1"], "--k 1: must be at least 2"),
    "more clusters than images": (["--k", "3", "37"], "--k 37: there are only 36 images to cluster"),
    "more than in validation": (["--k", "10", "--split", "val"], "--k 10: there are only 9 images to cluster"),
    "seed": (["--seed", "-1"], "--seed -1: must be from 0"),
    "split": (["--split", "test"], "invalid choice: 'test'"),
    "no labels": (["--no_labels"], "--no_labels: an evaluation needs labels"),
    "no images": (["--split", "val", "--val_dir", "nowhere"], "does not exist"),
    "one class": (["--train_dir", "flat"], "--train_dir: only one class ('class 0')"),
    "one class to validate": (["--val_dir", "flat", "--split", "val"], "--val_dir: only one class ('class 0')"),
    "no checkpoint": (["--pretrained_feature_extractor", "nowhere"], "no such checkpoint"),
}
BAD_HIERARCHIES = {
    "missing": (None, "--label_hierarchy labels.txt: cannot be read (No such file or directory)"),
    "not text": (b"\x89PNG\r\n\x1a\n\xff", "not a text file"),
    "binary in ASCII": (b"class 0: a\0", "not a text file"),
    "no colon": (b"# x\nclass 0: a\nclass 1 a\n", "labels.txt, line 3: 'class 1 a' is not `child: parent`"),
    "no parent": (b"class 0:\n", "labels.txt, line 1: 'class 0:' is not `child: parent`"),
    "two parents": (
        b"class 0: a\n\nclass 0: b\n",
        "labels.txt, line 3: 'class 0' has two parents, 'a' (line 1) and 'b'",
    ),
    "cycle": (b"class 0: a\na: b\nc: d\nb: class 0\n", "labels.txt, line 4: 'b' would be above itself"),
    "own parent": (b"class 0: class 0\n", "labels.txt, line 1: 'class 0' would be above itself"),
    "class left out": (b"class 0: a\nclass 1: a\n", "labels.txt: no line for class 'class 2'; add a line"),
    "empty": (b"", "labels.txt: no line for class 'class 0' and 2 other classes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_clustering_refuses(case, hcsc_run, custom, refused):
    flags, reason = REFUSED[case]
    before = sorted(hcsc_run.iterdir())
    where = ["--pretrained_feature_extractor", checkpoint_of(hcsc_run, 1)]
    assert reason in refused("clustering", *custom, *FLAGS, *where, *flags)
    assert sorted(hcsc_run.iterdir()) == before


@pytest.mark.parametrize("case", BAD_HIERARCHIES)
def test_bad_label_hierarchy_is_refused(case, hcsc_run, custom, tmp_path, refused):
    content, reason = BAD_HIERARCHIES[case]
    if content is not None:
        (tmp_path / "labels.txt").write_bytes(content)
    where = ["--pretrained_feature_extractor", checkpoint_of(hcsc_run, 1), "--label_hierarchy", "labels.txt"]
    assert reason in refused("clustering", *custom, *FLAGS, *where)


def test_folder_for_a_label_hierarchy(hcsc_run, custom, tmp_path, refused):
    where = ["--pretrained_feature_extractor", checkpoint_of(hcsc_run, 1), "--label_hierarchy", tmp_path]
    assert "cannot be read (Is a directory)" in refused("clustering", *custom, *FLAGS, *where)


def test_projector_that_makes_nan_is_refused(run_copy, custom, refused):
    checkpoint = checkpoint_of(run_copy, 1)
    state = torch.load(checkpoint, weights_only=True)
    state["state_dict"]["momentum_projector.0.weight"][0, 0] = torch.nan
    torch.save(state, checkpoint)
    line = refused("clustering", *custom, *FLAGS, "--pretrained_feature_extractor", checkpoint)
    assert "embeddings: the encoder's output has NaN or infinite values" in line
