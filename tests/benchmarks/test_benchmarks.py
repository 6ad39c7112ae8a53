"""The benchmarks run, at sizes that measure nothing; their records have what a published number needs."""

import gc
import json
import sys
from collections import Counter
from importlib import import_module
from unittest import mock

import numpy as np
import pytest
import torch
from tiny import make_images

from benchmarks import adapt, balance, containers, epoch, judging, many, measure, scaling, startup
from solo_hcsc.__main__ import known
from solo_hcsc.data.images import Encoded, read_image

original = epoch.Pretraining.epoch


def run(name, folder, *flags):
    command = [name, "--small", "--repeats", "1", "--out", folder, *flags]
    with mock.patch.object(sys, "argv", list(map(str, command))):
        import_module(f"benchmarks.{name}").main()
    gc.collect()  # a Trainer and its model refer to each other
    record = json.loads((folder / f"{name}.json").read_text())
    assert record["command"].startswith(f"python -m benchmarks.{name} --small")
    assert record["machine"]["cores"] >= 1
    assert torch.__version__.startswith(record["versions"]["torch"])
    return record


def test_step(tmp_path, capsys):
    record = run("step", tmp_path)
    ways = [(row["threads"], row["way"]) for row in record["rows"]]
    assert len(ways) == len(set(ways)) == 10
    for row in record["rows"]:
        assert row["median_seconds"] > 0
        assert row["peak_bytes"] > 0
    assert [row["ratio"] for row in record["rows"] if row["way"].startswith("MoCo")] == [1, 1]
    assert "x MoCo" in capsys.readouterr().out


def test_convolutions(tmp_path, capsys):
    rows = run("convolutions", tmp_path)["rows"]
    assert [(row["threads"], row["way"]) for row in rows] == [
        (threads, way) for threads in (1, 2) for way in ("plain", "trimmed, channels last")
    ]
    assert [row["ratio"] for row in rows if row["way"] == "plain"] == [1, 1]
    assert "times faster" in capsys.readouterr().out


def test_every_record_has_as_many_timings_and_threads_as_the_readme_says():
    text = (measure.RESULTS.parent / "README.md").read_text()
    listed = text.split("| timings | threads | records |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in listed.splitlines() if line.count("|") == 4]
    seen = set()
    for timings, threads, names in rows[1:]:
        for name in names.split(", "):
            arguments = json.loads((measure.RESULTS / f"{name}.json").read_text())["arguments"]
            assert arguments["repeats"] == int(timings), name
            if arguments.get("threads"):
                assert " and ".join(map(str, arguments["threads"])) == threads, name
            seen.add(name)
    assert seen == {path.stem for path in measure.RESULTS.glob("*.json")} - {"kills"}  # which times nothing


def test_clustering(tmp_path):
    record = run("clustering", tmp_path, "--kinds", "low rank", "uniform")
    assert [row["embeddings"] for row in record["rows"]] == ["low rank"] * 2 + ["uniform"] * 2
    for released, ours in zip(record["rows"][::2], record["rows"][1::2], strict=True):
        assert released["inertia_change"] == pytest.approx([0, 0, 0], abs=0.2)  # seeds differ at the upper levels
        assert released["inertia_change"][0] == 0
        assert len(ours["inertia_change"]) == 3


def test_clustering_of_given_embeddings(tmp_path):
    np.save(tmp_path / "mine.npy", measure.embeddings(100, 0).numpy())
    rows = run("clustering", tmp_path, "--kinds", "--embeddings", tmp_path / "mine.npy")["rows"]
    assert [(row["embeddings"], row["shape"]) for row in rows] == [("mine", [100, 128])] * 2


def test_epoch(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(epoch.Pretraining, "epoch", lambda self: runs.append(self) or original(self))
    rows = run("epoch", tmp_path, "--threads", "1")["rows"]
    assert {"one-sided MoCo", "HCSC", "MoCo v2+ (solo-learn)", "SwAV (solo-learn)"} <= {row["way"] for row in rows}
    for run_ in runs:
        assert run_.trainer.current_epoch == epoch.UNTIMED + 1
        assert run_.trainer.global_step == 3 * (epoch.UNTIMED + 1)
    clustered = [run_.model.coding.clustered_epoch for run_ in runs[:2]]
    assert clustered == [-1, 2], "MoCo has no tree, HCSC that of its last epoch"


def test_breakdown_of_an_epoch(tmp_path):
    rows = run("breakdown", tmp_path, "--threads", "1", "--picture", tmp_path / "epoch.svg")["rows"]
    assert all(row["seconds"] >= 0 for row in rows)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert {"backward", "clustering", "selection and losses"} <= {row["part"] for row in rows}
    assert "<svg" in (tmp_path / "epoch.svg").read_text()


def test_scaling(tmp_path):
    rows = run("scaling", tmp_path)["rows"]
    assert [row["against"] for row in rows] == ["queue", "prototypes", "batch", "images"]


def test_exponent_of_a_power_law():
    assert scaling.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


def test_embeddings_are_unit_vectors():
    torch.testing.assert_close(measure.embeddings(50, 1).norm(dim=1), torch.ones(50))


def test_peak_memory_is_the_most_held_at_once():
    def work():
        first = torch.empty(1_000_000)
        del first
        return torch.empty(500_000)

    assert measure.peak_memory(work) == pytest.approx(4e6, rel=0.05)


def test_large(tmp_path, capsys):
    record = run("large", tmp_path, "--threads", "1", "--really", "3000")
    assert record["constants"]["gather_bytes_per_second"] > 0
    assert record["constants"]["really"]["embeddings"] == 3000
    by_name = {(row["images"], row["clustered"]): row for row in record["rows"]}
    assert by_name["1 B", "all"]["gathered_bytes"] == 512 * 10**9
    assert by_name["1 B", "a sample"]["gathered_bytes"] == by_name["100 M", "a sample"]["gathered_bytes"] == 512 * 10**6
    assert "as the line has it" in capsys.readouterr().out


def test_knn(tmp_path):
    record = run("knn", tmp_path)
    found = {row["way"]: row["accuracies"] for row in record["rows"]}
    assert len(record["rows"]) == 8
    assert record["peak_bytes"].keys() == found.keys()
    for way in ("K=200", "four K"):  # the same neighbours, the same votes
        assert np.allclose(found[f"solo_hcsc, {way}"], found[f"framework, {way}"])


def test_startup(tmp_path, capsys):
    record = run("startup", tmp_path)
    imports, *helps = record["rows"]
    assert (imports["way"], imports["ratio"], imports["wall_ratio"]) == ("imports", 1, 1)
    assert [(row["way"], row["goal"]) for row in helps] == [("--help", 0.3), ("knn --help", 0.3)]
    for row in record["rows"]:
        assert row["median_seconds"] > 0
        assert row["median_wall_seconds"] > 0
    assert helps[0]["peak_bytes"] < imports["peak_bytes"] / 2, "the peak is the help's, not that of this process"
    assert "x imports" in capsys.readouterr().out


def test_startup_has_every_commands_help_and_its_goal():
    ways = startup.ways_of(small=False)
    assert list(ways)[:4] == ["imports", "--help", "pretrain --help", "pretrain --method hcsc --help"]
    assert {f"{name} --help" for name in known()} <= ways.keys()
    assert len(ways) == len(known()) + 3
    taken = [startup.Taken(1.0, 2.0, 3)]
    goals = {name: startup.row(name, taken, taken)["goal"] for name in ways}
    assert {name for name, goal in goals.items() if goal == 1.3} == {"pretrain --help", "pretrain --method hcsc --help"}
    assert {goal for name, goal in goals.items() if "pretrain" not in name and name != "imports"} == {0.3}


def test_command_that_fails_is_not_timed():
    with pytest.raises(RuntimeError, match="nowhere: no such command"):
        startup.run([sys.executable, "-m", "solo_hcsc", "nowhere"])


def test_judging(tmp_path, capsys):
    for number, sign in enumerate((1, 1, 1, -1, 1)):
        folder = tmp_path / "runs" / f"run {number}"
        folder.mkdir(parents=True)
        rows = [(epoch, 20 + sign * epoch + number, 10 + epoch, 0, -epoch, -1) for epoch in range(4 - (number > 3))]
        head = "epoch,val_knn_acc1,rankme,dead_dimensions,alignment,uniformity"
        (folder / "metrics.csv").write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]))
    record = run("judging", tmp_path, "--threads", "1", "--images", "24", "--runs", tmp_path / "runs")
    assert record["rows"][0]["share"] > 0
    assert [one["run"] for one in record["runs"]] == [f"run {number}" for number in range(4)], "one is not finished"
    rank, align, uniform, dead = record["measures"]
    assert rank["within"] == [1, 1, 1, -1]
    assert align["within"] == [-1, -1, -1, 1]
    assert (rank["at_end"], uniform["within"], dead["changes"]) == (None, [], None), "what does not vary has none"
    assert "of changes" in capsys.readouterr().out


def test_rank_correlation_over_runs_has_its_uncertainty():
    runs = [{"last": {"rankme": rank, judging.KNN: knn}, "curves": {"rankme": [1, 2], judging.KNN: [1, 2]}}
            for rank, knn in enumerate((1, 3, 2, 5, 4, 7, 6, 9))]  # fmt: skip
    found = judging.correlations("rankme", runs, seed=0)
    assert found["at_end"] == pytest.approx(1 - 6 * 6 / (8 * 63))
    assert found["low"] < found["at_end"] <= found["high"] <= 1
    assert found["p"] < 0.01


def test_loader(images, tmp_path):
    record = run("loader", tmp_path, "--data_dir", images / "train")
    ours = [row for row in record["rows"] if row["way"].startswith("ours")]
    assert [row["photos"] for row in ours] == ["12 MP", "12 MP", "500 x 375", "500 x 375", "as they are", "as they are"]
    assert all(row["images_per_second"] > 0 and row["grown_bytes"] is not None for row in ours)
    decodes = [row["of_limit"] for row in record["rows"] if "decode alone" in row["way"]]
    assert (len(decodes), max(decodes)) == (9, 1)
    assert all(row["of_limit"] > 0 for row in record["rows"])
    for row in record["operations"]:
        assert row["library"] != "Pillow" or row["psnr"] is None  # equal to itself
        assert row["library"] != "OpenCV (ours)" or row["psnr"] is None or row["psnr"] > 30


def test_containers(images, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(containers, "read_image", lambda image: asked.append(image) or read_image(image))
    rows = run("containers", tmp_path, "--data_dir", images / "train")["rows"]
    ways = [row["way"] for row in rows if row["photos"] == "64 px"]
    assert ways == [row["way"] for row in rows if row["photos"] == "as they are"]
    assert len(ways) == len(set(ways)) == 7
    assert [row["of_limit"] for row in rows if row["way"] == containers.LIMIT] == [1, 1]
    assert all(row["read_microseconds"] > 0 for row in rows)
    # What a container gave was decoded: each has all images, twice for each size.
    seen = Counter(image.content for image in asked if isinstance(image, Encoded))
    assert set(seen.values()) == {2 * len(ways)}
    assert len(seen) == 2 * 24


def test_many(tmp_path, capsys):
    record = run("many", tmp_path)
    rows = {(row["what"], row["images"]): row for row in record["rows"]}
    started = [(many.START, 300), (many.START, 1200)]
    assert list(rows) == [("index", 300), ("index", 1200), ("pack", 300), *started, ("a run", 1200)]
    assert all(row["own_bytes"] > 0 for row in rows.values())
    assert record["each"]["own_bytes"] * 900 == pytest.approx(
        rows[started[1]]["own_bytes"] - rows[started[0]]["own_bytes"]
    )
    assert "at the start, an image takes" in capsys.readouterr().out


def test_memory_of_a_process_is_what_it_takes_beyond_its_beginning():
    taken = many.taken(lambda: np.ones(4_000_000))
    assert taken["own_bytes"] == pytest.approx(32e6, rel=0.2)
    with pytest.raises(RuntimeError, match="the process failed"):
        many.taken(lambda: 1 / 0)


def test_explore(images, tmp_path):
    small, large = run("explore", tmp_path, "--data_dir", images / "train")["rows"]
    assert small["ratio"] == 1
    assert 0 < small["bytes"] < large["bytes"]
    assert all(row["frames"]["count"] > 10 for row in (small, large))


@pytest.fixture
def pictures(tmp_path, untrained):
    """A set of three classes, and the flags of the benchmarks that adapt to it."""
    make_images(tmp_path / "pictures" / "colours", classes=3, per_class=30)
    flags = ["--pictures", tmp_path / "pictures", "--weights", untrained, "--encoder", "resnet18", "--threads", 1]
    return [*flags, "--sets", "colours", "--cache", tmp_path / "cache"]


def test_adapt(tmp_path, capsys, pictures):
    record = run("adapt", tmp_path, *pictures, "--parts", "losses", "judging", "search")
    assert [row["row"] for row in record["rows"]] == list(adapt.ROWS)
    assert {(pair["row"], pair["against"]) for pair in record["pairs"]} == {*adapt.PAIRS}
    ranks = json.loads((tmp_path / "adapt_judging.json").read_text())["ranks"]
    assert "agreement" in [row["figure"] for row in ranks]
    winners = json.loads((tmp_path / "adapt_search.json").read_text())["rows"]
    assert [len(row["trials"]) for row in winners] == [2, 2, 2]
    assert "tree - InfoNCE" in capsys.readouterr().out


def test_balance(tmp_path, capsys, pictures):
    rows = run("balance", tmp_path, *pictures, "--tail", 3)["rows"]
    assert len(rows) == 2 * len(balance.WAYS) + 2 * len(balance.SHARES)
    assert "curated 25% - random 50%" in capsys.readouterr().out


def test_a_difference_of_pairs_has_students_interval():
    mean, low, high = adapt.difference([3.0, 5.0, 4.0], [1.0, 2.0, 3.0])
    assert (mean, round(low, 2), round(high, 2)) == (2.0, -0.48, 4.48)


def test_a_long_tail_has_fewer_images_from_class_to_class():
    labels = np.repeat(["a", "b", "c"], 100)
    kept = adapt.long_tail(labels, ratio=100.0)
    assert [int((labels[kept] == one).sum()) for one in "abc"] == [100, 10, 1]
