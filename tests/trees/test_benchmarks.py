"""The benchmarks of trees and duplicates run, at sizes that measure nothing; their measures are right."""

import json
import sys
from unittest import mock

import numpy as np
import pytest

from benchmarks import duplicates, leaks, mislabelled, trees


def test_every_way_to_build_a_tree_is_judged():
    rows = trees.compared("mixture", *trees.mixture(400), seed=0)
    assert [row["way"] for row in rows] == list(trees.WAYS)
    for row in rows[:-1]:  # HDBSCAN finds as many as it finds
        assert row["clusters"] == list(row["levels"]) == [18, 7, 1]
        assert 0 < row["hungarian"][0] <= 1
        assert 0 < row["purity"] <= row["purity_of_all_merges"] <= 1


def test_cost_has_time_memory_and_agreement():
    cost = trees.cost_of("exact", 300, threads=1)
    assert cost["cpu_seconds"] > 0
    assert cost["peak_gb"] > 0.05
    assert len(cost["ami"]) == 2


def test_dendrogram_purity_of_a_known_tree():
    labels = np.array([0, 0, 1, 1])
    right = np.array([4, 4, 5, 5, 6, 6, 6])
    wrong = np.array([4, 5, 4, 5, 6, 6, 6])
    assert trees.dendrogram_purity(right, labels, seed=0) == 1
    assert trees.dendrogram_purity(wrong, labels, seed=0) == 0.5


def test_hungarian_accuracy_matches_one_to_one():
    assert trees.hungarian(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0])) == 1
    assert trees.hungarian(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 2])) == 0.75


def test_duplicates(tmp_path, capsys):
    with mock.patch.object(sys, "argv", ["duplicates", "--small", "--repeats", "1", "--out", str(tmp_path)]):
        duplicates.main()
    rows = {row["way"]: row for row in json.loads((tmp_path / "duplicates.json").read_text())["rows"]}
    assert rows["solo_hcsc, hash"]["precision"] == 1
    assert rows["solo_hcsc, hash"]["recall"] >= 4 / 6
    assert rows["solo_hcsc, hash"]["recall_of"]["same file"] == pytest.approx(1)
    assert "crop of 90 % a side" in capsys.readouterr().out


def test_mislabelled(tmp_path, capsys):
    flags = ["--small", "--repeats", "2", "--rates", "0.05", "--out", str(tmp_path)]
    with mock.patch.object(sys, "argv", ["mislabelled", *flags]):
        mislabelled.main()
    rows = json.loads((tmp_path / "mislabelled.json").read_text())["rows"]
    own = [row for row in rows if row["way"] == "solo_hcsc"]
    assert [row["wrong"] for row in own] == [15, 15]
    assert all(row["average_precision"] > 0.95 and row["recall"] > 0.8 for row in own)
    assert "votes of 20 neighbours" in capsys.readouterr().out


def test_interval_of_equal_draws_is_their_value():
    assert mislabelled.interval(np.array([0.5, 0.5])) == (0.5, 0.5)


def test_leaks(tmp_path, capsys):
    with mock.patch.object(sys, "argv", ["leaks", "--small", "--repeats", "1", "--out", str(tmp_path)]):
        leaks.main()
    (row,) = json.loads((tmp_path / "leaks.json").read_text())["rows"]
    assert (row["images"], row["planted"], row["others"]) == (18, 6, 0)
    assert row["recall"] >= 4 / 6
    assert row["recall_of"]["same file"] == 1
    assert "other leaks" in capsys.readouterr().out
