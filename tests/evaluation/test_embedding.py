"""What a run makes of images, as arrays; the rows nearest to each; maps of them."""

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import make_images
from torch.utils.data import TensorDataset
from trees import checkpoint_of, raw_embeddings

import solo_hcsc
from solo_hcsc import ArgumentError, embed
from solo_hcsc.cli.flags import embed_parser
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation import plane
from solo_hcsc.evaluation.embedding import Embedder, far_below
from solo_hcsc.runs.encoders import load_encoder, load_tree
from solo_hcsc.solo102.datasets import evaluation_transforms
from solo_hcsc.trees.neighbours import StoredRows, nearest_rows


def crops_of(folder: Path, paths: list[str]) -> torch.Tensor:
    """The images as a run with crops of 32 pixels sees them."""
    flags = embed_parser().parse([str(folder), "--data_dir", str(folder), "--crop_size", "32"])
    source = ImageSource.of_folder(flags, {})
    _, transform = evaluation_transforms(source)
    return torch.stack([transform(Image.open(folder / path).convert("RGB")) for path in paths])


@pytest.fixture(scope="module")
def own(hcsc_run):
    """The run's own images."""
    return solo_hcsc.embed(checkpoint_of(hcsc_run, 1), accelerator="cpu")


def test_rows_are_the_encoders_features_in_the_order_of_paths(own, hcsc_run, images):
    files = sorted((images / "train").rglob("*.png"), key=str)
    assert own.paths == [str(file.relative_to(images / "train")) for file in files]
    assert own.labels == [file.parent.name for file in files]
    unit, _ = raw_embeddings(checkpoint_of(hcsc_run, 1), images / "train", "", project=False)
    assert own.embeddings.dtype == np.float32
    assert np.allclose(F.normalize(torch.from_numpy(own.embeddings), dim=1), unit, atol=1e-5)
    with torch.no_grad():
        direct = load_encoder(hcsc_run).module.eval()(crops_of(images / "train", own.paths))
    assert np.allclose(own.embeddings, direct, atol=1e-5)


def test_clusters_are_the_trees(own, hcsc_run, images):
    tree = load_tree(hcsc_run)
    with torch.no_grad():
        z = F.normalize(tree.side.eval()(crops_of(images / "train", own.paths)), dim=1)
    assert np.array_equal(own.clusters, tree.hierarchy.assign(z).T)
    for level, prototypes in enumerate(one.prototypes for one in tree.hierarchy.levels):
        cosines = [float(z[row] @ prototypes[own.clusters[row, level]]) for row in range(36)]
        assert np.allclose(own.similarities[:, level], cosines, atol=1e-5)
    assert own.outliers.tolist() == [cosine < far_below(own.similarities[:, 0]) for cosine in own.similarities[:, 0]]


def test_outliers_are_below_tukeys_fence():
    values = np.array([0.9, 0.92, 0.91, 0.93, 0.9, 0.2], dtype="float32")
    assert (values < far_below(values)).tolist() == [False] * 5 + [True]
    assert not (np.ones(5) < far_below(np.ones(5))).any()


def test_every_image_of_an_unseen_folder_has_a_row(untrained, tmp_path, capsys):
    """Also one beside the class folders, which has no label; folders without images are no classes."""
    make_images(tmp_path, classes=2, per_class=2)
    (tmp_path / "notes").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "alone.jpg")
    found = solo_hcsc.embed(untrained, tmp_path, crop_size=32, accelerator="cpu")
    assert found.paths == ["alone.jpg", "class 0/0.png", "class 0/1.png", "class 1/0.png", "class 1/1.png"]
    assert found.labels == [None, "class 0", "class 0", "class 1", "class 1"]
    assert found.embeddings.shape == (5, 512)
    assert (found.clusters, found.similarities, found.outliers) == (None, None, None)
    flat = solo_hcsc.embed(untrained, tmp_path / "class 0", crop_size=32, accelerator="cpu")
    assert (flat.paths, flat.labels) == (["0.png", "1.png"], None)
    assert np.allclose(flat.embeddings, found.embeddings[1:3], atol=1e-5)
    assert "without labels: " in capsys.readouterr().out
    assert solo_hcsc.embed(untrained, tmp_path, crop_size=32, accelerator="cpu", no_labels=True).labels is None


def test_a_cifar_runs_colours_go_with_it_to_other_folders(images):
    flags = embed_parser().parse(["run", "--data_dir", str(images)])
    trained = {"dataset": "cifar10", "crop_size": [32], "mean": [0.485, 0.456, 0.406], "class_level": 2}
    source = ImageSource.of_folder(flags, trained)
    assert (source.mean, source.crop_size, source.class_level) == ((0.4914, 0.4822, 0.4465), (32,), None)
    assert source.located(needs_val=False).folder("train") == images


def test_images_that_are_no_files_are_numbered(hcsc_run, images):
    flags = embed_parser().parse([str(hcsc_run), "--data_dir", str(images / "train"), "--accelerator", "cpu"])
    rows = TensorDataset(torch.rand(3, 3, 32, 32), torch.tensor([1, 0, 1]))
    rows.classes, rows.targets = ["cat", "dog"], [1, 0, 1]
    embedder = replace(Embedder.load(flags), dataset=rows)
    assert embedder.paths() == ["train/0", "train/1", "train/2"]
    assert embedder.labels() == ["dog", "cat", "dog"]


def test_no_batch_stays_in_memory(hcsc_run, images):
    flags = embed_parser().parse([str(hcsc_run), "--data_dir", str(images / "train"), "--accelerator", "cpu"])
    given: list[weakref.ref] = []
    most: list[int] = []
    seen: list[np.ndarray] = []

    def keep(batch: np.ndarray) -> None:
        given.append(weakref.ref(batch))
        most.append(sum(one() is not None for one in given))
        seen.append(batch.copy())

    Embedder.load(flags).run_through(Loading(4, 0), keep)
    assert len(seen) == 9
    assert max(most) <= 2  # the one that is handed over, and the one before it
    whole = solo_hcsc.embed(hcsc_run, images / "train", accelerator="cpu").embeddings
    assert np.allclose(np.concatenate(seen), whole, atol=1e-5)


def test_features_that_are_not_finite_are_refused_by_the_images_name(hcsc_run, images):
    flags = embed_parser().parse([str(hcsc_run), "--data_dir", str(images / "train"), "--accelerator", "cpu"])
    embedder = Embedder.load(flags)
    done = []

    class Broken(torch.nn.Module):
        def forward(self, batch):
            done.append(len(batch))
            return torch.full((len(batch), 2), float("nan") if len(done) == 2 else 1.0)

    embedder.frozen.module = Broken()
    with pytest.raises(UserError, match=r"^class 0/2\.png: the encoder's output has NaN"):
        replace(embedder, tree=None).run_through(Loading(4, 0), lambda batch: None)


# ---- neighbours and maps ----


@pytest.mark.parametrize("block", [7, 50, 4096])
def test_neighbours_are_those_of_a_loop(block, tmp_path):
    rows = np.random.default_rng(0).normal(size=(50, 6)).astype("float32")
    rows[20] = 3 * rows[4]  # the same direction
    np.save(tmp_path / "rows.npy", rows)
    numbers, similarities = nearest_rows(StoredRows(tmp_path / "rows.npy"), 3, 45, 5, block)
    for row in range(3, 45):
        cosines = {
            other: float(rows[row] @ rows[other] / np.linalg.norm(rows[row]) / np.linalg.norm(rows[other]))
            for other in range(50)
            if other != row
        }
        best = sorted(cosines.values(), reverse=True)[:5]
        assert similarities[row - 3].tolist() == pytest.approx(best, abs=1e-5)
        assert [cosines[other] for other in numbers[row - 3]] == pytest.approx(best, abs=1e-5)
        assert len(set(numbers[row - 3])) == 5
    assert (numbers[1, 0], numbers[17, 0]) == (20, 4)


def test_every_other_image_can_be_a_neighbour():
    numbers, _ = nearest_rows(np.eye(4, dtype="float32"), 0, 4, 3, block=2)
    assert [sorted(row) for row in numbers.tolist()] == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]


def test_map_of_some_images_places_the_others_among_them(monkeypatch):
    """Two far groups: fitted on every other image, and still two groups for all."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(60, 8)).astype("float32") * 0.1
    rows[:30, 0] += 3
    rows[30:, 1] += 3
    monkeypatch.setattr(plane, "MOST_FITTED", 30)
    for kind in ("pca", "umap"):
        place = plane.fit_map(kind, rows)
        points = np.concatenate([place(0, 25), place(25, 60)])
        assert points.shape == (60, 2)
        assert np.isfinite(points).all()
        centres = points[:30].mean(axis=0), points[30:].mean(axis=0)
        nearer = [np.linalg.norm(points - centre, axis=1) for centre in centres]
        assert ((nearer[0] < nearer[1]) == (np.arange(60) < 30)).all(), kind
    whole = plane.fit_map("pca", rows)
    assert np.allclose(whole(0, 60), np.concatenate([whole(0, 7), whole(7, 60)]), atol=1e-5)


def test_collapsed_encoder_has_no_map():
    with pytest.raises(UserError, match="--map pca: the encoder gives all images the same features"):
        plane.fit_map("pca", np.ones((20, 4), dtype="float32"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("run", 3), ("folder", ["photos"]), ("crop_size", "96"), ("crop_size", 0), ("crop_size", True), ("mean", 0.5),
     ("mean", (0.5, 0.5)), ("std", (1, 1, 0)), ("std", "abc"), ("encoder", 18), ("encoder_args", "depth=2"),
     ("split", "test"), ("features", "head"), ("batch_size", 2.5), ("num_workers", -1), ("accelerator", "tpu")],
)  # fmt: skip
def test_wrong_arguments_are_named(hcsc_run, images, name, value):
    given = {"run": hcsc_run, "folder": images / "train", name: value}
    with pytest.raises(ArgumentError, match=rf"^`{name}` is .*: give "):
        embed(**given)
    if name in ("crop_size", "mean", "std", "encoder", "encoder_args"):
        with pytest.raises(ArgumentError, match=rf"^`{name}` is "):
            load_encoder(hcsc_run, **{name: value})


def test_colours_are_the_callers_and_alike_in_embed_and_the_encoders_transform(untrained, images):
    given = {"encoder": "resnet18", "crop_size": 32, "mean": (0.5, 0.4, 0.3), "std": np.array([0.1, 0.2, 0.3])}
    found = embed(untrained, images / "val", accelerator="cpu", **given)
    encoder = load_encoder(untrained, **given)
    with torch.no_grad():
        own = [encoder.transform(Image.open(images / "val" / path)) for path in found.paths]
        features = encoder.module.eval()(torch.stack(own))
    np.testing.assert_allclose(features.numpy(), found.embeddings, rtol=1e-4, atol=1e-4)
    plain = embed(untrained, images / "val", accelerator="cpu", encoder="resnet18", crop_size=32)
    assert np.abs(plain.embeddings - found.embeddings).max() > 0.1
