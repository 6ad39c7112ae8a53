"""PASCAL VOC 2007: average precision, difficult objects, and a linear evaluation on its layout."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, precision_recall_curve
from tiny import SMALL, only, run_here

from solo_hcsc.data.pascal import IGNORED, find_folder, read_split
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.average_precision import average_precision
from solo_hcsc.evaluation.models import MultiLabel, average_precisions, multi_label_loss
from solo_hcsc.evaluation.released_voc import image_precision, summed_loss

COLOURS = {"cat": 0, "dog": 1, "tv monitor": 2}


def annotate(folder, name, objects):
    """An annotation as the benchmark has them: a person has parts with names of their own."""
    items = "".join(
        f"<object><name>{label}</name><pose>Left</pose><difficult>{difficult}</difficult>"
        "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        "<part><name>head</name></part></object>"
        for label, difficult in objects
    )
    file = folder / "Annotations" / f"{name}.xml"
    file.write_text(f"<annotation><folder>VOC2007</folder><filename>{name}.jpg</filename>{items}</annotation>")


def make_voc(root, trainval=24, test=12):
    """VOC2007's folders; an image's colours tell its classes, and every fourth has a difficult dog."""
    folder = root / "VOCdevkit" / "VOC2007"
    for part in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (folder / part).mkdir(parents=True)
    labels = list(COLOURS)
    names = {"trainval": [], "test": [], "train": []}
    for number in range(trainval + test):
        name, colour = f"{number:06}", np.array([30, 30, 30])
        shown = {labels[number % 3], labels[number // 3 % 3]}
        for label in shown:
            colour[COLOURS[label]] = 220
        Image.new("RGB", (40, 36), tuple(map(int, colour))).save(folder / "JPEGImages" / f"{name}.jpg")
        objects = [(label, 0) for label in shown]
        annotate(folder, name, objects + [("dog", 1)] * (number % 4 == 0))
        names["trainval" if number < trainval else "test"].append(name)
    names["train"] = names["trainval"][: trainval // 2]
    for split, content in names.items():
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(content) + "\n")
    return folder


def eleven_points(relevant, scores):
    """VOC 2007's definition as loops over thresholds."""
    total = 0.0
    for tenth in range(11):
        best = 0.0
        for threshold in set(scores):
            found = [r for r, s in zip(relevant, scores, strict=True) if s >= threshold]
            if 10 * sum(found) >= tenth * sum(relevant):
                best = max(best, sum(found) / len(found))
        total += best / 11
    return total


def test_average_precision_by_hand():
    relevant, scores = np.array([True, False, True, False]), np.array([0.9, 0.8, 0.7, 0.1])
    # recall 1/2 with precision 1, recall 1 with precision 2/3
    assert average_precision(relevant, scores, "all") == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 3)
    assert average_precision(relevant, scores, "11") == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)
    # the second of two is found first: precision 1/2 at any recall, not 1 at recall 0
    relevant, scores = np.array([True, False]), np.array([0.1, 0.9])
    assert average_precision(relevant, scores, "all") == average_precision(relevant, scores, "11") == 0.5
    # the precision rises: 1/2, then 2/3, which holds for the lower recall too
    relevant, scores = np.array([False, True, True]), np.array([3.0, 2.0, 1.0])
    assert average_precision(relevant, scores, "all") == pytest.approx(2 / 3)


def test_recall_of_three_tenths_reaches_the_level_of_three_tenths():
    relevant = np.array([True] * 3 + [False] * 7 + [True] * 7)
    value = average_precision(relevant, -np.arange(17.0), "11")
    assert value == pytest.approx((4 * 1 + 7 * 10 / 17) / 11)


@pytest.mark.parametrize("seed", range(20))
def test_average_precision_agrees_with_loops_and_with_scikit_learn(seed):
    random = np.random.default_rng(seed)
    relevant = random.random(60) < random.uniform(0.05, 0.9)
    relevant[0] = True
    scores = random.integers(0, random.integers(2, 200), 60) / 7 + relevant * random.uniform(0, 9)  # with ties
    assert average_precision(relevant, scores, "11") == pytest.approx(eleven_points(relevant, scores), abs=1e-12)
    whole, reference = average_precision(relevant, scores, "all"), average_precision_score(relevant, scores)
    precision, _, _ = precision_recall_curve(relevant, scores)
    if (np.diff(precision[:-1]) >= 0).all():
        assert whole == pytest.approx(reference, abs=1e-12)
    assert reference - 1e-12 <= whole <= 1 + 1e-12
    order = random.permutation(60)
    for points in ("11", "all"):
        assert average_precision(relevant[order], scores[order], points) == average_precision(relevant, scores, points)


def test_average_precision_is_scikit_learns_where_precision_only_falls():
    for negatives in range(1, 6):  # all relevant images first, then tied with some that are not
        relevant = np.array([True] * 5 + [False] * negatives + [True] * 2)
        scores = np.array([9.0, 8, 7, 7, 6] + [5] * negatives + [5, 5])
        expected = average_precision_score(relevant, scores)
        assert average_precision(relevant, scores, "all") == pytest.approx(expected, abs=1e-12)


def test_nothing_relevant_has_no_average_precision():
    for points in ("11", "all"):
        assert math.isnan(average_precision(np.zeros(3, bool), np.arange(3.0), points))


def test_ignored_image_changes_neither_loss_nor_average_precision():
    torch.manual_seed(0)
    logits, targets = torch.randn(8, 3), torch.randint(0, 2, (8, 3)).to(torch.int8)
    targets[0] = 1
    more = torch.cat([logits, torch.tensor([[50.0, -50.0, 50.0]])])
    ignored = torch.cat([targets, torch.full((1, 3), IGNORED, dtype=torch.int8)])
    negative = torch.cat([targets, torch.zeros(1, 3, dtype=torch.int8)])
    loss = multi_label_loss(logits, targets)
    assert multi_label_loss(more, ignored) == pytest.approx(float(loss), rel=1e-6)
    assert multi_label_loss(more, negative) > loss + 1
    before = average_precisions(targets.numpy(), logits.numpy(), "11")
    assert average_precisions(ignored.numpy(), more.numpy(), "11") == before
    assert average_precisions(negative.numpy(), more.numpy(), "11") != before


def test_loss_is_the_sum_of_each_class_alone_and_an_ignored_pair_has_no_gradient():
    torch.manual_seed(0)
    logits = torch.randn(6, 4, requires_grad=True)
    targets = torch.randint(0, 2, (6, 4))
    targets[2, 1] = targets[4, 1] = IGNORED
    targets[:, 3] = IGNORED
    loss = multi_label_loss(logits, targets)
    expected = 0.0
    for c in range(3):
        terms = []
        for i in range(6):
            if targets[i, c] != IGNORED:
                shown = 1 / (1 + math.exp(-logits[i, c].item()))
                terms.append(-math.log(shown if targets[i, c] else 1 - shown))
        expected += sum(terms) / len(terms)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert torch.equal(logits.grad == 0, targets == IGNORED)


def test_difficult_objects_are_ignored_unless_an_easy_one_is_there_too(tmp_path):
    folder = make_voc(tmp_path)
    annotate(folder, "000000", [("dog", 1), ("cat", 0), ("cat", 1)])
    annotate(folder, "000001", [("dog", 1), ("dog", 0)])
    annotate(folder, "000002", [])
    images = read_split(find_folder(tmp_path / "VOCdevkit"), "trainval", lambda image: image.size)
    assert images.classes == ["cat", "dog", "tv monitor"]  # and no head: that is a part
    assert images.targets[:3].tolist() == [[1, IGNORED, 0], [0, 1, 0], [0, 0, 0]]
    size, target = images[1]
    assert (size, target.tolist(), len(images)) == ((40, 36), [0, 1, 0], 24)


def test_annotation_without_difficult_is_easy(tmp_path):
    folder = make_voc(tmp_path)
    file = folder / "Annotations" / "000000.xml"
    file.write_text("<annotation><object><name>dog</name></object></annotation>")
    assert read_split(folder, "trainval", lambda image: image).targets[0].tolist() == [0, 1, 0]


def run_voc(root, untrained, *flags):
    where = ["--data_dir", root / "VOCdevkit", "--checkpoint_dir", root / "runs"]
    run_here("voc", "--pretrained_feature_extractor", untrained, *where, *SMALL, *flags)
    return only(root / "runs", "voc.json")


@pytest.mark.parametrize("cached", [[], ["--cache_features"]], ids=["augmented", "cached"])
def test_voc_is_learnt(cached, untrained, tmp_path, capsys):
    make_voc(tmp_path)
    file = run_voc(tmp_path, untrained, "--max_epochs", "8", "--lr", "0.3", "--keep_best", "val_map", *cached)
    out, progress = capsys.readouterr()
    assert file.parent.parent == tmp_path / "runs" / "voc"
    assert "on voc07: 24 images, 3 classes" in out
    assert "val_map " in progress
    assert only(tmp_path / "runs", "*-best.ckpt")
    assert json.loads((file.parent / "args.json").read_text())["classes"] == ["cat", "dog", "tv monitor"]
    result = json.loads(file.read_text())
    each = result["settings"]["per_class"]
    assert result["metrics"].keys() == {"mAP11", "mAP"}
    for kind, mean in (("AP11", "mAP11"), ("AP", "mAP")):
        assert result["metrics"][mean] == pytest.approx(sum(each[label][kind] for label in COLOURS) / 3, rel=1e-6)
        assert result["metrics"][mean] > 95  # nothing is easier than colours; chance is about 55
    table = out[out.index("class ") :].splitlines()
    assert [line.split("  ")[0] for line in table[2:6]] == [*COLOURS, "mean (cached)" if cached else "mean"]
    assert f"{result['metrics']['mAP11']:.2f}" in table[5]


def test_class_that_no_test_image_shows_is_left_out_of_the_mean(untrained, tmp_path, capsys):
    folder = make_voc(tmp_path)
    annotate(folder, "000000", [("zebra", 0)])
    annotate(folder, "000024", [("zebra", 1)])  # a test image
    file = run_voc(tmp_path, untrained, "--max_epochs", "1", "--cache_features")
    result = json.loads(file.read_text())
    each = result["settings"]["per_class"]
    assert each.pop("zebra") is None
    assert result["metrics"]["mAP"] == pytest.approx(sum(pair["AP"] for pair in each.values()) / 3, rel=1e-6)
    out = capsys.readouterr().out
    assert "left out of the mean, since no test image shows it: zebra" in out
    assert any(line.split() == ["zebra", "-", "-"] for line in out.splitlines())


def test_scores_that_are_not_finite_end_the_run_in_one_line(untrained, tmp_path, capfd, monkeypatch):
    make_voc(tmp_path)
    finite = MultiLabel.forward
    monkeypatch.setattr(MultiLabel, "forward", lambda self, x: {"logits": finite(self, x)["logits"] * torch.nan})
    with pytest.raises(SystemExit):
        run_voc(tmp_path, untrained, "--max_epochs", "1")
    assert "the classifier's scores are no longer finite" in capfd.readouterr().err.splitlines()[-1]


BROKEN = {
    "no list": (lambda f: (f / "ImageSets/Main/test.txt").unlink(), "ImageSets/Main/test.txt: cannot be read (No such"),
    "empty list": (lambda f: (f / "ImageSets/Main/test.txt").write_text("\n"), "Main/test.txt: empty"),
    "binary list": (lambda f: (f / "ImageSets/Main/test.txt").write_bytes(b"\xff\n"), "Main/test.txt: not a text file"),
    "no annotation": (lambda f: (f / "Annotations/000024.xml").unlink(), "Annotations/000024.xml: this annotation"),
    "half an annotation": (
        lambda f: (f / "Annotations/000003.xml").write_text("<annotation><object>"),
        "Annotations/000003.xml: not an annotation in XML (no element found",
    ),
    "unknown encoding": (
        lambda f: (f / "Annotations/000003.xml").write_text('<?xml version="1.0" encoding="nope"?><a/>'),
        "Annotations/000003.xml: not an annotation in XML (",
    ),
    "no name": (
        lambda f: (f / "Annotations/000003.xml").write_text("<annotation><object/></annotation>"),
        "Annotations/000003.xml: an object without a name",
    ),
    "no image": (lambda f: (f / "JPEGImages/000030.jpg").unlink(), "JPEGImages/000030.jpg: this image of test.txt"),
    "unknown class": (
        lambda f: annotate(f, "000030", [("zebra", 0)]),
        "Annotations/000030.xml: unknown class 'zebra', which no image of trainval.txt has",
    ),
    "nothing to find": (
        lambda f: [annotate(f, f"{n:06}", [("dog", 1)]) for n in range(24, 36)],
        "no image of test.txt has an object that is not difficult",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_data_are_refused_by_the_files_name(case, tmp_path):
    folder = make_voc(tmp_path)
    damage, reason = BROKEN[case]
    damage(folder)
    with pytest.raises(UserError) as refusal:
        read_split(folder, "test", None, read_split(folder, "trainval", None).classes)
    assert reason in str(refusal.value)
    assert str(folder) in str(refusal.value)


def test_voc_refuses(untrained, tmp_path, refused):
    flags = ["--pretrained_feature_extractor", untrained, "--data_dir", tmp_path, *SMALL]
    (tmp_path / "photos").mkdir()
    assert f"--data_dir {tmp_path}: no VOC2007 folder" in refused("voc", *flags)
    folder = make_voc(tmp_path)
    flags[3] = folder
    assert "average precision needs all scores in one process" in refused("voc", *flags, "--devices", "2")
    assert "--data_dir: 24 images do not fill one batch" in refused("voc", *flags, "--batch_size", "64")
    assert "invalid choice: 'val_acc1'" in refused("voc", *flags, "--keep_best", "val_acc1")
    assert "not --dataset voc07; leave it out" in refused("voc", *flags, "--dali")
    assert "--val_dir: --dataset voc07 has no such folder" in refused("voc", *flags, "--val_dir", "x")
    assert "--pretrained_feature_extractor is missing" in refused("voc", *flags[2:])
    (folder / "Annotations" / "000005.xml").write_text("<")
    assert "000005.xml: not an annotation in XML" in refused("voc", *flags)


def test_released_loss_is_summed_and_takes_difficult_objects_for_absent_ones():
    logits = torch.tensor([[0.3, -1.0], [2.0, 0.5]])
    targets = torch.tensor([[1, IGNORED], [0, 1]], dtype=torch.int8)
    expected = 0.0
    for row, wanted in zip(logits.tolist(), [[1, 0], [0, 1]], strict=True):
        for logit, one in zip(row, wanted, strict=True):
            chance = 1 / (1 + math.exp(-logit))
            expected -= math.log(chance if one else 1 - chance)
    assert float(summed_loss(logits, targets)) == pytest.approx(expected)


def test_released_precision_is_that_of_each_images_classes():
    shown = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0]], dtype=bool)
    scores = np.array([[0.1, 0.9, 0.0], [0.3, 0.2, 0.8], [0.5, 0.5, 0.5]])
    # The first image's class is second of three; the second's are first and third; the third shows none.
    assert image_precision(shown, scores) == pytest.approx((1 / 2 + (1 + 2 / 3) / 2 + 0) / 3)


def test_released_protocol_trains_on_train_at_300_px(tmp_path, untrained, capsys):
    folder = make_voc(tmp_path)
    flags = [
        "--data_dir",
        folder,
        "--config",
        "official",
        "--batch_size",
        4,
        "--num_workers",
        0,
        "--accelerator",
        "cpu",
    ]
    flags += ["--max_epochs", 2, "--pretrained_feature_extractor", untrained, "--checkpoint_dir", tmp_path / "runs"]
    run_here("voc", *flags)
    result = json.loads(only(tmp_path / "runs", "voc.json").read_text())
    assert result["data"]["train_images"] == 12
    assert result["settings"]["crop_size"] == [300]
    assert result["settings"]["config"] == "official"
    assert 0 < result["metrics"]["image_AP"] <= 100
    assert "average precision of each image's classes, which the paper reports" in capsys.readouterr().out


def test_released_protocol_has_no_cached_features_and_no_other_transforms(tmp_path, untrained, refused):
    flags = ["--config", "official", "--cache_features", "--pretrained_feature_extractor", untrained]
    fast = ["--config", "official", "--image_backend", "fast", "--pretrained_feature_extractor", untrained]
    assert "--config official has transforms of its own" in refused("voc", *fast, "--data_dir", tmp_path)
    assert "--cache_features: --config official augments the images anew" in refused(
        "voc", *flags, "--data_dir", tmp_path
    )
