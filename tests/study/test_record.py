"""comparison.json and analysis.json: written and read by one schema, and refused in one line where they break it."""

import json
from pathlib import Path

import pytest
from comparisons import change, comparison, write

from solo_hcsc.errors import UserError
from solo_hcsc.study import record
from solo_hcsc.study.findings import outcome
from solo_hcsc.study.record import Analysis, Comparison

PUBLISHED = sorted(Path(__file__, "../../../docs/results").resolve().glob("*.json"))


def test_what_is_written_is_read_back(tmp_path):
    content = comparison()
    found = record.read(write(tmp_path / "in", content))
    (tmp_path / "out").mkdir()
    assert found.save(tmp_path / "out") == tmp_path / "out" / "comparison.json"
    assert record.read(tmp_path / "out") == found
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == content


def test_comparison_is_a_table_of_its_rows_and_a_frame_of_its_runs():
    found = Comparison.model_validate(comparison())
    lines = found.table().splitlines()
    assert lines[0].split("  ")[0] == "method"
    assert [line.split()[0] for line in lines[2:]] == ["hcsc", "mocov2plus", "swav"]
    assert "45.20 ± 0.28" in lines[2]
    frame = found.to_pandas()
    assert len(frame) == 6
    assert frame.groupby("name")["knn"].mean()["hcsc"] == pytest.approx(45.2)
    assert frame.query("name == 'swav' and seed == 1")["epoch_seconds"].item() == 81.0


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_published_records_have_the_schema(file):
    content = json.loads(file.read_text())
    found = Comparison.model_validate(content["comparison"])
    assert [str(sentence) for sentence in outcome(found)] == content["outcome"]
    for analysis in content["analyses"].values():
        assert Analysis.model_validate(analysis).figures


FOREIGN = [
    *(("rows", None), ("rows", []), ("rows", [1]), ("title", 5), ("kind", "other"), ("budget", None)),
    *(("settings", []), ("failed", []), ("rows.0.name", None), ("rows.1.name", "hcsc"), ("rows.0.runs", {})),
    *(("rows.0.measures.knn", 5), ("rows.0.measures.knn.mean", "x"), ("rows.0.measures.knn.mean", float("nan"))),
    *(("rows.0.measures.knn.values", []), ("rows.0.cost", None), ("rows.0.cost.seconds", True)),
    *(("rows.0.cost.seconds", float("inf")), ("rows.0.base", None)),
    *(("rows.0.runs.0.seed", None), ("rows.0.runs.0.curves.val_acc1", 5), ("rows.0.runs.0.curves.val_acc1", [[1]])),
    *(("rows.0.runs.0.curves.val_acc1", [[0, "x"]]), ("rows.0.runs.0.curves.val_acc1", [[]])),
    *(("rows.0.flags", "--lr 1"), ("rows.0.runs.0.evaluations.knn", "solo-hcsc knn"), ("rows.0.unknown", 1)),
]


@pytest.mark.parametrize(("path", "value"), FOREIGN)
def test_file_that_no_comparison_wrote_is_named(path, value, tmp_path):
    write(tmp_path, change(comparison(), path, value))
    with pytest.raises(UserError) as refusal:
        record.read(tmp_path)
    line = str(refusal.value)
    assert line.startswith(f"{tmp_path / 'comparison.json'}: not what solo-hcsc compare writes (")
    assert "\n" not in line


def test_refusal_names_the_field(tmp_path):
    write(tmp_path, change(comparison(), "rows.0.measures.knn.mean", "x"))
    with pytest.raises(UserError, match=r"\(rows\.0\.measures\.knn\.mean: Input should be a valid number\)"):
        record.read(tmp_path)
    write(tmp_path, change(comparison(), "rows.1.name", "hcsc"))
    with pytest.raises(UserError, match=r"\(two rows have the same name\)"):
        record.read(tmp_path)


@pytest.mark.parametrize("content", ["{", "\x00", "[" * 100_000, f'{{"title": {10**400}}}'])
def test_corrupt_comparison_is_named(content, tmp_path):
    (tmp_path / "comparison.json").write_text(content)
    with pytest.raises(UserError, match="not readable as JSON"):
        record.read(tmp_path)


def test_comparison_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        record.read(tmp_path / "none")
    with pytest.raises(UserError, match=r"comparison\.json: there is no such file; run solo-hcsc compare first"):
        record.read(tmp_path)


def test_texts_are_on_one_line_and_curves_in_order_without_gaps(tmp_path):
    content = change(comparison(), "rows.0.name", "a\nb\ud800")
    points = [[3, 2.0], [2, None], [1, float("nan")], [0, 1]]
    write(tmp_path, change(content, "rows.0.runs.0.curves.val_acc1", points))
    row = record.read(tmp_path).rows[0]
    assert row.name == r"a\nb\ud800"
    assert row.runs[0].curves["val_acc1"] == [(0, 1.0), (3, 2.0)]


def analysis(**other):
    return {
        "method": "hcsc",
        "checkpoint": "run/x.ckpt",
        "checkpoint_sha256": "0123",
        "command": "solo-hcsc analyse",
        "flags": [],
        "versions": {},
        "seconds": 1.5,
        "data": {"name": "digits"},
        "settings": {"split": "train"},
        "numbers": {"mapped_images": 3},
        "figures": [{"file": "chain.svg", "title": "a", "caption": "b"}],
    } | other


def test_analysis_is_read_back_from_its_runs_folder(tmp_path):
    run = record.read(write(tmp_path, comparison())).rows[0].runs[0]
    assert record.read_analysis(tmp_path, run) is None
    where = record.analysis_folder(tmp_path, run)
    where.mkdir(parents=True)
    written = Analysis(**analysis())
    record.write_analysis(where, written)
    assert record.read_analysis(tmp_path, run) == written


@pytest.mark.parametrize(
    "other",
    [
        {"figures": [{"file": "../chain.svg", "title": "a", "caption": "b"}]},
        {"figures": [{"file": "chain.svg", "title": "a"}]},
        {"figures": None},
        {"numbers": []},
    ],
)
def test_file_that_no_analysis_wrote_is_named(other, tmp_path):
    run = record.read(write(tmp_path, comparison())).rows[0].runs[0]
    where = record.analysis_folder(tmp_path, run)
    where.mkdir(parents=True)
    (where / "analysis.json").write_text(json.dumps(analysis(**other)))
    with pytest.raises(UserError, match=r"analysis\.json: not what solo-hcsc analyse writes"):
        record.read_analysis(tmp_path, run)


def test_run_outside_of_the_comparisons_folder_is_refused(tmp_path):
    run = record.read(write(tmp_path, change(comparison(), "rows.0.runs.0.folder", "../x"))).rows[0].runs[0]
    with pytest.raises(UserError, match=r"the run \.\./x is outside of its folder"):
        record.read_analysis(tmp_path, run)
