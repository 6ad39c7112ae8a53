"""`solo-hcsc embed`: its files, which come all together, and what it refuses."""

import json
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
from tiny import make_images, resident, run_here

import solo_hcsc
from solo_hcsc.encoders import table as table_file
from solo_hcsc.encoders.embedding import Embeddings
from solo_hcsc.trees.neighbours import StoredRows

SMALL = ["--accelerator", "cpu", "--num_workers", 0, "--batch_size", 8]
TREE = ["cluster_1", "similarity_1", "cluster_2", "similarity_2", "outlier"]


@pytest.fixture(scope="module")
def written(hcsc_run, tmp_path_factory):
    """The table of a run's own images, with everything."""
    out = tmp_path_factory.mktemp("embed") / "new" / "out"
    run_here("embed", hcsc_run, "--out", out, "--map", "pca", "--neighbours", 3, "--clusters", *SMALL)
    return out


def test_table_and_array_are_the_functions(written, hcsc_run, images):
    table, array = pandas.read_parquet(written / "embeddings.parquet"), np.load(written / "embeddings.npy")
    found = solo_hcsc.embed(hcsc_run, accelerator="cpu", batch_size=8)
    assert sorted(file.name for file in written.iterdir()) == sorted(table_file.NAMES)
    assert table.columns.tolist() == ["path", "label", "embedding", *TREE, "x", "y", "neighbours"]
    assert (table.path.tolist(), table.label.tolist()) == (found.paths, found.names)
    assert np.array_equal(np.stack(table.embedding), array)
    assert np.allclose(array, found.vectors, atol=1e-5)
    assert np.array_equal(table[["cluster_1", "cluster_2"]], found.clusters)
    assert np.allclose(table[["similarity_1", "similarity_2"]], found.similarities, atol=1e-5)
    assert table.outlier.tolist() == found.outliers.tolist()
    assert np.isfinite(table[["x", "y"]]).all(axis=None)
    unit = array / np.linalg.norm(array, axis=1, keepdims=True)
    for row, neighbours in enumerate(table.neighbours):
        distances = 1 - unit @ unit[row]
        distances[row] = np.inf
        assert neighbours["distances"] == pytest.approx(np.sort(distances)[:3], abs=1e-5)
        assert distances[neighbours["ids"]] == pytest.approx(neighbours["distances"], abs=1e-5)


def test_record_says_which_run_and_what_the_columns_are(written, hcsc_run):
    record = json.loads((written / "embeddings.json").read_text())
    encoder = solo_hcsc.load_encoder(hcsc_run)
    assert (record["run"], record["checkpoint_sha256"]) == (str(encoder.checkpoint), encoder.fingerprint)
    assert (record["method"], record["encoder"], record["features"]) == ("hcsc", "resnet18", "backbone")
    assert (record["images"], record["dimensions"], record["data"]["crop_size"]) == (36, 512, 32)
    assert list(record["columns"]) == pandas.read_parquet(written / "embeddings.parquet").columns.tolist()
    assert all(record["columns"].values())


def test_any_folder_will_do_and_an_earlier_table_is_replaced(images, hcsc_run, tmp_path, capsys):
    folder = Path(shutil.copytree(images / "flat" / "class 0", tmp_path / "photos"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "embeddings.parquet").write_text("old")
    run_here("embed", hcsc_run, "--data_dir", folder, "--out", tmp_path / "out", "--features", "projector", *SMALL)
    table = pandas.read_parquet(tmp_path / "out" / "embeddings.parquet")
    assert table.columns.tolist() == ["path", "embedding", *TREE]
    assert table.path.tolist() == sorted(file.name for file in folder.iterdir())
    assert np.load(tmp_path / "out" / "embeddings.npy").shape == (20, len(table.embedding[0]))
    out = capsys.readouterr().out
    assert "without labels: " in out
    assert f"images/s: {', '.join(table_file.NAMES)} in {tmp_path / 'out'}" in out
    assert f"pandas.read_parquet('{tmp_path / 'out' / 'embeddings.parquet'}')" in out


def test_val_images_have_rows(hcsc_run, tmp_path):
    run_here("embed", hcsc_run, "--split", "val", "--class_level", "leaf", "--out", tmp_path, *SMALL)
    table = pandas.read_parquet(tmp_path / "embeddings.parquet")
    assert table.path.tolist() == [f"class {label}/{number}.png" for label in range(3) for number in range(3)]
    assert table.label.tolist() == [f"class {label}" for label in range(3) for _ in range(3)]


# ---- streaming ----


def rows_of(file: Path, images: int, size: int) -> Embeddings:
    """Rows on disk that are cheap to make, with labels of which the first are missing."""
    rows = np.lib.format.open_memmap(file, "w+", "float32", (images, size))
    for start in range(0, images, 10_000):
        rows[start : start + 10_000] = np.random.default_rng(start).normal(size=(1, size))
    del rows
    labels = np.where(np.arange(images) < 10, -1, 0)
    return Embeddings([f"{number}.png" for number in range(images)], StoredRows(file), labels, ("a",))


def test_blocks_make_the_same_table_as_one_block(tmp_path):
    rows = np.random.default_rng(0).normal(size=(23, 4)).astype("float32")
    found = Embeddings([str(number) for number in range(23)], rows, np.array([-1] * 10 + [0] * 13), ("a",))
    tables = []
    for size in (23, 5):
        table_file.write_table(tmp_path / "table", table_file.blocks(found, "pca", 2, size), 23)
        tables.append(pandas.read_parquet(tmp_path / "table"))
    whole, streamed = tables
    assert streamed.label.isna().sum() == 10
    for name in ("path", "label"):
        assert streamed[name].equals(whole[name])
    for name in ("embedding", "x", "y"):
        assert np.allclose(np.stack(streamed[name]), np.stack(whole[name]), atol=1e-5)
    for one, other in zip(streamed.neighbours, whole.neighbours, strict=True):
        assert one["ids"].tolist() == other["ids"].tolist()


def test_memory_does_not_grow_with_the_images(tmp_path):
    """A table of 205 MB, written with the memory of a few blocks of 2 MB."""
    found = rows_of(tmp_path / "rows.npy", images=100_000, size=512)
    parts = table_file.blocks(found, None, 0, 1024)
    parts, before, peaks = chain([next(parts)], parts), resident(), []  # what the first block imports is there

    def watched():
        for part in parts:
            peaks.append(resident())
            yield part

    table_file.write_table(tmp_path / "table", watched(), 100_000)
    assert len(peaks) == 98
    assert max(peaks) - before < 60e6
    assert pa.parquet.ParquetFile(tmp_path / "table").metadata.num_row_groups == 98


# ---- bad input ----


def test_failure_leaves_the_earlier_table_whole(images, hcsc_run, tmp_path, refused):
    folder = make_images(tmp_path / "photos", classes=1, per_class=12)
    out = tmp_path / "out"
    run_here("embed", hcsc_run, "--data_dir", folder, "--out", out, *SMALL)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    (folder / "class 0" / "9.png").write_text("no image")
    said = refused("embed", hcsc_run, "--data_dir", folder, "--out", out, *SMALL)
    assert "class 0/9.png: cannot be read as an image" in said
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    refused("embed", hcsc_run, "--data_dir", folder, "--out", tmp_path / "a" / "b", *SMALL)  # leaves no folder


REFUSED = {
    "no folder": (["--data_dir", "nowhere"], "--data_dir: nowhere does not exist; check --data_dir"),
    "no images": (["--data_dir", "EMPTY"], "no images there (.jpg"),
    "file for a folder": (["--out", __file__], "is a file; give a folder"),
    "unwritable": (["--out", "/proc/nowhere"], "--out /proc/nowhere: cannot be written"),
    "many neighbours": (["--neighbours", 36], "--neighbours 36: 36 images have 35 others each at most"),
    "no neighbours": (["--neighbours", -1], "--neighbours -1: must be at least 0"),
    "one split": (["--split", "val", "--data_dir", "FOLDER"], "needs --val_dir here"),
    "no labels of a level": (["--no_labels", "--class_level", 2], "--class_level says which folders are the classes"),
    "dali": (["--dali"], "--dali: features are read with the default loader"),
    "unknown map": (["--map", "tsne"], "invalid choice: 'tsne'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(case, hcsc_run, images, tmp_path, refused):
    flags, said = REFUSED[case]
    (tmp_path / "empty" / "within").mkdir(parents=True)
    places = {"EMPTY": tmp_path / "empty", "FOLDER": images / "train"}
    flags = [places.get(str(flag), flag) for flag in flags]
    assert said in refused("embed", hcsc_run, "--out", tmp_path / "out", *SMALL, *flags)


@pytest.mark.parametrize("flags", [["--clusters"], ["--levels", 9, 3]])
def test_clusters_of_a_run_without_a_tree_are_those_of_one_that_is_built(flags, untrained, images, tmp_path):
    folder = ["--data_dir", images / "train", "--crop_size", 32, "--out", tmp_path, *SMALL]
    run_here("embed", untrained, *folder)
    assert not {*TREE} & {*pandas.read_parquet(tmp_path / "embeddings.parquet").columns}
    run_here("embed", untrained, *folder, *flags)
    table = pandas.read_parquet(tmp_path / "embeddings.parquet")
    tree = solo_hcsc.build_tree(np.load(tmp_path / "embeddings.npy"), (9, 3) if "--levels" in flags else None)
    names = [f"cluster_{level + 1}" for level in range(tree.num_levels)]
    assert np.array_equal(table[names], tree.levels)
    assert table.similarity_1.between(0.5, 1.001).all()


def test_checkpoint_and_folder_are_asked_for(refused):
    assert "the following arguments are required: --out" in refused("embed")
    assert "nowhere: there is no such checkpoint" in refused("embed", "nowhere", "--out", "out")


def test_map_by_umap_without_the_package(hcsc_run, refused, monkeypatch):
    monkeypatch.setattr("solo_hcsc.runs.embedding.has_umap", lambda: False)
    assert "pip install 'solo_hcsc[umap]'" in refused("embed", hcsc_run, "--out", "out", "--map", "umap", *SMALL)


def test_map_of_few_images(hcsc_run, images, refused):
    said = refused("embed", hcsc_run, "--split", "val", "--out", "out", "--map", "pca", *SMALL)
    assert "--map pca: 9 images are too few for a map; it takes 10" in said


def test_name_of_a_file_that_is_a_folder(hcsc_run, tmp_path, refused):
    (tmp_path / "out" / "embeddings.npy").mkdir(parents=True)
    said = refused("embed", hcsc_run, "--out", tmp_path / "out", *SMALL)
    assert "embeddings.npy in it is a folder; remove it" in said
