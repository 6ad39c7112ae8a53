"""Hugging Face data sets: saved ones and Parquet files, as `datasets` writes them and as others do."""

import io
import json
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
from PIL import Image
from tiny import SMALL, only, run_here

import solo_hcsc
from solo_hcsc.data.folders import LabelledImages
from solo_hcsc.data.hugging_face import TableImages
from solo_hcsc.data.images import UnreadableImage, read_image
from solo_hcsc.data.stored import StoredImages
from solo_hcsc.errors import ArgumentError, UserError


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    """Where `datasets` keeps what it makes of Parquet files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


@pytest.fixture(scope="module")
def saved(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in two parts, saved to disk."""
    out = tmp_path_factory.mktemp("saved") / "dataset"
    parts = {}
    for part in ("train", "val"):
        folder = LabelledImages(images / part, str)
        rows = {"image": [path for path, _ in folder.samples], "kind": folder.targets}
        features = datasets.Features({"image": datasets.Image(), "kind": datasets.ClassLabel(names=folder.classes)})
        embedded = datasets.Dataset.from_dict(rows, features=features).map(in_the_table, features=features)
        parts["validation" if part == "val" else part] = embedded
    datasets.DatasetDict(parts).save_to_disk(str(out))
    return out


def in_the_table(row):
    """Take the file's bytes into the table; its path is another machine's."""
    out = io.BytesIO()
    row["image"].save(out, "PNG")
    return {"image": {"bytes": out.getvalue(), "path": None}, "kind": row["kind"]}


def encoded(colour: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (5, 4), (colour, 0, 0)).save(out, "PNG")
    return out.getvalue()


def test_saved_data_set_is_the_folder_image_by_image(images, saved):
    folder = LabelledImages(images / "train", np.asarray)
    table = StoredImages(TableImages(saved / "train", label_column="kind"), np.asarray, labelled=True)
    assert (len(table), list(table.classes), table.targets.tolist()) == (36, folder.classes, folder.targets)
    for (ours, label), (theirs, known) in zip(table, folder, strict=False):
        np.testing.assert_array_equal(ours, theirs)
        assert label == known
    assert table.names()[:2] == ["row-0", "row-1"]


def test_parquet_of_others_has_labels_by_name_and_number(tmp_path):
    kinds, numbers = ["dog", "cat", "dog", None], [3, 0, 1, 2]
    for part in range(2):
        rows = range(2 * part, 2 * part + 2)
        table = {"photo": [encoded(row) for row in rows], "kind": [kinds[row] for row in rows]}
        table["label"] = [numbers[row] for row in rows]
        pandas.DataFrame(table).to_parquet(tmp_path / f"part-{part}.parquet")
    by_name, by_number = TableImages(tmp_path, label_column="kind"), TableImages(tmp_path)
    assert (by_name.classes, by_name.labels().tolist(), by_name.unlabelled) == (("cat", "dog"), [1, 0, 1, -1], 1)
    assert (by_number.classes, by_number.labels().tolist()) == (("0", "1", "2", "3"), numbers)
    assert [read_image(by_name.image(row)).getpixel((0, 0))[0] for row in range(4)] == [0, 1, 2, 3]
    assert by_name.fingerprint != by_number.fingerprint


def test_wrong_columns_and_folders_are_one_line(saved, tmp_path, refused):
    flags = ["pretrain", "--dataset", "hf", *SMALL]
    line = refused(*flags, "--data_dir", saved, "--label_column", "name")
    assert line == "error: --label_column name: there are image, kind"
    line = refused(*flags, "--data_dir", saved, "--image_column", "kind", "--no_labels")
    assert line == "error: --image_column kind: is not a column of images"
    line = refused(*flags, "--data_dir", saved.parent)
    assert "is neither a data set that `save_to_disk` wrote nor a folder of .parquet files" in line
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.parquet").write_bytes(b"no table")
    assert "cannot be read as Parquet" in refused(*flags, "--data_dir", tmp_path / "broken")
    pandas.DataFrame({"a": [encoded(1)], "b": [encoded(2)], "label": [1.5]}).to_parquet(tmp_path / "two.parquet")
    with pytest.raises(ArgumentError, match=r"`image_column` is missing: several columns may be images \(a, b\)"):
        TableImages(tmp_path / "two.parquet")
    with pytest.raises(ArgumentError, match="`label_column` label: its values are neither whole numbers nor names"):
        TableImages(tmp_path / "two.parquet", image_column="a")


def test_row_without_an_image_is_unreadable_and_named(tmp_path):
    pandas.DataFrame({"image": [encoded(1), None]}).to_parquet(tmp_path / "x.parquet")
    table = TableImages(tmp_path / "x.parquet")
    assert table.classes is None
    with pytest.raises(UnreadableImage, match=r"x\.parquet: row 1 has no image; add `skip_unreadable`"):
        table.image(1)


def test_missing_package_is_named(saved, monkeypatch):
    monkeypatch.setattr("solo_hcsc.extras.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"`dataset` hf: datasets is not installed; run: pip install 'solo_hcsc\[hf\]'"):
        solo_hcsc.pretrain(saved, dataset="hf")


def test_run_on_a_saved_data_set_and_its_evaluation(saved, tmp_path):
    flags = [*SMALL, "--method", "simclr", "--max_epochs", 1, "--limit_train_batches", 1, "--label_column", "kind"]
    run_here("pretrain", *flags, "--data_dir", saved, "--checkpoint_dir", tmp_path)
    recorded = json.loads(only(tmp_path, "args.json").read_text())
    told = [recorded[name] for name in ("dataset", "train_dir", "val_dir", "label_column", "num_classes")]
    assert told == ["hf", "train", "validation", "kind", 3]
    run_here("knn", "--pretrained_feature_extractor", tmp_path, "--k", 3, "--num_workers", 0, "--accelerator", "cpu")
    assert json.loads(only(tmp_path, "knn-hf-dataset-*.json").read_text())["metrics"]["acc1"] >= 33
    found = solo_hcsc.embed(tmp_path, saved / "validation", num_workers=0)
    assert (len(found), found.paths[0], found.classes) == (9, "row-0", ("class 0", "class 1", "class 2"))
