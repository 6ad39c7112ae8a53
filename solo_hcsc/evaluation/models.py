"""Classifiers that differ from solo-learn's: a sweep of learning rates, fine-tuning, several labels per image."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import MeanMetric

from solo_hcsc.data.pascal import IGNORED
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.average_precision import average_precision
from solo_hcsc.solo102 import LinearModel, accuracy_at_k


class Cached(nn.Identity):
    """Stand in for an encoder whose features are computed already."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


class GroupedModel(LinearModel):
    """Give each group of parameters a learning rate of its own."""

    classifier: Any

    def groups(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        return LinearModel.configure_optimizers(_WithGroups(self))  # type: ignore[arg-type]


class _WithGroups:
    """Show solo-learn's `configure_optimizers` a model with groups for the classifier's parameters."""

    def __init__(self, model: GroupedModel) -> None:
        self._model = model

    @property
    def classifier(self) -> "_WithGroups":
        return self

    def parameters(self) -> list[dict[str, Any]]:
        return self._model.groups()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Sweep(GroupedModel):
    """Train one classifier per learning rate; they share each batch's features, and nothing else."""

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
        """Collect nothing: the means are kept as they come."""

    def on_validation_epoch_end(self) -> None:
        log = {}
        for i, lr in enumerate(self.lrs):
            for kind in ("loss", "acc1", "acc5"):
                log[f"val_{kind}_lr{lr:g}"] = self.means[f"{kind}_{i}"].compute()
                self.means[f"{kind}_{i}"].reset()
        best = max(self.lrs, key=lambda lr: float(log[f"val_acc1_lr{lr:g}"]))
        log |= {f"val_{kind}": log[f"val_{kind}_lr{best:g}"] for kind in ("loss", "acc1", "acc5")}
        self.log_dict(log)


class FineTuned(GroupedModel):
    """Train the encoder too; keep the best epoch's accuracy beside the last's."""

    def __init__(self, backbone: nn.Module, head_lr: float, **settings: Any) -> None:
        super().__init__(backbone, **settings)
        self.head_lr = head_lr
        for parameter in self.backbone.parameters():
            parameter.requires_grad = True
        for k in (1, 5):
            self.register_buffer(f"best_acc{k}", torch.tensor(-1.0))  # in the checkpoint, for a resumed run

    def groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [*self.backbone.parameters()], "lr": self.lr},
            {"params": [*self.classifier.parameters()], "lr": self.head_lr},
        ]

    def forward(self, X: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.backbone(X)
        return {"logits": self.classifier(features), "feats": features}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.backbone.train()
        _, loss, acc1, acc5 = self.shared_step(batch, batch_idx)
        self.log_dict({"train_loss": loss, "train_acc1": acc1, "train_acc5": acc5}, on_epoch=True, sync_dist=True)
        return loss

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        if self.trainer.sanity_checking:
            return
        logged = self.trainer.callback_metrics
        if logged["val_acc1"] > self.best_acc1:
            self.best_acc1.copy_(logged["val_acc1"])
            self.best_acc5.copy_(logged["val_acc5"])
        self.log_dict({"best_val_acc1": self.best_acc1.clone(), "best_val_acc5": self.best_acc5.clone()})


class MultiLabel(LinearModel):
    """Train one classifier for each class. Targets are `(B, classes)` of 1, 0 and `IGNORED`; works in one process."""

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
        """Collect nothing: the step did."""

    def on_validation_epoch_end(self) -> None:
        scores, targets = (torch.cat(part) for part in zip(*self._seen, strict=True))
        self._seen.clear()
        if not scores.isfinite().all():
            raise UserError("the classifier's scores are no longer finite; try a lower `lr` or `precision` 32")
        self.log("val_loss", multi_label_loss(scores, targets))
        for name, points in (("ap", "all"), ("ap11", "11")):
            found = [100 * value for value in average_precisions(targets.numpy(), scores.numpy(), points)]
            self.log_dict({f"val_{name}_{label}": value for label, value in zip(self.classes, found, strict=True)})
            if not np.isnan(found).all():  # as on the few images that are tried before training
                self.log(f"val_m{name}", float(np.nanmean(found)))


def multi_label_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum over classes of the mean binary cross-entropy over the images whose target is not `IGNORED`.

    Each class is thus trained as if alone, and a learning rate means the same for any number of classes.
    """
    known = (targets != IGNORED).float()
    terms = F.binary_cross_entropy_with_logits(logits.float(), targets.float().clamp(min=0), known, reduction="none")
    return (terms.sum(0) / known.sum(0).clamp(min=1)).sum()


def average_precisions(targets: np.ndarray, scores: np.ndarray, points: Any) -> list[float]:
    """Return those of each class, over the images whose target is not `IGNORED`; both arrays are `(N, classes)`."""
    known = targets != IGNORED
    return [
        average_precision(targets[known[:, c], c] == 1, scores[known[:, c], c], points) for c in range(targets.shape[1])
    ]
