"""Linear classifiers with many learning rates, trained at once on the same features."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from solo.utils.metrics import accuracy_at_k
from torch import nn
from torchmetrics import MeanMetric

from solo_hcsc.evaluation.probe import GroupedModel


class Sweep(GroupedModel):
    """One classifier per learning rate; they share each batch's features, and nothing else."""

    def __init__(self, backbone: nn.Module, lr_sweep: Sequence[float], **settings: Any) -> None:
        super().__init__(backbone, **settings)
        self.lrs = lr_sweep
        first = self.classifier
        self.classifier = nn.ModuleList(nn.Linear(first.in_features, first.out_features) for _ in self.lrs)
        for head in self.classifier:
            head.load_state_dict(first.state_dict())  # only the learning rate tells them apart
        self.means: Any = nn.ModuleDict(
            {f"{kind}_{i}": MeanMetric() for i in range(len(self.lrs)) for kind in ("loss", "acc1", "acc5")}
        )

    def groups(self) -> list[dict[str, Any]]:
        return [{"params": [*head.parameters()], "lr": lr} for head, lr in zip(self.classifier, self.lrs, strict=True)]

    def _logits(self, images: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            features = self.backbone(images)
        return [head(features) for head in self.classifier]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.backbone.eval()
        images, targets = batch
        losses = torch.stack([F.cross_entropy(logits, targets) for logits in self._logits(images)])
        # Each term has its own parameters: the gradient of the sum is that of each alone, and one that has diverged
        # leaves the others alone.
        return torch.where(losses.isfinite(), losses, 0.0).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, targets = batch
        for i, logits in enumerate(self._logits(images)):
            acc1, acc5 = accuracy_at_k(logits, targets, top_k=(1, 5))
            for kind, value in (("loss", F.cross_entropy(logits, targets)), ("acc1", acc1), ("acc5", acc5)):
                self.means[f"{kind}_{i}"].update(value.squeeze(), weight=len(targets))

    def on_validation_batch_end(self, *_: Any) -> None:
        """Nothing to collect: the means are kept as they come."""

    def on_validation_epoch_end(self) -> None:
        log = {}
        for i, lr in enumerate(self.lrs):
            for kind in ("loss", "acc1", "acc5"):
                log[f"val_{kind}_lr{lr:g}"] = self.means[f"{kind}_{i}"].compute()
                self.means[f"{kind}_{i}"].reset()
        best = max(self.lrs, key=lambda lr: float(log[f"val_acc1_lr{lr:g}"]))
        log |= {f"val_{kind}": log[f"val_{kind}_lr{best:g}"] for kind in ("loss", "acc1", "acc5")}
        self.log_dict(log)
