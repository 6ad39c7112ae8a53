import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import adjusted_mutual_info_score
from tiny import make_images, run_here
from trees import checkpoint_of, raw_embeddings, spread_prototypes

from solo_hcsc.cli.commands import analyse
from solo_hcsc.data.label_hierarchy import LabelLevel
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import recorded_flags
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.clusters import same_class_share
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.hcsc.selection import instance_keep_probability
from solo_hcsc.report import charts, figures, maps, negatives, prototypes
from solo_hcsc.report.gallery import Thumbnails
from solo_hcsc.runs.images import choose_labels, evaluated_images, same_data
from solo_hcsc.runs.methods import load_tree

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
        self.files = [str(file.relative_to(images / "train")) for file in sorted((images / "train").rglob("*.png"))]


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
    assert (len(nodes), in_chains >= 10, len(left_out)) == (3, True, 4)
    for name in names:
        file = analysed.out / f"{name}.svg"
        assert len(elements(file, "image")) == images.get(name, 0), name
        assert file.stat().st_size < 200_000
        assert "currentColor" in file.read_text()
    assert "k-means, k = 3" in texts(analysed.out / "ami.svg")
    assert "2 groups" in texts(analysed.out / "ami.svg")
    assert "class 2" in texts(analysed.out / "tsne_class.svg")
    assert "+" in texts(analysed.out / "negatives.svg")
    captions = {figure["file"]: figure["caption"] for figure in analysed.content["figures"]}
    assert "rightly" not in texts(analysed.out / "negatives.svg") + captions["negatives.svg"]
    assert "Green frame: an image of the query's class." in captions["negatives.svg"]
    assert not {"evaluation", "metrics"} <= analysed.content.keys()  # no row of a summary


def test_chains_are_those_of_the_checkpoints_tensors(analysed):
    """By plain loops: each image's nearest bottom prototype, its parents, and each prototype's nearest images."""
    z, labels = raw_embeddings(analysed.checkpoint, analysed.images / "train", "momentum_", project=True)
    levels = [analysed.state["coding.tree.prototypes_0"][:3], analysed.state["coding.tree.prototypes_1"][:2]]
    parents = analysed.state["coding.tree.parents_0"].tolist()
    bottom = [max(range(3), key=lambda p: float(one @ levels[0][p])) for one in z]
    clusters = [bottom, [parents[cluster] for cluster in bottom]]
    chains = analysed.numbers["chains"]
    tops = [parents[chain[-1]["prototype"]] for chain in chains]
    assert sorted(tops) == sorted(set(clusters[1]))
    sizes = [clusters[1].count(top) for top in tops]
    assert sizes == sorted(sizes, reverse=True)
    for chain, top in zip(chains, tops, strict=True):
        siblings = [p for p in range(3) if parents[p] == top and p in bottom]
        assert [node["level"] for node in chain] == ([2, 1] if len(siblings) > 1 else [1])  # from the top down
        assert chain[0]["prototype"] == (top if len(siblings) > 1 else siblings[0])
        assert chain[-1]["images"] == max(bottom.count(p) for p in siblings)
        for node in chain:
            level, prototype = node["level"] - 1, node["prototype"]
            members = [image for image in range(36) if clusters[level][image] == prototype]
            similar = {image: float(z[image] @ levels[level][prototype]) for image in members}
            assert node["images"] == len(members)
            nearest = [analysed.files.index(file) for file in node["nearest"]]
            assert set(nearest) <= set(members)
            assert len(nearest) == min(prototypes.NEAREST, len(members))
            found = [similar[image] for image in nearest]
            best = sorted(similar.values(), reverse=True)[: prototypes.NEAREST]
            assert found == pytest.approx(best, abs=1e-5)
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
    assert len({Path(query["image"]).parent for query in found["shown"]}) == 2  # of different classes
    for query in found["shown"]:
        place = positions[analysed.files.index(query["image"])]
        for candidates, mask in zip(query["left_out"], masks, strict=True):
            expected = [analysed.files[sample[other]] for other in range(30) if mask[place, other] and other != place]
            assert sorted(candidates) == sorted(expected)


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


@pytest.mark.parametrize("broken", ["to_svg", "write_svg"])
def test_analysis_that_is_interrupted_leaves_the_earlier_one(broken, analysed, tmp_path, without_umap, monkeypatch):
    """While drawing nothing is touched; while writing no file is lost or half-written."""
    shutil.copytree(analysed.out, tmp_path / "out")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    original, calls = getattr(figures, broken), []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(figures, broken, interrupted)
    with pytest.raises(SystemExit):
        run_here("analyse", *analysed.flags, "--out", tmp_path / "out")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


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
    assert "the checkpoint carries no tree: no pictures of prototypes" in out
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
    legend = texts(tmp_path / "out" / "tsne_class.svg").splitlines()[-4:]  # after the labels on the map
    assert sorted(legend) == sorted(["<script>$x_1$", r"two\nlines & mo…", "x" * 15 + "…", "玻璃杯子的名字…"])
    for file in (tmp_path / "out").glob("*.svg"):
        assert "<script" not in file.read_text()


def test_run_without_selection_or_a_second_level(analysed, tmp_path, capsys):
    coding = load_tree(analysed.checkpoint).coding
    coding.options = replace(coding.options, instance_selection=False)
    z, labels = raw_embeddings(analysed.checkpoint, analysed.images / "train", "momentum_", project=True)
    single = Hierarchy((replace(coding.hierarchy.levels[0], parents=None),), None)
    assigned = prototypes.Assigned(single, z.numpy(), list(single.assign(z).numpy().T), labels, ["a", "b", "c"])
    numbers: dict = {}
    pictures = prototypes.show_prototypes(assigned, mock.Mock(), numbers)
    assert [picture.name for picture in pictures] == ["chain"]
    assert all(isinstance(image, int) for (node,) in numbers["chains"] for image in node["nearest"])  # no files
    assert negatives.show_negatives(coding, assigned, np.arange(36), 2, mock.Mock(), {}) == []
    out = capsys.readouterr().out
    assert "no sub-tree is shown: the run has one level of prototypes" in out
    assert "the run was trained without instance selection" in out


def test_collapsed_encoder_has_no_map(capsys):
    same = np.ones((20, 8), dtype=np.float32)
    colouring = maps.by_cluster(np.zeros(20, int), np.zeros(20, int), ["a"], "cluster of k-means")
    assert maps.show_maps(same, [colouring], 0) == []
    assert "the encoder gives all images the same features" in capsys.readouterr().out


# ---- without labels ----


def only_labels(checkpoint: Path, *flags: object) -> tuple[bool, Path]:
    """Whether an analysis with these flags goes without labels, and in which folder."""
    parsed = analyse.parse([*map(str, flags), "--pretrained_feature_extractor", str(checkpoint)])
    source = choose_labels(evaluated_images(parsed), parsed, recorded_flags(checkpoint))
    return source.no_labels, source.folder(parsed.split)


def test_without_labels_there_is_all_that_needs_none(analysed, tmp_path, without_umap, capsys):
    where = flags_for(analysed.images, analysed.checkpoint, tmp_path)
    masks: list[list[torch.Tensor]] = []
    real = SelectiveCoding.left_out
    with mock.patch.object(SelectiveCoding, "left_out", lambda *args: masks.append(real(*args)) or masks[-1]):
        run_here("analyse", *where, "--no_labels")
    out = capsys.readouterr().out
    assert "without labels: --no_labels\n" in out
    assert "36 train images, no labels" in out
    content = json.loads((tmp_path / "analysis.json").read_text())
    numbers = content["numbers"]
    names = ["left_out", "chain", "tree", "negatives", "tsne_cluster"]
    assert [figure["file"] for figure in content["figures"]] == [f"{name}.svg" for name in names]
    assert set(numbers) == {"left_out_along_training", "chains", "tree", "negatives", "mapped_images"}
    assert (content["settings"]["no_labels"], "classes" in content["data"]) == (True, False)

    assert list(numbers["left_out_along_training"]) == ["left_out"]  # the run logged precision and recall, too
    assert "precision" not in texts(tmp_path / "left_out.svg")
    for chain, labelled in zip(numbers["chains"], analysed.numbers["chains"], strict=True):
        assert chain == [node | {"classes": []} for node in labelled]
    sizes = [f"Level {node['level']}, {node['images']} images" for chain in numbers["chains"] for node in chain]
    assert texts(tmp_path / "chain.svg").splitlines() == sizes
    assert "class" not in texts(tmp_path / "tree.svg")

    assert set(numbers["negatives"]) == {"queries", "levels", "shown"}
    for number, (level, mask) in enumerate(zip(numbers["negatives"]["levels"], masks[0], strict=True), start=1):
        others = ~torch.eye(30, dtype=torch.bool)
        assert level == {"level": number, "share": pytest.approx(float(mask[others].float().mean()))}
    picture = (tmp_path / "negatives.svg").read_text()
    assert negatives.SAME_CLASS not in picture
    assert negatives.OTHER_CLASS not in picture
    assert negatives.OTHER_CLASS in (analysed.out / "negatives.svg").read_text()
    captions = " ".join(figure["caption"] for figure in content["figures"])
    assert "class" not in captions
    shares = {f"left_out/share level {number}" for number in (1, 2)}
    assert analyse.main_numbers(numbers).keys() == shares


def test_flat_folder_and_another_method_have_clusters_of_k_means(untrained, images, tmp_path, without_umap, capsys):
    (tmp_path / "flat").mkdir()
    for file in (images / "train").rglob("*.png"):
        shutil.copy(file, tmp_path / "flat" / f"{file.parent.name} {file.name}")
    run_here("analyse", *flags_for(tmp_path, untrained, tmp_path / "out"), "--train_dir", "flat")
    out = capsys.readouterr().out
    assert f"without labels: {tmp_path / 'flat'} has no class folders\n" in out
    assert "k-means takes 3 clusters for 36 images, because no classes tell how many\n" in out
    assert [file.name for file in (tmp_path / "out").glob("*.svg")] == ["tsne_cluster.svg"]
    content = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert content["numbers"] == {"clusters_of_kmeans": 3, "mapped_images": 30}
    assert sorted(set(texts(tmp_path / "out" / "tsne_cluster.svg").splitlines())) == ["1", "2", "3"]


def test_run_without_labels_is_looked_at_without_them(hcsc_run, images, tmp_path, capsys):
    run = Path(shutil.copytree(hcsc_run, tmp_path / "run"))
    checkpoint = checkpoint_of(run, 1)
    assert only_labels(checkpoint) == (False, images / "train")
    args = json.loads((run / "args.json").read_text())
    (run / "args.json").write_text(json.dumps(args | {"no_labels": True}))
    capsys.readouterr()
    assert only_labels(checkpoint) == (True, images / "train")
    assert capsys.readouterr().out.splitlines()[-1].startswith("without labels: the run was pretrained with --no_lab")
    assert only_labels(checkpoint, "--train_dir", "train") == (True, images / "train")  # the same one
    assert only_labels(checkpoint, "--class_level", 1) == (False, images / "train")
    assert only_labels(checkpoint, "--train_dir", "flat") == (False, images / "flat")
    other = Path(shutil.copytree(images, tmp_path / "images"))
    assert only_labels(checkpoint, "--data_dir", other) == (False, other / "train")


@pytest.mark.parametrize("command", ["knn", "linear", "clustering"])
def test_what_needs_labels_refuses_to_go_without(command, hcsc_run, custom, refused):
    where = ["--pretrained_feature_extractor", checkpoint_of(hcsc_run, 1)]
    assert "--no_labels: an evaluation needs labels; leave it out" in refused(command, *custom, *where, "--no_labels")


def test_help_shows_no_labels_where_it_means_something(capsys):
    for command, shown in (("analyse", True), ("clustering", False), ("knn", False)):
        with pytest.raises(SystemExit):
            run_here(command, "--help")
        assert ("--no_labels" in capsys.readouterr().out) == shown, command


# ---- maps ----


def level_of(names: list[str], groups: list[int]) -> LabelLevel:
    return LabelLevel(tuple(names), np.array(groups))


def test_many_classes_are_coloured_by_the_lowest_level_with_few_groups(capsys):
    classes = [f"c{number}" for number in range(26)]
    levels = [
        level_of(classes, list(range(26))),
        level_of([f"g{number}" for number in range(13)], [number // 2 for number in range(26)]),
        level_of(["food/fruit", "food/root", "tools"], [0] * 10 + [1] * 10 + [2] * 6),
        level_of(["food", "tools"], [0] * 20 + [1] * 6),
    ]
    found = maps.by_class(np.array([3, 12, 25]), classes, levels)
    assert (found.names, found.groups.tolist(), found.title) == (
        ["fruit", "root", "tools"],
        [0, 1, 2],
        "group of classes",
    )
    assert "The 26 classes are too many to colour" in found.words
    assert "level 3 of the label hierarchy, with 3 groups" in found.words
    assert maps.by_class(np.array([3]), classes, []) is None
    assert "no map by class is shown: 26 classes are more than 12" in capsys.readouterr().out
    assert maps.by_class(np.array([3]), classes[:12], levels).title == "class"


def test_clusters_are_numbered_by_size_and_named_by_their_commonest_class():
    clusters, labels = np.array([7, 2, 7, 7, 9, 9]), np.array([1, 0, 1, 0, 0, 0])
    named = maps.by_cluster(clusters, labels, ["a", "b"], "cluster")
    assert (named.groups.tolist(), named.names) == ([0, 2, 0, 0, 1, 1], ["1: b", "2: a", "3: a"])
    bare = maps.by_cluster(clusters, np.full(6, -1), [], "cluster")
    assert (bare.groups.tolist(), bare.names) == ([0, 2, 0, 0, 1, 1], ["1", "2", "3"])
    assert "class" not in bare.words


def test_labels_are_at_their_groups_and_apart():
    random = np.random.default_rng(0)
    centres = np.array([[0, 0], [10, 10], [10, 10], [10, 10], [10, 10], [0, 10]])
    sizes = [100, 90, 80, 70, 60, 2]
    groups = np.repeat(np.arange(6), sizes)
    points = centres[groups] + random.normal(0, 0.1, (len(groups), 2))
    places = maps.place_labels(points, groups, ["name"] * 6)
    assert places[0] == pytest.approx(np.median(points[groups == 0], axis=0))
    assert places[1] == pytest.approx(np.median(points[groups == 1], axis=0))
    assert list(places) == [0, 1, 2, 3]  # the fifth has no room beside its neighbours, the last is tiny
    heights = sorted(places[group][1] for group in (1, 2, 3))
    line = np.ptp(points[:, 1]) * maps.SIZE / (maps.HEIGHT * 72)
    assert min(np.diff(heights)) >= line


def test_legend_of_up_to_12_and_labels_of_any():
    points = np.random.default_rng(0).normal(size=(60, 2))

    def drawn(count: int):
        (axes,) = maps.draw_map(points, np.arange(60) % count, [f"n{number}" for number in range(count)]).axes
        return axes.get_legend() is not None, len(axes.texts)

    assert drawn(12)[0]
    assert not drawn(13)[0]
    assert drawn(13)[1] >= 2


# ---- parts ----


def contrast(first: str, second: str) -> float:
    """WCAG 2's, by its definition."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_first_colour_is_readable_in_both_themes():
    style = (Path(figures.__file__).parent / "style.css").read_text()
    light, dark = (
        {name: style.split(f"{name}: ")[theme].split(";")[0] for name in ("--blue", "--paper")} for theme in (1, 2)
    )
    assert light["--blue"] == figures.COLOURS[0]
    assert contrast(light["--blue"], "#ffffff") >= 4.5
    assert contrast(dark["--blue"], dark["--paper"]) >= 4.5
    assert min(contrast(maps.BLUE, paper) for paper in ("#ffffff", dark["--paper"])) >= 3  # for what is no text
    assert figures.colour(0, 3) == f"var(--blue, {light['--blue']})"
    assert figures.colour(1, 3) == figures.paint(1, 3) == figures.COLOURS[1]
    assert len({figures.paint(number, 30) for number in range(30)}) == 30


def test_pictures_take_the_pages_blue(analysed):
    for name in ("left_out", "ami"):
        assert "stroke: #0072b2; stroke: var(--blue, #0072b2)" in (analysed.out / f"{name}.svg").read_text() or (
            "fill: #0072b2; fill: var(--blue, #0072b2)" in (analysed.out / f"{name}.svg").read_text()
        )
    text = (analysed.out / "tsne_class.svg").read_text()
    assert "fill: white; fill: var(--paper, white)" in text  # behind the labels
    assert "--blue" not in text  # the points are pixels


def test_tables_that_scroll_have_a_shade_where_they_are_cut():
    style = (Path(figures.__file__).parent / "style.css").read_text()
    rule = style[style.index("\n.scroll {") :].partition("}")[0]
    assert rule.count("no-repeat local") == rule.count("no-repeat scroll") == 2


def test_chance_is_the_share_of_pairs_of_one_class():
    labels = [0, 0, 0, 2, 2, 3]
    pairs = [(first, second) for first in range(6) for second in range(6) if first != second]
    expected = sum(labels[first] == labels[second] for first, second in pairs) / len(pairs)
    assert same_class_share(np.array(labels)) == pytest.approx(expected)


@pytest.mark.parametrize("top", [0.004, 0.5, 0.97])
def test_left_out_has_ticks_and_a_line_for_chance(top):
    curves = {name: {0: {0: top / 2, 1: top}, 1: {0: top, 1: top}} for name in charts.PANELS}
    for axes, name in zip(charts.draw_left_out(curves, 0.25).axes, charts.PANELS, strict=True):
        low, high = axes.get_ylim()
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 3
        chance = [line for line in axes.lines if line.get_label() == "chance"]
        assert [line.get_ydata()[0] for line in chance] == ([25.0] if name == "left_out_precision" else [])
        assert [line.get_label() for line in axes.lines[:2]] == ["level 1 (bottom)", "level 2 (top)"]
        assert axes.lines[0].get_xdata().tolist() == [1, 2]
    assert all(line.get_label() != "chance" for axes in charts.draw_left_out(curves).axes for line in axes.lines)


def test_chance_is_shown_for_the_runs_own_classes_only(analysed):
    caption = analysed.content["figures"][0]["caption"]
    assert f"the precision of chance, {11 / 35:.1%}, from the class sizes" in caption
    assert "chance" in texts(analysed.out / "left_out.svg")
    trained = recorded_flags(analysed.checkpoint)
    source = ImageSource.of_run(analyse.parse(["--pretrained_feature_extractor", "x"]), trained)
    assert same_data(source, trained, "class_level")
    assert not same_data(replace(source, class_level=2), trained, "class_level")
    assert not same_data(replace(source, data_dir=Path("elsewhere")), trained, "class_level")


def test_epochs_count_from_1(analysed):
    history = analysed.numbers["left_out_along_training"]["left_out"]
    assert {epoch for level in history for epoch in level["epochs"]} <= {1, 2}
    assert {level["level"] for level in history} == {1, 2}


def test_an_only_child_stands_for_its_parent():
    """Three levels: 0 and 1 below 0 and 1 below 0, and 2 alone below 2 below 1."""
    vectors = torch.eye(3)
    assigned = prototypes.Assigned(
        mock.Mock(levels=[mock.Mock(prototypes=vectors)] * 3, path=lambda p: [[0, 0, 0], [1, 1, 0], [2, 2, 1]][p]),
        np.eye(3, dtype=np.float32)[[0, 0, 1, 2]],
        [np.array([0, 0, 1, 2]), np.array([0, 0, 1, 2]), np.array([0, 0, 0, 1])],
        np.full(4, -1),
        (),
    )
    assert [[(node.level, node.images) for node in chain] for chain in prototypes.chains(assigned)] == [
        [(3, 3), (1, 2)],
        [(1, 1)],
    ]
    tree = prototypes.sub_tree(assigned)
    assert (tree.node.level, [child.node.level for child in tree.children]) == (3, [1, 1])
    assert all(not child.children for child in tree.children)


def test_a_query_is_sharp_and_its_text_legible_on_a_phone(analysed):
    class Photos:
        transform = None

        def __getitem__(self, index):
            return self.transform(Image.new("RGB", (300, 200))), -1

    thumbnails = Thumbnails(Photos())
    assert thumbnails.of(0).shape == (50, 50, 3)
    assert thumbnails.of(0, negatives.QUERY).shape == (112, 112, 3)
    assigned = mock.Mock(labels=np.zeros(9, int), names=["a"])
    found = negatives.LeftOut([negatives.OfLevel(1.0)], 1.0, {0: [np.arange(1, 9)]})
    figure = negatives.draw_negatives(found, np.arange(9), assigned, thumbnails)
    pixels = 360 / (figure.get_size_inches()[0] * 72)  # of a point, if the picture is 360 pixels wide
    (axes,) = figure.axes
    assert min(text.get_fontsize() for text in axes.texts) * pixels >= 12
    assert [text.get_text() for text in axes.texts] == ["a", "Level 1: 8 left out, 8 of this class", "+3"]


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
    assigned = list(tree.hierarchy.assign(z).numpy().T)
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
    "no labels of a level": (["--no_labels", "--class_level", 2], "--class_level says which folders are the classes"),
    "no labels to group": (["--no_labels", "--label_hierarchy", __file__], "there are no classes to group"),
    "no labels, no folders": (["--no_labels", "--dataset", "stl10"], "--dataset stl10 is not read from folders"),
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
