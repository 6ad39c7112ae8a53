"""What a run makes of images, as arrays; the rows nearest to each; maps of them."""

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import make_images
from torch.utils.data import TensorDataset
from trees import checkpoint_of, raw_embeddings

import solo_hcsc
from solo_hcsc import ArgumentError, Embeddings, embed, load_encoder, load_tree, open_run
from solo_hcsc.cli.flags import embed_parser
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.encoders.embedding import far_below
from solo_hcsc.encoders.images import images_of
from solo_hcsc.errors import UserError
from solo_hcsc.trees import plane
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
    assert own.names == [file.parent.name for file in files]
    unit, _ = raw_embeddings(checkpoint_of(hcsc_run, 1), images / "train", "", project=False)
    assert own.vectors.dtype == np.float32
    assert np.allclose(F.normalize(torch.from_numpy(own.vectors), dim=1), unit, atol=1e-5)
    with torch.no_grad():
        direct = load_encoder(hcsc_run).module.eval()(crops_of(images / "train", own.paths))
    assert np.allclose(own.vectors, direct, atol=1e-5)


def test_clusters_are_the_trees(own, hcsc_run, images):
    tree = load_tree(hcsc_run)
    with torch.no_grad():
        z = F.normalize(tree.side.eval()(crops_of(images / "train", own.paths)), dim=1)
    assert np.array_equal(own.clusters, tree.hierarchy.assign(z))
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
    assert found.names == [None, "class 0", "class 0", "class 1", "class 1"]
    assert found.vectors.shape == (5, 512)
    assert (found.clusters, found.similarities, found.outliers) == (None, None, None)
    flat = solo_hcsc.embed(untrained, tmp_path / "class 0", crop_size=32, accelerator="cpu")
    assert (flat.paths, flat.labels) == (["0.png", "1.png"], None)
    assert np.allclose(flat.vectors, found.vectors[1:3], atol=1e-5)
    assert capsys.readouterr().out == ""  # a library tells its reporter only
    assert solo_hcsc.embed(untrained, tmp_path, crop_size=32, accelerator="cpu", no_labels=True).labels is None


def test_a_cifar_runs_colours_go_with_it_to_other_folders(images):
    flags = embed_parser().parse(["run", "--data_dir", str(images)])
    trained = {"dataset": "cifar10", "crop_size": [32], "mean": [0.485, 0.456, 0.406], "class_level": 2}
    source = ImageSource.of_folder(flags, trained)
    assert (source.mean, source.crop_size, source.class_level) == ((0.4914, 0.4822, 0.4465), (32,), None)
    assert source.located(needs_val=False).folder("train") == images


def test_images_that_are_no_files_are_numbered(untrained):
    rows = TensorDataset(torch.rand(3, 3, 32, 32), torch.tensor([1, 0, 1]))
    rows.classes = ["cat", "dog"]
    found = solo_hcsc.embed(untrained, rows, accelerator="cpu")
    assert found.paths == ["images/0", "images/1", "images/2"]
    assert found.names == ["dog", "cat", "dog"]
    named = images_of(rows, "train")
    assert named.paths == ["train/0", "train/1", "train/2"]


def test_all_forms_of_images_give_the_same_vectors(untrained, images):
    files = sorted(str(file) for file in (images / "flat").rglob("*.png"))[:5]
    pictures = [Image.open(file) for file in files]
    encoder = load_encoder(untrained, crop_size=32)
    batch = torch.stack([encoder.transform(picture.convert("RGB")) for picture in pictures])
    whole = embed(encoder, images / "flat", accelerator="cpu").vectors[:5]
    for given in (files, pictures, batch, TensorDataset(batch, torch.zeros(5, dtype=torch.long))):
        found = embed(encoder, given, accelerator="cpu")
        assert found.vectors.dtype == np.float32
        assert np.allclose(found.vectors, whole, atol=1e-5)
    assert embed(encoder, files, accelerator="cpu").paths == files
    for given in (batch, pictures, [*batch]):
        assert np.allclose(encoder(given), whole, atol=1e-5)
    assert np.allclose(encoder(pictures[0]), whole[:1], atol=1e-5)


@pytest.mark.parametrize("images", [[], "nowhere", torch.zeros(3, 4), [1, 2], 5, None])
def test_images_that_are_none_are_refused(images, untrained):
    with pytest.raises(UserError):
        embed(untrained, images, accelerator="cpu")
    with pytest.raises(ArgumentError, match=r"^`images` "):
        load_encoder(untrained)(images if images != "nowhere" else "x.png")


def test_unreadable_files_of_a_list_can_be_skipped(untrained, images, tmp_path):
    (tmp_path / "broken.png").write_text("no image")
    files = [str(images / "flat" / "class 0" / "0.png"), str(tmp_path / "broken.png")]
    found = embed(untrained, files, crop_size=32, accelerator="cpu", skip_unreadable=True)
    assert (found.paths, [one.path for one in found.skipped]) == (files[:1], files[1:])
    with pytest.raises(UserError, match=r"broken\.png: cannot be read as an image"):
        embed(untrained, files, crop_size=32, accelerator="cpu")


def test_no_batch_stays_in_memory(hcsc_run, images):
    embedder = open_run(hcsc_run).embedder(images / "train", accelerator="cpu")
    given: list[weakref.ref] = []
    most: list[int] = []
    seen: list[np.ndarray] = []

    def keep(batch: np.ndarray) -> None:
        given.append(weakref.ref(batch))
        most.append(sum(one() is not None for one in given))
        seen.append(batch.copy())

    embedder.stream(Loading(4, 0), keep)
    assert len(seen) == 9
    assert max(most) <= 2  # the one that is handed over, and the one before it
    whole = solo_hcsc.embed(hcsc_run, images / "train", accelerator="cpu").vectors
    assert np.allclose(np.concatenate(seen), whole, atol=1e-5)


def test_features_that_are_not_finite_are_refused_by_the_images_name(hcsc_run, images):
    embedder = open_run(hcsc_run).embedder(images / "train", accelerator="cpu", tree=False)
    done = []

    class Broken(torch.nn.Module):
        def forward(self, batch):
            done.append(len(batch))
            return torch.full((len(batch), 2), float("nan") if len(done) == 2 else 1.0)

    origin = replace(embedder.origin, encoder=replace(embedder.encoder, module=Broken()))
    with pytest.raises(UserError, match=r"^class 0/2\.png: the encoder's output has NaN"):
        replace(embedder, origin=origin).embeddings(Loading(4, 0))


def test_saved_embeddings_are_loaded_whole_and_are_a_table(own, tmp_path):
    own.save(tmp_path / "table")
    for where in (tmp_path / "table", tmp_path / "table" / "embeddings.parquet"):
        found = Embeddings.load(where)
        assert (found.paths, found.classes) == (own.paths, own.classes)
        for name in ("vectors", "labels", "clusters", "similarities", "outliers"):
            assert np.array_equal(getattr(found, name), getattr(own, name)), name
    rows = own.to_pandas()
    stored = pandas.read_parquet(tmp_path / "table" / "embeddings.parquet")
    assert rows.columns.tolist() == stored.columns.tolist()
    assert rows.label.tolist() == stored.label.tolist()
    (tmp_path / "table" / "embeddings.npy").unlink()
    with pytest.raises(UserError, match=r"no embeddings\.npy there"):
        Embeddings.load(tmp_path / "table")


def test_rows_are_chosen_by_index_or_mask(own):
    chosen = own[own.labels == 1]
    assert len(chosen) == 12
    assert {*chosen.names} == {"class 1"}
    assert np.array_equal(own[[3, 1]].clusters, own.clusters[[3, 1]])
    assert own[1:3].paths == own.paths[1:3]


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
    with pytest.raises(UserError, match="`map` pca: the encoder gives all images the same features"):
        plane.fit_map("pca", np.ones((20, 4), dtype="float32"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("what", 3), ("crop_size", "96"), ("crop_size", 0), ("crop_size", True), ("mean", 0.5),
     ("mean", (0.5, 0.5)), ("std", (1, 1, 0)), ("std", "abc"), ("encoder", 18), ("encoder_args", "depth=2"),
     ("split", "test"), ("features", "head"), ("batch_size", 2.5), ("num_workers", -1), ("accelerator", "tpu")],
)  # fmt: skip
def test_wrong_arguments_are_named(hcsc_run, images, name, value):
    given = {"what": hcsc_run, "images": images / "train", name: value}
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
    np.testing.assert_allclose(features.numpy(), found.vectors, rtol=1e-4, atol=1e-4)
    plain = embed(untrained, images / "val", accelerator="cpu", encoder="resnet18", crop_size=32)
    assert np.abs(plain.vectors - found.vectors).max() > 0.1
