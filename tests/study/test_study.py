"""A plan from the runs of its folder to the record."""

import json

import pytest

from solo_hcsc.errors import UserError
from solo_hcsc.study.runner import Finished, Variant
from solo_hcsc.study.study import Plan, Study, check_beside


def variant(name, epochs=2, base=None):
    return Variant(name, {"method": name}, epochs, base or name)


def plan(out, *variants, **other):
    facts = {
        "kind": "compare",
        "subject": None,
        "data": "digits",
        "command": "solo-hcsc compare",
        "out": out,
        "seeds": (0,),
        "variants": variants,
        "evaluations": (),
        "settings": {},
    }
    return Plan(**facts | other)


@pytest.fixture
def finish(tmp_path, monkeypatch):
    """Leaves the record of a finished run, whose cost is known."""
    cost = {"epochs": 2, "seconds": 2.0, "epoch_seconds": 1.0, "peak_memory": 1.0}
    monkeypatch.setattr(Finished, "cost", property(lambda run: cost))

    def write(one, seed=0):
        folder = tmp_path / one.folder / f"seed-{seed}"
        folder.mkdir(parents=True)
        facts = {"name": one.name, "base": one.base, "epochs": one.epochs, "settings": one.settings, "seed": seed}
        (folder / "run.json").write_text(json.dumps(facts))

    return write


def test_title_names_the_finished_methods_in_the_reports_order(finish, tmp_path):
    swav, hcsc, byol = variant("swav"), variant("hcsc"), variant("byol")
    for one in (swav, hcsc, variant("longer", 5, "hcsc")):
        finish(one)
    first = Study(plan(tmp_path, swav, hcsc, byol)).conclude([swav, hcsc, byol])
    assert first.title == "swav, hcsc on digits"  # byol failed, and what is longer is no method
    finish(byol)
    again = Study(plan(tmp_path, byol)).conclude([byol])
    assert [row.name for row in again.rows] == ["swav", "hcsc", "longer", "byol"]
    assert again.title == "swav, hcsc, byol on digits"
    assert again.budget == "seconds"


def test_ablation_has_its_tables_name_and_order(finish, tmp_path):
    for one in (variant("b"), variant("a")):
        finish(one)
    study = Study(plan(tmp_path, variant("b"), kind="ablate", subject="HCSC's levels", order=("b", "a")))
    found = study.conclude([variant("b")])
    assert (found.title, [row.name for row in found.rows]) == ("HCSC's levels on digits", ["b", "a"])


def test_folder_of_something_else_is_refused_before_its_flags_are_read(finish, tmp_path):
    finish(variant("hcsc"))
    Study(plan(tmp_path, kind="ablate", subject="x")).conclude([])
    with pytest.raises(UserError, match="was written by solo-hcsc ablate; give another folder"):
        check_beside(tmp_path, "compare", [variant("hcsc")])
    with pytest.raises(UserError, match=r"hcsc was run with other settings \(`method` hcsc, now `method` swav\)"):
        check_beside(tmp_path, "ablate", [Variant("hcsc", {"method": "swav"}, 2, "hcsc")])
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; give a folder"):
        check_beside(tmp_path / "file", "compare", [])
