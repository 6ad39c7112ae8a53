"""The detectors: their parts are the encoder's, their layout is the published one, their losses are the definitions."""

import doctest
import io
import math
import pickle
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from solo_hcsc.data.views import View
from solo_hcsc.encoders.export import Exportable, export
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.make import make_encoder
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.detecting import at_size
from solo_hcsc.evaluation.detector import (
    C4_ANCHORS,
    Anchors,
    DetectorSettings,
    Proposals,
    box_losses,
    feature_maps,
    make_detector,
)

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def settings(**changes) -> DetectorSettings:
    plain = {"head": "c4", "masks": False, "anchor_sizes": None, "rois_per_image": 512, "pool_size": 14}
    return DetectorSettings(**(plain | {"mean": MEAN, "std": STD, "channel_order": "rgb"} | changes))


def encoder(name: str, **arguments) -> Encoder:
    """With batch norms that have seen images, so that none of its weights is a 0 or a 1 by default."""
    torch.manual_seed(0)
    module = make_encoder(name, arguments)
    with torch.no_grad():
        module.train()(torch.randn(2, 3, 64, 64))
    return Encoder(module.eval(), name, arguments, Path("x.ckpt"), "", View(224, None, None))


@pytest.fixture(scope="module")
def resnet50() -> Encoder:
    return encoder("resnet50", cifar=False)


@pytest.mark.parametrize("module", ["data.detection", "training.detection", "evaluation.average_precision"])
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(import_module(f"solo_hcsc.{module}"))
    assert (found.failed, found.attempted > 0) == (0, True)


# ---- C4 ----


def published(classes: int, masks: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what detectron2 trains with MoCo's configuration R50-C4, from its settings."""
    found: dict[str, tuple[int, ...]] = {}

    def conv(name: str, before: int, after: int, side: int) -> None:
        found[f"{name}.weight"] = (after, before, side, side)
        found.update({f"{name}.norm.{part}": (after,) for part in ("weight", "bias")})

    conv("backbone.stem.conv1", 3, 64, 7)
    before = 64
    for stage, (blocks, inner) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=2):
        for block in range(blocks):
            name = f"{'roi_heads' if stage == 5 else 'backbone'}.res{stage}.{block}"  # layer4 is the head's
            if block == 0:
                conv(f"{name}.shortcut", before, 4 * inner, 1)
            conv(f"{name}.conv1", before, inner, 1)
            conv(f"{name}.conv2", inner, inner, 3)
            conv(f"{name}.conv3", inner, 4 * inner, 1)
            before = 4 * inner
    found |= {f"roi_heads.res5.norm.{part}": (2048,) for part in ("weight", "bias")}  # the extra batch norm
    anchors = 5 * 3
    for name, shape in {
        "proposal_generator.rpn_head.conv": (1024, 1024, 3, 3),
        "proposal_generator.rpn_head.objectness_logits": (anchors, 1024, 1, 1),
        "proposal_generator.rpn_head.anchor_deltas": (4 * anchors, 1024, 1, 1),
        "roi_heads.box_predictor.cls_score": (classes + 1, 2048),
        "roi_heads.box_predictor.bbox_pred": (4 * classes, 2048),
        **({"roi_heads.mask_head.predictor": (classes, 256, 1, 1)} if masks else {}),
    }.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    if masks:
        found |= {"roi_heads.mask_head.deconv.weight": (2048, 256, 2, 2), "roi_heads.mask_head.deconv.bias": (256,)}
    return found


RENAMED = {
    "roi_heads.box_head.layer4": "roi_heads.res5",
    "roi_heads.box_head.norm": "roi_heads.res5.norm",
    "roi_heads.mask_predictor": "roi_heads.mask_head",
    "backbone.layer1": "backbone.res2",
    "backbone.layer2": "backbone.res3",
    "backbone.layer3": "backbone.res4",
    "backbone.conv1": "backbone.stem.conv1",
    "backbone.bn1": "backbone.stem.conv1.norm",
    "rpn.head.conv.0.0": "proposal_generator.rpn_head.conv",
    "rpn.head.cls_logits": "proposal_generator.rpn_head.objectness_logits",
    "rpn.head.bbox_pred": "proposal_generator.rpn_head.anchor_deltas",
    "downsample.0": "shortcut",
    "downsample.1": "shortcut.norm",
    **{f".bn{n}.": f".conv{n}.norm." for n in (1, 2, 3)},
}


def renamed(name: str) -> str:
    for ours, theirs in RENAMED.items():
        name = name.replace(ours, theirs)
    return name


@pytest.mark.parametrize(("classes", "masks"), [(20, False), (80, True)], ids=["voc", "coco"])
def test_parameters_are_those_of_the_published_configuration(classes, masks):
    with torch.device("meta"):
        module = make_encoder("resnet50", {"cifar": False})
    module = module.to_empty(device="cpu")  # its values do not matter
    for parameter in module.state_dict().values():
        parameter.zero_()
    made = make_detector(
        Encoder(module, "resnet50", {}, Path("x"), "", View(224, None, None)), classes, settings(masks=masks)
    )
    ours = {renamed(name): tuple(value.shape) for name, value in made.named_parameters()}
    assert ours == published(classes, masks)
    assert all(parameter.requires_grad for parameter in made.parameters())  # nothing is frozen,
    assert all(module.training for module in made.modules())  # nor does batch norm keep the encoder's averages
    # A ResNet-50 without its classifier, the proposals' network, the extra batch norm, boxes, and masks.
    network = 1024 * (1024 * 9 + 1) + 75 * (1024 + 1)
    heads = 2 * 2048 + (5 * classes + 1) * (2048 + 1) + masks * (2048 * 256 * 4 + 256 + classes * 257)
    assert sum(parameter.numel() for parameter in made.parameters()) == 23_508_032 + network + heads


def test_exported_pickle_fills_the_published_configuration(resnet50):
    """detectron2 gives a parameter the array whose name its own ends with."""
    pickled = export(Exportable(replace(resnet50, view=View(64, MEAN, STD)), "hcsc"), "detectron2", ".pkl").content
    arrays = pickle.load(io.BytesIO(pickled))["model"]
    filled = {}
    for name, shape in published(20, masks=False).items():
        matching = [key for key in arrays if name.endswith(f".{key}")]
        assert len(matching) <= 1
        if matching:
            assert arrays[matching[0]].shape == shape
            filled[name] = matching[0]
    left = {name.rpartition(".")[0] for name in published(20, masks=False).keys() - filled.keys()}
    predictors = {"cls_score", "bbox_pred", "conv", "objectness_logits", "anchor_deltas"}
    assert {name.rpartition(".")[2] for name in left - {"roi_heads.res5.norm"}} == predictors
    used = {key for key in arrays if key.rpartition(".")[2] in ("weight", "bias")}
    assert set(filled.values()) == used  # and no array is left over


def test_features_are_the_encoders_layer_by_layer(resnet50):
    made = make_detector(resnet50, 3, settings()).eval()
    images = torch.randn(2, 3, 96, 64)
    whole = resnet50.module.eval()
    seen, expected = [], []
    with torch.no_grad():
        x = images
        for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"):
            x = getattr(whole, name)(x)
            expected.append(x.clone())
        y = images
        for layer in (*made.backbone, made.roi_heads.box_head.layer4):
            y = layer(y)
            seen.append(y.clone())
        pooled = made.roi_heads.box_head.layer4(made.backbone(images)).mean((2, 3))
        assert torch.equal(pooled, whole(images))
    assert all(torch.equal(*pair) for pair in zip(seen, expected, strict=True))
    assert made.backbone(images).shape == (2, 1024, 6, 4)
    first = made.roi_heads.box_head.layer4[0]
    assert (first.conv1.stride, first.conv2.stride) == ((1, 1), (2, 2))  # the stride is in the 3 x 3
    assert made.roi_heads.box_head.norm.weight.shape == (2048,)


def test_region_is_pooled_where_it_is():
    """A ramp of values, of which RoIAlign must give the value at each bin's centre; half a cell off would show."""
    made = make_detector(encoder("resnet18", cifar=False), 3, settings(pool_size=2))
    ramp = (torch.arange(12.0) + 0.5)[None, None, None].expand(1, 256, 12, 12) * 16  # a cell's centre, in pixels
    box = torch.tensor([[32.0, 32.0, 96.0, 96.0]])
    pooled = made.roi_heads.box_roi_pool({"0": ramp}, [box], [(192, 192)])
    assert pooled[0, 0, 0].tolist() == pytest.approx([48.0, 80.0])


def test_anchors_are_squares_and_rectangles_of_equal_area_at_every_cell():
    anchors = Anchors([C4_ANCHORS], [16])
    (cells,) = anchors.cell_anchors
    sides = cells[:, 2:] - cells[:, :2]
    assert sides.prod(1).sqrt().tolist() == pytest.approx([*C4_ANCHORS] * 3, rel=1e-5)
    ratios = [0.5] * 5 + [1.0] * 5 + [2.0] * 5
    assert (sides[:, 1] / sides[:, 0]).tolist() == pytest.approx(ratios)
    images = type("Images", (), {"image_sizes": [(40, 60)]})
    (grid,) = anchors(images, [torch.zeros(1, 8, 3, 4, dtype=torch.bfloat16)])
    assert (grid.shape, grid.dtype) == ((3 * 4 * 15, 4), torch.float32)  # 16 bits cannot count pixels
    assert torch.allclose(grid[15] - grid[0], torch.tensor([16.0, 0, 16, 0]))
    assert torch.allclose(grid[4 * 15] - grid[0], torch.tensor([0, 16.0, 0, 16]))


def test_losses_by_hand():
    scores = torch.tensor([[0.0, 0.0, 2.0], [1.0, 0.0, 0.0]])
    deltas = torch.zeros(2, 12)
    deltas[0, 8:] = torch.tensor([0.5, -1.0, 0.0, 0.0])
    losses = box_losses(scores, deltas, torch.tensor([2, 0]), torch.tensor([[0.0, 0, 0, 0.25], [9.0, 9, 9, 9]]))
    classes = (-2 + math.log(2 + math.exp(2)) - 1 + math.log(2 + math.e)) / 2
    assert float(losses["loss_classifier"]) == pytest.approx(classes)
    assert float(losses["loss_box_reg"]) == pytest.approx((0.5 + 1 + 0.25) / 2)  # of the background nothing

    network = Proposals(Anchors([[32]], [16]), nn.Identity(), 0.7, 0.3, 4, 0.5, {}, {}, 0.7)
    objectness, moves = torch.tensor([[2.0], [-1.0], [0.5]]), torch.tensor([[1.0, 0, 0, 0]] * 3)
    wanted = [torch.tensor([1.0, 0.0, -1.0])]  # the third counts for nothing
    shown, boxes = network.compute_loss(objectness, moves, wanted, [torch.zeros(3, 4)])
    assert float(shown) == pytest.approx((math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-1))) / 4)
    assert float(boxes) == pytest.approx(1 / 4)  # over the four anchors that are asked for


def test_images_are_normalised_as_the_encoder_was_trained():
    image = torch.rand(3, 32, 48)
    made = make_detector(encoder("resnet18", cifar=False), 3, settings())
    batch, _ = made.transform([image])
    assert torch.allclose(batch.tensors[0, 1, :32, :48], (image[1] - 0.4) / 0.25)
    assert batch.tensors.shape[-2:] == (32, 48)  # multiples of the stride, not of 32
    turned = make_detector(encoder("resnet18", cifar=False), 3, settings(channel_order="bgr"))
    assert torch.equal(turned.transform([image])[0].tensors, batch.tensors.flip(1))


def test_boxes_and_masks_come_back_in_the_pixels_of_the_file():
    result = {
        "boxes": torch.tensor([[0.0, 0, 10, 10], [20, 10, 60, 30]]),
        "scores": torch.tensor([0.3, 0.9]),
        "labels": torch.tensor([1, 3]),
        "masks": torch.ones(2, 1, 14, 14),
    }
    from pycocotools import mask

    found = at_size(result, (40, 80), (20, 20))
    assert found.scores.tolist() == pytest.approx([0.9, 0.3])
    assert found.labels.tolist() == [2, 0]
    assert found.boxes[0].tolist() == [5, 5, 15, 15]
    whole = mask.decode(found.masks[0])
    assert whole.shape == (20, 20)
    assert 90 <= whole[5:15, 5:15].sum() <= 100
    with pytest.raises(UserError, match="not finite"):
        at_size(result | {"scores": torch.tensor([np.nan, 0.5])}, (40, 80), (20, 20))


# ---- any encoder ----


def test_encoder_without_layer4_needs_a_pyramid():
    with pytest.raises(UserError, match="`head` c4: timm/test_convnext has no layer1 to layer4"):
        make_detector(encoder("timm/test_convnext"), 3, settings())


@pytest.mark.parametrize(
    ("name", "arguments", "strides"),
    [
        ("resnet18", {"cifar": False}, [4, 8, 16, 32]),
        ("timm/test_resnet", {}, [4, 8, 16, 32]),
        ("timm/test_efficientnet", {}, [4, 8, 16, 32]),
        ("timm/test_vit", {"img_size": 64, "dynamic_img_size": True}, [16]),
        ("vit_tiny", {"cifar": False, "img_size": 64, "patch_size": 16}, [16]),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_pyramid_takes_any_encoder_with_feature_maps(name, arguments, strides):
    subject = encoder(name, **arguments)
    made = make_detector(subject, 3, settings(head="fpn", pool_size=7, rois_per_image=8))
    assert made.rpn.anchor_generator.strides == (*strides, 2 * strides[-1])
    images = [torch.rand(3, 64, 80), torch.rand(3, 70, 64)]
    targets = [{"boxes": torch.tensor([[5.0, 5, 30, 40]]), "labels": torch.tensor([1])}] * 2
    with torch.autocast("cpu", torch.bfloat16):
        losses = made.train()(images, targets)
    sum(losses.values()).backward()
    body = [name for name, one in made.backbone.body.named_parameters() if one.grad is not None]
    assert body  # the encoder learns
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert {one["boxes"].dtype for one in made.eval()(images)} == {torch.float32}


def test_stem_for_small_images_makes_finer_anchors():
    made = make_detector(encoder("resnet18", cifar=True), 3, settings(anchor_sizes=(8, 16)))
    assert made.rpn.anchor_generator.strides == (4,)
    assert made.roi_heads.box_roi_pool.align.spatial_scale == 1 / 4


def test_feature_maps_have_the_encoders_weights():
    subject = encoder("timm/test_efficientnet")
    maps = feature_maps(subject)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        found = maps.eval()(images)
        last = timm.create_model("test_efficientnet", num_classes=0, features_only=False)
        last.load_state_dict(subject.module.state_dict())
        _, theirs = last.eval().forward_intermediates(images)
    assert torch.allclose(found[-1], theirs[-1], atol=1e-6)
    assert [level.shape[-1] for level in found] == [16, 8, 4, 2]


def test_anchors_of_a_pyramid_are_one_for_each_level():
    with pytest.raises(UserError, match="levels at strides 4 8 16 32 64, each of which takes one; give 5"):
        make_detector(encoder("resnet18", cifar=False), 3, settings(head="fpn", anchor_sizes=(16, 32)))


def test_masks_share_the_boxes_features():
    made = make_detector(encoder("resnet18", cifar=False), 3, settings(masks=True, rois_per_image=8, pool_size=4))
    passes = []
    made.roi_heads.box_head.register_forward_hook(lambda *_: passes.append(1))
    masks = torch.zeros(1, 64, 64, dtype=torch.uint8)
    masks[:, 5:40, 5:30] = 1
    target = {"boxes": torch.tensor([[5.0, 5, 30, 40]]), "labels": torch.tensor([1]), "masks": masks}
    losses = made.train()([torch.rand(3, 64, 64)] * 2, [target] * 2)
    assert len(passes) == 1
    assert float(losses["loss_mask"].detach()) == pytest.approx(math.log(2), rel=0.05)  # masks start at one half
    shown = made.eval()([torch.rand(3, 64, 64)])[0]
    assert shown["masks"].shape[1:] == (1, 4, 4)
    assert F.mse_loss(shown["masks"], torch.full_like(shown["masks"], 0.5)) < 0.1
