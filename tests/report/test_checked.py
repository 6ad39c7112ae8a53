"""`solo-hcsc check`: leaks between splits, duplicates, labels and files, on planted ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image
from tiny import run_here

from solo_hcsc import check


def picture(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    draw = np.random.default_rng(seed)
    shapes = Image.fromarray(draw.integers(256, size=(12, 16, 3), dtype=np.uint8)).resize((160, 120))
    grain = draw.integers(-20, 20, size=(120, 160, 1))
    return Image.fromarray((np.asarray(shapes) + grain).clip(0, 255).astype("uint8")).resize(size)


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """Three splits of two classes, each with pictures of its own."""
    root = tmp_path_factory.mktemp("clean")
    seed = 0
    for split, count in (("train", 8), ("val", 3), ("test", 3)):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                picture(seed).save(root / split / label / f"{number}.png")
                seed += 1
    return root


@pytest.fixture
def planted(clean, tmp_path) -> Path:
    """The same with a leak of an equal file and of a JPEG at half size, a label conflict, and broken files."""
    root = tmp_path / "planted"
    shutil.copytree(clean, root)
    shutil.copy(root / "train/cat/0.png", root / "val/cat/leak.png")
    picture(1, (80, 60)).save(root / "test/dog/leak.jpg", quality=85)  # train/cat/1.png
    shutil.copy(root / "train/dog/2.png", root / "train/dog/again.png")
    (root / "train/owl").mkdir()
    picture(99).save(root / "train/owl/0.png")
    (root / "val/cat/broken.png").write_bytes(b"nothing")
    Image.new("RGB", (160, 120)).save(root / "train/cat/blank.png")
    Image.new("RGB", (160, 120)).save(root / "val/cat/blank.png")
    return root


def paths(group) -> set[str]:
    return {image.path for image in group.images}


def test_what_is_planted_is_found_and_nothing_else(planted):
    found = check(planted)
    assert {frozenset(paths(group)) for group in found.leaks} == {
        frozenset({"train/cat/0.png", "val/cat/leak.png"}),
        frozenset({"train/cat/1.png", "test/dog/leak.jpg"}),
    }
    assert [paths(group) for group in found.conflicts] == [{"train/cat/1.png", "test/dog/leak.jpg"}]
    assert [paths(group) for group in found.duplicates] == [{"train/dog/2.png", "train/dog/again.png"}]
    assert {group.exact for group in found.leaks} == {True, False}
    assert found.lacking == ("owl",)
    assert found.problems == {
        "leak": 2,
        "labels": 1,
        "unreadable": 1,
        "classes": 1,
        "duplicate": 1,
        "blank": 2,
        "tiny": 0,
        "dark": 0,
        "blurred": 0,
        "size": 0,
    }
    assert found.classes["cat"] == {"train": 9, "val": 6, "test": 3}


def test_a_clean_folder_has_nothing_and_one_without_splits_no_leaks(clean):
    assert {*check(clean).problems.values()} == {0}
    alone = check(clean / "train")
    assert alone.splits == {"": 16}
    assert alone.problems["classes"] == 0


def test_page_and_record_are_written(planted, tmp_path):
    (planted / "train/cat/0.png").rename(planted / "train/cat/<b>0.png")
    found = check(planted)
    found.save(tmp_path / "out")
    record = json.loads((tmp_path / "out/check.json").read_text())
    assert record["problems"] == found.problems
    assert len(record["leaks"]) == 2
    assert {image["split"] for leak in record["leaks"] for image in leak["images"]} == {"train", "val", "test"}
    page = (tmp_path / "out/check.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2 + 2 + 2 + 2 + 2
    assert "&lt;b&gt;0.png" in page
    assert "<b>0.png" not in page
    assert found.to_pandas().kind.value_counts()["leak"] == 4


def test_features_of_a_crop_find_it(clean, tmp_path):
    root = tmp_path / "cropped"
    shutil.copytree(clean, root)
    Image.open(root / "train/cat/3.png").crop((12, 4, 140, 108)).save(root / "val/dog/crop.png")
    count = len(list(root.rglob("*.png")))
    vectors = np.random.default_rng(0).normal(size=(count, 32))
    names = sorted(str(file.relative_to(root)) for file in root.rglob("*.png"))
    vectors[names.index("val/dog/crop.png")] = vectors[names.index("train/cat/3.png")]
    assert [paths(group) for group in check(root, vectors).leaks] == [{"train/cat/3.png", "val/dog/crop.png"}]
    table = pandas.DataFrame({"path": names, "embedding": [*vectors]}).sample(frac=1, random_state=0)  # in any order
    table.to_parquet(tmp_path / "x.parquet")
    found = check(root, tmp_path / "x.parquet")
    assert [paths(group) for group in found.leaks] == [{"train/cat/3.png", "val/dog/crop.png"}]


def test_command_ends_with_1_where_asked_and_with_0_else(planted, clean, tmp_path, capfd):
    run_here("check", planted, "--out", tmp_path / "page")
    assert (tmp_path / "page/check.html").is_file()
    with pytest.raises(SystemExit) as stopped:
        run_here("check", "--data_dir", planted, "--fail_on", "leak", "tiny")
    assert stopped.value.code == 1
    assert capfd.readouterr().err == "--fail_on: leak 2\n"
    run_here("check", "--data_dir", clean, "--fail_on", "leak", "labels", "unreadable")


def test_weights_make_the_features(planted, untrained, capfd):
    small = ["--crop_size", 32, "--accelerator", "cpu", "--num_workers", 0]
    run_here("check", untrained, "--data_dir", planted, *small)
    assert "in several splits" in capfd.readouterr().out


REFUSED = {
    "no folder": ([], "--data_dir is missing"),
    "no such folder": (["nowhere"], "nowhere: no folder of images; give one, beside weights by --data_dir"),
    "other rows": (["GOOD", "--embeddings", "x.npy"], "--embeddings has 3 rows and the folder 2 images"),
    "other paths": (
        ["GOOD", "--embeddings", "x.parquet"],
        "--embeddings: none of their paths, such as b/0.png, is in",
    ),
    "nowhere": (["--data_dir", "nowhere"], "--data_dir: nowhere does not exist"),
    "kind": (["--data_dir", ".", "--fail_on", "leaks"], "invalid choice: 'leaks'"),
    "no images": (["--data_dir", "EMPTY"], "has no images"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(case, tmp_path, refused):
    flags, said = REFUSED[case]
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "EMPTY/a.txt").write_text("")
    if "GOOD" in flags:
        (tmp_path / "GOOD").mkdir()
        for number in range(2):
            picture(number).save(tmp_path / "GOOD" / f"{number}.png")
        np.save(tmp_path / "x.npy", np.eye(3))
        pandas.DataFrame({"path": ["b/0.png", "b/1.png"], "embedding": [*np.eye(2)]}).to_parquet(tmp_path / "x.parquet")
    assert said in refused("check", *flags)
