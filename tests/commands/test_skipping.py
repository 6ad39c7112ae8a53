"""`--skip_unreadable` in every command that reads images: figures are those of the readable ones, the others listed."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from scenes import make_voc
from tiny import only, run_here

SMALL = ["--accelerator", "cpu", "--num_workers", 0, "--batch_size", 8]
BROKEN = ("train/class 1/3.png", "val/class 2/0.png")


@pytest.fixture
def folders(images: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The same images with two broken ones among them, and without these two."""
    spoilt, whole = (Path(shutil.copytree(images, tmp_path / name)) for name in ("spoilt", "whole"))
    for name in BROKEN:
        (spoilt / name).write_bytes(b"")
        (whole / name).unlink()
    return spoilt, whole


def both(folders: tuple[Path, Path], run: Path, command: str, *flags: object, first: bool = False) -> list[Path]:
    """Run a command on both folders of images, on a copy of the run in each; return the copies."""
    copies = []
    for folder, skipping in zip(folders[::-1], ([], ["--skip_unreadable"]), strict=True):
        own = folder.parent / f"run of {folder.name}"
        if not own.exists():
            shutil.copytree(run, own, ignore=shutil.ignore_patterns("*-ep=*.json"))  # results of other tests
        named = [own] if first else ["--pretrained_feature_extractor", own]
        place = [str(word).replace("OUT", str(own)).replace("IMAGES", str(folder)) for word in flags]
        run_here(command, *named, *place, *SMALL, *skipping)
        copies.append(own)
    return copies[::-1]


def listed(capfd: pytest.CaptureFixture[str], total: int, *names: str) -> None:
    """Hold that the end of stderr names exactly these files, of so many."""
    note, *lines = capfd.readouterr().err.splitlines()[-1 - len(names) :]
    assert note == f"note: {len(names)} of {total} images could not be read and are left out:"
    assert [Path(line.strip()).name for line in lines] == [Path(name).name for name in names]


OWN = ("--dataset", "custom", "--data_dir", "IMAGES", "--train_dir", "train", "--val_dir", "val")


@pytest.mark.parametrize(
    ("command", "flags", "result"),
    [
        ("knn", ("--k", 3), "knn-*.json"),
        ("zeroshot", ("--k", 3), "zeroshot-*.json"),
        ("linear", ("--cache_features", "--max_epochs", 2, "--lr", 0.1, "--checkpoint_dir", "OUT/c"), "linear.json"),
    ],
)
def test_figures_are_those_of_the_images_that_can_be_read(command, flags, result, hcsc_run, folders, capfd):
    spoilt, whole = both(folders, hcsc_run, command, *OWN, *flags)
    first, second = (json.loads(only(run, result).read_text()) for run in (spoilt, whole))
    assert first["metrics"] == second["metrics"]
    assert first["data"]["unreadable"] == [str(folders[0] / name) for name in BROKEN]
    assert "unreadable" not in second["data"]
    for data in (first["data"], second["data"]):
        assert (data["train_images"], data["val_images"]) == (35, 8)
    if command != "linear":
        listed(capfd, 45, *BROKEN)


def named(run: Path, own: tuple, flags: tuple, folder: Path) -> list[str]:
    words = ["--pretrained_feature_extractor", str(run), *map(str, own), *map(str, flags)]
    return [word.replace("OUT", str(run)).replace("IMAGES", str(folder)) for word in words]


def test_clusters_and_pictures_are_of_the_images_that_can_be_read(hcsc_run, folders, capfd):
    flags = ("--dataset", "custom", "--data_dir", "IMAGES", "--train_dir", "train")
    spoilt, whole = both(folders, hcsc_run, "clustering", *flags)
    first, second = (json.loads(only(run, "clustering-*.json").read_text()) for run in (spoilt, whole))
    assert first["metrics"] == second["metrics"]
    assert first["data"]["train_images"] == second["data"]["train_images"] == 35
    spoilt, whole = both(folders, hcsc_run, "analyse", *flags, "--out", "OUT/pictures")
    first, second = (json.loads((run / "pictures" / "analysis.json").read_text()) for run in (spoilt, whole))
    assert first["numbers"] == second["numbers"]
    listed(capfd, 36, BROKEN[0])


def test_rows_pages_picks_and_labels_are_of_the_images_that_can_be_read(hcsc_run, folders, capfd):
    flags = ("--data_dir", "IMAGES/train")
    spoilt, whole = both(folders, hcsc_run, "embed", *flags, "--out", "OUT/table", "--neighbours", 2, first=True)
    first, second = (pandas.read_parquet(run / "table" / "embeddings.parquet") for run in (spoilt, whole))
    assert len(first) == 35
    np.testing.assert_array_equal(first.path, second.path)
    arrays = [np.load(run / "table" / "embeddings.npy") for run in (spoilt, whole)]
    np.testing.assert_array_equal(*arrays)
    np.testing.assert_array_equal(np.stack(first.embedding), arrays[1])
    assert json.loads((spoilt / "table" / "embeddings.json").read_text())["data"]["unreadable"]

    pages = both(folders, hcsc_run, "explore", *flags, "--out", "OUT/page", first=True)
    assert len({(run / "page" / "index.html").read_bytes() for run in pages}) == 1
    listed(capfd, 36, BROKEN[0])

    both(folders, hcsc_run, "pick", *flags, "--budget", 6, "--out", "OUT/pick.csv", first=True)
    assert (spoilt / "pick.csv").read_bytes() == (whole / "pick.csv").read_bytes()
    for run, more in ((spoilt, [("class 1/3.png", "class 1")]), (whole, [])):
        with (run / "pick.csv").open(newline="") as lines:
            labels = [(row["path"], row["path"].split("/")[0]) for row in csv.DictReader(lines)]
        with (run / "filled.csv").open("w", newline="") as lines:
            csv.writer(lines).writerows([("path", "label"), *labels, *more])
    both(folders, hcsc_run, "spread", *flags, "--labels", "OUT/filled.csv", "--out", "OUT/labels", first=True)
    assert (spoilt / "labels" / "labels.csv").read_bytes() == (whole / "labels" / "labels.csv").read_bytes()
    more = ("--already", "OUT/filled.csv", "--budget", 3, "--out", "OUT/more.csv")
    both(folders, hcsc_run, "pick", *flags, *more, first=True)
    assert (spoilt / "more.csv").read_bytes() == (whole / "more.csv").read_bytes()

    few = ("--budgets", 4, "--draws", 1, "--out", "OUT/few")
    both(folders, hcsc_run, "fewlabels", *OWN, *few, first=True)
    first, second = (json.loads((run / "few" / "fewlabels.json").read_text()) for run in (spoilt, whole))
    assert first["settings"]["scores"] == second["settings"]["scores"]


@pytest.mark.parametrize("command", ["linear", "semisup"])
def test_training_an_evaluation_replaces_and_names_them(command, hcsc_run, folders, capfd):
    flags = ["--max_epochs", 1, "--lr", 0.1, "--checkpoint_dir", "OUT/c"]
    flags += ["--label_fraction", 0.7] if command == "semisup" else []
    spoilt = folders[0]
    (spoilt / "train" / "class 0" / "0.png").write_bytes(b"")
    run_here(command, *named(folders[0].parent, OWN, tuple(flags), spoilt)[2:], *SMALL, "--skip_unreadable",
             "--pretrained_feature_extractor", hcsc_run)  # fmt: skip
    result = json.loads(only(folders[0].parent, f"{command}.json").read_text())
    names = {Path(path).name for path in result["data"]["unreadable"]}
    assert {"0.png", "3.png"} & names
    assert "could not be read; each is replaced by the next one; named in " in capfd.readouterr().err


def test_a_folder_of_broken_images_only_says_so(hcsc_run, tmp_path, refused):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"")
    said = refused("embed", hcsc_run, "--data_dir", tmp_path, "--out", "table", *SMALL, "--skip_unreadable")
    assert said.startswith("error: none of the 3 images can be read, such as ")


def test_a_detector_is_trained_and_tested_on_the_images_that_can_be_read(untrained, tmp_path, capfd):
    data = make_voc(tmp_path)
    pictures = data / "VOC2007" / "JPEGImages"
    tested = (data / "VOC2007" / "ImageSets" / "Main" / "test.txt").read_text().split()
    for name in ("2007_000000", tested[1]):
        (pictures / f"{name}.jpg").write_bytes(b"")
    flags = "--min_size_train 40 --min_size_test 40 --max_size 64 --batch_size 2 --num_workers 0 --accelerator cpu"
    flags += " --precise_bn 1 --rois_per_image 8 --pool_size 2 --anchor_sizes 12 16 24 --max_steps 3 --skip_unreadable"
    run_here("detect", untrained, "--data_dir", data, "--checkpoint_dir", tmp_path / "runs", *flags.split())
    out, err = capfd.readouterr()
    assert "in percent, of 2 test images" in out
    assert f"note: 1 of 3 images could not be read and are left out:\n  {pictures / tested[1]}.jpg" in err
    assert "1 of 6 images could not be read; each is replaced by the next one" in err
    assert json.loads(only(tmp_path / "runs", "detect.json").read_text())["data"]["val_images"] == 2
