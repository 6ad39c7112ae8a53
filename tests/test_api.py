"""The library: names that come when they are asked for, documented like a library's, with examples that run."""

import doctest
import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import solo_hcsc

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
