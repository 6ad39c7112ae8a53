"""What a resume within an epoch needs of Lightning's loops is there, and what is not is named."""

import pytest
from pytorch_lightning import Trainer
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop

from solo_hcsc.errors import UserError
from solo_hcsc.training import lightning
from solo_hcsc.training.lightning import check, probe


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def test_installed_lightning_lacks_nothing(trainer):
    assert probe(trainer) == []
    check(trainer)


@pytest.mark.parametrize(
    ("loop", "name"),
    [(_TrainingEpochLoop, "_should_check_val_epoch"), (_FitLoop, "restarted_mid_epoch")],
)
def test_missing_attribute_of_a_loop_is_named(loop, name, trainer, monkeypatch):
    monkeypatch.delattr(loop, name)
    assert probe(trainer) == [name]


@pytest.mark.parametrize(
    ("path", "lacking"),
    {
        ("epoch_progress",): ["epoch_progress"],
        ("epoch_loop.batch_progress",): ["epoch_loop.batch_progress"],
        ("epoch_loop.state_dict",): ["epoch_loop.state_dict", "_batches_that_stepped"],
        ("epoch_loop.state_dict", "_batches_that_stepped"): ["_batches_that_stepped"],
        ("epoch_progress", "current", "processed"): ["epoch_progress.processed"],
        ("epoch_loop.batch_progress", "current", "ready"): ["epoch_loop.batch_progress.ready"],
    }.items(),
)
def test_missing_record_of_a_loop_is_named(path, lacking, trainer, monkeypatch):
    whole = _FitLoop.state_dict

    def without(self, *args, **kwargs):
        state = whole(self, *args, **kwargs)
        inner = state
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        return state

    monkeypatch.setattr(_FitLoop, "state_dict", without)
    found = probe(trainer)
    assert found[: len(lacking)] == lacking
    assert all(name.startswith(path[0]) for name in found[len(lacking) :])  # what would have been in it


def test_refusal_names_the_version_and_what_to_do(trainer, monkeypatch):
    monkeypatch.delattr(_FitLoop, "restarted_mid_epoch")
    said = rf"pytorch-lightning {lightning.version}: its loops have no restarted_mid_epoch, .* setup\.cfg allows"
    with pytest.raises(UserError, match=said):
        check(trainer)
