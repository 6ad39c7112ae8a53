"""HCSC computes the same under both versions of solo-learn."""

from functools import partial
from pathlib import Path

import pytest
import pytorch_lightning
import torch
from solo106 import steps
from torch.utils.data import DataLoader, Subset

from solo_hcsc.data.folders import CentreCrops
from solo_hcsc.solo102.method import HCSC
from solo_hcsc.solo102.repairs.fix import bare_method

HERE = Path(__file__).parent
OLD_NAMES = {"encoder.": "backbone.", "momentum_encoder.": "momentum_backbone."}


def of_release(**options):
    """HCSC of 1.0.2 with the settings of `steps.config`."""
    cfg = steps.config()
    crops = CentreCrops(steps.Views(), steps.CENTRE)
    return bare_method(
        HCSC,
        num_images=steps.IMAGES,
        seed=cfg["seed"],
        centre_crops=lambda indexes: DataLoader(Subset(crops, indexes), steps.BATCH),
        num_classes=cfg["data"]["num_classes"],
        num_small_crops=1,
        max_epochs=steps.EPOCHS,
        lr=cfg["optimizer"]["lr"],
        classifier_lr=cfg["optimizer"]["classifier_lr"],
        weight_decay=cfg["optimizer"]["weight_decay"],
        scheduler="none",
        base_tau_momentum=0.9,
        final_tau_momentum=0.9,
        momentum_classifier=True,
        proj_output_dim=16,
        proj_hidden_dim=32,
        **steps.OPTIONS,
        **options,
    )


def renamed(state):
    names = {name: name for name in state if not name.startswith("coding.")}
    for old, new in OLD_NAMES.items():
        names |= {name: new + name.removeprefix(old) for name in names if name.startswith(old)}
    return {new: state[name] for name, new in names.items()}


@pytest.mark.parametrize("which", ["stand_in", pytest.param("checkout", marks=pytest.mark.checkout)])
def test_losses_tree_and_queue_are_the_same(which, request, python, tmp_path):
    """Ten steps with the tree on from the first: of centre crops in epoch 1, of keys in epoch 2."""
    torch.manual_seed(0)
    model = of_release()
    torch.save(renamed(model.state_dict()), tmp_path / "start.pt")
    folder = HERE / "stand_in" if which == "stand_in" else request.getfixturevalue("checkout")
    python(folder, HERE / "steps.py", tmp_path)
    theirs, ours = torch.load(tmp_path / "end.pt", weights_only=True), steps.train(model, pytorch_lightning)
    assert len(ours["losses"]) == 10
    assert model.coding.clustered_epoch == 1
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    close(theirs["losses"], ours["losses"])
    for part in ("coding", "encoder", "momentum"):
        assert theirs[part].keys() == ours[part].keys()
        for name, value in ours[part].items():
            close(theirs[part][name], value, msg=f"{part} {name}")
