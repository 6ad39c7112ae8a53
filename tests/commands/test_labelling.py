"""`solo-hcsc pick`, `spread` and `fewlabels`: from a run to labels of all images, and what they refuse."""

import csv
import json
from pathlib import Path

import pandas
import pytest
from tiny import make_images, run_here

from solo_hcsc import pack

SMALL = ["--accelerator", "cpu", "--num_workers", 0, "--batch_size", 8]


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def write(file: Path, content: list[tuple[str, str]]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines).writerows([("path", "label"), *content])
    return file


@pytest.fixture(scope="module")
def picked(hcsc_run, tmp_path_factory):
    """A list of six images to label, and the same with labels."""
    file = tmp_path_factory.mktemp("pick") / "new" / "labels.csv"
    run_here("pick", hcsc_run, "--budget", 6, "--out", file, *SMALL)
    labels = [(row["path"], row["path"].split("/")[0]) for row in rows(file)]
    return file, write(file.with_name("filled.csv"), labels)


def test_picks_have_ranks_and_reasons_and_go_on_from_labels(hcsc_run, picked, tmp_path, capsys):
    listed, filled = picked
    assert [row["rank"] for row in rows(listed)] == ["1", "2", "3", "4", "5", "6"]
    assert all("most typical of " in row["reason"] and row["label"] == "" for row in rows(listed))
    more = tmp_path / "more.csv"
    run_here("pick", hcsc_run, "--budget", 5, "--already", filled, "--way", "farthest", "--out", more, *SMALL)
    assert len({row["path"] for row in rows(listed) + rows(more)}) == 11
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        f"fill in its column label, then: solo-hcsc spread {hcsc_run} --accelerator cpu --batch_size 8 --num_workers 0 "
        f"--labels {filled} {more} --out labels"
    )


def test_labels_spread_to_all_images_or_to_the_surest(hcsc_run, picked, tmp_path, capsys):
    _, filled = picked
    run_here("spread", hcsc_run, "--labels", filled, "--out", tmp_path / "all", *SMALL)
    out = capsys.readouterr().out
    found = pandas.read_parquet(tmp_path / "all" / "labels.parquet")
    assert found.columns.tolist() == ["path", "label", "confidence", "given"]
    assert len(found) == 36
    given = found[found.given]
    assert sorted(zip(given.path, given.label, strict=True)) == sorted((r["path"], r["label"]) for r in rows(filled))
    assert (given.confidence == 1).all()
    assert [row["label"] for row in rows(tmp_path / "all" / "labels.csv")] == found.label.tolist()
    assert "6 labels spread to 36 of 36 images" in out
    assert "accuracy in % on the other 30 images" in out
    assert out.splitlines()[-1].startswith(f"to label more images where it helps most: solo-hcsc pick {hcsc_run} ")

    run_here("spread", hcsc_run, "--labels", filled, "--abstain", 0.5, "--out", tmp_path / "half", *SMALL)
    half = pandas.read_parquet(tmp_path / "half" / "labels.parquet")
    assert half.label.isna().sum() == 15
    assert half[half.label.isna()].confidence.max() <= half[half.label.notna()].confidence.min()
    assert sum(row["label"] == "" for row in rows(tmp_path / "half" / "labels.csv")) == 15


def test_a_tool_is_handed_what_is_picked_and_spread_and_gives_labels_back(hcsc_run, tmp_path, capsys):
    tasks, done = tmp_path / "tasks.json", tmp_path / "done.json"
    run_here("pick", hcsc_run, "--budget", 6, "--format", "label-studio", "--out", tasks, *SMALL)
    assert "label them, then: solo-hcsc spread" in capsys.readouterr().out
    given = json.loads(tasks.read_text())
    assert len(given) == 6
    assert given[0]["data"]["image"].startswith("/data/local-files/?d=train/class%20")
    for task in given:
        value = {"choices": [task["data"]["path"].split("/")[0]]}
        task["annotations"] = [{"result": [{"from_name": "label", "type": "choices", "value": value}]}]
    done.write_text(json.dumps(given))
    run_here("spread", hcsc_run, "--labels", done, "--format", "folders", "--out", tmp_path / "all", *SMALL)
    links = [link for link in (tmp_path / "all").rglob("*") if link.is_symlink()]
    assert len(links) == 36
    assert all(link.is_file() for link in links)
    assert "6 labels spread to 36 of 36 images" in capsys.readouterr().out
    more = ["--already", done, "--budget", 1, "--way", "farthest", "--out", tmp_path / "more.csv"]
    run_here("pick", hcsc_run, *more, *SMALL)
    assert rows(tmp_path / "more.csv")[0]["path"] not in [task["data"]["path"] for task in given]


def test_any_folder_without_classes_will_do(hcsc_run, tmp_path, capsys):
    folder = make_images(tmp_path / "photos", classes=1, per_class=12) / "class 0"
    run_here("pick", hcsc_run, "--data_dir", folder, "--budget", 4, "--out", tmp_path / "a.csv", *SMALL)
    assert capsys.readouterr().out.count("without labels: ") == 1  # the folder is looked at once
    paths = [row["path"] for row in rows(tmp_path / "a.csv")]
    labels = write(tmp_path / "b.csv", [(path, "ab"[rank % 2]) for rank, path in enumerate(paths)])
    run_here("spread", hcsc_run, "--data_dir", folder, "--labels", labels, "--out", tmp_path / "out", *SMALL)
    assert {*pandas.read_parquet(tmp_path / "out" / "labels.parquet").label} == {"a", "b"}
    assert "accuracy" not in capsys.readouterr().out


def test_few_labels_are_measured(hcsc_run, tmp_path, capsys):
    run_here("fewlabels", hcsc_run, "--budgets", 6, 3, "--draws", 2, "--out", tmp_path, *SMALL)
    record = json.loads((tmp_path / "fewlabels.json").read_text())
    assert [score["budget"] for score in record["settings"]["scores"]] == [3] * 9 + [6] * 9
    assert (record["settings"]["draws"], record["data"]["train_images"], record["data"]["val_images"]) == (2, 36, 9)
    assert (record["data"]["train_dir"], record["data"]["val_dir"]) == ("train", "val")
    assert (tmp_path / "fewlabels.svg").read_text().startswith("<?xml")
    out = capsys.readouterr().out
    first = record["settings"]["scores"][0]["accuracies"]
    assert f"{sum(first) / 2:.1f} ± {abs(first[0] - first[1]) / 2:.1f}" in out
    assert "--budget 6 --out labels.csv" in out.splitlines()[-1]


# ---- bad input ----

PATHS = ("class 0/0.png", "class 1/0.png")
FILES = {
    "unknown": [("class 7/0.png", "x")],
    "unfilled": [(path, " ") for path in PATHS],
    "one": [(path, "cat") for path in PATHS],
    "two": [(PATHS[0], "cat"), (PATHS[1], "dog")],
    "twice": [(PATHS[0], "cat"), (PATHS[0], "dog")],
}
REFUSED = {
    "unknown image": ("spread", ["--labels", "unknown"], "class 7/0.png is none of the 36 images"),
    "no label": ("spread", ["--labels", "unfilled"], "no label is filled in; give at least two images their classes"),
    "one class": ("spread", ["--labels", "one"], "all 2 labels are 'cat'; give at least two classes"),
    "two classes of one": ("spread", ["--labels", "twice"], "class 0/0.png is 'cat' and 'dog'; keep one"),
    "no file": ("spread", ["--labels", "nowhere"], "--labels nowhere: cannot be read (No such file"),
    "no text": ("spread", ["--labels", "binary"], "--labels binary: cannot be read (not a CSV file)"),
    "no columns": (
        "spread",
        ["--labels", "columns"],
        "no column label; it takes a CSV with columns path and label,",
    ),
    "no JSON": ("spread", ["--labels", "text.json"], "--labels text.json: not readable as JSON; export it again"),
    "over itself": ("spread", ["--labels", "two.json", "--format", "coco", "--out", "two.json"], "would overwrite"),
    "no format": ("spread", ["--labels", "two", "--format", "voc"], "invalid choice: 'voc'"),
    "ending": ("spread", ["--labels", "two", "--format", "cvat"], "--out new: --format cvat is a file such as new.xml"),
    "not ours": ("pick", ["--budget", 1, "--format", "folders", "--out", "."], "has other files in it; give a new or"),
    "share": ("spread", ["--labels", "one", "--abstain", 2], "--abstain 2: must be between 0 and 1"),
    "unwritable": ("spread", ["--labels", "two", "--out", "/proc/nowhere"], "/proc/nowhere: cannot be written"),
    "large budget": ("pick", ["--budget", 37], "--budget 37: there are only 36 images to choose from"),
    "labelled already": ("pick", ["--budget", 35, "--already", "one"], "there are only 34 images to choose from"),
    "unknown already": ("pick", ["--budget", 1, "--already", "unknown"], "--already unknown: class 7/0.png is none"),
    "no budget": ("pick", ["--budget", 0], "--budget 0: must be at least 1"),
    "folder": ("pick", ["--budget", 1, "--out", "."], "is a folder; give a file in it, such as labels.csv"),
    "over labels": ("pick", ["--budget", 1, "--out", "one"], "--out one: has labels in it; give another name"),
    "unwritable file": ("pick", ["--budget", 1, "--out", "/proc/x/y.csv"], "--out /proc/x: cannot be written"),
    "few images": ("fewlabels", ["--budgets", 29], "--budgets 29: a draw chooses from 28 of 36 images"),
    "one folder": ("fewlabels", ["--data_dir", "FOLDER"], "needs --val_dir here"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(case, hcsc_run, images, tmp_path, refused):
    command, flags, said = REFUSED[case]
    for name, content in FILES.items():
        write(tmp_path / name, content)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00path")
    (tmp_path / "columns").write_text("path\nx\n")
    (tmp_path / "text.json").write_text("path,label")
    flags = [images / "train" if flag == "FOLDER" else flag for flag in flags]
    assert said in refused(command, hcsc_run, "--out", "new", *SMALL, *flags)


def test_images_of_shards_are_no_files_to_link_to(untrained, images, tmp_path, refused):
    pack(images / "train", tmp_path / "shards")
    flags = ["--data_dir", tmp_path / "shards", "--budget", 3, "--crop_size", 32, "--out", tmp_path / "a", *SMALL]
    assert "--format folders: these images are no files" in refused("pick", untrained, "--format", "folders", *flags)


def test_tree_is_the_runs_own_unless_it_has_none(hcsc_run, untrained, images, tmp_path, refused, capfd):
    flags = ["--data_dir", images / "train", "--budget", 3, "--crop_size", 32, "--out", tmp_path / "a.csv", *SMALL]
    assert "carries no tree: only runs of hcsc do; leave it out" in refused("pick", untrained, "--tree", "run", *flags)
    for run, tree, said in (
        (hcsc_run, "auto", "the run's own tree"),
        (hcsc_run, "features", "a tree built from the features"),
        (untrained, "auto", "a tree built from the features"),
    ):
        run_here("pick", run, "--tree", tree, *flags)
        assert f"picking from {said}\n" in capfd.readouterr().out


def test_formulas_in_names_and_labels_are_none_in_a_spreadsheet_and_come_back_as_they_were(untrained, tmp_path):
    names = ("=cmd|' !A0", "-x", "+x", "@x", "'=x", "'tis")
    make_images(tmp_path / "images", classes=len(names), per_class=3)
    for number, name in enumerate(names):
        (tmp_path / "images" / f"class {number}").rename(tmp_path / "images" / name)
    flags = [untrained, "--data_dir", tmp_path / "images", "--crop_size", 32, *SMALL]
    run_here("pick", *flags, "--budget", 18, "--out", tmp_path / "picked.csv")
    picked = [row["path"] for row in rows(tmp_path / "picked.csv")]
    assert len(picked) == 18
    assert not any(path[0] in "=+-@" for path in picked)
    # As a user fills it in: whole cells are copied, and one class is typed without an apostrophe.
    filled = [(path, path.split("/")[0] if "cmd" not in path else "=typed") for path in picked]
    run_here("spread", *flags, "--labels", write(tmp_path / "filled.csv", filled), "--out", tmp_path / "one")
    run_here("spread", *flags, "--labels", tmp_path / "one" / "labels.csv", "--out", tmp_path / "two")
    for folder in ("one", "two"):
        assert not any(cell[0] in "=+-@" for row in rows(tmp_path / folder / "labels.csv") for cell in row.values())
        found = pandas.read_parquet(tmp_path / folder / "labels.parquet")
        truth = {f"{name}/{number}.png": name for name in names for number in range(3)}
        truth |= {f"{names[0]}/{number}.png": "=typed" for number in range(3)}
        assert dict(zip(found.path, found.label, strict=True)) == truth
