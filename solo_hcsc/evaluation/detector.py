"""Detectors on a pretrained encoder: Faster and Mask R-CNN, of torchvision's parts.

`c4` is what MoCo's, and after it HCSC's, detectron2 configuration R50-C4 builds: conv1 to layer3 with one level of
anchors, and layer4 with an extra batch norm as the head of the boxes, which masks share. `fpn` is torchvision's own
detector with a feature pyramid. Nothing is frozen in either.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FasterRCNN
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_inference, maskrcnn_loss
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import MultiScaleRoIAlign, RoIAlign
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.encoders.make import as_timm
from solo_hcsc.errors import UserError, on_one_line

Found = list[dict[str, torch.Tensor]]
C4_ANCHORS = (32, 64, 128, 256, 512)  # pixels of a side
_RATIOS = (0.5, 1.0, 2.0)
_STAGES = ("layer1", "layer2", "layer3", "layer4")
_HIDDEN = 1024  # width of the pyramid's head, torchvision's
_TRIED = 128, 160  # height and width of the image that an encoder is tried on
# What lets timm's transformers take images of any size; others know neither.
_ANY_SIZE: tuple[dict[str, Any], ...] = ({"dynamic_img_size": True}, {"strict_img_size": False}, {})


@dataclass(frozen=True)
class DetectorSettings:
    """Hold what a detector is made of, beside its encoder."""

    head: str  # c4 or fpn
    masks: bool
    anchor_sizes: tuple[int, ...] | None  # in pixels; None: those of the head
    rois_per_image: int  # that the head is trained on
    pool_size: int  # side of what is pooled of a region, in cells of the feature map
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channel_order: str  # rgb or bgr


def make_detector(encoder: Encoder, classes: int, settings: DetectorSettings) -> GeneralizedRCNN:
    """Build a detector that starts from the encoder's weights; it takes images from 0 to 1 that are resized already.

    Args:
        encoder: as `load_encoder` has it. Its modules become the detector's.
        classes: how many there are, without the background.
        settings: the kind of head, and the numbers that go with it.

    Returns:
        The detector. In training it maps images and targets to losses, in evaluation images to boxes, labels from 1 and
        scores in pixels of the given images; masks are those of the boxes, not yet of the image.
    """
    made = (_c4 if settings.head == "c4" else _fpn)(encoder, classes, settings)
    return made.train()  # Lightning leaves modules as they are, and trying an encoder has put it in evaluation mode


# ---- what both share ----


class Normalised(GeneralizedRCNNTransform):
    """Normalise and batch images that are resized already, and leave what is found in their pixels."""

    def __init__(self, settings: DetectorSettings, size_divisible: int) -> None:
        super().__init__(0, 0, list(settings.mean), list(settings.std), size_divisible)
        self.bgr = settings.channel_order == "bgr"

    def normalize(self, image: torch.Tensor) -> torch.Tensor:
        """Apply mean and deviation of red, green and blue in any order of channels."""
        normal = super().normalize(image)
        return normal.flip(0) if self.bgr else normal

    def resize(self, image: torch.Tensor, target: Any = None) -> tuple[torch.Tensor, Any]:
        return image, target

    def postprocess(self, result: Found, image_shapes: Any, original_image_sizes: Any) -> Found:
        return result


class Anchors(AnchorGenerator):
    """Place anchors at known strides, not rounded to pixels, as detectron2 does."""

    def __init__(self, sizes: Sequence[Sequence[int]], strides: Sequence[int]) -> None:
        self.strides = tuple(strides)
        super().__init__(tuple(map(tuple, sizes)), (_RATIOS,) * len(sizes))

    def generate_anchors(
        self,
        scales: Any,
        aspect_ratios: Any,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """Return (sizes x ratios, 4) around 0; a ratio is height over width at equal area."""
        sides = torch.as_tensor(scales, dtype=dtype, device=device)
        roots = torch.as_tensor(aspect_ratios, dtype=dtype, device=device).sqrt()
        widths, heights = (sides / roots[:, None]).flatten(), (sides * roots[:, None]).flatten()
        return torch.stack([-widths, -heights, widths, heights], dim=1) / 2

    def forward(self, image_list: ImageList, feature_maps: list[torch.Tensor]) -> list[torch.Tensor]:
        first = feature_maps[0]
        self.set_cell_anchors(torch.float32, first.device)  # also of features in 16 bits, which cannot count pixels
        strides = [[torch.tensor(stride, device=first.device)] * 2 for stride in self.strides]
        grids = self.grid_anchors([[*level.shape[-2:]] for level in feature_maps], strides)
        return [torch.cat(grids)] * len(image_list.image_sizes)


class Proposals(RegionProposalNetwork):
    """Use detectron2's loss in torchvision's network: absolute differences, over as many anchors as are asked for."""

    def compute_loss(
        self, objectness: torch.Tensor, deltas: torch.Tensor, labels: Any, targets: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        positive, negative = (torch.where(torch.cat(chosen, dim=0))[0] for chosen in self.fg_bg_sampler(labels))
        sampled, wanted = torch.cat([positive, negative]), torch.cat(labels)
        asked = self.fg_bg_sampler.batch_size_per_image * len(labels)
        boxes = F.l1_loss(deltas[positive], torch.cat(targets)[positive], reduction="sum")
        shown = F.binary_cross_entropy_with_logits(objectness.flatten()[sampled], wanted[sampled], reduction="sum")
        return shown / asked, boxes / asked


class ProposalHead(RPNHead):
    """Return exact output also where torchvision's layers compute in 16 bits."""

    def forward(self, x: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        objectness, deltas = super().forward(x)
        return [level.float() for level in objectness], [level.float() for level in deltas]


class BoxPredictor(nn.Module):
    """Predict scores of the background and each class, and each class's box; the background has none to learn."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(channels, classes + 1)
        self.bbox_pred = nn.Linear(channels, 4 * classes)
        for layer, deviation in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (R, D) to (R, classes + 1) and (R, 4 * (classes + 1)), the background first."""
        scores, deltas = self.cls_score(features).float(), self.bbox_pred(features).float()
        return scores, F.pad(deltas, (4, 0))


# ---- C4 ----


class OneLevelPool(nn.Module):
    """Pool the one feature map by RoIAlign, at detectron2's places (`aligned`), with as many samples as a bin needs."""

    def __init__(self, size: int, stride: int) -> None:
        super().__init__()
        self.align = RoIAlign(size, 1 / stride, sampling_ratio=0, aligned=True)

    def forward(self, features: Mapping[str, torch.Tensor], boxes: list[torch.Tensor], _: Any) -> torch.Tensor:
        (level,) = features.values()
        return self.align(level.float(), boxes)


class MaskPredictor(nn.Sequential):
    """Double the resolution of the shared features, and predict a mask for the background, unused, and each class."""

    def __init__(self, channels: int, classes: int) -> None:
        deconv, predictor = nn.ConvTranspose2d(channels, 256, 2, stride=2), nn.Conv2d(256, classes, 1)
        nn.init.kaiming_normal_(deconv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(predictor.weight, std=0.001)
        for layer in (deconv, predictor):
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        super().__init__(OrderedDict(deconv=deconv, relu=nn.ReLU(inplace=True), predictor=predictor))

    def forward(self, shared: torch.Tensor) -> torch.Tensor:
        return F.pad(super().forward(shared).float(), (0, 0, 0, 0, 1, 0))


class SharedHeads(RoIHeads):
    """Predict boxes and masks from one pass of a region through layer4; torchvision's have a pass each."""

    def has_mask(self) -> bool:
        return self.mask_predictor is not None

    def forward(self, features: Any, proposals: Any, image_shapes: Any, targets: Any = None) -> tuple[Found, Any]:
        if not self.training:
            return self._found(features, proposals, image_shapes), {}
        proposals, matched, labels, regression = self.select_training_samples(proposals, targets)
        shared = self.box_head(self.box_roi_pool(features, proposals, image_shapes))
        scores, deltas = self.box_predictor(shared.mean(dim=(2, 3)))
        losses = box_losses(scores, deltas, torch.cat(labels), torch.cat(regression))
        if self.has_mask():
            positive = [label > 0 for label in labels]
            losses["loss_mask"] = maskrcnn_loss(
                self.mask_predictor(shared[torch.cat(positive)]),
                [boxes[mask] for boxes, mask in zip(proposals, positive, strict=True)],
                [target["masks"] for target in targets],
                [target["labels"] for target in targets],
                [places[mask] for places, mask in zip(matched, positive, strict=True)],
            )
        return [], losses

    def _found(self, features: Any, proposals: Any, image_shapes: Any) -> Found:
        shared = self.box_head(self.box_roi_pool(features, proposals, image_shapes))
        scores = self.box_predictor(shared.mean(dim=(2, 3)))
        kept = self.postprocess_detections(*scores, proposals, image_shapes)
        found = [{"boxes": b, "scores": s, "labels": c} for b, s, c in zip(*kept, strict=True)]
        if self.has_mask():
            boxes = [one["boxes"] for one in found]
            masks = self.mask_predictor(self.box_head(self.box_roi_pool(features, boxes, image_shapes)))
            each = maskrcnn_inference(masks, [one["labels"] for one in found])
            found = [one | {"masks": mask} for one, mask in zip(found, each, strict=True)]
        return found


def box_losses(
    scores: torch.Tensor, deltas: torch.Tensor, labels: torch.Tensor, targets: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the cross-entropy of the regions' classes, and the absolute differences of their boxes over all regions.

    Args:
        scores: (R, classes + 1), the background first.
        deltas: (R, 4 * (classes + 1)).
        labels: (R,), 0 for the background.
        targets: (R, 4), what the box of a region's class should be.
    """
    positive = torch.where(labels > 0)[0]
    chosen = deltas.unflatten(1, (-1, 4))[positive, labels[positive]]
    boxes = F.l1_loss(chosen, targets[positive], reduction="sum") / max(1, len(labels))
    return {"loss_classifier": F.cross_entropy(scores, labels), "loss_box_reg": boxes}


def _c4(encoder: Encoder, classes: int, settings: DetectorSettings) -> GeneralizedRCNN:
    trunk, last = split_resnet(encoder)
    with torch.no_grad():
        features = trunk.eval()(torch.zeros(1, 3, *_TRIED))
        channels, wide = features.shape[1], last.eval()(features).shape[1]
    stride = _stride(features)
    sizes = settings.anchor_sizes or C4_ANCHORS
    anchors = Anchors([sizes], [stride])
    rpn = Proposals(
        anchors,
        ProposalHead(channels, anchors.num_anchors_per_location()[0]),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n={"training": 12000, "testing": 6000},
        post_nms_top_n={"training": 2000, "testing": 1000},
        nms_thresh=0.7,
    )
    heads = SharedHeads(
        OneLevelPool(settings.pool_size, stride),
        nn.Sequential(OrderedDict(layer4=last, norm=nn.BatchNorm2d(wide))),
        BoxPredictor(wide, classes),
        fg_iou_thresh=0.5,
        bg_iou_thresh=0.5,
        batch_size_per_image=settings.rois_per_image,
        positive_fraction=0.25,
        bbox_reg_weights=None,  # 10, 10, 5, 5
        score_thresh=0.05,
        nms_thresh=0.5,
        detections_per_img=100,
        mask_predictor=MaskPredictor(wide, classes) if settings.masks else None,
    )
    return GeneralizedRCNN(trunk, rpn, heads, Normalised(settings, stride))


def split_resnet(encoder: Encoder) -> tuple[nn.Sequential, nn.Module]:
    """Return a ResNet's layers up to layer3, under their names, and layer4; refuse encoders that are no such chain."""
    layers = dict(encoder.module.named_children())
    if not {*_STAGES} <= layers.keys():
        raise UserError(f"`head` c4: {encoder.name} has no layer1 to layer4 as a ResNet has; use `head` fpn")
    names = [*layers][: [*layers].index("layer4")]
    trunk, last = nn.Sequential(OrderedDict((name, layers[name]) for name in names)), layers["layer4"]
    images = torch.randn(1, 3, *_TRIED, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, chained = encoder.module.eval()(images), last.eval()(trunk.eval()(images)).mean(dim=(2, 3))
    if whole.shape != chained.shape or not torch.allclose(whole, chained, rtol=1e-3, atol=1e-4):
        raise UserError(f"`head` c4: {encoder.name} is more than a chain of its layers; use `head` fpn")
    return trunk, last


# ---- FPN ----


class Pyramid(nn.Module):
    """Compute an encoder's feature maps, and a feature pyramid with one more level on them."""

    out_channels = 256

    def __init__(self, body: nn.Module, channels: Sequence[int]) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramidNetwork(list(channels), self.out_channels, LastLevelMaxPool())

    def forward(self, images: torch.Tensor) -> Mapping[str, torch.Tensor]:
        levels = self.fpn(OrderedDict((str(n), level) for n, level in enumerate(self.body(images))))
        return {name: level.float() for name, level in levels.items()}


class Levels(nn.Module):
    """Return the outputs of a ResNet's four stages."""

    def __init__(self, trunk: nn.Sequential, last: nn.Module) -> None:
        super().__init__()
        for name, layer in (*trunk.named_children(), ("layer4", last)):
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for name, layer in self.named_children():
            x = layer(x)
            if name in _STAGES:
                found.append(x)
        return found


class Chosen(nn.Module):
    """Return some of the feature maps of another module."""

    def __init__(self, body: nn.Module, places: Sequence[int]) -> None:
        super().__init__()
        self.body = body
        self.places = tuple(places)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = self.body(x)
        return [found[place] for place in self.places]


def _fpn(encoder: Encoder, classes: int, settings: DetectorSettings) -> GeneralizedRCNN:
    is_resnet = {*_STAGES} <= {name for name, _ in encoder.module.named_children()}
    body = Levels(*split_resnet(encoder)) if is_resnet else feature_maps(encoder)
    with torch.no_grad():
        levels = body.eval()(torch.zeros(1, 3, *_TRIED))
    strides = [*map(_stride, levels)]
    strides.append(2 * strides[-1])  # the pyramid's own level
    sizes = settings.anchor_sizes or tuple(8 * stride for stride in strides)
    if len(sizes) != len(strides):
        raise UserError(
            f"`anchor_sizes`: {encoder.name} has levels at strides {' '.join(map(str, strides))}, each of which takes "
            f"one; give {len(strides)}"
        )
    names, anchors = [str(n) for n in range(len(levels))], Anchors([[size] for size in sizes], strides)
    masks = {
        "mask_roi_pool": MultiScaleRoIAlign(names, 14, 2),
        "mask_predictor": MaskRCNNPredictor(256, 256, classes + 1),
    }
    model = (MaskRCNN if settings.masks else FasterRCNN)(
        Pyramid(body, [level.shape[1] for level in levels]),
        rpn_anchor_generator=anchors,
        rpn_head=ProposalHead(Pyramid.out_channels, anchors.num_anchors_per_location()[0]),
        box_roi_pool=MultiScaleRoIAlign(names, settings.pool_size, 2),
        box_predictor=BoxPredictor(_HIDDEN, classes),
        box_batch_size_per_image=settings.rois_per_image,
        **(masks if settings.masks else {}),
    )
    return GeneralizedRCNN(model.backbone, model.rpn, model.roi_heads, Normalised(settings, max(32, strides[-2])))


def feature_maps(encoder: Encoder) -> nn.Module:
    """Build timm's `features_only` model with the encoder's weights: the last map of each stride, the finest first."""
    model = _features_only(encoder)
    weights = {key.replace(".", "_"): value for key, value in encoder.module.state_dict().items()}
    names = {key: key.removeprefix("model.").replace(".", "_") for key in model.state_dict()}
    missing = [key for key, name in names.items() if name not in weights]
    if missing:
        raise UserError(f"`head` fpn: timm's feature maps of {encoder.name} have other weights ({missing[0]})")
    model.load_state_dict({key: weights[name] for key, name in names.items()})
    try:
        with torch.no_grad():
            found = model.eval()(torch.zeros(1, 3, *_TRIED))
        strides = [*map(_stride, found)]
    except Exception as error:  # of any of timm's thousand models
        raise _without_maps(encoder, error) from error
    if any(level.ndim != 4 for level in found) or sorted(strides) != strides:
        raise _without_maps(encoder, "its maps are not (B, C, H, W) from the finest to the coarsest")
    last = [place for place, (one, after) in enumerate(pairwise([*strides, 0])) if one != after]
    return Chosen(model, [place for place in last if strides[place] >= 4] or last)


def _features_only(encoder: Encoder) -> nn.Module:
    name, settings = as_timm(encoder.name, encoder.settings)
    for more in _ANY_SIZE:
        try:
            return timm.create_model(name, features_only=True, **settings | more)
        except Exception as error:  # of any of timm's thousand models
            refusal = error
    raise _without_maps(encoder, refusal)


def _without_maps(encoder: Encoder, reason: object) -> UserError:
    told = on_one_line((str(reason).strip() or type(reason).__name__).splitlines()[0])[:150]
    return UserError(f"`head` fpn: timm gives no feature maps of {encoder.name} ({told}); use another encoder")


def _stride(level: torch.Tensor) -> int:
    """Return how many pixels of the tried image a cell has."""
    return max(1, round(_TRIED[0] / level.shape[2]))
