"""The library: names that come when they are asked for, documented like a library's, with examples that run."""

import doctest
import inspect
import re
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch

import solo_hcsc
from solo_hcsc import ArgumentError, Options, UserError

NAMES = [name for name in solo_hcsc.__all__ if name != "__version__"]
WITHOUT_SOLO = """
import sys
sys.modules["solo"] = None  # as if it was not installed
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "solo" else find(name, *rest)
import solo_hcsc
assert "torch" not in sys.modules
import torch
from solo_hcsc import Hierarchy, Options, SelectiveCoding, build_hierarchy
coding = SelectiveCoding(Options(num_prototypes=(4, 2), min_cluster_size=1, queue_size=8), dim=3, num_images=20)
build_hierarchy(torch.nn.functional.normalize(torch.randn(20, 3), dim=1), coding.options)
try:
    solo_hcsc.HCSC
except ImportError as error:
    print(error)
"""


def test_library_works_without_solo_learn_and_says_how_to_get_it():
    out = subprocess.run([sys.executable, "-c", WITHOUT_SOLO], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert "python -m pip install --no-deps solo-learn==1.0.2" in out.stdout


def test_all_public_names_are_there_and_no_others():
    for name in NAMES:
        assert getattr(solo_hcsc, name).__name__ == name
    assert set(dir(solo_hcsc)) == set(solo_hcsc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'hcsk'"):
        _ = solo_hcsc.hcsk


def public_members(thing: object) -> list[tuple[str, object]]:
    """A class's own functions and properties; hooks of torch and Lightning that it fills in are documented there."""
    if not inspect.isclass(thing):
        return []
    members = inspect.getmembers(thing, lambda member: inspect.isfunction(member) or isinstance(member, property))
    theirs = {name for base in thing.__mro__[1:] for name in vars(base)} | set(
        getattr(thing, "__dataclass_fields__", ())
    )
    return [
        (name, member)
        for name, member in members
        if name in vars(thing) and not name.startswith("_") and name not in theirs
    ]


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_documented(name):
    thing = getattr(solo_hcsc, name)
    assert thing.__doc__
    if inspect.isfunction(thing):
        assert "Args:" in thing.__doc__
        assert "Returns:" in thing.__doc__
        assert ">>>" in thing.__doc__
    for member, function in public_members(thing):
        assert function.__doc__, f"{name}.{member}"


@pytest.mark.parametrize("module", sorted(set(solo_hcsc._MODULES.values())))
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(import_module(f"solo_hcsc.{module}"))
    assert found.failed == 0


def test_docs_have_every_public_name():
    from tiny import ROOT

    text = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in NAMES if f"`{name}" not in text] == []


PAIR = np.eye(3, dtype="float32").repeat(8, axis=0), np.arange(3).repeat(8)
WRONG = {
    "linear": (
        {"train": PAIR, "val": PAIR},
        {"lr": "a", "epochs": 1.5, "lr_sweep": 0.1, "weight_decay": -1, "seed": "a"},
    ),
    "fewlabels": ({"train": PAIR, "val": PAIR}, {"budgets": 5, "draws": "a", "way": "x"}),
    "clustering": ({"embeddings": PAIR}, {"k": "a", "seed": "a", "label_hierarchy": 5, "prototypes": "a"}),
    "build_tree": ({"vectors": PAIR[0]}, {"vectors": 5, "levels": 3, "keys": 5, "power": "a", "seed": "a"}),
    "pick": ({"images": PAIR[0]}, {"images": None, "budget": "5", "way": "x", "clusters": 5}),
    "spread": ({"images": PAIR[0], "labels": {0: "a", 9: "b"}}, {"labels": ["a"], "abstain": "x"}),
    "curate": ({"images": PAIR[0], "keep": 5}, {"keep": "a", "same": "a", "outliers": "a", "left_out": 5, "levels": 3}),
    "find_duplicates": ({"paths": ["a.png"]}, {"paths": "a.png"}),
    "find_flaws": ({"files": ["a.png"]}, {"files": 5}),
    "find_outliers": ({"vectors": PAIR[0]}, {"vectors": 5, "neighbours": "a"}),
    "compare": (
        {"methods": ["hcsc"], "data": "photos"},
        {"methods": "hcsc", "data": 5, "seeds": 5, "evaluations": "knn", "budget": "x", "search": "a"},
    ),
    "ablate": ({"table": "tree", "data": "photos"}, {"table": 5, "rows": "a", "seeds": []}),
    "pretrain": ({"train": "photos"}, {"train": 5, "val": 5, "method": 5, "epochs": "a", "batch_size": 0, "out": 5}),
    "rankme": ({}, {"features": "a"}),
    "uniformity": ({}, {"z": 5}),
    "alignment": ({"z1": PAIR[0], "z2": PAIR[0]}, {"z2": PAIR[0][:3]}),
    "SelectiveCoding": (
        {"options": Options(), "dim": 8, "num_images": 9},
        {"options": 5, "dim": "a", "num_images": "a"},
    ),
    "semisup": ({}, {"weights": 5}),
    "voc": ({"weights": "x"}, {"data_dir": 5}),
    "analyse": ({}, {"run": 5}),
    "check": ({}, {"folder": 5}),
    "pack": ({"out": "x"}, {"folder": 5}),
    "open_run": ({}, {"path": 5}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_value_is_refused_by_the_arguments_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, wrong = WRONG[name]
    for argument, value in wrong.items():
        with pytest.raises(ArgumentError, match=f"`{argument}`"):
            getattr(solo_hcsc, name)(**{**given, argument: value})
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_not_there_is_refused_by_the_arguments_name(tmp_path):
    with pytest.raises(UserError, match=r"^`train`: .*photos does not exist; check `train`$"):
        solo_hcsc.pretrain(tmp_path / "photos")


def test_measures_take_arrays_and_embeddings():
    vectors = np.random.default_rng(0).normal(size=(12, 4))
    of_tensor = solo_hcsc.rankme(torch.from_numpy(vectors))
    assert solo_hcsc.rankme(vectors) == of_tensor
    named = solo_hcsc.Embeddings([str(number) for number in range(12)], vectors)
    assert solo_hcsc.rankme(named) == of_tensor
    assert solo_hcsc.alignment(vectors, named) == solo_hcsc.dead_dimensions(vectors) == 0
    assert solo_hcsc.uniformity(vectors) == solo_hcsc.uniformity(named) < 0


def test_values_are_shown_in_a_line():
    names = [f"{number}.png" for number in range(24)]
    tree = solo_hcsc.build_tree(PAIR[0], keys=names)
    encoder = solo_hcsc.Encoder.timm("resnet10t", crop_size=64, pretrained=False)
    assert repr(encoder) == "<Encoder timm/resnet10t from timm/resnet10t, images of 64 pixels>"
    assert repr(solo_hcsc.Embeddings(names, *PAIR, classes=("a", "b", "c"))) == (
        "<Embeddings of 24 images, 3 dimensions, 3 classes>"
    )
    assert re.fullmatch(r"<Picks of 3 images: (\d+.png(, )?){3}>", repr(solo_hcsc.pick(tree, budget=4)))
    assert repr(solo_hcsc.spread(tree, {0: "a", 9: "b"})) == "<Spread of 2 labels to 24 images, 2 classes>"
    found = solo_hcsc.build_hierarchy(PAIR[0], Options(num_prototypes=(3, 2), min_cluster_size=1))
    assert repr(found) == "<Hierarchy of 24 images: 3, 2 prototypes>"
