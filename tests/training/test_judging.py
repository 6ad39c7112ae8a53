"""Every epoch is judged without labels, for every method, and training does not notice."""

import csv

import pytest
import torch
from pytorch_lightning import Trainer
from tiny import SMALL, only, run_here

from benchmarks.kills import differences
from solo_hcsc.hcsc.measures import alignment, dead_dimensions, rankme, uniformity
from solo_hcsc.runs.results import JUDGED
from solo_hcsc.tables import pace
from solo_hcsc.training import session as training_session
from solo_hcsc.training.judging import JudgeEpoch

METHODS = {
    "hcsc": "--num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1",
    "mocov2plus": "--queue_size 16",
    "swav": "--num_prototypes 8 --queue_size 16 --proj_hidden_dim 32 --crop_size 32 16 --num_crops_per_aug 2 1",
    "simclr": "--proj_hidden_dim 32",
}
TINY = [*SMALL, "--max_epochs", "2"]


def epochs(folder):
    """The rows of metrics.csv that end an epoch."""
    with only(folder, "metrics.csv").open(newline="") as lines:
        return [row for row in csv.DictReader(lines) if row["epoch_seconds"]]


def pretrain(images, folder, method, *flags):
    data = ["--dataset", "custom", "--data_dir", images, "--train_dir", "train", "--checkpoint_dir", folder]
    run_here("pretrain", *data, "--method", method, *TINY, *METHODS[method].split(), *flags)


class Unjudged(JudgeEpoch):
    """As if there were none."""

    def on_train_start(self, *_):
        pass

    def on_train_batch_start(self, *_):
        pass


@pytest.mark.parametrize("method", METHODS)
def test_every_epoch_of_every_method_is_judged_and_no_bit_changes(method, images, tmp_path, monkeypatch):
    pretrain(images, tmp_path / "judged", method)
    rows = epochs(tmp_path / "judged")
    assert len(rows) == 2
    for row in rows:
        judged = {name: float(row[name]) for name in JUDGED}
        assert 1 < judged["rankme"] <= 32, "so many images have been in full batches"
        assert 0 < judged["alignment"] < 4
        assert -4 < judged["uniformity"] < 0
        assert 0 <= judged["dead_dimensions"] < 1
        assert float(row["images_per_second"]) == pytest.approx(32 / float(row["epoch_seconds"]), rel=0.1)
    monkeypatch.setattr(training_session, "JudgeEpoch", Unjudged)
    pretrain(images, tmp_path / "unjudged", method)
    assert "rankme" not in epochs(tmp_path / "unjudged")[0]
    judged, unjudged = (
        torch.load(only(tmp_path / name, "*ep=1.ckpt"), weights_only=True) for name in ("judged", "unjudged")
    )
    assert differences(judged["state_dict"], unjudged["state_dict"]) == []
    assert differences(judged["optimizer_states"][0], unjudged["optimizer_states"][0]) == []


def test_what_is_judged_is_the_first_view_of_the_last_images_and_pairs_of_the_last_batch(images, tmp_path, monkeypatch):
    """The features that the last steps had, and at the end both views in evaluation mode."""
    monkeypatch.setattr("solo_hcsc.training.judging.IMAGES", 16)
    seen, views = [], []

    class Look(Unjudged):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            views[:] = batch[1]
            self.hook = pl_module.encoder.register_forward_hook(lambda *call: seen.append(call[2].detach()))

        def on_train_batch_end(self, *_):
            self.hook.remove()

        def on_train_epoch_end(self, trainer, pl_module):
            pl_module.encoder.eval()
            with torch.no_grad():
                self.pairs = [pl_module.encoder(view) for view in views]
            pl_module.encoder.train()

    look, fit = Look(), Trainer.fit

    def fit_and_look(self, *args, **kwargs):
        self.callbacks.append(look)
        fit(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "fit", fit_and_look)
    pretrain(images, tmp_path, "simclr", "--max_epochs", 1)
    (row,) = epochs(tmp_path)
    last = torch.cat(seen[-4::2])  # a step forwards the first view, then the second
    expected = rankme(last), alignment(*look.pairs), uniformity(last), dead_dimensions(last)
    assert [float(row[name]) for name in JUDGED] == pytest.approx(expected, rel=1e-5)


def test_a_run_resumed_within_an_epoch_is_judged_by_what_is_left(images, tmp_path):
    pretrain(images, tmp_path / "first", "mocov2plus", "--max_steps", 6)
    within = only(tmp_path / "first", "*step=6.ckpt")
    pretrain(images, tmp_path / "second", "mocov2plus", "--resume_from_checkpoint", within)
    last = epochs(tmp_path / "second")[-1]
    assert 1 < float(last["rankme"]) <= 16, "two batches of eight"
    assert float(last["images_per_second"]) > 0


def test_line_of_an_epoch_has_the_measures_and_the_speed(images, tmp_path, capfd):
    pretrain(images, tmp_path, "simclr")
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2
    row = epochs(tmp_path)[-1]
    assert f"rank {float(row['rankme']):.0f}, alignment {float(row['alignment']):.2f}" in lines[-1]
    assert lines[-1].endswith(" images/s")


@pytest.mark.parametrize(
    ("speed", "said"), [(0.04, "25.0 s for an image"), (3.26, "3.26 images/s"), (360.4, "360 images/s")]
)
def test_a_slow_run_is_not_said_to_be_at_no_images_per_second(speed, said):
    assert pace(speed) == said
