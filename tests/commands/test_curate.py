"""`solo-hcsc curate`: from a run or from stored embeddings to a list of images and the reason for each."""

import json
import shutil

import numpy as np
import pandas
import pytest
from PIL import Image
from tiny import make_images, run_here

SMALL = ["--crop_size", 32, "--accelerator", "cpu", "--num_workers", 0, "--batch_size", 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """30 pictures, of which one is blank and one a copy; and one that cannot be read."""
    root = make_images(tmp_path_factory.mktemp("curate") / "photos", classes=3, per_class=10)
    shutil.copy(root / "class 0" / "1.png", root / "class 0" / "9.png")
    Image.new("RGB", (40, 36)).save(root / "class 1" / "5.png")
    (root / "class 2" / "3.png").write_bytes(b"no picture")
    return root


def test_list_has_what_is_kept_and_the_tables_why(untrained, folder, tmp_path, capfd):
    out = tmp_path / "new" / "kept.txt"
    run_here("curate", untrained, "--data_dir", folder, "--keep", 12, "--out", out, "--outliers", 0, *SMALL)
    table = pandas.read_parquet(out.with_suffix(".parquet")).set_index("path")
    assert len(table) == 30
    assert table.kept.sum() == 12
    assert out.read_text().splitlines() == table.index[table.kept].tolist()
    assert table.reason["class 0/9.png"] == "duplicate of class 0/1.png"
    assert table.reason["class 1/5.png"] == "blank"
    assert table.reason["class 2/3.png"] == "cannot be read"
    coco = tmp_path / "kept.json"
    flags = ["--keep", 12, "--format", "coco", "--out", coco, "--outliers", 0]
    run_here("curate", untrained, "--data_dir", folder, *flags, *SMALL)
    assert [image["file_name"] for image in json.loads(coco.read_text())["images"]] == out.read_text().splitlines()
    said = capfd.readouterr().out
    assert "kept 12" in said
    assert f"pretrain --data_dir {folder} --train_list {out}" in said


def test_stored_embeddings_need_no_encoder(tmp_path, capfd):
    draw = np.random.default_rng(0)
    vectors = (0.5 * draw.normal(size=(300, 8)) + 5 * np.eye(8)[np.repeat([0, 1], [270, 30])]).astype("float32")
    np.save(tmp_path / "x.npy", vectors)
    flags = ["--keep", 0.2, "--same", 2]
    run_here("curate", "--embeddings", tmp_path / "x.npy", *flags, "--out", tmp_path / "n.txt")
    numbers = [int(line) for line in (tmp_path / "n.txt").read_text().splitlines()]
    assert len(numbers) == 60
    assert sum(number >= 270 for number in numbers) >= 20
    names = [f"p/{number}.jpg" for number in range(300)]
    pandas.DataFrame({"path": names, "embedding": list(vectors)}).to_parquet(tmp_path / "x.parquet")
    run_here("curate", "--embeddings", tmp_path / "x.parquet", *flags, "--out", tmp_path / "p.txt")
    assert (tmp_path / "p.txt").read_text().splitlines() == [names[number] for number in numbers]
    assert "train_list" not in capfd.readouterr().out


def test_what_embed_wrote_is_taken_with_its_images(untrained, folder, tmp_path):
    flags = ["--data_dir", folder, "--skip_unreadable", *SMALL]
    run_here("embed", untrained, *flags, "--out", tmp_path / "table")
    given = ["--embeddings", tmp_path / "table", "--data_dir", folder, "--keep", 12, "--outliers", 0]
    run_here("curate", *given, "--out", tmp_path / "a.txt")
    run_here("curate", untrained, "--data_dir", folder, *given[4:], "--out", tmp_path / "b.txt", *SMALL)
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "b.txt").read_text()


REFUSED = {
    "nothing": ([], "give a run or weights, or --embeddings FILE"),
    "no number": (["RUN"], "--keep is missing"),
    "both": (["RUN", "--embeddings", "x.npy", "--keep", 1], "one of the two"),
    "number": (["RUN", "--keep", -1], "--keep -1: must be greater than 0"),
    "table": (["RUN", "--keep", 1, "--out", "a.csv"], "--out a.csv: give the name of a list, such as a.txt"),
    "ending": (["RUN", "--keep", 1, "--format", "coco", "--out", "a.txt"], "--format coco is a file such as a.json"),
    "no file": (["--embeddings", "x.npy", "--keep", 1], "--embeddings x.npy: cannot be read"),
    "no tree": (["RUN", "--keep", 5, "--tree", "run"], "--tree run: these embeddings are of no run with a tree"),
    "no folder": (["RUN", "--keep", 5, "--tree", "nowhere"], "nowhere: not a tree that Tree.save wrote"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(case, untrained, folder, refused):
    flags, said = REFUSED[case]
    words = [untrained if flag == "RUN" else flag for flag in flags]
    where = ["--data_dir", folder, *SMALL] if "RUN" in flags else []
    out = [] if "--out" in flags else ["--out", "new/kept.txt"]
    assert said in refused("curate", *words, *where, *out)


def test_vectors_of_other_images_are_refused(folder, tmp_path, refused):
    np.save(tmp_path / "x.npy", np.eye(4))
    words = ["--embeddings", tmp_path / "x.npy", "--data_dir", folder, "--keep", 2, "--out", "new/a.txt"]
    assert "4 vectors without paths, and 30 images" in refused("curate", *words)
