"""Places205's list files, and a linear evaluation on them."""

import json
import os

import pytest
from PIL import Image
from tiny import SMALL, only, run_here

from solo_hcsc.data.images import UnreadableImage
from solo_hcsc.data.lists import check_labels, read_list
from solo_hcsc.errors import UserError

NAMES = ["a/abbey/gsun_0.jpg", "a/airport terminal/gsun, 1.jpg", "b/bücherei/图.jpg"]


def make_places(root, per_class=4):
    """Three classes, each a colour, in Places205's layout; a quarter of the images is for validation."""
    lines = {"train": [], "val": []}
    for label, name in enumerate(NAMES):
        for number in range(4 * per_class // 3):
            path = name.replace(".jpg", f"_{number}.jpg")
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            colour = [40, 40, 40 + number]
            colour[label] = 220
            Image.new("RGB", (40, 36), tuple(colour)).save(root / path)
            lines["train" if number < per_class else "val"].append(f"{path},{label}")
    for split, content in lines.items():
        (root / f"{split}_places205.csv").write_text("\n".join(content) + "\n", encoding="utf-8")
    return root


def read(tmp_path, text, root=None):
    file = tmp_path / "list.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_list(file, root or tmp_path, lambda image: image.size)


def test_label_stands_after_the_last_separator(tmp_path):
    make_places(tmp_path)
    lines = [
        "a/abbey/gsun_0_0.jpg,0",
        "a/abbey/gsun_0_1.jpg 2",
        "a/airport terminal/gsun, 1_0.jpg,1",
        "a/airport terminal/gsun, 1_1.jpg\t11",
        "b/bücherei/图_0.jpg, 3",
        "",
    ]
    for newline in ("\n", "\r\n"):
        images = read(tmp_path, "\ufeff" + newline.join(lines))
        assert images.targets == [0, 2, 1, 11, 3]
        assert [os.path.relpath(path, tmp_path) for path, _ in images.samples] == [
            "a/abbey/gsun_0_0.jpg",
            "a/abbey/gsun_0_1.jpg",
            "a/airport terminal/gsun, 1_0.jpg",
            "a/airport terminal/gsun, 1_1.jpg",
            "b/bücherei/图_0.jpg",
        ]
        assert [images[i] for i in range(5)] == [((40, 36), label) for label in images.targets]
        assert len(images.classes) == 12


def test_name_that_is_not_unicode_is_the_file_on_disk(tmp_path):
    Image.new("RGB", (5, 4)).save(tmp_path / "x.png")
    try:
        os.rename(tmp_path / "x.png", os.path.join(os.fsencode(tmp_path), b"\xe9.png"))
    except OSError:
        pytest.skip("this disk wants names in UTF-8")
    assert read(tmp_path, b"\xe9.png,1\n")[0] == ((5, 4), 1)


BAD_LISTS = {
    "empty": ("\n \n", "list.csv: the list is empty"),
    "no label": ("x.jpg,0\nx.jpg\n", "list.csv, line 2: no label after x.jpg"),
    "label of words": ("x.jpg,abbey", "list.csv, line 1: abbey is not a label"),
    "elsewhere": ("x.jpg,0\n../a/x.jpg 0\n", "list.csv, line 2: '../a/x.jpg' leads out of its folder"),
    "absolute": ("/a/x.jpg,0", "list.csv, line 1: '/a/x.jpg' leads out of its folder"),
    "negative label": ("\nx.jpg,-1", "list.csv, line 2: -1 is not a label"),
    "fraction": ("x.jpg 1.0", "1.0 is not a label"),
    "other digits": ("x.jpg,٣", "٣ is not a label"),
    "hash for a label": ("x.jpg " + "1" * 5000, "is not a label; a class number from 0 to 99999"),
    "image that is not there": ("nowhere.jpg,0", "nowhere.jpg, is not there; `data_dir` must be the folder"),
}


@pytest.mark.parametrize("case", BAD_LISTS)
def test_bad_list_is_refused_with_file_and_line(case, tmp_path):
    text, reason = BAD_LISTS[case]
    Image.new("RGB", (5, 4)).save(tmp_path / "x.jpg")
    with pytest.raises(UserError) as refusal:
        read(tmp_path, text)
    assert reason in str(refusal.value)
    assert str(tmp_path / "list.csv") in str(refusal.value)


def test_later_image_that_is_missing_is_named_when_it_is_read(tmp_path):
    Image.new("RGB", (5, 4)).save(tmp_path / "x.jpg")
    images = read(tmp_path, "x.jpg,0\ngone.jpg,1")
    with pytest.raises(UnreadableImage, match=r"gone\.jpg: cannot be read as an image \(No such file"):
        images[1]


def test_labels_that_training_lacks_are_refused(tmp_path):
    Image.new("RGB", (5, 4)).save(tmp_path / "x.jpg")
    train, val, one = (read(tmp_path, text) for text in ("x.jpg,0\nx.jpg,2", "x.jpg,1\nx.jpg,3", "x.jpg,1\nx.jpg,1"))
    check_labels(train, one)
    with pytest.raises(UserError, match=r"x\.jpg has label 3, but the labels in .*list\.csv end at 2"):
        check_labels(train, val)
    with pytest.raises(UserError, match="all its images are of one class"):
        check_labels(one, train)


@pytest.mark.parametrize("cached", [[], ["--cache_features"]], ids=["augmented", "cached"])
def test_places_is_learnt_from_its_lists(cached, untrained, tmp_path, capsys):
    make_places(tmp_path, per_class=9)
    flags = ["--data_dir", tmp_path, *SMALL, "--max_epochs", "4", "--checkpoint_dir", tmp_path / "runs", *cached]
    run_here("places", "--pretrained_feature_extractor", untrained, *flags)
    out, progress = capsys.readouterr()
    assert "places evaluation of" in out
    assert "on places205: 27 images, 3 classes" in out
    assert "epoch 4/4: loss" in progress
    file = only(tmp_path / "runs", "places.json")
    assert file.parent.parent == tmp_path / "runs" / "places"
    result = json.loads(file.read_text())
    assert result["metrics"] == {"acc1": 100.0}  # nothing is easier than colours
    assert (result["dataset"], result["data"]["val_images"]) == ("places205", 9)
    assert result["data"]["train_list"] == str(tmp_path / "train_places205.csv")
    assert result["settings"].get("features") == ("cached, without augmentation" if cached else None)
    assert f"{'places (cached)' if cached else 'places'}" in out.split("----", 1)[1].splitlines()[1]


def test_dali_reads_the_same_files(untrained, tmp_path):
    pytest.importorskip("nvidia.dali")
    make_places(tmp_path, per_class=9)
    flags = ["--data_dir", tmp_path, *SMALL, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "runs"]
    run_here("places", "--pretrained_feature_extractor", untrained, *flags, "--dali", "--dali_device", "cpu")
    assert json.loads(only(tmp_path / "runs", "places.json").read_text())["data"]["train_images"] == 27


def test_places_refuses(untrained, tmp_path, refused):
    flags = ["--pretrained_feature_extractor", untrained, "--data_dir", tmp_path, *SMALL]
    assert f"{tmp_path}/train_places205.csv: cannot be read (No such file" in refused("places", *flags)
    make_places(tmp_path)
    assert "val.txt: cannot be read (No such file" in refused("places", *flags, "--val_list", "val.txt")
    assert "--train_dir: --dataset places205 has no such folder; use --train_list" in refused(
        "places", *flags, "--train_dir", "a"
    )
    assert "--train_list: 12 images do not fill one batch" in refused("places", *flags, "--batch_size", "64")
    assert "invalid choice: 'imagenet'" in refused("places", *flags, "--dataset", "imagenet")
    assert "--pretrained_feature_extractor is missing" in refused("places", *flags[2:])
    (tmp_path / "val_places205.csv").write_text("a/abbey/gsun_0_0.jpg,7\n")
    assert "gsun_0_0.jpg has label 7" in refused("places", *flags)


@pytest.mark.parametrize("workers", [0, 1])
def test_image_that_is_missing_ends_the_run_in_one_line(workers, untrained, tmp_path, capfd):
    make_places(tmp_path, per_class=9)
    (tmp_path / "a/abbey/gsun_0_5.jpg").unlink()
    flags = ["--data_dir", tmp_path, *SMALL, "--num_workers", workers, "--checkpoint_dir", tmp_path / "runs"]
    with pytest.raises(SystemExit) as stopped:
        run_here("places", "--pretrained_feature_extractor", untrained, *flags)
    assert stopped.value.code == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "gsun_0_5.jpg: cannot be read as an image (No such file or directory)" in last
