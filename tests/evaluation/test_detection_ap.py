"""Average precision of boxes and masks: against pycocotools, against loops, and by hand."""

import contextlib
import io
import math
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from solo_hcsc.data.detection import AnnotatedImage, objects
from solo_hcsc.evaluation.detecting import Detections
from solo_hcsc.evaluation.detection_ap import average_precisions

CLASSES = ("cat", "dog", "person")


def image(boxes, labels, ignored=None, crowds=None, side=200, outlines=()):
    none = [False] * len(labels)
    shown = objects(boxes, labels, none if ignored is None else ignored, crowds or none, outlines=outlines)
    return AnnotatedImage(Path("x.jpg"), side, side, shown)


def found(boxes, labels, scores, masks=()):
    order = np.argsort(-np.asarray(scores, dtype=np.float32), kind="stable")
    corners = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)[order]
    ranked = np.asarray(scores, dtype=np.float32)[order]
    chosen = tuple(masks[place] for place in order) if masks else ()
    return Detections(corners, ranked, np.asarray(labels, dtype=np.int64)[order], chosen)


def random_scene(seed, images=12, side=200):
    """True boxes, some of them crowds, and detections near and far from them; scores have ties."""
    random = np.random.default_rng(seed)
    scenes, results = [], []
    for _ in range(images):
        count = random.integers(0, 7)
        corners = random.integers(0, side - 60, (count, 2))
        boxes = np.concatenate([corners, corners + random.integers(6, 59, (count, 2)) * [1, 1]], axis=1)
        crowds = random.random(count) < 0.15
        scenes.append(image(boxes, random.integers(0, 3, count), crowds, list(crowds), side))
        copies = np.repeat(np.arange(count), random.integers(0, 4, count))
        near = boxes[copies] + random.integers(-8, 9, (len(copies), 4))
        far = random.integers(0, side - 60, (3, 2))
        all_boxes = np.concatenate([near, np.concatenate([far, far + random.integers(5, 59, (3, 2))], axis=1)])
        all_boxes[:, 2:] = np.maximum(all_boxes[:, 2:], all_boxes[:, :2] + 2)
        labels = np.concatenate([scenes[-1].objects.labels[copies], random.integers(0, 3, 3)])
        labels = np.where(random.random(len(labels)) < 0.1, random.integers(0, 3, len(labels)), labels)
        results.append(found(all_boxes, labels, random.integers(1, 30, len(labels)) / 30))
    return scenes, results


def by_pycocotools(scenes, results, kind="bbox"):
    """Its own figures: twelve means, and the precisions (T, R, K, A, M)."""
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": n + 1, "width": s.width, "height": s.height} for n, s in enumerate(scenes)],
        "categories": [{"id": n + 1, "name": name} for n, name in enumerate(CLASSES)],
        "annotations": [],
    }
    for n, scene in enumerate(scenes):
        shown = scene.objects
        for place in range(len(shown)):
            left, top, right, bottom = shown.boxes[place].tolist()
            one = {"bbox": [left, top, right - left, bottom - top], "area": float(shown.areas[place])}
            one |= {"id": len(truth.dataset["annotations"]) + 1, "image_id": n + 1}
            one |= {"category_id": int(shown.labels[place]) + 1, "iscrowd": int(shown.crowds[place])}
            if shown.outlines:
                one["segmentation"] = shown.outlines[place]
            truth.dataset["annotations"].append(one)
    listed = []
    for n, result in enumerate(results):
        for place, (left, top, right, bottom) in enumerate(result.boxes.tolist()):
            one = {"image_id": n + 1, "category_id": int(result.labels[place]) + 1}
            one |= {"score": float(result.scores[place])}
            one |= {"segmentation": result.masks[place]} if kind == "segm" else {}
            one |= {} if kind == "segm" else {"bbox": [left, top, right - left, bottom - top]}
            listed.append(one)
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(listed), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats, evaluation.eval["precision"]


@pytest.mark.parametrize("seed", range(8))
def test_boxes_have_cocos_average_precision(seed):
    scenes, results = random_scene(seed)
    stats, precision = by_pycocotools(scenes, results)
    figures = average_precisions(scenes, results, CLASSES)
    names = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
    for name, theirs in zip(names, stats[:6], strict=True):
        ours = figures["mean"][name] / 100
        assert (math.isnan(ours) and theirs == -1) or ours == pytest.approx(theirs, abs=1e-12), name
    for place, name in enumerate(CLASSES):
        theirs = precision[:, :, place, 0, 2]
        assert figures[name]["AP"] / 100 == pytest.approx(theirs.mean(), abs=1e-12)
        assert figures[name]["AP75"] / 100 == pytest.approx(theirs[5].mean(), abs=1e-12)
    assert 5 < figures["mean"]["AP50"] < 95  # neither nothing nor all was found


def test_masks_have_cocos_average_precision():
    random = np.random.default_rng(3)
    scenes, results = [], []
    for _ in range(6):
        true, boxes, guessed, corners = [], [], [], []
        for _ in range(3):
            left, top = random.integers(0, 120, 2)
            wide, high = random.integers(20, 70, 2)
            true.append([[float(c) for c in (left, top, left + wide, top, left + wide, top + high, left, top + high)]])
            boxes.append([left, top, left + wide, top + high])
            whole = np.zeros((200, 200), dtype=np.uint8, order="F")
            whole[top + random.integers(0, 9) : top + high, left : left + wide - random.integers(0, 19)] = 1
            guessed.append(coco_mask.encode(whole))
            corners.append([left, top, left + wide, top + high])
        labels = random.integers(0, 3, 3)
        scenes.append(image(boxes, labels, outlines=true))
        results.append(found(corners, labels, random.random(3), guessed))
    stats, _ = by_pycocotools(scenes, results, "segm")
    figures = average_precisions(scenes, results, CLASSES, masks=True)["mean"]
    assert [figures[name] / 100 for name in ("AP", "AP50", "AP75")] == pytest.approx(stats[:3], abs=1e-12)
    assert 0.2 < stats[0] < 0.99


def test_hundred_and_first_detection_of_an_image_does_not_count():
    scenes = [image([[0, 0, 50, 50]], [0]), image([[0, 0, 50, 50]], [0])]
    many = found([[100, 100, 150, 150]] * 100 + [[0, 0, 50, 50]], [0] * 101, np.linspace(0.9, 0.1, 101))
    results = [many, found([[0, 0, 50, 50]], [0], [0.99])]
    stats, _ = by_pycocotools(scenes, results)
    assert average_precisions(scenes, results, CLASSES)["mean"]["AP50"] / 100 == pytest.approx(stats[1])
    assert stats[1] == pytest.approx(51 / 101)


def test_average_precision_by_hand():
    """Three objects. From the best detection on: right, a second one of it, right by half, wrong; one is missed."""
    scenes = [image([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]], [0, 0, 0])]
    results = [
        found([[0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 6], [100, 100, 110, 110]], [0, 0, 0, 0], [0.9, 0.8, 0.7, 0.6])
    ]
    figures = average_precisions(scenes, results, CLASSES)
    assert figures["cat"] is not figures["mean"]
    assert math.isnan(figures["dog"]["AP"])
    assert math.isnan(figures["person"]["AP50_11"])
    mean = figures["mean"]  # over the one class that is shown
    # Overlaps 1, 0.9, 0.6, 0. At 0.5: recall 1/3 with precision 1, recall 2/3 with 2/3, then no more.
    assert mean["AP50_all"] == pytest.approx(100 * (1 / 3 * 1 + 1 / 3 * 2 / 3))
    assert mean["AP50_11"] == pytest.approx(100 * (4 * 1 + 3 * 2 / 3) / 11)  # recalls 0 to 0.3, and 0.4 to 0.6
    assert mean["AP50"] == pytest.approx(100 * (34 * 1 + 33 * 2 / 3) / 101)  # 0 to 0.33, and 0.34 to 0.66
    # At 0.75 the third one is wrong; so it is from 0.65 on, that is 7 times of 10.
    assert mean["AP75_all"] == pytest.approx(100 / 3)
    assert mean["AP75"] == pytest.approx(100 * 34 / 101)
    assert mean["AP"] == pytest.approx((3 * mean["AP50"] + 7 * mean["AP75"]) / 10)
    assert mean["AP_all"] == pytest.approx((3 * mean["AP50_all"] + 7 * mean["AP75_all"]) / 10)


def test_detection_of_a_difficult_object_counts_neither_for_nor_against():
    boxes = [[0, 0, 10, 10], [20, 0, 30, 10]]
    hard = [image(boxes, [0, 0], ignored=[False, True])]
    both = [found([*boxes, boxes[1]], [0, 0, 0], [0.5, 0.9, 0.8])]
    assert average_precisions(hard, both, CLASSES)["mean"]["AP50_11"] == 100  # found first, twice, and passed over
    easy = [image(boxes, [0, 0])]
    assert average_precisions(easy, both, CLASSES)["mean"]["AP50_11"] < 100  # there the second one is wrong
    assert average_precisions(hard, [found([], [], [])], CLASSES)["mean"]["AP50_11"] == 0


def test_voc_gives_a_detection_the_object_that_it_overlaps_most_even_if_that_is_taken():
    """COCO gives the second one the other object, which it overlaps by half."""
    scenes = [image([[0, 0, 10, 10], [4, 0, 14, 10]], [0, 0])]
    results = [found([[0, 0, 10, 10], [1, 0, 11, 10]], [0, 0], [0.9, 0.8])]
    mean = average_precisions(scenes, results, CLASSES)["mean"]
    assert mean["AP50_all"] == pytest.approx(50)
    assert mean["AP50"] == pytest.approx(100)


@pytest.mark.parametrize("seed", range(3))
def test_vocs_average_precision_agrees_with_loops(seed):
    scenes, results = random_scene(seed + 100)
    figures = average_precisions(scenes, results, CLASSES)
    for label, name in enumerate(CLASSES):
        assert figures[name]["AP50_11"] / 100 == pytest.approx(eleven_points(scenes, results, label, 0.5))
        assert figures[name]["AP75_11"] / 100 == pytest.approx(eleven_points(scenes, results, label, 0.75))


def eleven_points(scenes, results, label, threshold):
    """The challenge's definition, one detection after the other."""
    ranked = sorted(
        ((-float(s), n, place) for n, one in enumerate(results) for place, s in enumerate(one.scores)),
        key=lambda entry: entry[0],
    )
    hits, marks = set(), []
    for _, n, place in ranked:
        if results[n].labels[place] != label:
            continue
        box, shown = results[n].boxes[place], scenes[n].objects
        best, most = None, -1.0
        for other in range(len(shown)):
            if shown.labels[other] == label and overlap(box, shown.boxes[other], shown.crowds[other]) > most:
                best, most = other, overlap(box, shown.boxes[other], shown.crowds[other])
        if most < threshold:
            marks.append(False)
        elif not shown.ignored[best]:
            marks.append((n, best) not in hits)
            hits.add((n, best))
    total = sum(
        int(c == label and not i)
        for scene in scenes
        for c, i in zip(scene.objects.labels, scene.objects.ignored, strict=True)
    )
    points = [(sum(marks[: k + 1]) / total, sum(marks[: k + 1]) / (k + 1)) for k in range(len(marks))]
    return sum(max([p for r, p in points if 10 * r >= tenth - 1e-9], default=0.0) for tenth in range(11)) / 11


def overlap(a, b, crowd):
    a, b = a.astype(float), b.astype(float)
    wide, high = (max(0.0, min(a[k + 2], b[k + 2]) - max(a[k], b[k])) for k in (0, 1))
    own, true = ((c[2] - c[0]) * (c[3] - c[1]) for c in (a, b))
    return wide * high / (own if crowd else own + true - wide * high)
