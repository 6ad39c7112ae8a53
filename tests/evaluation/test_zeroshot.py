import csv
import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import ROOT, only, run_here
from torchvision.models import resnet18

from solo_hcsc.cli.commands import zeroshot
from solo_hcsc.data import cub
from solo_hcsc.data.source import ImageSource
from solo_hcsc.evaluation.knn import knn
from solo_hcsc.runs.results import JUDGED
from solo_hcsc.settings import take
from solo_hcsc.trees import votes

FLAGS = "--crop_size 32 --batch_size 16 --num_workers 0 --accelerator cpu --k 1 4".split()
BIRDS = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")


# ---- the vote ----


def plain_knn(bank, bank_labels, queries, labels, k, distance):
    """Appendix A in loops: top-1 and top-5 accuracy in percent of the weighted vote of the K nearest."""
    hits1 = hits5 = 0
    for query, label in zip(queries, labels, strict=True):
        weights = []
        for other in bank:
            if distance == "cosine":
                cosine = sum(query * other) / (math.sqrt(sum(query**2)) * math.sqrt(sum(other**2)))
                weights.append(math.exp(cosine / 0.07))
            else:  # solo-learn's, which the paper does not use
                weights.append(1 / (math.sqrt(sum((query - other) ** 2)) + 1e-5))
        nearest = sorted(range(len(bank)), key=lambda i: -weights[i])[:k]
        votes = {}
        for i in nearest:
            votes[bank_labels[i]] = votes.get(bank_labels[i], 0.0) + weights[i]
        ranked = sorted(votes, key=lambda c: -votes[c])
        assert len(ranked) >= min(5, k)  # else classes without votes share the places after them
        hits1 += ranked[0] == label
        hits5 += label in ranked[: min(5, k)]
    return 100 * hits1 / len(labels), 100 * hits5 / len(labels)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("numbers", [range(7), (0, 3, 4, 17, 40, 41, 60)], ids=["dense", "gaps"])
@pytest.mark.parametrize("large", [False, True])
def test_accuracy_is_that_of_the_papers_vote(large, numbers, distance, monkeypatch):
    random = np.random.default_rng(1)
    centres = random.normal(size=(7, 6))

    def draw(images):
        classes = random.integers(0, 7, images)
        # Lengths differ, which only cosine must not see.
        x = (centres[classes] + 1.5 * random.normal(size=(images, 6))) * random.uniform(0.2, 5, (images, 1))
        return x.astype("float32"), np.array(numbers)[classes]

    (bank, bank_labels), (queries, labels) = draw(120), draw(45)
    searches = []
    if large:
        monkeypatch.setattr(votes, "SMALL_BANK", 100)
        monkeypatch.setattr(votes, "QUERIES", 7)
    real = votes._faiss_search
    monkeypatch.setattr(votes, "_faiss_search", lambda *bank: searches.append(1) or real(*bank))
    ks = [1, 30, 100]
    rows = knn((bank, bank_labels), (queries, labels), ks, 0.07, distance).rows
    found = [(row["k"], row["acc1"], row["acc5"]) for row in rows]

    wide = bank.astype("float64"), bank_labels.tolist(), queries.astype("float64"), labels.tolist()
    assert found == [(k, *map(pytest.approx, plain_knn(*wide, k, distance))) for k in ks]
    assert len(searches) == large
    assert 20 < found[1][1] < found[1][2] < 100  # neither chance nor certainty


# ---- CUB-200-2011's lists ----


def write_cub(folder: Path, per_class: int = 4) -> Path:
    """Three species in CUB's own layout; image numbers go across species, every second image is for training."""
    lists = {"images": [], "image_class_labels": [], "train_test_split": []}
    random = np.random.default_rng(0)
    number = 0
    for index in range(per_class):
        for label, bird in enumerate(BIRDS):
            number += 1
            name = f"{bird}/{bird[4:]}_{index:04d}_{number}.jpg"
            pixels = random.integers(0, 100, (40, 36, 3)) + 150 * (np.arange(3) == label)
            file = folder / "images" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype("uint8")).save(file)
            lists["images"].append(f"{number} {name}")
            lists["image_class_labels"].append(f"{number} {label + 1}")
            lists["train_test_split"].append(f"{number} {index % 2}")
    lists["classes"] = [f"{label + 1} {bird}" for label, bird in enumerate(BIRDS)]
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_cub_is_read_as_its_lists_say(tmp_path):
    folder = write_cub(tmp_path / "CUB_200_2011")
    assert (folder / "images.txt").read_text().startswith(f"1 {BIRDS[0]}/Black_footed_Albatross_0000_1.jpg\n2 ")
    assert cub.find_folder(tmp_path) == cub.find_folder(folder) == folder
    train, test = cub.read_parts(folder, lambda image: image.size)
    assert train.classes == test.classes == list(BIRDS)
    assert train.targets == test.targets == [0, 1, 2, 0, 1, 2]
    numbers = [[int(Path(path).stem.split("_")[-1]) for path, _ in part.samples] for part in (train, test)]
    assert numbers == [[4, 5, 6, 10, 11, 12], [1, 2, 3, 7, 8, 9]]
    for part in (train, test):
        assert [Path(path).parent.name for path, _ in part.samples] == [BIRDS[label] for label in part.targets]
        assert [part[i] for i in range(len(part))] == [((36, 40), label) for label in part.targets]


def test_order_and_numbers_of_cubs_classes_are_the_lists(tmp_path):
    folder = write_cub(tmp_path)
    (folder / "classes.txt").write_text(f"3 {BIRDS[2]}\r\n1 {BIRDS[0]}\r\n\r\n2 {BIRDS[1]}\r\n")
    train, _ = cub.read_parts(folder, lambda image: image)
    assert train.classes == [BIRDS[2], BIRDS[0], BIRDS[1]]
    assert [Path(path).parent.name for path, _ in train.samples] == [train.classes[label] for label in train.targets]


# ---- whole runs ----


def test_cub_is_classified_by_a_pretrained_encoder(hcsc_run, tmp_path, capsys):
    write_cub(tmp_path / "CUB_200_2011")
    where = ["--dataset", "cub", "--data_dir", tmp_path, "--pretrained_feature_extractor", hcsc_run]
    run_here("zeroshot", *where, *FLAGS)
    result = json.loads(only(hcsc_run, "zeroshot-cub-*.json").read_text())
    rows = csv.DictReader((hcsc_run / "metrics.csv").open())
    last = [row for row in rows if row["epoch"] == "1" and row["rankme"]][-1]
    assert {name: result["pretraining"][name] for name in JUDGED} == {name: float(last[name]) for name in JUDGED}
    assert (result["evaluation"], result["method"], result["dataset"]) == ("zeroshot", "hcsc", "cub")
    assert (result["data"]["train_images"], result["data"]["val_images"]) == (6, 6)
    assert [row["k"] for row in result["settings"]["all"]] == [1, 4]
    assert result["settings"]["temperature"] == 0.07
    assert result["metrics"]["acc1"] == 100  # one colour per species
    captured = capsys.readouterr()
    assert "6 images in the bank" in captured.out
    assert not captured.err


@pytest.mark.parametrize("bank", ["train", "val"])
def test_the_data_set_of_pretraining_is_noted(bank, hcsc_run, images, capsys):
    flags = ["--dataset", "custom", "--data_dir", images, "--train_dir", bank, "--val_dir", "val"]
    run_here("zeroshot", *flags, *FLAGS, "--pretrained_feature_extractor", hcsc_run)
    said = "note: the encoder was pretrained on this data set; give another one for a zero-shot accuracy\n"
    assert capsys.readouterr().err == (said if bank == "train" else "")
    assert only(hcsc_run, "zeroshot-custom-*.json")


def test_named_data_sets_are_the_same_in_any_folder():
    flags = zeroshot.parse("--dataset cifar10 --data_dir here --pretrained_feature_extractor x".split())
    source = take(ImageSource, flags)
    assert zeroshot.pretrained_on({"dataset": "cifar10", "data_dir": "there", "train_dir": None}, source)
    assert not zeroshot.pretrained_on({"dataset": "cifar100", "data_dir": "here"}, source)
    assert not zeroshot.pretrained_on({}, source)


def test_flags_of_the_script_are_the_papers():
    text = (ROOT / "scripts" / "zeroshot" / "cub.sh").read_text().partition("\nsolo-hcsc zeroshot")[2]
    args = zeroshot.parse([word for word in shlex.split(text) if word.strip() and "@" not in word])
    assert (args.dataset, args.k, args.temperature) == ("cub", [10, 20, 100, 200], [0.07])


# ---- bad input ----


@pytest.fixture
def weights(tmp_path):
    torch.save(resnet18().state_dict(), tmp_path / "weights.pth")
    return ["--pretrained_feature_extractor", "weights.pth"]


REFUSED = {
    "folders for cub": (["--dataset", "cub", "--train_dir", "train"], "leave out --train_dir and --val_dir"),
    "not cub": (["--dataset", "cub", "--data_dir", "."], "--data_dir .: no images.txt there nor in CUB_200_2011"),
    "no folder": (["--dataset", "custom"], "--dataset custom needs --train_dir"),
    "unknown data": (["--dataset", "birds"], "invalid choice: 'birds'"),
    "no neighbour": (["--dataset", "cub", "--k", "0"], "--k 0: must be at least 1"),
    "many neighbours": (["--dataset", "cub", "--k", "7"], "--k 7: there are only 6 training images"),
    "temperature": (["--dataset", "cub", "--temperature", "0"], "--temperature 0: must be greater than 0"),
    "no checkpoint": (["--dataset", "cub", "--pretrained_feature_extractor", "nowhere"], "no such checkpoint"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_zeroshot_refuses(case, weights, tmp_path, refused):
    write_cub(tmp_path / "cub")
    flags, reason = REFUSED[case]
    assert reason in refused("zeroshot", *weights, *FLAGS, "--data_dir", "cub", *flags)


def replace(file, old, new):
    return lambda folder: (folder / file).write_text((folder / file).read_text().replace(old, new, 1))


BROKEN_LISTS = {
    "missing list": (lambda folder: (folder / "classes.txt").unlink(), "classes.txt: cannot be read (No such file"),
    "binary list": (lambda folder: (folder / "classes.txt").write_bytes(b"\xff\xfe"), "classes.txt: not a text file"),
    "half a line": (replace("image_class_labels.txt", "3 3\n", "3\n"), "image_class_labels.txt, line 3: '3' is not"),
    "elsewhere": (replace("images.txt", "1 001", "1 ../../001"), "images.txt, line 1: '../../001.Black_footed_Alb"),
    "no number": (replace("images.txt", "2 002", "two 002"), "images.txt, line 2: 'two 002.Laysan_"),
    "twice": (replace("images.txt", "\n3 ", "\n2 "), "images.txt, line 3: number 2 appears twice"),
    "no label": (replace("image_class_labels.txt", "5 2\n", ""), "images.txt, line 5: image 5 is not in image_class_"),
    "no split": (replace("train_test_split.txt", "5 1\n", ""), "images.txt, line 5: image 5 is not in train_test_"),
    "no image": (replace("train_test_split.txt", "12 1\n", "12 1\n13 1\n"), "line 13: image 13 is not in images.txt"),
    "unknown class": (replace("image_class_labels.txt", "5 2\n", "5 9\n"), "line 5: class 9 is not in classes.txt"),
    "third part": (replace("train_test_split.txt", "5 1\n", "5 2\n"), "line 5: '2' is neither 1 (training) nor 0"),
    "no test part": (
        lambda folder: (folder / "train_test_split.txt").write_text("".join(f"{n} 1\n" for n in range(1, 13))),
        "train_test_split.txt: no test images (0) in it",
    ),
    "no training part": (
        lambda folder: (folder / "train_test_split.txt").write_text("".join(f"{n} 0\n" for n in range(1, 13))),
        "train_test_split.txt: no training images (1) in it",
    ),
    "missing image": (
        lambda folder: (folder / "images" / BIRDS[1] / "Laysan_Albatross_0000_2.jpg").unlink(),
        "images.txt, line 2: there is no file cub/images/002.Laysan_Albatross/Laysan_Albatross_0000_2.jpg",
    ),
    "broken image": (
        lambda folder: (folder / "images" / BIRDS[1] / "Laysan_Albatross_0000_2.jpg").write_bytes(b"no image"),
        "Laysan_Albatross_0000_2.jpg: cannot be read as an image",
    ),
    "one class": (
        lambda folder: [
            (folder / "classes.txt").write_text("1 one\n"),
            (folder / "image_class_labels.txt").write_text("".join(f"{n} 1\n" for n in range(1, 13))),
        ],
        "only one class ('one')",
    ),
}


@pytest.mark.parametrize("case", BROKEN_LISTS)
def test_broken_cub_is_refused(case, weights, tmp_path, refused):
    breaks, reason = BROKEN_LISTS[case]
    breaks(write_cub(tmp_path / "cub"))
    line = refused("zeroshot", *weights, *FLAGS, "--dataset", "cub", "--data_dir", "cub")
    assert reason in line
    assert "cub/" in line or case == "one class"
