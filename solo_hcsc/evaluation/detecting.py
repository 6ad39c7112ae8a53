"""Find objects in test images with a trained detector, over all processes together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models.detection.roi_heads import paste_masks_in_image

from solo_hcsc.data.loaders import derive_seed, seed_host
from solo_hcsc.errors import UserError
from solo_hcsc.progress import watch
from solo_hcsc.training.precise_bn import has_batch_norm, recompute

_MASK = 0.5  # from which probability on a pixel belongs to an object


@dataclass(frozen=True)
class Detections:
    """Hold what was found in one image.

    Attributes:
        boxes: (n, 4) float32, left, top, right, bottom in pixels of the image on disk.
        scores: (n,) float32, the highest first.
        labels: (n,) int64, classes from 0.
        masks: COCO's run lengths, one an object; empty of a detector without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Place:
    """Hold on which device and how exactly a detector computes."""

    device: torch.device
    precision: Callable[[], AbstractContextManager]

    def moved(self, images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [image.to(self.device, non_blocking=True) for image in images]


def set_batch_norm(
    detector: nn.Module, loader: DataLoader, batches: int, place: Place, seed: int, synced: bool
) -> nn.Module:
    """Compute batch norm's averages anew on the first training batches, if the detector has batch norm; return it.

    `synced`: whether a batch is that of all processes, as it was in training.
    """
    if not batches or not has_batch_norm(detector):
        return detector
    if synced and dist.is_initialized():  # Lightning's own conversion ends with its training
        detector = nn.SyncBatchNorm.convert_sync_batchnorm(detector)
    detector.to(place.device)

    def step(batch: Any) -> None:
        images, targets = batch
        seed_host(seed)  # regions are drawn at random; a loader without workers draws from the same numbers
        if place.device.type == "cuda":
            torch.cuda.manual_seed(derive_seed(seed))
        with place.precision():
            detector(place.moved(images), [{k: v.to(place.device) for k, v in one.items()} for one in targets])

    some = min(batches, len(loader))
    recompute(detector, watch(islice(loader, some), some * (loader.batch_size or 1), "batch norm's averages"), step)
    return detector


@torch.no_grad()
def find_objects(detector: nn.Module, loader: DataLoader, place: Place) -> dict[int, Detections]:
    """Return what the detector finds in each test image that can be read, by the image's index, in their order.

    Args:
        detector: as `make_detector` makes it.
        loader: of a `DetectionImages` that is not for training; several processes share its images.
        place: the device and the precision.
    """
    detector.eval().to(place.device)
    found = dict(_of_this_process(detector, loader, place))
    if dist.is_initialized():
        each: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(each, found)
        found = {index: one for share in each for index, one in share.items()}
    return dict(sorted(found.items()))


def _of_this_process(detector: nn.Module, loader: DataLoader, place: Place) -> Iterator[tuple[int, Detections]]:
    share = len(loader.sampler) if loader.sampler is not None else 0  # type: ignore[arg-type]
    for images, targets in watch(loader, share, "test images"):
        if not images:
            continue
        with place.precision():
            results = detector(place.moved(images))
        for image, target, result in zip(images, targets, results, strict=True):
            yield int(target["index"]), at_size(result, image.shape[-2:], target["size"].tolist())


def at_size(result: dict[str, torch.Tensor], seen: Sequence[int], size: Sequence[int]) -> Detections:
    """Convert a detector's result to pixels of the image on disk.

    Args:
        result: boxes, scores, labels from 1, and masks of the boxes (n, 1, S, S) if there are some.
        seen: height and width of the image that it is of.
        size: those of the image on disk.
    """
    parts = {name: value.float().cpu() if name != "labels" else value.cpu() for name, value in result.items()}
    if not all(value.isfinite().all() for value in parts.values()):
        raise UserError("the detector's boxes or scores are not finite; try a lower `lr` or `precision` 32")
    order = parts["scores"].argsort(descending=True, stable=True)
    boxes = parts["boxes"][order] * torch.tensor([size[1] / seen[1], size[0] / seen[0]] * 2)
    masks: tuple[Any, ...] = ()
    if "masks" in parts:
        masks = _run_lengths(paste_masks_in_image(parts["masks"][order], boxes, tuple(size)))
    return Detections(boxes.numpy(), parts["scores"][order].numpy(), parts["labels"][order].numpy() - 1, masks)


def _run_lengths(masks: torch.Tensor) -> tuple[Any, ...]:
    from pycocotools import mask

    return tuple(mask.encode(np.asfortranarray(one[0].numpy() >= _MASK, dtype=np.uint8)) for one in masks)
