import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score
from tiny import make_images, run_here
from trees import checkpoint_of, raw_embeddings, spread_prototypes

from solo_hcsc.cli.errors import UserError
from solo_hcsc.evaluation.clusters import clusters_by_level
from solo_hcsc.evaluation.encoders import load_tree
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.hcsc.selection import instance_keep_probability
from solo_hcsc.report import charts, figures, maps, negatives, prototypes

FLAGS = "--crop_size 32 --batch_size 16 --num_workers 0 --accelerator cpu --points 30 --queries 2".split()
MAPS = ["tsne_class", "tsne_cluster", "umap_class", "umap_cluster"]


def flags_for(images: Path, checkpoint: Path, out: Path) -> list[object]:
    data = ["--dataset", "custom", "--data_dir", images, "--train_dir", "train"]
    return [*data, *FLAGS, "--pretrained_feature_extractor", checkpoint, "--out", out]


class Analysed:
    """A whole analysis of a tiny run, and the masks that were drawn in it."""

    def __init__(self, root: Path, run: Path, images: Path) -> None:
        self.run, self.images, self.out = Path(shutil.copytree(run, root / "run")), images, root / "out"
        self.checkpoint = checkpoint_of(self.run, 1)
        spread_prototypes(self.checkpoint, images / "train")
        (root / "labels.txt").write_text("class 0: red\nclass 1: not red\nclass 2: not red\n")
        self.flags = [*flags_for(images, self.checkpoint, self.out), "--label_hierarchy", root / "labels.txt"]
        self.masks: list[list[torch.Tensor]] = []
        real = SelectiveCoding.left_out

        def spy(*args):
            self.masks.append(real(*args))
            return self.masks[-1]

        with mock.patch.object(SelectiveCoding, "left_out", spy):
            run_here("analyse", *self.flags)
        self.content = json.loads((self.out / "analysis.json").read_text())
        self.numbers = self.content["numbers"]
        self.state = torch.load(self.checkpoint, weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def analysed(hcsc_run, images, tmp_path_factory):
    return Analysed(tmp_path_factory.mktemp("analysed"), hcsc_run, images)


def elements(file: Path, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.parse(file).iter(f"{{http://www.w3.org/2000/svg}}{kind}"))


def texts(file: Path) -> str:
    return "\n".join("".join(element.itertext()) for element in elements(file, "text"))


# ---- a whole analysis ----


def test_every_picture_is_there_with_its_images(analysed):
    names = ["left_out", "ami", "chain", "tree", "negatives", *MAPS]
    assert [figure["file"] for figure in analysed.content["figures"]] == [f"{name}.svg" for name in names]
    assert sorted(file.name for file in analysed.out.iterdir()) == sorted(
        ["analysis.json", *(f"{n}.svg" for n in names)]
    )
    assert all(figure["title"] and figure["caption"].endswith(".") for figure in analysed.content["figures"])
    nodes, waiting = [], [analysed.numbers["tree"]]
    while waiting:
        nodes.append(waiting.pop())
        waiting += nodes[-1]["children"]
    in_tree = sum(len(node["nearest"]) for node in nodes)
    in_chains = sum(len(node["nearest"]) for chain in analysed.numbers["chains"] for node in chain)
    left_out = [candidates for query in analysed.numbers["negatives"]["shown"] for candidates in query["left_out"]]
    with_negatives = 2 + sum(min(negatives.SHOWN, len(candidates)) for candidates in left_out)
    images = {"chain": in_chains, "tree": in_tree, "negatives": with_negatives, **dict.fromkeys(MAPS, 1)}
    assert (len(nodes), in_chains >= 12, len(left_out)) == (3, True, 4)
    for name in names:
        file = analysed.out / f"{name}.svg"
        assert len(elements(file, "image")) == images.get(name, 0), name
        assert file.stat().st_size < 200_000
        assert "currentColor" in file.read_text()
    assert "k-means, k = 3" in texts(analysed.out / "ami.svg")
    assert "2 groups" in texts(analysed.out / "ami.svg")
    assert "class 2" in texts(analysed.out / "tsne_class.svg")
    assert not {"evaluation", "metrics"} <= analysed.content.keys()  # no row of a summary


def test_chains_are_those_of_the_checkpoints_tensors(analysed):
    """By plain loops: each image's nearest bottom prototype, its parents, and each prototype's nearest images."""
    z, labels = raw_embeddings(analysed.checkpoint, analysed.images / "train", "momentum_", project=True)
    levels = [analysed.state["coding.tree.prototypes_0"][:3], analysed.state["coding.tree.prototypes_1"][:2]]
    parents = analysed.state["coding.tree.parents_0"].tolist()
    bottom = [max(range(3), key=lambda p: float(one @ levels[0][p])) for one in z]
    clusters = [bottom, [parents[cluster] for cluster in bottom]]
    chains = analysed.numbers["chains"]
    tops = [chain[-1]["prototype"] for chain in chains]
    assert sorted(tops) == sorted(set(clusters[1]))
    sizes = [clusters[1].count(top) for top in tops]
    assert sizes == sorted(sizes, reverse=True)
    for chain in chains:
        assert [node["level"] for node in chain] == [1, 2]
        assert chain[1]["prototype"] == parents[chain[0]["prototype"]]
        siblings = [p for p in range(3) if parents[p] == chain[1]["prototype"]]
        assert chain[0]["images"] == max(bottom.count(p) for p in siblings)
        for level, node in enumerate(chain):
            prototype = node["prototype"]
            members = [image for image in range(36) if clusters[level][image] == prototype]
            similar = {image: float(z[image] @ levels[level][prototype]) for image in members}
            assert node["images"] == len(members)
            assert set(node["nearest"]) <= set(members)
            assert len(node["nearest"]) == min(6, len(members))
            found = [similar[image] for image in node["nearest"]]
            assert found == pytest.approx(sorted(similar.values(), reverse=True)[:6], abs=1e-5)
            shares = {f"class {c}": sum(labels[image] == c for image in members) / len(members) for c in range(3)}
            assert dict(node["classes"]) == pytest.approx({name: share for name, share in shares.items() if share})
            assert [share for _, share in node["classes"]] == sorted(dict(node["classes"]).values(), reverse=True)


def test_tree_has_each_prototype_below_its_parent(analysed):
    parents = analysed.state["coding.tree.parents_0"].tolist()
    root = analysed.numbers["tree"]
    assert root["level"] == 2
    assert root["children"]
    for child in root["children"]:
        assert (child["level"], parents[child["prototype"]], child["children"]) == (1, root["prototype"], [])
    assert root["images"] == sum(child["images"] for child in root["children"])


def test_left_out_numbers_are_those_of_the_drawn_masks(analysed):
    """By loops over every pair of an image and another."""
    found = analysed.numbers["negatives"]
    sample = np.random.default_rng(5).permutation(36)[:30]
    labels = sample // 12
    ((*masks,),) = analysed.masks
    pairs = [(query, other) for query in range(30) for other in range(30) if query != other]
    same = [pair for pair in pairs if labels[pair[0]] == labels[pair[1]]]
    assert found["queries"] == 30
    assert found["chance"] == pytest.approx(len(same) / len(pairs))
    for level, mask in zip(found["levels"], masks, strict=True):
        out = [pair for pair in pairs if mask[pair]]
        hits = len(set(out) & set(same))
        assert out
        assert level["share"] == pytest.approx(len(out) / len(pairs))
        assert level["precision"] == pytest.approx(hits / len(out))
        assert level["recall"] == pytest.approx(hits / len(same))
        true = [pair for pair in pairs if pair not in same]
        assert level["preservation"] == pytest.approx(len([pair for pair in true if not mask[pair]]) / len(true))
    positions = {image: place for place, image in enumerate(sample.tolist())}
    assert len({query["image"] // 12 for query in found["shown"]}) == 2  # of different classes
    for query in found["shown"]:
        place = positions[query["image"]]
        for candidates, mask in zip(query["left_out"], masks, strict=True):
            assert sorted(candidates) == sorted(
                sample[other] for other in range(30) if mask[place, other] and other != place
            )


def test_agreement_is_scikit_learns(analysed):
    """Of the levels of prototypes, bottom first, and of k-means."""
    z, labels = raw_embeddings(analysed.checkpoint, analysed.images / "train", "momentum_", project=True)
    bottom = (z @ analysed.state["coding.tree.prototypes_0"][:3].T).argmax(dim=1)
    rows = analysed.numbers["ami"]
    assert [row["kind"] for row in rows] == ["hierarchy", "hierarchy", "k-means"]
    for row, clusters in zip(rows, (bottom, analysed.state["coding.tree.parents_0"][bottom]), strict=False):
        assert row["ami"] == pytest.approx(adjusted_mutual_info_score(labels, clusters))
        assert row["ami_levels"] == [pytest.approx(adjusted_mutual_info_score(np.minimum(labels, 1), clusters))]
    assert rows[2]["k"] == 3


def test_a_second_analysis_is_the_same_and_replaces_the_first(analysed, tmp_path):
    (tmp_path / "chain.svg").write_text("old")
    (tmp_path / "mine.svg").write_text("not ours")
    run_here("analyse", *analysed.flags, "--out", tmp_path)
    assert (tmp_path / "mine.svg").read_text() == "not ours"
    for file in analysed.out.glob("*.svg"):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
    again = json.loads((tmp_path / "analysis.json").read_text())
    changed = {name for name in again if again[name] != analysed.content[name]}
    assert changed <= {"seconds", "command", "flags"}
    assert again["flags"] == [*map(str, analysed.flags), "--out", str(tmp_path)]


def test_wandb_offline_has_the_pictures(analysed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(maps, "has_umap", lambda: False)
    run_here("analyse", *analysed.flags, "--out", tmp_path, "--wandb", "--offline", "--project", "test")
    assert list(tmp_path.rglob("*.wandb"))
    pictures = [file.name.partition("_")[0] for file in (tmp_path / "wandb").rglob("*.png")]
    assert sorted(set(pictures)) == sorted({"left", "ami", "chain", "tree", "negatives", "tsne"})
    out, err = capsys.readouterr()
    assert f"wandb: {tmp_path}" in out
    assert "wandb" not in err
    assert json.loads((tmp_path / "analysis.json").read_text())["figures"]


# ---- what is not there ----


@pytest.fixture
def without_umap(monkeypatch):
    monkeypatch.setattr(maps, "has_umap", lambda: False)


def test_other_methods_have_maps_and_agreement_only(untrained, images, tmp_path, without_umap, capsys):
    (tmp_path / "tree.svg").write_text("of an earlier analysis")
    run_here("analyse", *flags_for(images, untrained, tmp_path), "--method", "mine", "--points", 1000)
    out, err = capsys.readouterr()
    assert "prototypes and left-out negatives are not shown: the checkpoint has no tree" in out
    assert err == "note: UMAP is not installed; run: pip install 'solo_hcsc[umap]'\n"
    assert sorted(file.name for file in tmp_path.glob("*.svg")) == ["ami.svg", "tsne_class.svg", "tsne_cluster.svg"]
    content = json.loads((tmp_path / "analysis.json").read_text())
    assert (content["method"], content["numbers"]["mapped_images"]) == ("mine", 36)


def test_odd_class_names_are_text(hcsc_run, tmp_path, without_umap, capsys):
    """Names that are markup, mathematics, several lines, very long, or in Chinese."""
    make_images(tmp_path / "train", classes=4, per_class=5)
    names = ["<script>$x_1$", "two\nlines & more", "x" * 60, "玻璃杯子的名字很长很长很长很长"]
    for number, name in enumerate(names):
        (tmp_path / "train" / f"class {number}").rename(tmp_path / "train" / name)
    run_here("analyse", *flags_for(tmp_path, checkpoint_of(hcsc_run, 1), tmp_path / "out"))
    assert capsys.readouterr().err.count("\n") == 1  # that UMAP is missing: no warning of a letter
    legend = texts(tmp_path / "out" / "tsne_class.svg").splitlines()
    assert sorted(legend) == sorted(["<script>$x_1$", r"two\nlines & mo…", "x" * 15 + "…", "玻璃杯子的名字…"])
    for file in (tmp_path / "out").glob("*.svg"):
        assert "<script" not in file.read_text()


def test_run_without_selection_or_a_second_level(analysed, tmp_path, capsys):
    coding = load_tree(analysed.checkpoint).coding
    coding.options = replace(coding.options, instance_selection=False)
    z, labels = raw_embeddings(analysed.checkpoint, analysed.images / "train", "momentum_", project=True)
    single = Hierarchy((replace(coding.hierarchy.levels[0], parents=None),), None)
    assigned = prototypes.Assigned(single, z.numpy(), clusters_by_level(single, z.numpy()), labels, ["a", "b", "c"])
    pictures = prototypes.show_prototypes(assigned, mock.Mock(), {})
    assert [picture.name for picture in pictures] == ["chain"]
    assert negatives.show_negatives(coding, assigned, np.arange(36), 2, mock.Mock(), {}) == []
    out = capsys.readouterr().out
    assert "no sub-tree is shown: the run has one level of prototypes" in out
    assert "the run was trained without instance selection" in out


def test_collapsed_encoder_has_no_map(capsys):
    same = np.ones((20, 8), dtype=np.float32)
    assert maps.show_maps(same, np.zeros(20, int), np.zeros(20, int), ["a"], "cluster of k-means", 0) == []
    assert "the encoder gives all images the same features" in capsys.readouterr().out


# ---- parts ----


@pytest.mark.parametrize("shared", [True, False])
def test_candidates_are_left_out_with_eq_4s_probability(analysed, shared):
    coding = load_tree(analysed.checkpoint).coding
    coding.shares_draws = shared
    candidate = coding.level(0)[0][:1] + 0.5 * coding.level(0)[0][1:2]
    candidate = torch.nn.functional.normalize(candidate, dim=1)
    clusters = [torch.tensor([0, 2]), torch.tensor([0, 1])]
    drawn = coding.left_out(clusters, candidate.expand(20000, -1))
    for level, own in enumerate(clusters):
        keep = instance_keep_probability(candidate, *coding.level(level)[:2], own)[:, 0]
        assert torch.allclose(drawn[level].float().mean(dim=1), 1 - keep, atol=0.015)  # four deviations


def test_query_clusters_follow_the_runs_option(analysed):
    tree = load_tree(analysed.checkpoint)
    z, _ = raw_embeddings(analysed.checkpoint, analysed.images / "train", "momentum_", project=True)
    assigned = clusters_by_level(tree.hierarchy, z.numpy())
    tree.coding.tree.temperatures_0[:3] = torch.tensor([0.01, 1.0, 1.0])
    found = {}
    for name in ("cosine", "similarity", "assignment"):
        tree.coding.options = replace(tree.coding.options, query_cluster=name)
        found[name] = negatives.query_clusters(tree.coding, z)
    assert (found["cosine"][0].numpy() == assigned[0]).all()
    assert (found["similarity"][0] == 0).all()  # the smallest temperature wins
    assert all((own.numpy() == other).all() for own, other in zip(found["assignment"], assigned, strict=True))


def test_queries_are_of_all_classes_in_turn():
    labels = np.array([1, 1, 0, 1, 2, 0])
    assert negatives.choose_queries(labels, 5) == [0, 2, 4, 1, 5]
    assert negatives.choose_queries(labels, 9) == [0, 2, 4, 1, 5, 3]


def test_last_value_of_an_epoch_counts(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text(
        "epoch,step,left_out_0,left_out_precision_0,left_out_recall_1,left_out_other\n"
        "0,1,0.5,0.25,,x\n0,1,,,0.75,x\n1,2,0.125,nan,,\n0,1,0.0625,,,\n"
    )
    assert charts.read_left_out(file) == {
        "left_out": {0: {0: 0.0625, 1: 0.125}},
        "left_out_precision": {0: {0: 0.25}},
        "left_out_recall": {1: {0: 0.75}},
    }
    file.write_text("epoch,left_out_0\nfirst,0.5\n")
    with pytest.raises(UserError, match=r"metrics\.csv: not what a run writes"):
        charts.read_left_out(file)


def test_short_text():
    assert figures.short("airplane") == "airplane"
    assert figures.short("x" * 20) == "x" * 20
    assert figures.short("x" * 21) == "x" * 19 + "…"
    assert figures.short("字" * 11) == "字" * 9 + "…"
    assert figures.short("$1\n") == r"\$1\n"


# ---- bad input ----

REFUSED = {
    "no checkpoint": (["--pretrained_feature_extractor", "nowhere"], "no such checkpoint"),
    "few points": (["--points", 9], "--points 9: must be at least 10"),
    "no queries": (["--queries", 0], "--queries 0: must be from 1 to 12"),
    "many queries": (["--queries", 13], "--queries 13: must be from 1 to 12"),
    "seed": (["--seed", -1], "--seed -1: must be from 0"),
    "file for a folder": (["--out", __file__], "is a file; give a folder"),
    "file within the path": (["--out", f"{__file__}/x/y"], f"{__file__} is a file; give a folder"),
    "one class": (["--train_dir", "flat"], "--train_dir: only one class"),
    "few images": (["--split", "val", "--val_dir", "val"], "--val_dir: 9 images are too few to analyse"),
    "no images": (["--train_dir", "nowhere"], "does not exist"),
    "no label hierarchy": (["--label_hierarchy", "nowhere"], "--label_hierarchy nowhere: cannot be read"),
    "no wandb login": (["--wandb"], "wandb login"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_analyse_refuses(case, hcsc_run, images, tmp_path, refused):
    flags, reason = REFUSED[case]
    assert reason in refused("analyse", *flags_for(images, checkpoint_of(hcsc_run, 1), tmp_path / "out"), *flags)


def test_broken_metrics_are_refused(hcsc_run, images, tmp_path, refused):
    run = Path(shutil.copytree(hcsc_run, tmp_path / "run"))
    (run / "metrics.csv").write_text("epoch,left_out_0\n1,many\n")
    line = refused("analyse", *flags_for(images, checkpoint_of(run, 1), tmp_path / "out"))
    assert "metrics.csv: not what a run writes" in line
