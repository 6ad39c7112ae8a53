"""Vectors in files are taken like vectors in memory."""

import numpy as np
import pytest

from solo_hcsc import ArgumentError, Embeddings, pick
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.stored import stored

VECTORS = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("stored") / "table"
    Embeddings([f"{number}.jpg" for number in range(40)], VECTORS).save(where)
    return where


@pytest.mark.parametrize("name", ["", "embeddings.npy", "embeddings.parquet"])
def test_every_form_of_a_table_has_the_vectors(name, folder):
    assert np.array_equal(stored(folder / name, "vectors"), VECTORS)
    assert np.array_equal(stored(str(folder / name), "vectors"), VECTORS)


def test_functions_take_paths_and_values_alike(folder):
    found = Embeddings.load(folder)
    picked = [pick(given, 5).images for given in (folder, found, VECTORS.tolist())]
    assert all(np.array_equal(images, pick(VECTORS, 5).images) for images in picked)
    trees = [build_tree(given, levels=(4, 2)) for given in (folder / "embeddings.parquet", found, VECTORS)]
    assert all(np.array_equal(one.levels, trees[0].levels) for one in trees)


@pytest.mark.parametrize("name", ["nowhere.npy", "x.zip", "bad.npy", "bad.parquet", "other.parquet"])
def test_files_without_vectors_are_refused(name, tmp_path):
    (tmp_path / "bad.npy").write_text("no array")
    (tmp_path / "bad.parquet").write_text("no table")
    import pandas

    pandas.DataFrame({"x": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ArgumentError, match=r"^`images` .*: (cannot be read|give an \.npy)"):
        pick(tmp_path / name, 5)
