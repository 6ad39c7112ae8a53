"""A linear model for images that show any number of classes, judged by average precision."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from solo.methods.linear import LinearModel
from torch import nn

from solo_hcsc.evaluation.average_precision import average_precision
from solo_hcsc.cli.errors import UserError

IGNORED = -1  # a target that is neither 1 nor 0: the class counts neither for nor against the image


class MultiLabel(LinearModel):
    """One classifier for each class. Targets are `(B, classes)` of 1, 0 and `IGNORED`; works in one process."""

    def __init__(self, backbone: nn.Module, classes: list[str], **settings: Any) -> None:
        super().__init__(backbone, **settings)
        self.classes = classes
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # scores and targets of this validation

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.backbone.eval()
        images, targets = batch
        loss = multi_label_loss(self(images)["logits"], targets)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, targets = batch
        self._seen.append((self(images)["logits"].float().cpu(), targets.cpu()))

    def on_validation_batch_end(self, *_: Any) -> None:
        """Nothing to collect: the step did."""

    def on_validation_epoch_end(self) -> None:
        scores, targets = (torch.cat(part) for part in zip(*self._seen, strict=True))
        self._seen.clear()
        if not scores.isfinite().all():
            raise UserError("the classifier's scores are no longer finite; try a lower --lr or --precision 32")
        self.log("val_loss", multi_label_loss(scores, targets))
        for name, points in (("ap", "all"), ("ap11", "11")):
            found = [100 * value for value in average_precisions(targets.numpy(), scores.numpy(), points)]
            self.log_dict({f"val_{name}_{label}": value for label, value in zip(self.classes, found, strict=True)})
            if not np.isnan(found).all():  # as on the few images that are tried before training
                self.log(f"val_m{name}", float(np.nanmean(found)))


def multi_label_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum over classes of the mean binary cross-entropy over the images whose target is not `IGNORED`.

    Each class is thus trained as if alone, and a learning rate means the same for any number of classes.
    """
    known = (targets != IGNORED).float()
    terms = F.binary_cross_entropy_with_logits(logits.float(), targets.float().clamp(min=0), known, reduction="none")
    return (terms.sum(0) / known.sum(0).clamp(min=1)).sum()


def average_precisions(targets: np.ndarray, scores: np.ndarray, points: Any) -> list[float]:
    """Of each class, over the images whose target is not `IGNORED`; both arrays are `(N, classes)`."""
    known = targets != IGNORED
    return [
        average_precision(targets[known[:, c], c] == 1, scores[known[:, c], c], points) for c in range(targets.shape[1])
    ]
