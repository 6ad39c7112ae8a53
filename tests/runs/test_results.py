"""A result is a value: a table, rows for pandas, and a file that gives it back."""

from pathlib import Path

import pytest

from solo_hcsc.errors import UserError
from solo_hcsc.runs.results import Result, read_results


def example() -> Result:
    rows = [{"k": 5, "temperature": 0.005, "acc1": 50.0}, {"k": 20, "temperature": 0.07, "acc1": 75.125}]
    columns = {"k": "k", "temperature": "temperature", "acc1": "top-1 %"}
    settings = {"k": 20, "temperature": 0.07}
    return Result("knn", {"acc1": 75.125}, settings, {"name": "arrays", "classes": 3}, rows, columns, seconds=1.25)


def test_the_file_gives_the_result_back(tmp_path: Path) -> None:
    saved = example()
    loaded = Result.load(saved.save(tmp_path / "knn.json"))
    assert (loaded.metrics, loaded.settings, loaded.data) == (saved.metrics, saved.settings, saved.data)
    assert (loaded.table(), str(loaded), loaded.versions) == (saved.table(), str(saved), saved.versions)
    assert [one["dataset"] for one in read_results(tmp_path)] == ["arrays"]


def test_settings_are_shown_as_given_and_figures_with_their_digits() -> None:
    assert example().table().splitlines()[2:] == [" 5        0.005    50.00", "20         0.07    75.12"]


def test_draws_are_shown_by_mean_and_deviation_and_given_whole() -> None:
    draws = Result("fewlabels", {"picked": 2.0}, rows=[{"labels": 5, "linear": [1.0, 3.0], "knn": None}], digits=1)
    assert draws.table().splitlines()[2].split() == ["5", "2.0", "±", "1.0", "-"]
    assert draws.to_pandas().linear[0] == [1.0, 3.0]


def test_a_result_without_rows_shows_its_metrics() -> None:
    assert Result("linear", {"acc1": 10.0}).table().split() == ["acc1", "-----", "10.00"]
    assert Result("linear", {"acc1": 10.0}).to_pandas().acc1.tolist() == [10.0]


def test_another_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text("[1]")
    with pytest.raises(UserError, match=r"args\.json: not a result that an evaluation wrote"):
        Result.load(tmp_path / "args.json")
