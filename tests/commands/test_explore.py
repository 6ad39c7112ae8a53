"""`solo-hcsc explore`: its page, which comes as a whole, and what it refuses."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import make_images, run_here
from trees import checkpoint_of

import solo_hcsc

SMALL = ["--accelerator", "cpu", "--num_workers", 0, "--batch_size", 8]


def tree_of(folder: Path):
    page = (folder / "index.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'id="tree">(.*?)</script>', page, re.DOTALL)[1])


def test_page_has_what_embed_says_of_the_run_s_images(hcsc_run, tmp_path, capsys):
    out = tmp_path / "new" / "page"
    for _ in range(2):  # the second one takes the place of the first
        run_here("explore", hcsc_run, "--out", out, "--sort_into", tmp_path / "new" / "sorted", *SMALL)
    tree, found = tree_of(out), solo_hcsc.embed(hcsc_run, accelerator="cpu", batch_size=8)
    paths, labels, figures = tree["parts"]["block-0"]
    rows = [found.paths.index(path) for path in paths]
    assert sorted(rows) == list(range(36))
    assert [tree["classes"][label] for label in labels] == [found.names[row] for row in rows]
    for level, column in enumerate(figures):
        assert column == pytest.approx((1000 * found.similarities[rows, level]).tolist(), abs=0.51)
    clusters = {(level + 1, number) for level in range(2) for number in found.clusters[:, level].tolist()}
    assert set(zip(tree["nodes"]["level"], tree["nodes"]["number"], strict=True)) == clusters
    assert (tree["title"], tree["classes"]) == ("train", ["class 0", "class 1", "class 2"])
    assert f"36 images in {len(clusters)} clusters" in (said := capsys.readouterr().out)
    assert f"open {out / 'index.html'}" in said
    assert sorted(tmp_path.iterdir()) == [tmp_path / "new"]
    lists = ["clusters.csv", "duplicates.csv", "mislabelled.csv", "outliers.csv"]
    assert f"beside it: {', '.join(lists)}; images sorted into {tmp_path / 'new' / 'sorted'}" in said
    assert sorted(file.name for file in out.glob("*.csv")) == lists
    with (out / "clusters.csv").open(newline="") as text:
        assert {(int(row["level"]), int(row["cluster"])) for row in csv.DictReader(text)} == clusters
    images = Path(found.origin.source.folder("train"))
    where = {str(link.resolve().relative_to(images)): link.parent for link in out.parent.glob("sorted/*/*.png")}
    own = np.array([found.clusters[found.paths.index(path), 0] for path in where])
    assert len(where) == 36
    folders = np.array([str(folder) for folder in where.values()])
    assert ((own[:, None] == own) == (folders[:, None] == folders)).all()


def test_any_tree_of_any_embeddings_is_a_page_of_its_own(hcsc_run, tmp_path, capsys):
    found = solo_hcsc.embed(hcsc_run, accelerator="cpu", batch_size=8)
    clusters = np.stack([np.arange(36) // 4, np.arange(36) // 12], axis=1)
    capsys.readouterr()
    page = solo_hcsc.explore(found[::2], clusters[::2], tmp_path / "page")
    tree = tree_of(page)
    assert (tree["title"], tree["images"], tree["nodes"]["size"]) == ("train", 18, [6] * 3 + [2] * 9)
    assert capsys.readouterr() == ("", "")
    moved = shutil.copytree(found.origin.source.folder("train"), tmp_path / "moved")
    bare = replace(found, origin=None, clusters=None)
    with pytest.raises(solo_hcsc.ArgumentError, match="`tree`: these embeddings have no clusters"):
        solo_hcsc.explore(bare, out=tmp_path / "other")
    with pytest.raises(solo_hcsc.ArgumentError, match=r"`images`: there is no class 0/0\.png"):
        solo_hcsc.explore(bare, clusters, tmp_path / "other")
    with pytest.raises(solo_hcsc.ArgumentError, match=r"`out` .* is among the images"):
        solo_hcsc.explore(found, out=found.origin.source.folder("train") / "page")
    assert tree_of(solo_hcsc.explore(bare, clusters, tmp_path / "other", images=moved))["title"] == "moved"


def test_folder_without_classes_replaces_an_earlier_page(images, hcsc_run, tmp_path):
    folder = Path(shutil.copytree(images / "flat" / "class 0", tmp_path / "photos"))
    for title in ("One", "Two <b>"):
        flags = ["--data_dir", folder, "--out", tmp_path / "page", "--title", title, *SMALL]
        run_here("explore", hcsc_run, *flags)
    assert (tree_of(tmp_path / "page")["title"], tree_of(tmp_path / "page")["classes"]) == ("Two <b>", [])
    assert "<title>Two &lt;b&gt;</title>" in (tmp_path / "page" / "index.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page", "photos"]


def test_failure_leaves_the_earlier_page(hcsc_run, tmp_path, refused):
    folder = make_images(tmp_path / "photos", classes=1, per_class=12)
    flags = ["--data_dir", folder, "--out", tmp_path / "page", *SMALL]
    run_here("explore", hcsc_run, *flags)
    before = (tmp_path / "page" / "index.html").read_bytes()
    (folder / "class 0" / "9.png").write_text("no image")
    assert "class 0/9.png: cannot be read as an image" in refused("explore", hcsc_run, *flags)
    assert (tmp_path / "page" / "index.html").read_bytes() == before


def test_run_without_a_tree_gets_one(untrained, hcsc_run, images, tmp_path, refused):
    flags = ["--data_dir", images / "train", "--crop_size", 32, "--out", tmp_path / "page", *SMALL]
    for run in (untrained, checkpoint_of(hcsc_run, 0)):
        run_here("explore", run, *flags, "--levels", 7, 2)
        sizes = tree_of(tmp_path / "page")["nodes"]["size"]
        assert (len(sizes), sum(sizes)) == (9, 2 * 36)
    assert "carries no tree: only runs of hcsc do" in refused("explore", untrained, *flags, "--tree", "run")
    assert "carries no tree: it is from before the run's first clustering" in refused(
        "explore", checkpoint_of(hcsc_run, 0), *flags, "--tree", "run"
    )
    assert "leave one out" in refused("explore", hcsc_run, *flags, "--tree", "run", "--levels", 4, 2)
    assert "--levels 2 7: give fewer clusters at each level" in refused("explore", hcsc_run, *flags, "--levels", 2, 7)


def test_folders_that_a_page_does_not_belong_in(hcsc_run, tmp_path, refused):
    folder = make_images(tmp_path / "photos", classes=1, per_class=12)
    flags = ["--data_dir", folder, *SMALL]
    assert "has other files in it; give a new or an empty" in refused("explore", hcsc_run, "--out", tmp_path, *flags)
    assert "is among the images of" in refused("explore", hcsc_run, "--out", folder / "page", *flags)
    assert "is a file; give a folder" in refused("explore", hcsc_run, "--out", __file__, *flags)
    assert "give a folder of images, or what embeds them" in refused("explore")
    page = ["--out", tmp_path / "page", *flags]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    assert "has other files in it" in refused("explore", hcsc_run, *page, "--sort_into", tmp_path / "other")
    assert "--sort_into" in (said := refused("explore", hcsc_run, *page, "--sort_into", folder / "sorted"))
    assert "is among the images of" in said
    assert "is the folder of --out" in refused("explore", hcsc_run, *page, "--sort_into", tmp_path / "page")
    assert "give --sort_into, the folder for them" in refused("explore", hcsc_run, *page, "--sort_by", "copy")
    few = ["--sort_into", tmp_path / "sorted", "--sort_clusters", 9]
    assert "--sort_clusters 9: the levels of this tree have" in refused("explore", hcsc_run, *page, *few)
    assert not (tmp_path / "page").exists()
