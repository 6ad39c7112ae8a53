"""`knn` and `zeroshot` as functions: what they take, what they return, what they refuse."""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation.knn import knn, zeroshot


@dataclass
class Embedded:
    """What `embed` returns, as far as evaluations read it."""

    vectors: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]


def blobs(images=60, classes=6, seed=0):
    random = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    return (1.5 * np.eye(8)[labels] + random.normal(size=(images, 8))).astype("float32"), labels


def test_arrays_tensors_names_and_embeddings_give_the_same_result():
    (bank, known), (queries, labels) = blobs(), blobs(seed=1)
    expected = knn((bank, known), (queries, labels), k=(5, 20))
    names = np.array(list("fedcba"))
    for train, val in (
        ((torch.tensor(bank), torch.tensor(known)), (queries.tolist(), labels.tolist())),
        ((bank, names[known].tolist()), (queries, names[labels])),
        (Embedded(bank, known, tuple(names)), Embedded(queries, 5 - labels, tuple(names[::-1]))),
    ):
        assert knn(train, val, k=(5, 20)).rows == expected.rows
    assert expected.data == {"name": "arrays", "train_images": 60, "val_images": 60, "classes": 6}
    assert 30 < expected.metrics["acc1"] < expected.metrics["acc5"]


def test_images_without_a_label_are_left_out():
    (bank, known), (queries, labels) = blobs(), blobs(seed=1)
    some = np.arange(60) % 4 > 0
    expected = knn((bank[some], known[some]), (queries[some], labels[some]), k=3)
    found = knn((bank, np.where(some, known, -1)), (queries, np.where(some, labels, -1)), k=3)
    assert (found.rows, found.data) == (expected.rows, expected.data)


def test_every_way_is_a_row_and_the_best_is_the_result(capsys):
    found = zeroshot(blobs(), blobs(seed=1), k=[1, 5], temperature=[0.07, 1], distance=["cosine", "euclidean"])
    assert [(row["k"], row["temperature"], row["distance"]) for row in found.rows] == [
        (1, 0.07, "cosine"), (5, 0.07, "cosine"), (1, 1, "cosine"), (5, 1, "cosine"),
        (1, None, "euclidean"), (5, None, "euclidean"),
    ]  # fmt: skip
    assert found.evaluation == "zeroshot"
    assert found.metrics["acc1"] == max(row["acc1"] for row in found.rows)
    assert found.table().splitlines()[0].split() == ["k", "distance", "temperature", "top-1", "%", "top-5", "%"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [("k", 0), ("k", 2.5), ("k", []), ("k", 61), ("temperature", 0), ("distance", "manhattan"), ("train", np.eye(3)),
     ("train", (np.eye(3), [0, 1])), ("val", (np.eye(8), [None] * 8)), ("val", (np.eye(8), [0.5] * 8)),
     ("val", (np.eye(3), [0, 1, 2])), ("val", (np.eye(8), list("abcdefgh")))],
)  # fmt: skip
def test_what_knn_cannot_take_is_named(name, value):
    with pytest.raises(ArgumentError, match=f"`{name}` "):
        knn(**({"train": blobs(), "val": blobs(seed=1)} | {name: value}))


ALONE = """
import sys
for name in ("solo", "pytorch_lightning", "lightning"):
    sys.modules[name] = None  # cannot be imported
import numpy as np
import solo_hcsc as sh
labels = np.repeat([0, 1], 10)
vectors = np.eye(4)[labels] + 0.1 * np.random.default_rng(0).normal(size=(20, 4))
assert sh.knn((vectors, labels), (vectors, labels), k=3).metrics == {"acc1": 100.0}
assert sh.clustering((vectors, labels)).metrics["nmi"] == 1
picks = sh.pick(vectors, 4)
assert (sh.spread(vectors, {image: int(labels[image]) for image in picks.images}).labels == labels).all()
assert sh.fewlabels((vectors, labels), (vectors, labels), budgets=[4], draws=1).metrics["picked"] > 50
"""


def test_frozen_features_need_neither_solo_learn_nor_lightning():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
