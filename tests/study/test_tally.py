"""What finished runs come to."""

import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from solo_hcsc.study.tally import tally

ABOUT = {
    "title": "two",
    "kind": "compare",
    "budget": "seconds",
    "command": "solo-hcsc compare",
    "settings": {"dataset": "digits"},
    "reference": None,
}


def finished(name, seed, acc1, pace, epochs=2):
    """A run as study/runner.py has it."""
    result = {"command": "solo-hcsc knn", "flags": [], "settings": {}, "checkpoint_sha256": f"{name}{seed}"}
    result |= {"data": {"train_images": 70, "val_images": 30}, "warnings": ["collapsed"] * seed}
    clustering = {"metrics": {"ami": 0.5, "nmi": 0.6}, "settings": {"split": "val"}, "command": "solo-hcsc clustering"}
    return SimpleNamespace(
        name=name,
        base="hcsc",
        epochs=epochs,
        seed=seed,
        settings={"method": "hcsc"},
        folder=Path("out", name, f"seed-{seed}"),
        command=f"solo-hcsc pretrain --seed {seed}",
        results={"knn": {**result, "metrics": {"acc1": acc1}}, "clustering": {**result, **clustering}},
        curves={
            "val_acc1": [(0, 1.0), (1, 2.0)],
            "left_out_0": [(1, 0.1)],
            "rankme": [(1, 9.0)],
            "epoch_seconds": [(0, 3.0)],
        },
        cost={"epochs": epochs, "seconds": epochs * pace, "epoch_seconds": pace, "peak_memory": 1e9 + seed},
    )


def test_rows_have_mean_spread_and_the_fastest_seeds_cost():
    runs = [finished("hcsc", 0, 40.0, 9.0), finished("hcsc", 1, 42.0, 7.0), finished("hcsc, 3 epochs", 0, 43.0, 7.0, 3)]
    found = tally(Path("out"), runs, ["hcsc, 3 epochs", "hcsc"], ABOUT, {"swav, seed 0": "it failed"})
    longer, row = found.rows
    assert (longer.name, longer.base, longer.epochs) == ("hcsc, 3 epochs", "hcsc", 3)
    assert longer.measures["knn"].spread is None
    assert (row.name, row.base, row.epochs, row.settings) == ("hcsc", "hcsc", 2, {"method": "hcsc"})
    assert row.flags == ["--method", "hcsc"], "for a reader"
    assert row.measures["knn"].values == [40.0, 42.0]
    assert row.measures["knn"].mean == pytest.approx(41.0)
    assert row.measures["knn"].spread == pytest.approx(statistics.stdev([40.0, 42.0]))
    assert row.measures.keys() == {"knn", "ami", "nmi"}
    assert row.measures["knn"].images == 30
    assert row.warnings == ["collapsed"], "of one of its seeds"
    assert (row.cost.epoch_seconds, row.cost.seconds, row.cost.peak_memory) == (7.0, 14.0, 1e9 + 1)
    assert found.failed == {"swav, seed 0": "it failed"}
    assert found.machine["cores"] >= 1
    assert "python" in found.versions


def test_run_keeps_what_its_page_needs():
    run = tally(Path("out"), [finished("hcsc", 1, 40.0, 9.0)], ["hcsc"], ABOUT, {}).rows[0].runs[0]
    assert (run.seed, run.folder, run.checkpoint_sha256) == (1, "hcsc/seed-1", "hcsc1")
    assert run.curves.keys() == {"val_acc1", "left_out_0", "rankme"}
    assert {name: (one.command, one.split, one.images) for name, one in run.evaluations.items()} == {
        "knn": ("solo-hcsc knn", None, 30),
        "clustering": ("solo-hcsc clustering", "val", 30),
    }
    assert run.warnings == ["collapsed"]
