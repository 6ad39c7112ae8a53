"""A comparison's outcome in words: no more than its numbers say."""

import pytest
from comparisons import change, comparison, row_of
from scipy.stats import ttest_rel

from solo_hcsc.study import findings
from solo_hcsc.study.record import Comparison


def outcome(content):
    return [str(sentence) for sentence in findings.outcome(Comparison(**content))]


def test_clear_win_is_called_one():
    knn, linear, time = outcome(comparison())
    assert knn == (
        "hcsc has the best KNN accuracy, 45.20 %: ahead of swav (by 3.80 ± 1.27 points) and mocov2plus "
        "(by 4.00 ± 0.10 points) (95 % intervals over 2 seeds)."
    )
    assert linear.startswith("hcsc has the best linear accuracy, 50.20 %: ahead of swav")
    assert time == "No other method would do more epochs in that time, so this holds at equal time too."


def test_interval_over_seeds_is_that_of_a_paired_t_test():
    rows = {"hcsc": [45.0, 46.5, 44.1], "mocov2plus": [44.2, 44.9, 44.0]}
    best, other = Comparison(**comparison(rows)).rows
    interval = ttest_rel(rows["hcsc"], rows["mocov2plus"]).confidence_interval(0.95)
    found = findings.lead(best, other, "knn")
    assert found.gap + found.uncertainty == pytest.approx(interval.high)
    assert found.gap - found.uncertainty == pytest.approx(interval.low)
    assert not found.is_clear


def test_less_time_for_those_behind_is_told():
    content = comparison()
    content["rows"][1]["cost"]["epoch_seconds"], content["rows"][2]["cost"]["epoch_seconds"] = 55, 30  # hcsc: 60
    told = "In the time of hcsc's 4 epochs, swav would do 8 epochs"
    assert outcome(content)[2] == f"{told}; a budget in seconds adds such a row."
    longer = row_of("longer", [42.0, 42.2], 30.0, base="swav", epochs=8)
    found = outcome(content | {"budget": "seconds", "rows": [*content["rows"], longer]})
    assert found[2].startswith("No other method would do more epochs in that time")
    longer = row_of("swav, 6 epochs", [42.0, 42.2], 30.0, base="swav", epochs=6)
    found = outcome(content | {"budget": "seconds", "rows": [*content["rows"], longer]})
    assert found[2] == f"{told}."


def test_gap_within_its_uncertainty_is_no_lead():
    rows = {"hcsc": [45.0, 46.0], "mocov2plus": [45.2, 45.0], "swav": [30.0, 30.9]}
    found = outcome(comparison(rows))
    assert found[0] == (
        "No clear winner in KNN accuracy: hcsc has 45.50 %, which is not clearly more than "
        "mocov2plus (by 0.40 ± 7.62 points), but is more than swav (by 15.05 ± 0.64 points) "
        "(95 % intervals over 2 seeds)."
    )
    assert len(found) == 2, "nothing is said of equal time where nobody leads"


def test_three_of_147_images_are_no_lead():
    rows = {"hcsc": [60 / 147 * 100], "mocov2plus": [57 / 147 * 100]}
    content = comparison(rows)
    for row in content["rows"]:
        row["measures"]["knn"]["images"] = 147
    p, q = 60 / 147, 57 / 147
    half = 196 * ((p * (1 - p) + q * (1 - q)) / 147) ** 0.5
    assert outcome(content)[0] == (
        "No clear winner in KNN accuracy: hcsc has 40.82 %, which is not clearly more than "
        f"mocov2plus (by 2.04 ± {half:.2f} points) (95 % intervals for 147 images and one seed)."
    )
    assert findings.best_row(Comparison(**content), "knn") is None


def test_one_seed_of_many_images_can_lead():
    found = outcome(comparison({"hcsc": [45.0], "mocov2plus": [40.0]}))[0]
    assert found.startswith("hcsc has the best KNN accuracy, 45.00 %: ahead of mocov2plus (by 5.00")
    assert found.endswith("(95 % intervals for 1000 images and one seed).")


def test_without_the_number_of_images_one_seed_tells_nothing():
    content = comparison({"hcsc": [45.0], "mocov2plus": [20.0]})
    for row in content["rows"]:
        row["measures"]["knn"]["images"] = None
    assert outcome(content)[0].endswith("mocov2plus (by 25.00 points) (no interval available).")


def test_run_that_failed_is_named_before_its_figures():
    content = change(comparison(), "rows.0.runs.1.warnings", ["collapsed: one cluster holds 66% of the images"])
    assert outcome(content)[0] == (
        "hcsc: 1 of its 2 runs ended with a warning: collapsed: one cluster holds 66% of the images."
    )


def test_seeds_that_are_not_the_same_are_not_paired():
    content = comparison({"hcsc": [45.0, 46.0, 50.0], "mocov2plus": [44.0, 45.0]})
    best, other = Comparison(**content).rows
    assert findings.lead(best, other, "knn").gap == pytest.approx(1.0), "of the seeds that both have"
    for number, run in enumerate(content["rows"][1]["runs"]):
        run["seed"] = 7 + number
    found = findings.lead(*Comparison(**content).rows, "knn")
    assert (found.uncertainty, found.is_clear) == (None, False)


def test_single_method_is_not_compared():
    found = outcome(comparison({"hcsc": [45.0]}))
    assert found[0] == "hcsc has a KNN accuracy of 45.00 %; there is none to compare it with."


def test_row_without_the_measure_is_not_counted():
    content = comparison()
    del content["rows"][2]["measures"]["linear"]
    assert " of the 2 methods that have one, 50.20 %" in outcome(content)[1]


def test_names_with_commas_are_quoted_and_an_ablation_says_nothing_of_time():
    found = outcome(comparison({"HP": [40.0, 40.2], "HP, IL": [42.0, 42.2], "all": [43.0, 43.2]}, kind="ablate"))
    assert "ahead of “HP, IL” (by 1.00" in found[0]
    assert len(found) == 2


def pair(without, with_tree):
    content = comparison({"without the tree": without, "with the tree": with_tree}, kind="ablate")
    return content | {"reference": "without the tree"}


def test_pair_is_told_as_helped_harmed_or_unknown():
    content = pair([40.0, 41.0, 40.5], [42.0, 43.1, 42.4])
    for number, values in enumerate(([10.0, 11.0, 12.0], [9.0, 9.9, 11.1])):  # linear falls
        for run, value in zip(content["rows"][number]["runs"], values, strict=True):
            run["measures"]["linear"] = value
    for number, values in enumerate(([0.1, 0.2, 0.3], [0.2, 0.1, 0.3])):
        for run, value in zip(content["rows"][number]["runs"], values, strict=True):
            run["measures"]["ami"] = value
    found = {effect.measure: effect for effect in findings.effects(Comparison(**content))}
    assert [found[name].verdict for name in ("knn", "linear", "ami")] == ["helped", "harmed", "no clear difference"]
    interval = ttest_rel([42.0, 43.1, 42.4], [40.0, 41.0, 40.5]).confidence_interval(0.95)
    assert found["knn"].interval == f"+2.00 [{interval.low:+.2f}, {interval.high:+.2f}]"
    (told,) = outcome(content)
    assert told.startswith("“with the tree”, against “without the tree”: helped KNN accuracy (+2.00 [")
    assert "; harmed linear accuracy (-1.00 [" in told
    assert "; no clear difference in AMI (+0.000 [" in told
    assert told.endswith("differences with their 95 % intervals, over 3 seeds.")


def test_rows_without_a_reference_have_no_effects():
    assert findings.effects(Comparison(**comparison())) == []
    assert findings.effects(Comparison(**comparison(kind="ablate"))) == []


def test_one_image_is_the_least_uncertainty_of_an_accuracy_and_of_nothing_else():
    ours, theirs = Comparison(**pair([40.0, 41.0], [41.0, 42.0])).rows
    assert findings.lead(ours, theirs, "knn").uncertainty == pytest.approx(100 / 1000)
    assert findings.lead(ours, theirs, "ami").uncertainty == pytest.approx(0.0, abs=1e-9)
