"""An encoder that is trained together with the classifier on it."""

from typing import Any

import torch
from torch import nn

from solo_hcsc.evaluation.probe import GroupedModel


class FineTuned(GroupedModel):
    """solo-learn's linear model with an encoder that learns too; keeps the best epoch's accuracy beside the last's."""

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
