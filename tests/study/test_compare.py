"""Comparisons and ablations: what is run, what is not repeated, and what the figures are."""

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest
from tiny import SMALL, call_here, make_images, only, run_here

import solo_hcsc
from solo_hcsc.cli.commands import compare
from solo_hcsc.cli.commands._studies import pretraining, values
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.hcsc.options import options_in
from solo_hcsc.study import runner, tables
from solo_hcsc.study.asked import rows_of
from solo_hcsc.study.job import Job
from solo_hcsc.study.runner import RunFailed, Variant, finished_runs, taking

OF_HCSC = "--num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1"
BOTH = ["--methods", "hcsc", "mocov2plus", "--hcsc", OF_HCSC, "--mocov2plus", "--queue_size 16"]
ONE = ["--methods", "hcsc", "--hcsc", OF_HCSC]
LINEAR = "--max_epochs 1 --batch_size 8 --cache_features --lr 0.1"


@pytest.fixture
def called(monkeypatch):
    """Runs the jobs of a comparison in this process, which spares their imports; lists what was called."""
    calls: list[str] = []

    def here(job, folder, lock, stop=None):
        calls.append(f"{job.function} {folder.parent.name} {folder.name}")
        with (folder / "log.txt").open("a") as out, redirect_stdout(out), redirect_stderr(out):
            try:
                call_here(job)
            except UserError as error:
                raise RunFailed(f"{job.function} ended with code 2: {error}") from error
        return 1.0

    monkeypatch.setattr(runner, "call", here)
    return calls


def settings_of(method, command):
    """The settings of a method's row, as its record has them."""
    flags, methods = compare.parse(command)
    return rows_of({method: values(pretraining(method, methods[method], flags.test_dir), "method")}, {})[method]


@pytest.fixture
def flags(custom, tmp_path):
    """Two methods on the tiny data set."""
    return [
        *("--out", tmp_path / "out", "--linear", LINEAR, "--analyse", "--points 20", "--max_epochs", 2, "--knn_eval"),
        *(*custom, *SMALL, "--checkpoint_frequency", 100),
    ]


def test_few_labels_are_compared_on_request(flags, called, tmp_path, capsys):
    asked = ["--evaluations", "knn", "fewlabels", "--fewlabels", "--budgets 3 6 --draws 2"]
    run_here("compare", *BOTH, *asked, *flags)
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())["rows"]
    few = {row["name"]: row["measures"]["picked"]["mean"] for row in rows}
    assert few.keys() == {"hcsc", "mocov2plus"}
    written = json.loads(only(tmp_path / "out" / "hcsc", "fewlabels.json").read_text())
    assert few["hcsc"] == pytest.approx(written["metrics"]["picked"])
    linear = [one["accuracies"] for one in written["settings"]["scores"] if one["classifier"] == "linear"]
    assert written["metrics"]["random"] == pytest.approx(statistics.fmean([*linear[1], *linear[4]]))
    assert "Few labels, picked % (9 images)" in capsys.readouterr().out
    assert "Few labels, picked" in (tmp_path / "out" / "report.html").read_text()
    called.clear()
    run_here("compare", *BOTH, *asked, *flags)
    assert called == [], "nothing is repeated"


def test_methods_stand_side_by_side_and_nothing_is_repeated(flags, called, tmp_path, capsys):
    run_here("compare", *ONE, "--seeds", 0, 1, *flags)
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    steps = ("pretrain", "knn", "linear", "clustering")
    assert called == [
        *(f"{step} hcsc seed-0" for step in (*steps, "analyse")),
        *(f"{step} hcsc seed-1" for step in steps),
    ]

    called.clear()
    run_here("compare", *ONE, "--seeds", 0, 1, *flags)
    assert called == []
    for file in (tmp_path / "out").rglob("knn-*.json"):
        file.unlink()
    capsys.readouterr()
    run_here("compare", *ONE, "--seeds", 0, 1, *flags)
    assert called == ["knn hcsc seed-0", "knn hcsc seed-1"]
    assert " left" not in capsys.readouterr().out, "an evaluation does not tell how long a whole run takes"

    called.clear()
    run_here("compare", "--methods", "simclr", *flags, "--evaluations", "knn")
    assert called == ["pretrain simclr seed-0", "knn simclr seed-0"]
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["hcsc", "simclr"]
    assert found["title"].startswith("hcsc, simclr on ")
    row = found["rows"][0]
    results = [json.loads(file.read_text()) for file in (tmp_path / "out" / "hcsc").rglob("knn-*.json")]
    values = sorted(result["metrics"]["acc1"] for result in results)
    assert sorted(row["measures"]["knn"]["values"]) == values
    assert row["measures"]["knn"]["mean"] == pytest.approx(statistics.mean(values))
    assert row["measures"]["knn"]["spread"] == pytest.approx(statistics.stdev(values))
    assert row["measures"].keys() == {"knn", "linear", "ami", "nmi"}
    assert row["cost"]["epochs"] == 2
    assert row["cost"]["peak_memory"] > 1e8
    assert [epoch for epoch, _ in row["runs"][0]["curves"]["val_knn_acc1"]] == [0, 1]


def test_library_takes_and_returns_values_and_prints_nothing(images, called, tmp_path, capsys):
    small = {"crop_size": 32, "batch_size": 8, "num_workers": 0, "accelerator": "cpu", "max_epochs": 1}
    data = {"data_dir": images, "train_dir": "train", "val_dir": "val", "dataset": "custom"}
    methods = {"mocov2plus": {"queue_size": 16}, "simclr": {"lr": 0.1}}
    asked = {"seeds": [0], "out": tmp_path, "evaluations": {"knn": {"k": [3, 5]}, "clustering": None}}
    found = solo_hcsc.compare(methods, **data, **small, **asked)
    assert capsys.readouterr() == ("", "")
    assert [row.name for row in found.rows] == ["mocov2plus", "simclr"]
    assert found.rows[1].settings["lr"] == 0.1
    assert found.to_pandas()["knn"].tolist() == [row.measures["knn"].mean for row in found.rows]
    made = json.loads(only(tmp_path / "simclr", "knn-*.json").read_text())
    assert [one["k"] for one in made["settings"]["all"]] == [3, 5]
    called.clear()
    methods["simclr"] = {**small, "lr": 0.1}  # the same values in another order
    assert solo_hcsc.compare(methods, **data, **small, **asked).rows == found.rows
    assert called == []
    with pytest.raises(ArgumentError, match="`evaluations` knm: unknown"):
        solo_hcsc.compare(methods, **data, **small, **{**asked, "evaluations": ["knm"]})
    with pytest.raises(ArgumentError, match="`seed`: is set for each run"):
        solo_hcsc.compare(methods, "photos", seed=3)
    with pytest.raises(ArgumentError, match="`table` trees: unknown"):
        solo_hcsc.ablate("trees", "photos")


def test_test_images_are_for_the_evaluations_alone(flags, called, tmp_path):
    run_here("compare", *ONE, *flags, "--test_dir", "train", "--evaluations", "knn", "clustering")
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (found["settings"]["val_dir"], found["settings"]["test_dir"]) == ("val", "train")
    (run,) = found["rows"][0]["runs"]
    assert "--val_dir val" in run["command"]
    assert run["evaluations"].keys() == {"knn", "clustering"}
    for evaluation in run["evaluations"].values():
        assert "--val_dir train" in evaluation["command"]


def test_evaluations_with_other_flags_are_repeated_and_never_mixed(flags, called, tmp_path, refused):
    flags += ["--evaluations", "knn", "linear"]
    run_here("compare", *ONE, *flags)
    called.clear()
    run_here("compare", *ONE, *flags, "--knn", "--k 3", "--test_dir", "train")
    assert called == ["knn hcsc seed-0", "linear hcsc seed-0"]
    (run,) = json.loads((tmp_path / "out" / "comparison.json").read_text())["rows"][0]["runs"]
    assert run["evaluations"].keys() == {"knn", "linear"}
    assert all("--val_dir train" in evaluation["command"] for evaluation in run["evaluations"].values())
    called.clear()
    run_here("compare", *ONE, *flags, "--knn", "--k 3", "--test_dir", "train")
    assert called == []
    line = refused("compare", "--methods", "simclr", *flags, "--knn", "--k 5", "--test_dir", "train")
    assert "knn of hcsc, seed 0 was run with other settings (--k 3, now --k 5); name that run too" in line
    assert "knn of hcsc, seed 0" in refused("compare", *ONE, "--seeds", 1, *flags)


def test_moved_folder_is_not_evaluated_again(flags, called, tmp_path):
    flags += ["--evaluations", "knn", "linear"]
    run_here("compare", *ONE, *flags)
    before = json.loads((tmp_path / "out" / "comparison.json").read_text())
    (tmp_path / "out").rename(tmp_path / "moved")
    called.clear()
    run_here("compare", *ONE, *flags, "--out", tmp_path / "moved")
    assert called == []
    after = json.loads((tmp_path / "moved" / "comparison.json").read_text())
    assert after["rows"] == before["rows"]


def test_failed_run_is_said_and_the_others_are_kept(flags, called, tmp_path, capsys):
    both = [*BOTH[:-1], f"{BOTH[-1]} --lr 1e30"]
    with pytest.raises(SystemExit) as ended:
        run_here("compare", *both, *flags, "--evaluations", "knn")
    assert ended.value.code == 2
    assert "1 runs failed" in capsys.readouterr().err
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["hcsc"]
    assert list(found["failed"]) == ["mocov2plus, seed 0"]
    assert found["title"].startswith("hcsc on ")


def test_at_equal_time_the_faster_method_gets_more_epochs(flags, called, tmp_path, monkeypatch):
    def cost(run):
        return {
            "epochs": 2,
            "seconds": 2.0,
            "epoch_seconds": 10.0 if run.name == "mocov2plus" else (8.0, 6.0, 20.0)[run.seed],
            "peak_memory": 1,
        }

    monkeypatch.setattr(runner.Finished, "cost", property(cost))
    command = [*map(str, (*BOTH, *flags)), "--evaluations", "knn", "--budget", "seconds"]
    hcsc = {"name": "hcsc", "base": "hcsc", "epochs": 2, "settings": settings_of("hcsc", command)}
    for seed in (1, 2):  # pretrained before; disturbances only add
        folder = tmp_path / "out" / "hcsc" / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(hcsc | {"seed": seed}))
    run_here("compare", *command)
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["hcsc", "mocov2plus", "hcsc, 3 epochs"]  # 2 * 10 / 6
    assert found["rows"][-1]["settings"]["max_epochs"] == 3
    assert [(row["base"], row["epochs"]) for row in found["rows"]] == [("hcsc", 2), ("mocov2plus", 2), ("hcsc", 3)]
    assert len(found["rows"][-1]["runs"][0]["curves"]["val_knn_acc1"]) == 3
    assert found["budget"] == "seconds"
    called.clear()
    monkeypatch.setattr(runner.Finished, "cost", property(lambda run: {**cost(run), "epoch_seconds": 5.0}))
    run_here("compare", *command)
    assert called == [], "epochs that were begun stay, whatever other seeds' times are"
    run_here("compare", *(word for word in command if word not in ("--budget", "seconds")))
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["hcsc", "mocov2plus", "hcsc, 3 epochs"]
    assert (found["title"].split(" on ")[0], found["budget"]) == ("hcsc, mocov2plus", "seconds")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--methods simclr moco", "--methods moco: unknown; choose from"),
        ("--methods simclr --swav x", "--swav: is not among --methods simclr"),
        ("--methods simclr simclr", "--methods simclr simclr: names a method twice"),
        ("--methods simclr --linear '--batch_size 64'", "--linear: --batch_size 64: there are only 36 training images"),
        ("--methods simclr --knn '--k 100'", "--knn: --k 100: there are only 36 training images; lower it"),
        ("--methods simclr --clustering '--k 40'", "--clustering: --k 40: there are only 36 training images"),
        (
            "--methods simclr --evaluations fewlabels --fewlabels '--budgets 36'",
            "--fewlabels: --budgets 36: there are only 36 training images, and a draw takes 28",
        ),
        ("--methods simclr mocov2plus --mocov2plus '--queue_size 20'", "mocov2plus: --queue_size 20: mocov2plus wants"),
        (
            "--methods simclr deepclusterv2 --deepclusterv2 '--num_prototypes 99'",
            "deepclusterv2: --num_prototypes 99: more than the training images",
        ),
        ("--methods hcsc --hcsc '--num_prototypes 9 3'", "hcsc: --num_prototypes 9: needs 90 images"),
        ("--methods simclr --batch_size 64", "simclr: --train_dir: 36 images do not fill one batch"),
        (
            "--methods simclr swav --swav '--min_scale 0.5'",
            "--min_scale is 0.5 for swav and 0.08 for simclr; a",
        ),
        ("--methods simclr swav --swav '--precision bf16'", "--precision is bf16 for swav and 32 for simclr"),
        ("--methods simclr --seeds 1 1", "--seeds 1 1: names a seed twice"),
        ("--methods simclr --seeds -1", "--seeds -1: must not be negative"),
        ("--methods simclr --simclr '--method swav'", "--method: is set for each run; leave it out"),
        ("--methods simclr --simclr '--lr=1 --seed=3'", "--seed: is set for each run"),
        ('--methods simclr --simclr "--lr \'1"', "--simclr --lr '1: cannot be read as flags (No closing quotation)"),
        ("--methods simclr --linear '--bogus 3'", "--linear: unknown flag or stray value --bogus"),
        ("--methods simclr --knn '--k 0'", "--knn: --k 0: must be at least 1"),
        ("--methods simclr --seed 3", "--seed: is set for each run"),
        (
            "--methods simclr --batch-size 3",
            "simclr: unknown flag or stray value --batch-size: did you mean --batch_size?",
        ),
        ("--methods simclr --num_prototypes 4 2", "simclr: unknown setting --num_prototypes"),
        ("--methods simclr --simclr '--train_dir nowhere'", "simclr: --train_dir"),
        ("--methods simclr --test_dir nowhere", "--test_dir: "),
        ("--methods simclr --dataset cifar10 --test_dir val", "--test_dir val: is for --dataset custom, shards and hf"),
        ("--methods simclr --no_labels", "--knn_eval needs labels, and --no_labels says there are none"),
    ],
)
def test_unfair_or_impossible_comparisons_are_refused(more, said, flags, refused):
    assert said in refused("compare", *flags, *shlex.split(more))


def test_settings_that_nobody_gave_suit_few_images(custom, called, tmp_path):
    small = "--crop_size 32 --num_workers 0 --accelerator cpu --max_epochs 1 --knn_eval --evaluations linear fewlabels"
    small += " --fewlabels=--draws=1"
    run_here("compare", "--methods", "mocov2plus", *custom, *small.split(), "--out", tmp_path)
    assert called == [f"{step} mocov2plus seed-0" for step in ("pretrain", "linear", "fewlabels")]
    log = (tmp_path / "mocov2plus" / "seed-0" / "log.txt").read_text()
    assert "4 batches of 9 per epoch" in log, "a quarter of the 36 images"
    assert "--queue_size 36: whole batches" in log
    assert "val_knn_acc1 is an online figure" in log
    linear = json.loads(only(tmp_path, "linear.json").read_text())
    assert linear["settings"]["batch_size"] == 9
    few = json.loads(only(tmp_path, "fewlabels.json").read_text())
    assert few["settings"]["budgets"] == [10, 20]


def test_other_flags_under_a_name_of_the_folder_are_refused(flags, tmp_path, refused):
    folder = tmp_path / "out" / "hcsc" / "seed-0"
    folder.mkdir(parents=True)
    settings = settings_of("hcsc", [*map(str, (*ONE, *flags))])
    record = {"name": "hcsc", "base": "hcsc", "epochs": 2, "seed": 0, "settings": settings | {"lr": 0.5}}
    (folder / "run.json").write_text(json.dumps(record))
    assert "hcsc was run with other settings (--lr 0.5, now --lr 0.03)" in refused("compare", *ONE, *flags)
    (folder / "run.json").write_text(json.dumps(record | {"settings": settings}))
    with pytest.raises(UserError, match=r"seed-0: its metrics.csv has no epoch_seconds and no memory_mb"):
        _ = finished_runs(tmp_path / "out")[0].cost
    (folder / "run.json").write_text("{}")
    assert "run.json: not a run's record" in refused("compare", *ONE, *flags)


def test_comparison_of_which_another_process_has_all_says_so(flags, called, tmp_path, capsys):
    (tmp_path / "out" / "hcsc" / "seed-0").mkdir(parents=True)
    with taking(tmp_path / "out" / "hcsc" / "seed-0"), pytest.raises(SystemExit):
        run_here("compare", *ONE, *flags, "--evaluations", "knn")
    assert capsys.readouterr().err == "error: no run was finished; another process works on hcsc, seed 0\n"


def test_runs_on_other_images_are_not_mixed(called, tmp_path, refused):
    make_images(tmp_path / "data" / "train", classes=2, per_class=8)
    make_images(tmp_path / "data" / "val", classes=2, per_class=2)
    data = ["--dataset", "custom", "--data_dir", tmp_path / "data", "--train_dir", "train", "--val_dir", "val"]
    words = ["--out", tmp_path / "out", *data, *SMALL, "--max_epochs", 1, "--evaluations", "knn", "--knn", "--k 1"]
    run_here("compare", "--methods", "simclr", *words)
    make_images(tmp_path / "data" / "train" / "class 0" / "more", classes=1, per_class=1)
    line = refused("compare", "--methods", "mocov2plus", "--mocov2plus", "--queue_size 8", *words)
    assert "simclr, seed 0 was trained on other images" in line


def test_child_that_is_killed_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho an unrelated line\nkill -9 $$\n")
    (tmp_path / "python").chmod(0o755)
    with (
        (tmp_path / "lock").open("w") as lock,
        pytest.raises(RunFailed, match=r"pretrain was killed by signal 9 \(SIGKILL"),
    ):
        runner.call(Job("pretrain", {}), tmp_path, lock.fileno())


def test_run_that_another_process_works_on_is_left_alone(flags, called, tmp_path, capsys):
    for method in ("hcsc", "mocov2plus"):
        (tmp_path / "out" / method / "seed-0").mkdir(parents=True)
    with taking(tmp_path / "out" / "mocov2plus" / "seed-0"):
        run_here("compare", *BOTH, *flags, "--evaluations", "knn")
    assert called == ["pretrain hcsc seed-0", "knn hcsc seed-0"]
    assert "another process works on mocov2plus, seed 0" in capsys.readouterr().out
    assert [file.name for file in (tmp_path / "out" / "mocov2plus" / "seed-0").iterdir()] == ["lock"]


def test_killed_comparison_goes_on(flags, tmp_path):
    """The comparison is killed within an epoch, its command with it; the next one resumes from the last checkpoint."""
    command = [sys.executable, "-m", "solo_hcsc", "compare", *ONE, *flags, "--evaluations", "knn"]
    command[command.index("--max_epochs") + 1] = 12
    command += ["--checkpoint_frequency", 1]
    process = subprocess.Popen([*map(str, command)], cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    log = tmp_path / "out" / "hcsc" / "seed-0" / "log.txt"
    while not (log.is_file() and "epoch 2/12" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (log.parent / "run.json").exists()
    out = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    assert "resuming from" in log.read_text()
    assert out.stdout.splitlines()[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    (run,) = finished_runs(tmp_path / "out")
    assert [epoch for epoch, _ in run.curves["epoch_seconds"]] == list(range(12))


@pytest.mark.parametrize("table", tables.TABLES)
def test_rows_of_a_table_are_options(table, images):
    """Every row is accepted by pretraining, and they differ from one another."""
    base = {"method": "hcsc", "dataset": "custom", "data_dir": str(images), "train_dir": "train", "max_epochs": 40}
    rows = tables.TABLES[table]((300, 200, 100))
    assert len({Variant(name, {}, 40, name).folder for name in rows}) == len(rows)
    if table == "images":  # whose rows are of how images are read
        assert [Job("pretrain", {**base, **more}).settle().image_backend for more in rows.values()] == ["pil", "fast"]
        return
    base["num_prototypes"] = [300, 200, 100]
    found = [options_in(vars(Job("pretrain", {**base, **more}).settle())) for more in rows.values()]
    assert len(set(found)) == len(rows)
    if table == "levels":
        expected = [(300,), (600,), (300, 200), (300, 200, 100), (300, 200, 100, 50)]
        assert [options.num_prototypes for options in found] == expected
        assert list(tables.levels((4, 1))) == ["4", "8", "4-1"]
    if table == "prototypes":
        assert [options.num_prototypes for options in found] == [
            (100, 50, 20),
            (300, 200, 100),
            (1000, 500, 100),
            (3000, 1000, 100),
        ]


def test_rows_of_the_paper_are_run_and_reported(custom, called, tmp_path, refused):
    flags = [*custom, *SMALL, *OF_HCSC.split(), "--max_epochs", 2, "--out", tmp_path / "out", "--evaluations", "knn"]
    run_here("ablate", "--table", "components", "--rows", 5, *flags)
    run_here("ablate", "--table", "components", "--rows", 1, *flags)
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["IL, PL (PCL)", "HP, IL, PL, IS, PS (HCSC)"]
    recorded = json.loads(next((tmp_path / "out" / "IL-PL-PCL").rglob("args.json")).read_text())["hcsc_options"]
    assert recorded["num_prototypes"] == [4]
    assert not recorded["instance_selection"]
    assert found["reference"] == "HP, IL, PL, IS, PS (HCSC)"
    line = refused("ablate", "--table", "components", "--rows", 5, "--against", 1, *flags)
    assert "--against 1: is not among --rows 5; add it" in line
    run_here("ablate", "--table", "components", "--rows", 1, 5, "--against", 1, *flags)
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["reference"] == "IL, PL (PCL)"
    assert "was written by solo-hcsc ablate" in refused("compare", *ONE, *custom, *SMALL, "--out", tmp_path / "out")
    longer = ["ablate", "--table", "components", *flags, "--max_epochs", 3]
    changed = "HP, IL, PL, IS, PS (HCSC) was run with other settings (--max_epochs 2, now --max_epochs 3)"
    assert changed in refused(*longer)
    assert "--max_epochs is 3 for HP, IL, PL and 2 for HP, IL, PL, IS, PS (HCSC)" in refused(*longer, "--rows", 2)


def test_row_that_is_not_there_is_refused(custom, refused):
    flags = [*custom, *OF_HCSC.split()]
    for flag in ("--rows", "--against"):
        line = refused("ablate", "--table", "components", flag, 9, *flags)
        assert f"{flag} 9: table components has rows 1 to 8" in line
