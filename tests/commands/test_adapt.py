"""`solo-hcsc adapt`: from given weights to a run that all other commands take."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tiny import make_images, run_here

import solo_hcsc
from solo_hcsc.encoders.embedding import Embedder
from solo_hcsc.report.summary import summarise
from solo_hcsc.training import adapt as adapting
from solo_hcsc.training.held_out import Judged

QUICK = ["--accelerator", "cpu", "--num_workers", 0]
FAST = ["--crop_size", 32, "--max_epochs", 6, "--views", 3, *QUICK]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    make_images(root / "train", classes=3, per_class=20)
    make_images(root / "val", classes=3, per_class=8, seed=1)
    return root


@pytest.fixture(scope="module")
def adapted(photos, untrained, tmp_path_factory):
    """A run whose adapter is handed over."""
    folder = tmp_path_factory.mktemp("adapt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judged, "beats", lambda self, other: True)
        run_here("adapt", untrained, "--data_dir", photos, "--out", folder / "run", *FAST)
    return folder / "run"


def test_frozen_features_are_handed_over_where_the_adapted_are_no_better(
    photos, untrained, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(Judged, "beats", lambda self, other: False)
    run_here("adapt", untrained, "--data_dir", photos, "--out", tmp_path / "run", *FAST)
    out = capsys.readouterr().out
    assert "the adapted features are no better on held-out images: the frozen ones are handed over" in out
    before = solo_hcsc.embed(untrained, photos / "val", crop_size=32)
    assert np.array_equal(solo_hcsc.embed(tmp_path / "run", photos / "val").vectors, before.vectors)
    record = json.loads((tmp_path / "run" / "args.json").read_text())
    assert (record["method"], record["handed_over"]) == ("adapt", "frozen")
    (line,) = (line for line in out.splitlines() if line.startswith("to use them elsewhere: solo-hcsc "))
    monkeypatch.chdir(tmp_path)
    run_here(*line.partition("solo-hcsc ")[2].split())
    assert (tmp_path / "encoder.safetensors").is_file()


def test_run_is_taken_by_other_commands(adapted, photos, tmp_path, capsys):
    run = solo_hcsc.open_run(adapted)
    (result,) = run.results().to_dict("records")
    assert result["evaluation"] == "adapt"
    assert {"knn", "labels_1", "labels_5"} <= result.keys()
    run_here("knn", "--pretrained_feature_extractor", adapted, "--k", 5, *QUICK)
    run_here("linear", "--pretrained_feature_extractor", adapted, "--max_epochs", 1, "--lr", 0.1, *QUICK)
    run_here("explore", adapted, "--out", tmp_path / "page", *QUICK)
    out = capsys.readouterr().out
    assert "24 queries" in out
    measured = summarise(adapted).to_pandas().set_index("evaluation")["measure"]
    assert measured["adapt"] == "KNN / 1 label a class / 5 labels a class"
    assert "60 images in" in out
    assert (tmp_path / "page" / "index.html").is_file()


def test_adapted_features_are_the_adapter_s_of_the_frozen_ones(adapted, photos, untrained):
    before = solo_hcsc.embed(untrained, photos / "val", crop_size=32)
    run = solo_hcsc.open_run(adapted)
    adapter = run.encoder.module.adapter
    with torch.no_grad():
        expected = adapter(torch.from_numpy(before.vectors)).numpy()
    found = run.embed(photos / "val")
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    image = torch.zeros(1, 3, 32, 32)
    torch.testing.assert_close(run.encoder(image), run.encoder.module(image))


def test_exports_bring_the_adapter_or_are_refused(adapted, tmp_path, refused):
    run = solo_hcsc.open_run(adapted)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    again = solo_hcsc.load_encoder(run.export(tmp_path / "encoder.safetensors"))
    torch.testing.assert_close(again(images), run.encoder(images))
    graph = onnxruntime.InferenceSession(run.export(tmp_path / "encoder.onnx", format="onnx"))
    found = graph.run(None, {"images": images.numpy()})[0]
    np.testing.assert_allclose(found, run.encoder(images).numpy(), atol=1e-4)
    line = refused("export", adapted, "--format", "torchvision", "--out", tmp_path / "x.pth")
    assert "has no place for an adapter; take safetensors or onnx" in line


def test_a_second_adaptation_embeds_nothing(photos, untrained, tmp_path, monkeypatch):
    seen = []
    compute = Embedder._computed
    monkeypatch.setattr(Embedder, "_computed", lambda self, *rest: seen.append(1) or compute(self, *rest))
    given = {"crop_size": 32, "views": 2, "epochs": 2, "num_workers": 0, "cache": tmp_path / "cache"}
    solo_hcsc.adapt(untrained, photos, tmp_path / "one", **given)
    assert len(seen) == 3  # centres and views of the training images, centres of the validation images
    run = solo_hcsc.adapt(untrained, photos, tmp_path / "two", loss="infonce", **given)
    assert len(seen) == 3
    run.embed(photos / "train", cache=tmp_path / "cache")
    assert len(seen) == 3


def test_without_labels_another_view_judges(photos, untrained, tmp_path, capsys):
    run_here("adapt", untrained, "--data_dir", photos, "--train_dir", "train", "--dataset", "custom", "--no_labels",
             "--loss", "swav", "--out", tmp_path / "run", *FAST)  # fmt: skip
    assert "neighbours that a view shares %" in capsys.readouterr().out


def test_labels_of_some_images_judge(photos, untrained, tmp_path, capsys):
    files = sorted((photos / "train").rglob("*.png"))[::3]
    rows = [f"{file.relative_to(photos / 'train')},{file.parent.name}" for file in files]
    Path(tmp_path / "few.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    run_here("adapt", untrained, "--data_dir", photos / "train", "--no_labels", "--labels", tmp_path / "few.csv",
             "--out", tmp_path / "run", *FAST)  # fmt: skip
    assert "1 label a class %" in capsys.readouterr().out
    content = json.loads(next((tmp_path / "run").glob("adapt-*.json")).read_text())
    assert content["settings"]["held_out"] == len(files) // 2


def test_last_layers_may_be_trained_themselves(photos, untrained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Judged, "beats", lambda self, other: True)
    run_here("adapt", untrained, "--data_dir", photos, "--depth", 1, "--out", tmp_path / "run", "--crop_size", 32,
             "--max_epochs", 1, "--views", 2, "--lr", 0.01, *QUICK)  # fmt: skip
    assert "epoch 1 of 1: loss " in capsys.readouterr().err
    before, after = (solo_hcsc.load_encoder(what).module for what in (untrained, tmp_path / "run"))
    assert torch.equal(after.conv1.weight, before.conv1.weight)
    assert not torch.equal(after.layer4[1].conv2.weight, before.layer4[1].conv2.weight)


def test_mistakes_are_one_line(photos, untrained, adapted, refused, tmp_path):
    given = [untrained, "--data_dir", photos]
    assert "--out is missing" in refused("adapt", *given)
    out = ["--out", tmp_path / "new"]
    assert "fewer at each level" in refused("adapt", *given, *out, "--num_prototypes", 4, 8)
    assert "--proto_weight is of --loss hcsc" in refused("adapt", *given, *out, "--loss", "swav", "--proto_weight", 1)
    assert "has other files in it" in refused("adapt", *given, "--out", photos)
    assert "must be at least 2" in refused("adapt", *given, *out, "--views", 1)
    assert "is adapted already" in refused("adapt", adapted, "--data_dir", photos, *out, *QUICK)


def test_too_few_images(untrained, tmp_path, refused):
    make_images(tmp_path / "few", classes=2, per_class=5)
    line = refused("adapt", untrained, "--data_dir", tmp_path / "few", "--out", tmp_path / "new", *FAST)
    assert "adapting takes 40 images or more, and there are 10" in line


def test_a_killed_adaptation_leaves_an_earlier_run_as_it_was(adapted, photos, untrained, monkeypatch):
    before = {file.name: file.read_bytes() for file in adapted.iterdir()}

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(adapting.torch, "save", killed)
    with pytest.raises(SystemExit) as ended:
        run_here("adapt", untrained, "--data_dir", photos, "--out", adapted, *FAST)
    assert ended.value.code == 130
    assert {file.name: file.read_bytes() for file in adapted.iterdir()} == before
    assert [path.name for path in adapted.parent.iterdir()] == ["run"]
