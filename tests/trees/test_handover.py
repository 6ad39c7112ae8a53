"""Chosen images in the layouts that other tools document, and labels that come back in them."""

import csv
import json
import os
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from solo_hcsc import curate, hand_over, pick, spread
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.handover import Chosen
from solo_hcsc.trees.label_files import check_unfilled, read_labels
from solo_hcsc.trees.names import ENDINGS

PATHS = ("cats/1 a&b.jpg", "cats/test_2.PNG", "dogs/1.jpg", "=x.png", "Ärger\u202f.png", "val/8.png")
LABELS = ("cat", None, "dog/small", "=cat", "cat", "<b>")
FORMATS = [*ENDINGS]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("handover") / "my photos"
    for number, path in enumerate(PATHS):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 0 else 1  # lies on its side
        Image.new("RGB", (40 + number, 30), (40 * number, 0, 0)).save(root / path, exif=exif)
    return root


@pytest.fixture(scope="module")
def rows() -> list[Chosen]:
    """Every second label was given; the others have a confidence."""
    return [
        Chosen(path, label, None if label is None or number % 2 else 0.5 + number / 10, bool(number % 2), "why", number)
        for number, (path, label) in enumerate(zip(PATHS, LABELS, strict=True))
    ]


def place(folder: Path, format: str) -> Path:
    return folder / f"out{ENDINGS[format]}"


def as_written(rows: list[Chosen], photos: Path, folder: Path, format: str):
    out = hand_over(rows, place(folder, format), format, photos)
    return json.loads(out.read_text()) if out.suffix == ".json" else out


# ---- each layout as its tool documents it ----


def test_label_studio_has_tasks_with_predictions_scores_and_annotations(rows, photos, tmp_path):
    tasks = as_written(rows, photos, tmp_path, "label-studio")
    assert tasks[0] == {
        "data": {
            "image": "/data/local-files/?d=my%20photos/cats/1%20a%26b.jpg",
            "path": "cats/1 a&b.jpg",
            "reason": "why",
            "cluster": 0,
        },
        "predictions": [
            {
                "model_version": "solo_hcsc",
                "score": 0.5,
                "result": [
                    {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}
                ],
            }
        ],
    }
    assert {*tasks[1]} == {"data"}
    assert tasks[3]["annotations"][0]["result"][0]["value"] == {"choices": ["=cat"]}
    assert "predictions" not in tasks[3]
    urls = hand_over([Chosen("s3://bucket/a.jpg")], tmp_path / "urls.json", "label-studio")
    assert json.loads(urls.read_text())[0]["data"]["image"] == "s3://bucket/a.jpg"


def test_coco_has_an_annotation_of_the_whole_image_for_each_label(rows, photos, tmp_path):
    found = as_written(rows, photos, tmp_path, "coco")
    assert {*found} == {"info", "licenses", "images", "annotations", "categories"}
    first = {"id": 1, "file_name": PATHS[0], "width": 30, "height": 40, "reason": "why", "cluster": 0}
    assert found["images"][0] == first  # upright
    assert [one["file_name"] for one in found["images"]] == [*PATHS]
    names = {one["id"]: one["name"] for one in found["categories"]}
    assert [*names] == [1, 2, 3, 4]
    label = {"id": 1, "image_id": 1, "bbox": [0, 0, 30, 40], "area": 1200, "iscrowd": 0, "score": 0.5}
    assert found["annotations"][0] == label | {"category_id": [*names.values()].index("cat") + 1}
    assert [(one["image_id"], names[one["category_id"]]) for one in found["annotations"]] == [
        (number, label) for number, label in enumerate(LABELS, 1) if label
    ]


def test_cvat_has_tags_and_the_labels_that_they_use(rows, photos, tmp_path):
    root = ElementTree.parse(as_written(rows, photos, tmp_path, "cvat")).getroot()
    assert root.findtext("version") == "1.1"
    assert [one.findtext("name") for one in root.iter("label")] == ["<b>", "=cat", "cat", "dog/small"]
    assert {one.findtext("type") for one in root.iter("label")} == {"tag"}
    assert {one.findtext("name") for one in root.iter("attribute") if "name" not in one.attrib} == {"confidence"}
    images = root.findall("image")
    assert images[0].attrib == {"id": "0", "name": PATHS[0], "width": "30", "height": "40"}
    assert [one.get("name") for one in images] == [*PATHS]
    assert [[tag.get("label") for tag in one] for one in images] == [[one] if one else [] for one in LABELS]
    assert [tag.get("source") for one in images for tag in one] == ["auto", "auto", "manual", "auto", "manual"]
    assert images[0].findtext("tag/attribute[@name='confidence']") == "0.5"


def test_fiftyone_has_numbers_of_classes_by_absolute_path(rows, photos, tmp_path):
    found = as_written(rows, photos, tmp_path, "fiftyone")
    assert found["classes"] == ["<b>", "=cat", "cat", "dog/small"]
    assert [*found["labels"]] == [str(photos / path) for path in PATHS]
    values = [*found["labels"].values()]
    assert values[1] is None
    facts = {"reason": "why", "cluster": 0, "given": False}
    assert values[0] == {"label": 2, "confidence": 0.5, "attributes": facts}


def test_hugging_face_opens_the_image_folder_as_one_split_with_all_columns(rows, photos, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    out = as_written(rows, photos, tmp_path, "imagefolder")
    cached = tmp_path / "cache"
    found = datasets.load_dataset("imagefolder", data_dir=str(out), cache_dir=str(cached))
    assert {name: len(part) for name, part in found.items()} == {"train": len(PATHS)}
    part = found["train"]
    assert part["path"] == ["cats/1 a&b.jpg", "cats/test_2.PNG", "dogs/1.jpg", "'=x.png", PATHS[4], "val/8.png"]
    assert [label or None for label in part["label"]] == ["cat", None, "dog/small", "'=cat", "cat", "<b>"]
    assert part["cluster"] == [0, 1, 2, 3, 4, 5]
    assert [image.size for image in part["image"]][1:] == [(41 + number, 30) for number in range(5)]


def test_folders_have_a_link_in_the_folder_of_its_class(rows, photos, tmp_path):
    out = as_written(rows, photos, tmp_path, "folders")
    links = {str(link.relative_to(out)): os.readlink(link) for link in out.rglob("*") if link.is_symlink()}
    assert links == {
        "cat/0001-1 a&b.jpg": str(photos / PATHS[0]),
        "_unlabeled/0002-test_2.png": str(photos / PATHS[1]),
        "dog_small/0003-1.jpg": str(photos / PATHS[2]),
        "=cat/0004-=x.png": str(photos / PATHS[3]),
        "cat/0005-Ärger\u202f.png": str(photos / PATHS[4]),
        "_b_/0006-8.png": str(photos / PATHS[5]),
    }


def test_names_of_class_folders_are_safe_and_differ(photos, tmp_path):
    names = ["a/b", "a_b", "..", ".", "A_B", "_unlabeled", "x" * 300]
    some = [Chosen(PATHS[number % 6], name) for number, name in enumerate(names)]
    out = hand_over(some, tmp_path / "out", "folders", photos)
    below = [one.name for one in out.iterdir() if one.is_dir()]
    assert len({name.lower() for name in below}) == len(names)
    assert max(map(len, below)) <= 105
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


# ---- what is handed over ----


def test_picks_spread_labels_and_curated_images_save_themselves(photos, tmp_path):
    vectors = [[1.0, 0.1 * number, number % 2] for number in range(6)]
    tree = build_tree(vectors, keys=PATHS)
    picks = pick(tree, 3)
    coco = json.loads(picks.save(tmp_path / "a.json", "coco", photos).read_text())
    assert [one["file_name"] for one in coco["images"]] == [one.path for one in picks]
    assert coco["images"][0]["reason"] == picks[0].reason
    assert coco["annotations"] == []
    found = spread(tree, {PATHS[0]: "x", PATHS[1]: "y"}, abstain=0.5)
    tasks = json.loads(found.save(tmp_path / "b.json", "label-studio", photos).read_text())
    assert [["annotations" in one, "predictions" in one] for one in tasks[:2]] == [[True, False]] * 2
    assert sum("predictions" in one for one in tasks) == 2
    kept = curate(tree, 4, outliers=None)
    out = kept.save(tmp_path / "c", "imagefolder", photos)
    table = list(csv.DictReader((out / "metadata.csv").open(encoding="utf-8")))
    assert [one["path"].lstrip("'") for one in table] == [PATHS[number] for number in kept.kept]
    assert {one["reason"] for one in table} == {"kept"}


def test_tables_of_explore_and_curate_are_handed_over(photos, tmp_path):
    (tmp_path / "a.csv").write_text("path,label,cluster_1,outlier\ncats/test_2.PNG,cat,7,false\n'=x.png,,3,false\n")
    tasks = json.loads(hand_over(tmp_path / "a.csv", tmp_path / "a.json", "label-studio", photos).read_text())
    assert [(one["data"]["path"], one["data"]["cluster"]) for one in tasks] == [("cats/test_2.PNG", 7), ("=x.png", 3)]
    assert [bool(one.get("annotations")) for one in tasks] == [True, False]
    (tmp_path / "b.csv").write_text("path,kept,reason\ndogs/1.jpg,true,kept\nval/8.png,false,blank\n")
    tasks = json.loads(hand_over(tmp_path / "b.csv", tmp_path / "b.json", "label-studio", photos).read_text())
    assert [one["data"]["path"] for one in tasks] == ["dogs/1.jpg"]


# ---- labels come back ----


@pytest.mark.parametrize("format", FORMATS)
def test_labels_come_back_as_they_were_handed_over(format, rows, photos, tmp_path):
    given = [Chosen(row.path, row.label, given=True) for row in rows]
    out = hand_over(given, place(tmp_path, format), format, photos)
    assert read_labels([out], PATHS) == {path: label or "" for path, label in zip(PATHS, LABELS, strict=True)}


def test_predictions_of_label_studio_are_no_labels(rows, photos, tmp_path):
    out = hand_over(rows, tmp_path / "a.json", "label-studio", photos)
    found = read_labels([out], PATHS)
    assert {path: label for path, label in found.items() if label} == {PATHS[3]: "=cat", PATHS[5]: "<b>"}


def test_links_that_are_sorted_into_folders_by_hand_are_labels(photos, tmp_path):
    out = hand_over([Chosen(path) for path in PATHS[:3]], tmp_path / "out", "folders", photos)
    for folder, name in (("cat", "0001-1 a&b.jpg"), ("dog", "0003-1.jpg")):
        (out / folder).mkdir()
        (out / "_unlabeled" / name).rename(out / folder / name)
    labels = {PATHS[0]: "cat", PATHS[1]: "", PATHS[2]: "dog"}
    assert read_labels([out], PATHS) == labels
    shutil.copytree(out, tmp_path / "sent", symlinks=False)  # as a zip has them
    assert read_labels([tmp_path / "sent"], PATHS) == labels
    (out / "selection.csv").unlink()
    assert read_labels([out], PATHS) == labels


# As the tools write them: of Label Studio in JSON, JSON-MIN and CSV, CVAT with a job's meta, FiftyOne with data/ and
# without, a FiftyOneDataset, and folders of copies.
CHOICE = {"type": "choices", "from_name": "choice", "to_name": "image", "value": {"choices": ["cat"]}}
LOCAL = "/data/local-files/?d=x/y%20z/"
DOG = CHOICE | {"value": {"choices": ["dog"]}}
EXPORTS = {
    "a.json": [
        {"annotations": [{"result": [CHOICE]}], "data": {"image": f"{LOCAL}cats/1.jpg"}},
        {"annotations": [{"result": [DOG]}, {"was_cancelled": True}], "data": {"image": f"{LOCAL}dogs/1.jpg"}},
    ],
    "uploaded.json": [
        {"id": 1, "annotations": [{"result": [CHOICE]}], "data": {"image": "/data/upload/1/0a1b2c3d-flat.jpg"}},
    ],
    "min.json": [
        {"id": 1, "image": "http://host:80/pictures/cats/1.jpg", "choice": "cat", "annotator": 1, "lead_time": 2.5},
        {"id": 2, "image": "http://host:80/pictures/dogs/1.jpg", "choice": {"choices": ["dog"]}, "annotator": 1},
    ],
    "a.csv": "image,id,choice,annotator\n/data/cats/1.jpg,1,cat,1\n/data/dogs/1.jpg,2,dog,1\n",
    "metadata.csv": "file_name,label\ncats/1.jpg,cat\ndogs/1.jpg,dog\n",
    "a.xml": '<annotations><version>1.1</version><meta><job/></meta><image id="0" name="cats/1.jpg" width="1">'
    '<tag label="cat" source="manual"></tag></image><image id="1" name="dogs/1.jpg"><tag label="dog"/></image>'
    "</annotations>",
    "coco.json": {
        "images": [{"id": 7, "file_name": "cats/1.jpg"}, {"id": 9, "file_name": "dogs/1.jpg"}],
        "annotations": [{"image_id": 9, "category_id": 4}, {"image_id": 7, "category_id": 3}],
        "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}],
    },
    "labels.json": {"classes": ["cat", "dog"], "labels": {"cats/1": 0, "dogs/1": {"label": 1, "confidence": 0.5}}},
    "samples.json": {
        "samples": [
            {"filepath": "data/cats/1.jpg", "ground_truth": {"_cls": "Classification", "label": "cat"}, "tags": []},
            {"filepath": "data/dogs/1.jpg", "ground_truth": {"_cls": "Classification", "label": "dog"}, "tags": []},
        ]
    },
}


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_of_the_tools_are_read(name, tmp_path):
    content = EXPORTS[name]
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    expected = {"flat.jpg": "cat"} if name == "uploaded.json" else {"cats/1.jpg": "cat", "dogs/1.jpg": "dog"}
    known = ["cats/1.jpg", "cats/2.jpg", "dogs/1.jpg", "1.jpg", "flat.jpg"]
    assert read_labels([tmp_path / name], known) == expected
    if name in ("metadata.csv", "labels.json", "samples.json"):
        assert read_labels([tmp_path], known) == expected


def test_class_folders_of_copies_are_read(tmp_path):
    for path in ("cat/1.jpg", "dog/2.jpg", ".cache/3.jpg"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_bytes(b"")
    assert read_labels([tmp_path], ["1.jpg", "2.jpg"]) == {"1.jpg": "cat", "2.jpg": "dog"}
    assert read_labels([tmp_path], ["cat/1.jpg", "dog/2.jpg"]) == {"cat/1.jpg": "cat", "dog/2.jpg": "dog"}


# ---- bad input ----

BAD = {
    "no JSON": ("a.json", "{", "not readable as JSON"),
    "other JSON": ("a.json", {"a": 1}, "none of the JSON files of Label Studio, COCO and FiftyOne"),
    "number": ("a.json", 3, "none of the JSON files"),
    "broken COCO": ("a.json", {"images": [1], "annotations": [], "categories": []}, "not as COCO has it"),
    "no category": ("a.json", EXPORTS["coco.json"] | {"categories": []}, "not as COCO has it (KeyError: 4)"),
    "broken task": ("a.json", [{"data": {"image": "cats/1.jpg"}, "annotations": [{}]}], "not as Label Studio has it"),
    "text tasks": ("a.json", ["cats/1.jpg"], "not as Label Studio has it"),
    "no label": ("a.json", [{"image": "cats/1.jpg", "animal": "cat"}], "no field label in its tasks"),
    "no image": ("a.json", [{"data": {"text": "x"}}], "a task without an image; its data has text"),
    "two people": (
        "a.json",
        [{"data": {"image": "cats/1.jpg"}, "annotations": [{"result": [CHOICE]}, {"result": [DOG]}]}],
        "cats/1.jpg is 'cat' and 'dog'; keep one",
    ),
    "two fields": (
        "a.json",
        [
            {
                "data": {"image": "x"},
                "annotations": [{"result": [CHOICE | {"from_name": "a"}, DOG | {"from_name": "b"}]}],
            }
        ],
        "which of a, b is the label?",
    ),
    "archive": ("a.zip", "PK", "an archive; unpack it"),
    "no XML": ("a.xml", "<a>", "not readable as XML"),
    "other XML": ("a.xml", "<a/>", "no images in it; export `CVAT for images 1.1`"),
    "no name": ("a.xml", "<annotations><image/></annotations>", "an image without a name"),
    "columns": ("a.csv", "path,x\n", "no column label; it takes a CSV with columns path and label, an export of"),
    "others": ("a.csv", "path,label\nx/cats/1.jpg,cat\ny/cats/1.jpg,cat\n", "x/cats/1.jpg is none of the 2 images"),
    "empty folder": ("folder", None, "no labels in this folder; it takes"),
}


@pytest.mark.parametrize("case", BAD)
def test_labels_that_cannot_be_read_are_refused_in_one_line(case, tmp_path):
    name, content, said = BAD[case]
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as refused:
        read_labels([tmp_path / name], ["cats/1.jpg", "dogs/1.jpg"])
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"`labels` {tmp_path / name}: ")
    assert "\n" not in str(refused.value)


REFUSED = {
    "format": ({"format": "voc"}, "`format` is 'voc': give one of label-studio, coco"),
    "ending": ({"out": "a.csv"}, "`format` coco is a file such as a.json"),
    "nothing": ({"choice": []}, "`choice`: give what pick, spread or curate returned"),
    "no folder": ({"images": None}, "is not in the current folder; give the folder of the images"),
    "other folder": ({"images": "nowhere"}, "nowhere; give the folder of the images"),
    "no table": ({"choice": "nowhere.csv"}, "`choice` nowhere.csv: cannot be read"),
    "no image": ({"choice": [Chosen("text.txt")]}, "text.txt: cannot be read as an image"),
    "not in XML": ({"choice": [Chosen(PATHS[0], "a\0b")], "format": "cvat", "out": "a.xml"}, "that XML cannot have"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_handed_over_is_refused_and_nothing_written(case, rows, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (photos / "text.txt").write_text("no picture")
    given, said = REFUSED[case]
    with pytest.raises(UserError) as refused:
        hand_over(**({"choice": rows, "out": "a.json", "format": "coco", "images": photos} | given))
    assert said in str(refused.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("format", ["imagefolder", "folders"])
def test_a_folder_that_is_not_as_it_was_written_is_refused(format, rows, photos, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):  # its own is replaced
        hand_over(rows, out, format, photos)
    for change in (
        lambda: (out / "new").write_text(""),
        lambda: next(one for one in out.rglob("*.csv")).write_text(""),
    ):
        change()
        with pytest.raises(UserError, match="has other files in it; give a new or an empty folder"):
            hand_over(rows, out, format, photos)
        (out / "new").unlink(missing_ok=True)
    assert len([one for one in out.rglob("*") if one.is_symlink()]) == len(PATHS)


def test_somebodys_labels_are_not_overwritten_by_a_list_to_label(photos, tmp_path):
    for format, given, refused in (("coco", True, True), ("label-studio", False, False), ("label-studio", True, True)):
        out = hand_over([Chosen(PATHS[0], "cat", given=given)], tmp_path / "a.json", format, photos)
        if refused:
            with pytest.raises(UserError, match=r"a\.json: has labels in it; give another name"):
                check_unfilled(out, format)
        else:
            check_unfilled(out, format)


def test_bad_arguments_are_errors_of_arguments(rows):
    with pytest.raises(ArgumentError):
        hand_over(rows, "a.json", "voc")
