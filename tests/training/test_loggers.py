"""Loggers beside metrics.csv: each one's own reader finds there what the run logged."""

import struct
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import SMALL, only, run_here
from wandb.proto.wandb_internal_pb2 import Record

from solo_hcsc import extras

LOGGED = ("train_nce_loss_epoch", "val_loss", "lr-SGD/encoder", "rankme")


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    """A run with every logger at once."""
    folder = tmp_path_factory.mktemp("logged")
    flags = "--method simclr --max_epochs 2 --num_sanity_val_steps 0 --log_every_n_steps 1 --name mine --project ours"
    flags += f" --logger tensorboard mlflow --wandb --offline --dataset custom --data_dir {images}"
    run_here("pretrain", *SMALL, *flags.split(), *"--train_dir train --val_dir val --checkpoint_dir".split(), folder)
    return only(folder, "metrics.csv").parent


@pytest.fixture(scope="module")
def expected(run) -> dict[str, list[float]]:
    """What metrics.csv has of each metric."""
    rows = pd.read_csv(run / "metrics.csv")
    return {name: rows[name].dropna().tolist() for name in LOGGED}


def test_tensorboard_has_what_metrics_csv_has(run, expected):
    events = EventAccumulator(str(run)).Reload()
    for name in LOGGED:
        assert [one.value for one in events.Scalars(name)] == pytest.approx(expected[name])  # float32
    assert "method: simclr" in (run / "hparams.yaml").read_text()


def test_mlflow_has_what_metrics_csv_has(run, expected):
    client = mlflow.MlflowClient(f"sqlite:///{run.parent.parent / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "ours"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
    assert found.data.tags["solo_hcsc.run"] == run.name
    assert found.data.params["method"] == "simclr"
    history = {name: client.get_metric_history(found.info.run_id, name) for name in LOGGED}
    assert {name: [one.value for one in sorted(rows, key=lambda row: row.step)] for name, rows in history.items()} == (
        expected
    )


def records_in(file: Path) -> Iterator[bytes]:
    """The records of an offline run of wandb: LevelDB's log, in blocks of 32 kB after a header of 7 bytes."""
    content, position, begun = file.read_bytes(), 7, b""
    while position + 7 <= len(content):
        if (left := 2**15 - position % 2**15) < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", content[position + 4 : position + 7])
        begun += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield begun
            begun = b""


def test_wandb_has_what_metrics_csv_has(run, expected):
    found: dict[str, list[float]] = {name: [] for name in LOGGED}
    for data in records_in(only(run, "run-*.wandb")):
        for item in Record.FromString(data).history.item:
            name = item.key or ".".join(item.nested_key)
            if name in found:
                found[name].append(float(item.value_json))
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "package", "name"),
    [("tensorboard", "tensorboard", "TensorBoard"), ("mlflow", "mlflow", "MLflow"), ("wandb", "wandb", "wandb")],
)
def test_missing_logger_names_its_extra_before_anything_is_written(kind, package, name, monkeypatch, custom, refused):
    there = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda one: None if one == package else there(one))
    line = refused("pretrain", *custom, "--logger", kind, "--crop_size", 32)
    assert line == f"error: --logger {kind}: {name} is not installed; run: pip install 'solo_hcsc[{kind}]'"


def test_server_that_cannot_be_reached_ends_the_run_and_leaves_no_folder(custom, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    with pytest.raises(SystemExit, match="2"):
        run_here("pretrain", *custom, *SMALL, "--max_epochs", 1, "--logger", "mlflow")
    assert "error: --logger mlflow: nowhere://x cannot be logged to (" in capfd.readouterr().err
    assert not list(tmp_path.rglob("simclr/*"))


def test_unknown_logger_is_refused(custom, refused):
    assert "invalid choice: 'neptune'" in refused("pretrain", *custom, "--logger", "neptune")
