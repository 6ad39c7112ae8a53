"""A run says that it waits for its images, and nothing where it does not."""

import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from tiny import SMALL, make_images, run_here, where
from torch.utils.data import TensorDataset

from solo_hcsc.data import images as image_files
from solo_hcsc.data import settings as data_settings
from solo_hcsc.data.loaders import Loading, Resumable
from solo_hcsc.training import waiting
from solo_hcsc.training.waiting import TellWaiting, faster_images


class Slow(Resumable):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def batches(self, skipped):
        for number in range(skipped, 6):
            time.sleep(self.seconds)
            yield number


@pytest.mark.parametrize(("loading", "training", "said"), [(0.03, 0.001, 2), (0.001, 0.03, 0)])
def test_waiting_is_said_once_in_a_while_and_only_where_it_takes_long(loading, training, said, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(waiting, "note", lines.append)
    trainer = SimpleNamespace(train_dataloader=Slow(loading))
    tell = TellWaiting("patience", seconds=2.5 * (loading + training))
    tell.on_train_start(trainer, None)
    for _ in trainer.train_dataloader:
        time.sleep(training)
        tell.on_train_batch_end(trainer, None)
    assert 1 <= len(lines) <= said if said else not lines
    assert all("of the time is spent waiting for images; patience would help" in line for line in lines)


def test_run_says_what_would_help(tmp_path, monkeypatch, capsys):
    make_images(tmp_path / "train", classes=2, per_class=8)
    read = image_files.read_image
    monkeypatch.setattr(image_files, "read_image", lambda path: (time.sleep(0.05), read(path))[1])
    monkeypatch.setattr(TellWaiting.__init__, "__defaults__", (0.1,))
    flags = ["--method", "simsiam", "--max_epochs", "1", "--image_backend", "pil"]
    run_here("pretrain", *where(tmp_path), *SMALL, *flags)
    assert "waiting for images; --num_workers" in (said := capsys.readouterr().err)
    assert "or --image_backend fast or smaller copies of the images would help" in said


def test_help_names_only_what_is_not_yet_done():
    flags = SimpleNamespace(num_workers=data_settings.default_workers(), dali=False, image_backend="fast")
    assert faster_images(flags) == "smaller copies of the images"


def test_workers_follow_the_cores_within_bounds(monkeypatch):
    for cores, workers in ((1, 1), (2, 2), (64, 8)):
        monkeypatch.setattr(data_settings.os, "sched_getaffinity", lambda _, n=cores: set(range(n)), raising=False)
        assert data_settings.default_workers() == workers


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory is pinned for a GPU")
def test_loader_on_a_cpu_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(Loading(2, 0).in_order(TensorDataset(torch.zeros(4, 1))))) == 2
