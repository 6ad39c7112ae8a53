from functools import partial

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

from solo.utils.knn import WeightedKNNClassifier
from solo.utils.metrics import accuracy_at_k
from solo.utils.misc import omegaconf_select


def headless():
    encoder = resnet18()
    encoder.fc = nn.Identity()
    return encoder


def kept(get_lr, numbers, rate):
    return [rate if number in numbers else one for number, one in enumerate(get_lr())]


class BaseMethod(pl.LightningModule):
    _OPTIMIZERS = {"sgd": torch.optim.SGD}  # noqa: RUF012

    def __init__(self, cfg):
        super().__init__()
        cfg = self.add_and_assert_specific_cfg(cfg)
        self.cfg = cfg
        self.backbone, self.features_dim = headless(), 512
        self.num_classes = cfg.data.num_classes
        self.num_large_crops = cfg.data.num_large_crops
        self.classifier = nn.Linear(512, self.num_classes)
        optimizer = cfg.optimizer
        self.optimizer, self.lr, self.weight_decay = optimizer.name, optimizer.lr, optimizer.weight_decay
        self.extra_optimizer_args, self.scheduler = optimizer.kwargs, cfg.scheduler.name
        self.knn_eval = cfg.knn_eval.enabled
        if self.knn_eval:
            self.knn = WeightedKNNClassifier(k=cfg.knn_eval.k, distance_fx="cosine")

    @staticmethod
    def add_and_assert_specific_cfg(cfg):
        cfg.method_kwargs = omegaconf_select(cfg, "method_kwargs", {})
        cfg.knn_eval = omegaconf_select(cfg, "knn_eval", {})
        cfg.knn_eval.enabled = omegaconf_select(cfg, "knn_eval.enabled", False)
        cfg.knn_eval.k = omegaconf_select(cfg, "knn_eval.k", 20)
        return cfg

    @property
    def learnable_params(self):
        classifier = {"name": "classifier", "params": self.classifier.parameters(), "weight_decay": 0}
        return [
            {"name": "backbone", "params": self.backbone.parameters()},
            classifier | {"lr": self.cfg.optimizer.classifier_lr},
        ]

    def configure_optimizers(self):
        groups = self.learnable_params
        static = [number for number, group in enumerate(groups) if group.pop("static_lr", False)]
        optimizer = self._OPTIMIZERS[self.optimizer](
            groups, lr=self.lr, weight_decay=self.weight_decay, **self.extra_optimizer_args
        )
        if self.scheduler != "step":
            return optimizer
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, self.lr_decay_steps)
        if static:  # like the original's, a function that the scheduler saves
            scheduler.get_lr = partial(kept, scheduler.get_lr, static, self.lr)
        return [optimizer], [scheduler]

    def forward(self, X):
        feats = self.backbone(X)
        return {"feats": feats, "logits": self.classifier(feats.detach())}

    def _base_shared_step(self, X, targets):
        return self._judged(self(X), targets, 5)

    def _judged(self, out, targets, most):
        logits = out["logits"]
        acc1, acc5 = accuracy_at_k(logits, targets, (1, min(most, logits.size(1)) if most else 5))
        return {**out, "loss": F.cross_entropy(logits, targets), "acc1": acc1, "acc5": acc5}

    def validation_step(self, batch, batch_idx):
        X, targets = batch
        out = self._base_shared_step(X, targets)
        if self.knn_eval and not self.trainer.sanity_checking:
            self.knn(test_features=out["feats"], test_targets=targets)

    def on_validation_epoch_end(self):
        if self.knn_eval and not self.trainer.sanity_checking:
            self.log("val_knn_acc1", self.knn.compute()[0])
            print(f"KNN accuracy {self.trainer.callback_metrics['val_knn_acc1']:.1f}")


class BaseMomentumMethod(BaseMethod):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.momentum_backbone = headless().requires_grad_(False)
        self.momentum_backbone.load_state_dict(self.backbone.state_dict())
        self.momentum_classifier = nn.Linear(512, self.num_classes) if cfg.momentum.classifier else None

    @staticmethod
    def add_and_assert_specific_cfg(cfg):
        cfg = super(BaseMomentumMethod, BaseMomentumMethod).add_and_assert_specific_cfg(cfg)
        cfg.momentum.base_tau = omegaconf_select(cfg, "momentum.base_tau", 0.99)
        cfg.momentum.final_tau = omegaconf_select(cfg, "momentum.final_tau", 1.0)
        cfg.momentum.classifier = omegaconf_select(cfg, "momentum.classifier", False)
        return cfg

    @property
    def momentum_pairs(self):
        return [(self.backbone, self.momentum_backbone)]

    @torch.no_grad()
    def momentum_forward(self, X):
        return {"feats": self.momentum_backbone(X)}

    def _shared_step_momentum(self, X, targets):
        out = self.momentum_forward(X)
        if self.momentum_classifier is None:
            return out
        return self._judged(out | {"logits": self.momentum_classifier(out["feats"])}, targets, 0)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        tau = self.cfg.momentum.base_tau
        for online, momentum in self.momentum_pairs:
            for ours, theirs in zip(online.parameters(), momentum.parameters(), strict=True):
                theirs.data = tau * theirs.data + (1 - tau) * ours.data
