"""Encoders made without solo-learn are solo-learn's own: the same weights by the same names, the same features."""

import pytest
import torch
from torchvision import transforms

from solo_hcsc.data.source import DATASETS, ImageSource
from solo_hcsc.encoders.make import make_encoder
from solo_hcsc.solo102 import BaseMethod
from solo_hcsc.solo102.repairs.fix import bare_method

SETTINGS = {
    "resnet18": ({"cifar": False}, {"cifar": True}),
    "resnet50": ({"cifar": False}, {"cifar": True, "zero_init_residual": True}),
    "vit_tiny": ({"cifar": False, "img_size": 32, "patch_size": 8}, {"img_size": 64, "patch_size": 16}),
    "vit_small": ({"cifar": False, "img_size": 32, "patch_size": 16},),
    "vit_base": ({"cifar": False, "img_size": 32, "patch_size": 16},),
    "vit_large": ({"cifar": False, "img_size": 32, "patch_size": 16},),
    "swin_tiny": ({"cifar": True, "img_size": 32}, {"cifar": False, "img_size": 64}),
    "swin_small": ({"cifar": True, "img_size": 32},),
    "swin_base": ({"cifar": True, "img_size": 32},),
    "swin_large": ({"cifar": True, "img_size": 32},),
}
LARGE = ("vit_base", "vit_large", "swin_base", "swin_large")  # too large to be computed with in a test
CASES = [(name, settings) for name, several in SETTINGS.items() for settings in several]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_encoder_is_solo_learns_own(name, settings):
    with torch.device("meta" if name in LARGE else "cpu"):
        theirs = bare_method(BaseMethod, encoder=name, backbone_args=settings).encoder
        ours = make_encoder(name, settings)
    shapes = [{key: value.shape for key, value in one.state_dict().items()} for one in (theirs, ours)]
    assert list(shapes[0].items()) == list(shapes[1].items())
    if name in LARGE:
        assert str(ours) == str(theirs)
        return
    ours.load_state_dict(theirs.state_dict())
    side = settings.get("img_size", 40)
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny", "swin_tiny"])
def test_random_weights_of_a_seed_are_solo_learns_own(name):
    torch.manual_seed(0)
    theirs = bare_method(BaseMethod, encoder=name, backbone_args={"cifar": False}).encoder.state_dict()
    torch.manual_seed(0)
    ours = make_encoder(name, {"cifar": False}).state_dict()
    assert all(torch.equal(value, ours[key]) for key, value in theirs.items())


@pytest.mark.parametrize("dataset", [name for name in DATASETS if name not in ("custom", "digits", "shards", "hf")])
def test_colours_of_a_data_set_are_solo_learns_own(dataset, tmp_path):
    from solo.utils.classification_dataloader import prepare_transforms

    theirs = next(step for step in prepare_transforms(dataset)[1].transforms if isinstance(step, transforms.Normalize))
    source = ImageSource(dataset, tmp_path, None, None, (32,), (0.1, 0.1, 0.1), (1.0, 1.0, 1.0))
    assert source.colours == (tuple(theirs.mean), tuple(theirs.std))
