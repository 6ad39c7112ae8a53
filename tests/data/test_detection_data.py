"""Images with boxes: VOC's and COCO's layouts as they are, resizing and flips, and what is refused by name."""

import json
import random

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask
from scenes import annotate, make_coco, make_voc, run_lengths

from solo_hcsc.data.coco import read_coco
from solo_hcsc.data.detection import AnnotatedImage, DetectionImages, Sizes, collate, few, objects, with_objects
from solo_hcsc.data.outlines import check_outline, encoded
from solo_hcsc.data.pascal import CLASSES, read_boxes
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.detection import DetectionData


def test_voc_boxes_count_pixels_from_1_and_include_the_last(tmp_path):
    folder = make_voc(tmp_path) / "VOC2007"
    annotate(folder, "2007_000000", (48, 60), [("dog", 0, 0, 48, 60), ("cat", 3, 4, 10, 20)], difficult=1)
    assert "<xmin>1</xmin>" in (folder / "Annotations" / "2007_000000.xml").read_text()
    images, classes = read_boxes(folder, "trainval", CLASSES)
    assert (classes, len(classes)) == (CLASSES, 20)
    first = images[0]
    assert (first.width, first.height) == (48, 60)
    assert first.objects.boxes.tolist() == [[0, 0, 48, 60], [3, 4, 10, 20]]
    assert [CLASSES[label] for label in first.objects.labels] == ["dog", "cat"]  # and no head: that is a part
    assert first.objects.ignored.tolist() == [False, True]
    assert not first.objects.crowds.any()
    assert len(images[1].objects) == 0  # empty images are allowed
    assert [len(with_objects(images)), len(images)] == [3, 4]


def test_voc0712_is_trainval_of_both_years_and_test_of_2007(tmp_path):
    data = DetectionData.read("voc0712", make_voc(tmp_path), "trainval", "test")
    assert [image.file.parent.parent.name for image in data.train] == ["VOC2007"] * 4 + ["VOC2012"] * 4
    assert {image.file.parent.parent.name for image in data.test} == {"VOC2007"}
    assert len(data.test) == 3


def test_coco_categories_are_numbered_and_crowds_known(tmp_path):
    folder = make_coco(tmp_path)
    images, classes = read_coco(folder, "train2017")
    assert classes == ("cat", "dog", "person")
    content = json.loads((folder / "annotations" / "instances_train2017.json").read_text())
    first = content["annotations"][0]
    left, top, wide, high = first["bbox"]
    assert images[0].objects.boxes[0].tolist() == [left, top, left + wide, top + high]
    assert images[0].objects.labels[0] == first["category_id"] // 10 - 1
    assert images[2].objects.crowds.tolist() == images[2].objects.ignored.tolist() == [False, True]
    assert len(images[1].objects) == 0


def test_training_image_and_its_boxes_are_resized_and_flipped_together(tmp_path):
    """A white box on black stays where its box is."""
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[10:30, 20:30] = 255
    Image.fromarray(pixels).save(tmp_path / "x.png")
    outline = [[20, 10, 30, 10, 30, 30, 20, 30]]
    shown = objects([[20, 10, 30, 30], [0, 0, 9, 9]], [4, 1], [False, True], [False, True], outlines=[outline, outline])
    item = AnnotatedImage(tmp_path / "x.png", 80, 40, shown)
    data = DetectionImages([item], Sizes((40, 80, 120), 1000), training=True, masks=True)
    seen = set()
    random.seed(0)
    for _ in range(30):
        image, target = data[0]
        assert target["labels"].tolist() == [5]  # from 1, and no crowd
        (left, top, right, bottom) = (round(corner) for corner in target["boxes"][0].tolist())
        inside = image[:, top:bottom, left:right]
        assert inside.mean() > 0.9
        assert image.sum() - inside.sum() < 0.15 * inside.sum()  # but for the blur of its edge
        assert target["masks"].shape == (1, *image.shape[1:])
        assert target["masks"][0, top:bottom, left:right].float().mean() > 0.95
        assert target["masks"].sum() <= inside[0].numel() * 1.1
        seen.add((image.shape[1], left < image.shape[2] / 2))
    assert seen == {(size, side) for size in (40, 80, 120) for side in (True, False)}
    images, targets = collate([data[0], data[0]])
    assert isinstance(images, list)
    assert isinstance(targets, list)


def test_test_image_is_resized_only_and_tells_its_size(tmp_path):
    Image.new("RGB", (50, 100)).save(tmp_path / "x.png")
    item = AnnotatedImage(tmp_path / "x.png", 50, 100, objects([], [], []))
    image, target = DetectionImages([item], Sizes((80,), 120), training=False)[0]
    assert image.shape == (3, 120, 60)  # the longer side is at its limit
    assert target["size"].tolist() == [100, 50]
    assert target["index"] == torch.tensor(0)


def test_pictures_are_spread_over_all_images():
    assert few(list(range(100)), 4) == [0, 33, 66, 99]
    assert few(list(range(3)), 12) == [0, 1, 2]


def of_xml(old, new):
    def damage(folder):
        file = folder / "Annotations" / "2007_000004.xml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return damage


BROKEN_VOC = {
    "outside": (
        lambda f: annotate(f, "2007_000004", (48, 60), [("dog", 40, 3, 58, 20)]),
        "000004.xml: box 40 3 58 20 is outside of its image of 48 x 60 pixels; correct or remove it",
    ),
    "no area": (
        lambda f: annotate(f, "2007_000004", (48, 60), [("dog", 40, 3, 40, 20)]),
        "000004.xml: box 40 3 40 20 has no area",
    ),
    "unknown class": (
        lambda f: annotate(f, "2007_000004", (48, 60), [("personn", 0, 3, 40, 20)]),
        "000004.xml: unknown class 'personn'; did you mean person?",
    ),
    "no image": (
        lambda f: (f / "JPEGImages/2007_000004.jpg").unlink(),
        "2007_000004.jpg: this image of test.txt is not",
    ),
    "no annotation": (
        lambda f: (f / "Annotations/2007_000004.xml").unlink(),
        "000004.xml: this annotation cannot be read",
    ),
    "no list": (lambda f: (f / "ImageSets/Main/test.txt").unlink(), "test.txt: cannot be read"),
    "elsewhere": (
        lambda f: (f / "ImageSets/Main/test.txt").write_text("../JPEGImages/2007_000004\n"),
        "test.txt: '../JPEGImages/2007_000004' leads out of its folder",
    ),
    "no number": (of_xml("<ymax>", "<ymax>x"), "000004.xml: an object whose bndbox is not four numbers"),
    "odd size": (of_xml("<width>48", "<width>wide"), "000004.xml: its size is not two numbers"),
    "half": (of_xml("</annotation>", ""), "000004.xml: not an annotation in XML"),
    "nothing to find": (
        lambda f: [annotate(f, f"2007_{n:06}", (48, 60), []) for n in (4, 5, 6)],
        "no image of test.txt has an object that is not difficult",
    ),
}


@pytest.mark.parametrize("case", BROKEN_VOC)
def test_broken_voc_is_refused_by_the_files_name(case, tmp_path):
    folder = make_voc(tmp_path) / "VOC2007"
    damage, reason = BROKEN_VOC[case]
    damage(folder)
    with pytest.raises(UserError) as refusal:
        read_boxes(folder, "test", CLASSES)
    assert reason in str(refusal.value)


def test_box_that_rounding_puts_outside_is_cut(tmp_path):
    folder = make_voc(tmp_path) / "VOC2007"
    annotate(folder, "2007_000004", (48, 60), [("dog", -1, 3, 48.6, 20)])
    images, _ = read_boxes(folder, "test", CLASSES)
    assert images[0].objects.boxes.tolist() == [[0, 3, 48, 20]]


def test_annotation_of_another_size_is_found_when_its_image_is_read(tmp_path):
    folder = make_voc(tmp_path) / "VOC2007"
    annotate(folder, "2007_000004", (96, 120), [("dog", 0, 3, 40, 20)])
    images, _ = read_boxes(folder, "test", CLASSES)
    with pytest.raises(UserError, match=r"000004.jpg: has 48 x 60 pixels, and its annotation is of 96 x 120"):
        DetectionImages(images, Sizes((40,), 100), training=False)[0]


def test_size_that_is_not_annotated_is_the_files(tmp_path):
    folder = make_voc(tmp_path) / "VOC2007"
    file = folder / "Annotations" / "2007_000004.xml"
    text = file.read_text()
    file.write_text(text[: text.index("<size>")] + text[text.index("</size>") + len("</size>") :])
    images, _ = read_boxes(folder, "test", CLASSES)
    assert (images[0].width, images[0].height) == (48, 60)


def of_json(change):
    def damage(folder):
        file = folder / "annotations" / "instances_val2017.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    return damage


BROKEN_COCO = {
    "outside": (
        of_json(lambda c: c["annotations"][0].update(bbox=[30, 0, 40, 9])),
        "box 30 0 70 9 is outside of its image",
    ),
    "unknown category": (of_json(lambda c: c["annotations"][0].update(category_id=7)), "unknown category 7"),
    "unlisted image": (
        of_json(lambda c: c["annotations"][0].update(image_id=7)),
        "annotation 1 is of image 7, which is not listed",
    ),
    "no image": (
        lambda f: (f / "val2017" / f"{0:012}.jpg").unlink(),
        "000000000000.jpg: this image of instances_val2017",
    ),
    "no file": (
        lambda f: (f / "annotations" / "instances_val2017.json").unlink(),
        "no annotations/instances_val2017.json",
    ),
    "elsewhere": (
        of_json(lambda c: c["images"][0].update(file_name="../val2017/000000000000.jpg")),
        "instances_val2017.json: '../val2017/000000000000.jpg' leads out of its folder",
    ),
    "no json": (lambda f: (f / "annotations" / "instances_val2017.json").write_text("{"), "not readable as JSON"),
    "no list": (of_json(lambda c: c.pop("images")), "not annotations as COCO has them (no list of images)"),
    "no box": (
        of_json(lambda c: c["annotations"][0].pop("bbox")),
        "not annotations as COCO has them (KeyError: 'bbox')",
    ),
    "two of a name": (
        of_json(lambda c: c["categories"][1].update(name="cat")),
        "two categories have the same id or name",
    ),
    "other classes": (
        of_json(lambda c: c["categories"][1].update(name="cow")),
        "its categories are not those of the training images",
    ),
    "area": (of_json(lambda c: c["annotations"][0].update(area=float("nan"))), "its area nan is no number of pixels"),
    "endless width": (of_json(lambda c: c["images"][0].update(width=float("inf"))), "not annotations as COCO has them"),
    "endless box": (
        of_json(lambda c: c["annotations"][0].update(bbox=[10**400] * 4)),
        "instances_val2017.json: not readable as JSON (a number of 401 digits)",
    ),
    "nothing to find": (of_json(lambda c: c.update(annotations=[])), "no image of val2017 shows an object"),
}


@pytest.mark.parametrize("case", BROKEN_COCO)
def test_broken_coco_is_refused_by_the_files_name(case, tmp_path):
    folder = make_coco(tmp_path)
    damage, reason = BROKEN_COCO[case]
    damage(folder)
    with pytest.raises(UserError) as refusal:
        read_coco(folder, "val2017", read_coco(folder, "train2017")[1])
    assert reason in str(refusal.value)


def test_box_without_width_is_left_out_with_a_note(tmp_path, told, capsys):
    folder = make_coco(tmp_path)
    of_json(lambda c: c["annotations"][0].update(bbox=[3, 4, 0, 9]))(folder)
    images, _ = read_coco(folder, "val2017")
    assert len(images[0].objects) == 1
    assert "1 boxes without width or height are left out" in capsys.readouterr().err


NOT_TEXT = "its counts are not text as COCO's tools write it"
NO_OUTLINES = {  # of the first image, 48 x 60
    "gigantic run lengths": (
        {"size": [1048576, 1048576], "counts": [0, 2147483647]},
        "its size is [1048576, 1048576], not [60, 48]",
    ),
    "another size": ({"size": [48, 60], "counts": [0, 2880]}, "its size is [48, 60], not [60, 48]"),
    "too much": ({"size": [60, 48], "counts": [0, 2147483647]}, "its counts add up to 2147483647 pixels, not to 2880"),
    "too little": ({"size": [60, 48], "counts": [0, 9]}, "its counts add up to 9 pixels"),
    "nothing": ({"size": [60, 48], "counts": []}, "its counts add up to 0 pixels"),
    "negative": ({"size": [60, 48], "counts": [-1, 2881]}, "its counts are not whole numbers from 0"),
    "fraction": ({"size": [60, 48], "counts": [0.5, 2879.5]}, "its counts are not whole numbers"),
    "words": ({"size": [60, 48], "counts": ["0", "2880"]}, "its counts are not whole numbers"),
    "no counts": ({"size": [60, 48]}, "it is neither polygons nor run lengths with size and counts"),
    "text of another image": ({"size": [60, 48], "counts": "g03400000<"}, "its counts add up to 63 pixels"),
    "text with other letters": (
        {"size": [60, 48], "counts": "0\u00e9"},
        NOT_TEXT,
    ),
    "text without end": ({"size": [60, 48], "counts": "o" * 10**6}, NOT_TEXT),
    "text that breaks off": ({"size": [60, 48], "counts": "0P"}, "its counts end within a number"),
    "text with a negative run": ({"size": [60, 48], "counts": "O"}, "its counts are not whole numbers from 0"),
    "two points": ([[0, 0, 9, 9]], "a polygon of it has 4 numbers; x and y of three points or more are expected"),
    "a box for a polygon": ([[0, 0, 9, 9], [0, 0, 9, 0, 9, 9]], "a polygon of it has 4 numbers"),
    "half a point": ([[0, 0, 9, 0, 9, 9, 5]], "a polygon of it has 7 numbers"),
    "no polygon": ([0, 0, 9, 0, 9, 9], "a polygon of it is not a list of numbers"),
    "polygon of words": ([["0", "0", "9", "0", "9", "9"]], "a polygon of it is not a list of numbers"),
    "NaN": ([[0, 0, 9, 0, 9, float("nan")]], "a polygon of it is far outside of the image of 48 x 60 pixels"),
    "far away": ([[0, 0, 1e9, 0, 9, 9]], "a polygon of it is far outside of the image of 48 x 60 pixels"),
    "text": ("g03400000<", "it is neither polygons nor run lengths"),
}


@pytest.mark.parametrize("case", NO_OUTLINES)
def test_segmentation_that_is_none_is_refused_before_pycocotools_sees_it(case, tmp_path):
    folder = make_coco(tmp_path)
    outline, reason = NO_OUTLINES[case]
    of_json(lambda c: c["annotations"][1].update(segmentation=outline))(folder)
    data = DetectionData.read("coco", folder, "train2017", "val2017")
    with pytest.raises(UserError) as refusal:
        data.check_masks()
    assert f"segmentation 2 of {folder}/val2017/000000000000.jpg: {reason}" in str(refusal.value)
    assert str(refusal.value).endswith("; correct it, or use `masks` false")
    with pytest.raises(ValueError, match="it"):
        encoded(outline, 48, 60)


@pytest.mark.parametrize("seed", range(8))
def test_outlines_of_every_kind_give_the_mask_they_are_of(seed):
    """Compressed run lengths are those of COCO's own tools: the check reads all of them."""
    random = np.random.default_rng(seed)
    height, width = random.integers(1, 90, 2).tolist()
    mask = random.random((height, width)) < (0.0, 1.0, 0.5, 0.01)[seed % 4]
    compressed = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    for outline in (run_lengths(mask), compressed | {"counts": compressed["counts"].decode()}):
        check_outline(outline, width, height)
        np.testing.assert_array_equal(coco_mask.decode(encoded(outline, width, height)), mask)
    polygon = [[0, 0, width, 0, width, height, 0, height]]
    assert coco_mask.decode(encoded(polygon, width, height)).all()
