"""A comparison's outcome in words: no more than its numbers say."""

from comparisons import comparison, row_of

from solo_hcsc.study import findings
from solo_hcsc.study.record import Comparison


def outcome(content):
    return [str(sentence) for sentence in findings.outcome(Comparison(**content))]


def test_clear_win_is_called_one():
    knn, linear, time = outcome(comparison())
    assert knn == (
        "hcsc has the best KNN accuracy, 45.20 %: ahead of swav (by 3.80 points) and mocov2plus (by 4.00 points) by "
        "more than the spread over seeds."
    )
    assert linear.startswith("It also has the best linear accuracy, 50.20 %: ahead of swav")
    assert time == "None gets more epochs in the same time than here, so it leads at equal time too."


def test_less_time_for_those_behind_is_told():
    content = comparison()
    content["rows"][1]["cost"]["epoch_seconds"], content["rows"][2]["cost"]["epoch_seconds"] = 55, 30  # hcsc: 60
    assert outcome(content)[2] == "In the time of its 4 epochs there are 8 of swav; --budget seconds adds those."
    longer = row_of("longer", [42.0, 42.2], 30.0, base="swav", epochs=8)
    found = outcome(content | {"budget": "seconds", "rows": [*content["rows"], longer]})
    assert found[2].startswith("None gets more epochs in the same time than here")
    longer = row_of("swav, 6 epochs", [42.0, 42.2], 30.0, base="swav", epochs=6)
    found = outcome(content | {"budget": "seconds", "rows": [*content["rows"], longer]})
    assert found[2] == "In the time of its 4 epochs there are 8 of swav."


def test_gap_within_the_spread_is_called_so():
    rows = {"hcsc": [45.0, 46.0], "mocov2plus": [44.5, 45.5], "swav": [30.0, 30.1]}
    assert outcome(comparison(rows))[0] == (
        "hcsc has the best KNN accuracy, 45.50 %: ahead of swav (by 15.45 points) by more than the spread over seeds; "
        "ahead of mocov2plus (by 0.50 points) only within the spread over seeds."
    )


def test_one_seed_has_no_spread_to_judge_by():
    assert outcome(comparison({"hcsc": [45.0], "mocov2plus": [40.0], "swav": [45.0]}))[0] == (
        "hcsc has the best KNN accuracy, 45.00 %: ahead of mocov2plus (by 5.00 points), with one seed and so no spread "
        "over seeds to judge that by; level with swav."
    )


def test_single_method_is_not_compared():
    found = outcome(comparison({"hcsc": [45.0]}))
    assert found[0] == "hcsc has a KNN accuracy of 45.00 %; there is none to compare it with."


def test_row_without_the_measure_is_not_counted():
    content = comparison()
    del content["rows"][2]["measures"]["linear"]
    assert " of the 2 methods that have one, 50.20 %" in outcome(content)[1]


def test_names_with_commas_are_quoted_and_an_ablation_says_nothing_of_time():
    found = outcome(comparison({"HP": [40.0, 40.2], "HP, IL": [42.0, 42.2], "all": [43.0, 43.2]}, kind="ablate"))
    assert "ahead of “HP, IL” (by 1.00 points) and HP (by 3.00 points) by more" in found[0]
    assert len(found) == 2
