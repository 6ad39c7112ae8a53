"""Equal search: what is drawn, what is stopped, what is recorded, and that the winners are what is compared."""

import json
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from tiny import SMALL, call_here, make_images, run_here

from solo_hcsc.cli.commands import ablate
from solo_hcsc.cli.commands._studies import pretraining
from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.options import options_in
from solo_hcsc.study import runner, search
from solo_hcsc.study.findings import choice, winner
from solo_hcsc.study.job import Job, plain
from solo_hcsc.study.record import Search, Trial
from solo_hcsc.study.search import Between, EqualSearch, OneOf, Searched, TrialScale, space_of

SCALE = TrialScale(batch=8, images=200)
METHODS = ["--methods", "hcsc", "mocov2plus"]
OF_HCSC = "--num_prototypes 4 2 --min_cluster_size 2 --queue_size 16 --proto_warmup_epochs 0 --base_tau_momentum 0.9"
OF_MOCO = "--queue_size 16 --base_tau_momentum 0.9"


@pytest.fixture
def made_up(monkeypatch):
    """Trials whose accuracy is their learning rate; lists their jobs. A rate below 0.02 fails."""
    calls = []

    def pretend(job, folder, lock, stop=None):
        rate = job.settings["lr"]
        calls.append(job)
        if rate < 0.02:
            raise runner.RunFailed("it diverged")
        for epoch in range(6):
            rows = "".join(f"{number},{rate * (number + 1)}\n" for number in range(epoch + 1))
            (folder / "metrics.csv").write_text(f"epoch,val_knn_acc1\n{rows}")
            if stop is not None and stop():
                return 1.0
        return 1.0

    monkeypatch.setattr(runner, "call", pretend)
    return calls


def searched(name="mocov2plus", **space):
    return Searched(name, {"method": name}, space or {"lr": Between(0.01, 0.3), "temperature": OneOf((0.1, 1))})


def test_same_number_of_trials_for_each_method_and_all_are_recorded(made_up, tmp_path):
    found = EqualSearch(tmp_path, [searched("hcsc"), searched("swav")], trials=12, epochs=6, seed=3, images=300).run()
    assert [len(trials) for trials in found.of_methods.values()] == [12, 12]
    assert found.ranges["swav"]["lr"] == "0.01 to 0.3, evenly in the logarithm"
    states = [trial.state for trial in found.of_methods["hcsc"]]
    assert {"finished", "stopped", "failed"} == set(states), "a median pruner has stopped some"
    assert "stopped" not in states[: search.TRIALS_FIRST]
    for trial in found.of_methods["hcsc"]:
        assert (trial.value is None) == (trial.state != "finished")
        assert (trial.why == "it diverged") == (trial.state == "failed")
        assert trial.state != "stopped" or len(trial.curve) < 6, "what has run to its end is finished"
    assert Search.model_validate(json.loads(found.model_dump_json())) == found


def trial_of(number, value):
    return Trial(
        number=number,
        seed=0,
        base=[],
        flags=[],
        drawn={},
        epochs_asked=1,
        state="finished",
        value=value,
        curve=[],
        seconds=1,
    )


def test_says_how_many_trials_the_held_out_images_do_not_tell_from_the_best():
    trials = [trial_of(number, value) for number, value in enumerate((25.0, 28.0, 18.0))]
    facts = {"metric": "", "trials": 3, "epochs": 1, "seed": 0, "ranges": {}, "of_methods": {"swav": trials}}
    few, many = (choice(Search(**facts, images=images), "swav") for images in (296, 100_000))
    assert few.startswith(
        "swav: trial 1 is the best (28.00 %); 296 held-out images do not tell it from 1 of the 2 others"
    )
    assert many.endswith("from 0 of the 2 others that finished")
    assert choice(Search(**facts), "swav") == "swav: trial 1 is the best (28.00 %)"


def test_best_trial_wins_and_a_method_without_one_is_refused(made_up, tmp_path):
    found = EqualSearch(tmp_path, [searched()], trials=8, epochs=6, seed=0, images=300).run()
    best = winner(found, "mocov2plus")
    assert best.value == max(trial.value for trial in found.of_methods["mocov2plus"] if trial.value)
    assert best.settings["lr"] == float(best.drawn["lr"])
    assert best.flags[:2] == ["--lr", best.drawn["lr"]], "for a reader"
    hopeless = EqualSearch(
        tmp_path / "other", [searched(lr=Between(0.001, 0.01))], trials=2, epochs=6, seed=0, images=300
    ).run()
    assert choice(found, "mocov2plus").startswith(f"mocov2plus: trial {best.number} is the best ({best.value:.2f} %)")
    with pytest.raises(UserError, match=r"no trial of mocov2plus was finished \(it diverged\)"):
        winner(hopeless, "mocov2plus")


def test_interrupted_search_goes_on_as_if_it_had_not_been(made_up, tmp_path):
    whole = EqualSearch(tmp_path / "whole", [searched()], trials=9, epochs=6, seed=0, images=300).run()
    EqualSearch(tmp_path / "parts", [searched()], trials=4, epochs=6, seed=0, images=300).run()
    made_up.clear()
    parts = EqualSearch(tmp_path / "parts", [searched()], trials=9, epochs=6, seed=0, images=300).run()
    assert len(made_up) == 5, "what has ended is not repeated"

    def without_time(found):
        return [trial.model_copy(update={"seconds": 0.0}) for trial in found.of_methods["mocov2plus"]]

    assert without_time(parts) == without_time(whole)
    with pytest.raises(UserError, match="of another search"):
        EqualSearch(tmp_path / "parts", [searched()], trials=9, epochs=7, seed=0, images=300).run()


def test_broken_record_of_a_trial_is_named(made_up, tmp_path):
    EqualSearch(tmp_path, [searched()], trials=1, epochs=6, seed=0, images=300).run()
    (tmp_path / "search" / "mocov2plus" / "trial-0" / "trial.json").write_text('{"number": "x"}')
    with pytest.raises(UserError, match=r"trial-0/trial\.json: not a trial's record"):
        EqualSearch(tmp_path, [searched()], trials=1, epochs=6, seed=0, images=300).run()


@pytest.mark.parametrize("name", search.SPACES)
def test_whatever_is_drawn_is_what_pretraining_takes(name, images):
    optuna = search.import_optuna()
    space = space_of(name, SCALE, fixed=[])
    for seed in range(20):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        trial = study.ask()
        drawn = plain({setting: values.draw(trial, setting) for setting, values in space.items()})
        base = {"method": name, "data_dir": str(images), "crop_size": [32], "batch_size": 8, "accelerator": "cpu"}
        settings = Job("pretrain", {**base, **drawn}).settle()
        assert space.keys() <= settings.typed


def test_what_the_user_sets_is_not_drawn_and_unknown_ranges_are_refused():
    assert "temperature" not in space_of("hcsc", SCALE, fixed=["temperature"])
    with pytest.raises(UserError, match="dino has no documented ranges; compare of hcsc, mocov2plus"):
        space_of("dino", SCALE, fixed=[])


def test_queues_fit_batches_and_images():
    sizes = space_of("mocov2plus", TrialScale(batch=128, images=1000), fixed=[])["queue_size"].values
    assert sizes == (256, 384)


def test_running_command_is_ended_where_it_is_told_to(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_LOOKS", 0.01)
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 2

    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(runner.sys, "executable", words[0])
    process = runner.subprocess.Popen(words)
    assert runner._watched(process, stop) == 0
    assert (len(asked), process.returncode) == (3, -15)
    assert runner._watched(runner.subprocess.Popen([sys.executable, "-c", "exit(3)"]), lambda: False) == 3


@pytest.fixture
def held_out(tmp_path):
    """Three folders of tiny images, and the flags of a comparison that searches."""
    for split, seed in (("train", 0), ("val", 1), ("test", 2)):
        make_images(tmp_path / "data" / split, 3, 14 if split == "train" else 3, seed)
    folders = ["--dataset", "custom", "--data_dir", tmp_path / "data", "--train_dir", "train", "--val_dir", "val"]
    small = [*SMALL[:-2], "--crop_size", 16, "--encoder", "resnet18", "--checkpoint_frequency", 100]
    return [*METHODS, "--out", tmp_path / "out", *folders, *small, "--hcsc", OF_HCSC, "--mocov2plus", OF_MOCO]


def test_winners_are_compared_on_test_images(held_out, tmp_path, monkeypatch, capsys):
    def here(job, folder, lock, stop=None):
        with (folder / "log.txt").open("a") as out, redirect_stdout(out), redirect_stderr(out):
            call_here(job)
        return 1.0

    monkeypatch.setattr(runner, "call", here)
    asked = ["--test_dir", "test", "--search", 2, "--search_epochs", 1, "--max_epochs", 1, "--evaluations", "knn"]
    run_here("compare", *held_out, *asked)
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    trials = found["search"]["of_methods"]
    assert {name: len(of_method) for name, of_method in trials.items()} == {"hcsc": 2, "mocov2plus": 2}
    for row in found["rows"]:
        best = max((Trial(**trial) for trial in trials[row["name"]]), key=lambda trial: trial.value)
        assert best.settings.items() <= row["settings"].items()
        assert "--val_dir test" in row["runs"][0]["evaluations"]["knn"]["command"]
    assert "queue_size" not in trials["hcsc"][0]["drawn"], "it was given"
    page = (tmp_path / "out" / "report.html").read_text()
    said = capsys.readouterr().out
    for line in (choice(Search(**found["search"]), name) for name in trials):
        assert "9 held-out images" in line
        assert line in page
        assert line in said
    assert trials["hcsc"][1]["drawn"]["lr"] in page
    last = said.splitlines()[-1]
    _, _, pair = last.partition("to measure what the tree contributes to hcsc: solo-hcsc ablate ")
    flags, words = ablate.parse(shlex.split(pair))
    assert (flags.seeds, str(flags.test_dir), flags.evaluations, flags.knn) == ([0], "test", ["knn"], None)
    best = winner(Search(**found["search"]), "hcsc")
    assert words[-2 - len(best.flags) :] == [*best.flags, "--max_epochs", "1"]
    settings = pretraining("tree", words, flags.test_dir)
    assert options_in(vars(settings)).query_cluster == "assignment", "pretraining takes them"
    run_here("compare", *held_out, *asked)
    assert "finished before" in capsys.readouterr().out


def test_search_needs_images_that_it_does_not_choose_by(held_out, refused):
    asked = ["--search", 2, "--max_epochs", 1, "--evaluations", "knn"]
    assert "held-out training images" in refused("compare", *held_out, *asked)
    assert "is also --val_dir, on which --search chooses" in refused("compare", *held_out, *asked, "--test_dir", "val")
    line = refused("compare", *held_out, *asked, "--test_dir", "test", "--knn", "--nonsense 3")
    assert "--knn: unknown flag" in line, "before the first trial"


def test_true_labels_are_refused_in_a_comparison_but_by_name(held_out, refused):
    words = [*shlex.split(OF_HCSC), "--oracle_labels", "true"]
    line = refused("compare", *held_out, "--max_epochs", 1, "--hcsc", shlex.join(words))
    assert "add oracle to --methods" in line
