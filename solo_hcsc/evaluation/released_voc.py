"""PASCAL VOC 2007 as the authors' released code has it, which differs from the benchmark's own protocol.

It trains on `train` only, on whole images squeezed to 300 x 300; sums the loss over the batch, so that steps are 16
times larger than a mean's; lets the learning rate go up and down again every 12 epochs; keeps batch norm learning its
averages; takes difficult objects for absent ones; and averages precision over the classes of each image, not over the
images of each class. It also keeps the epoch that is best on `val`, where `solo-hcsc voc` reports the last one.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torchvision import transforms

from solo_hcsc.evaluation.models import MultiLabel

SIDE, RESIZED = 300, 330  # pixels of the crops, and of the shorter side before
HALF_PERIOD = 12  # epochs from the highest learning rate to 0
MEAN = (0.457342265910642, 0.4387686270106377, 0.4073427106250871)
STD = (0.26753769276329037, 0.2638145880487105, 0.2776826934044154)


def training_transform() -> transforms.Compose:
    """Change a whole image: other colours or none, flips, and turns by up to 25 degrees."""
    colours = [transforms.ColorJitter(brightness=(0.8, 1.2)), transforms.RandomGrayscale(0.25)]
    moves = [transforms.RandomHorizontalFlip(0.25), transforms.RandomRotation(25)]
    tail = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    return transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.RandomChoice(colours), *moves, *tail])


def test_transform() -> transforms.Compose:
    """Return the corners and the centre, (5, 3, 300, 300)."""
    one = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    crops = [transforms.Resize(RESIZED), transforms.FiveCrop(SIDE)]
    return transforms.Compose([*crops, transforms.Lambda(lambda five: torch.stack([one(crop) for crop in five]))])


class ReleasedMultiLabel(MultiLabel):
    """Train and judge the classifier as the released code does."""

    def __init__(self, backbone: nn.Module, classes: list[str], **settings: Any) -> None:
        super().__init__(backbone, classes, **settings)
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def configure_optimizers(self) -> Any:
        weights = [self.classifier.weight, self.classifier.bias]
        optimizer = torch.optim.SGD(weights, lr=self.lr, momentum=0.9)
        # Its scheduler steps before an epoch, so that the first one has the second rate.
        return [optimizer], [LambdaLR(optimizer, lambda epoch: (1 + math.cos(math.pi * (epoch + 1) / HALF_PERIOD)) / 2)]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.backbone.train()  # its weights are frozen, its batch norm is not
        images, targets = batch
        loss = summed_loss(self(images)["logits"], targets)
        self.log("train_loss", loss / len(images), on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        crops, targets = batch
        logits = self(crops.flatten(0, 1))["logits"].unflatten(0, crops.shape[:2]).mean(dim=1)
        self._seen.append((logits.float().cpu(), targets.cpu()))

    def on_validation_epoch_end(self) -> None:
        scores, targets = (torch.cat(part).numpy() for part in zip(*self._seen, strict=True))
        super().on_validation_epoch_end()
        self.log("val_image_ap", 100 * image_precision(targets == 1, scores))


def summed_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the binary cross-entropy summed over images and classes; a difficult object counts as none."""
    return F.binary_cross_entropy_with_logits(logits.float(), (targets == 1).float(), reduction="sum")


def image_precision(shown: np.ndarray, scores: np.ndarray) -> float:
    """Return the mean over images of the average precision of an image's classes; both arrays are (N, classes).

    An image that shows none counts as 0, as in scikit-learn's function, which the released code calls.
    """
    found = [average_precision_score(*pair) if pair[0].any() else 0.0 for pair in zip(shown, scores, strict=True)]
    return float(np.mean(found))
