"""Method classes and what they share."""

import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import solo.methods.base
import solo.methods.deepclusterv2
import solo.methods.linear
import solo.utils.metrics
import torch
import torch.nn.functional as F
from solo.methods.base import BaseMethod, BaseMomentumMethod
from solo.methods.byol import BYOL
from solo.methods.deepclusterv2 import DeepClusterV2
from solo.methods.swav import SwAV
from solo.utils.sinkhorn_knopp import SinkhornKnopp
from solo.utils.whitening import Whitening2d

from solo_hcsc.solo102.repairs.fix import bare_method, fixes


def _top5_needs_five_classes() -> bool:
    try:
        solo.methods.linear.accuracy_at_k(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    except RuntimeError:
        return True
    return False


@fixes(broken=_top5_needs_five_classes)
def accuracy_at_k() -> None:
    """Top-5 accuracy fails with fewer than five classes, in the linear evaluation and the momentum classifier."""
    original = solo.utils.metrics.accuracy_at_k

    def clamped(outputs: torch.Tensor, targets: torch.Tensor, top_k: Sequence[int] = (1, 5)) -> Any:
        return original(outputs, targets, [min(k, outputs.size(1)) for k in top_k])

    for module in (solo.utils.metrics, solo.methods.base, solo.methods.linear):
        module.accuracy_at_k = clamped


def _unlabelled_loss_is_nan() -> bool:
    method = bare_method(BaseMethod)
    out = method._base_shared_step(torch.randn(2, 3, 32, 32), torch.full((2,), -1))
    return bool(out["loss"].isnan())


@fixes(broken=_unlabelled_loss_is_nan)
def unlabelled_batches() -> None:
    """With `no_labels` every target is -1, and the mean over no target makes the whole loss NaN."""

    def repair(cls: type, name: str) -> None:
        original = getattr(cls, name)

        def step(self: Any, images: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
            out = original(self, images, targets)
            if "loss" in out:
                labelled = (targets >= 0).any()
                out["loss"] = torch.where(labelled, out["loss"], out["logits"].sum() * 0)
            return out

        setattr(cls, name, step)

    repair(BaseMethod, "_base_shared_step")
    repair(BaseMomentumMethod, "_shared_step_momentum")


def _first_deepcluster_loss_is_nan() -> bool:
    loss = solo.methods.deepclusterv2.deepclusterv2_loss_func(torch.zeros(1, 2, 1, 3, 4), torch.full((1, 3), -1))
    return bool(loss.isnan())


@fixes(broken=_first_deepcluster_loss_is_nan)
def deepcluster_first_epoch() -> None:
    """In DeepCluster v2's first epoch no image has a cluster, and the mean over none is NaN."""
    original = solo.methods.deepclusterv2.deepclusterv2_loss_func

    def loss_func(outputs: torch.Tensor, assignments: torch.Tensor, temperature: float = 0.1) -> torch.Tensor:
        loss = original(outputs, assignments, temperature)
        return torch.where((assignments >= 0).any(), loss, outputs.sum() * 0)

    solo.methods.deepclusterv2.deepclusterv2_loss_func = loss_func


def swav_multicrop_loss(preds: list[torch.Tensor], assignments: list[torch.Tensor], temperature: float) -> torch.Tensor:
    """Every view but the assigned one predicts each large view's assignment; the mean over all such pairs."""
    losses = [
        -(assignment * F.log_softmax(pred / temperature, dim=1)).sum(dim=1).mean()
        for i, assignment in enumerate(assignments)
        for j, pred in enumerate(preds)
        if i != j
    ]
    return torch.stack(losses).mean()


_SWAV: dict[str, Any] = {"num_prototypes": 4, "sk_iters": 1, "sk_epsilon": 0.05, "temperature": 0.1}
_SWAV |= {"queue_size": 0, "epoch_queue_starts": 0, "freeze_prototypes_epochs": 0}


def _swav_takes_two_crops_only() -> bool:
    swav = bare_method(SwAV, num_small_crops=1, **_SWAV)
    swav.sk = SinkhornKnopp()
    swav.log = swav.log_dict = lambda *args, **kwargs: None
    crops = [torch.randn(4, 3, size, size) for size in (32, 32, 16)]
    try:
        swav.training_step([torch.arange(4), crops, torch.zeros(4, dtype=torch.long)], 0)
    except ValueError:
        return True
    return False


@fixes(broken=_swav_takes_two_crops_only)
def swav_small_crops() -> None:
    """SwAV unpacks exactly two features; without small crops it is not the baseline people know."""
    two_crops = SwAV.training_step

    def training_step(self: Any, batch: Sequence[Any], batch_idx: int) -> torch.Tensor:
        if not self.multicrop:
            return two_crops(self, batch, batch_idx)
        out = BaseMethod.training_step(self, batch, batch_idx)
        z = [F.normalize(self.projector(feats)) for feats in out["feats"]]
        preds = [self.prototypes(z_i) for z_i in z]
        assignments = self.get_assignments(preds[: self.num_large_crops])
        loss = swav_multicrop_loss(preds, assignments, self.temperature)

        if self.queue_size > 0:
            newest = torch.stack(z[: self.num_large_crops]).detach()
            kept = self.queue.size(1) - newest.size(1)
            self.queue.copy_(torch.cat([newest, self.queue[:, :kept]], dim=1))

        self.log("train_swav_loss", loss, on_epoch=True, sync_dist=True)
        return loss + out["loss"]

    SwAV.training_step = training_step


_LATE_BUFFERS = {SwAV: ("queue",), DeepClusterV2: ("local_memory_index", "local_memory_embeddings")}


def _swav_cannot_load_its_queue() -> bool:
    swav = bare_method(SwAV, **_SWAV)
    state = swav.state_dict() | {"queue": torch.zeros(2, 4, 8)}
    swav.on_load_checkpoint({"state_dict": state})
    try:
        swav.load_state_dict(state)
    except RuntimeError:
        return True
    return False


@fixes(broken=_swav_cannot_load_its_queue)
def late_buffers() -> None:
    """SwAV and DeepCluster v2 make buffers in `on_train_start`: a strict load meets unexpected keys, and what
    was loaded would be overwritten."""

    def repair(cls: type, names: tuple[str, ...]) -> None:
        start = vars(cls)["on_train_start"]

        def on_load_checkpoint(self: Any, checkpoint: dict[str, Any]) -> None:
            for name in names:
                if name in checkpoint["state_dict"]:
                    saved = checkpoint["state_dict"][name]
                    self.register_buffer(name, torch.empty_like(saved, device=self.device))

        def on_train_start(self: Any) -> None:
            loaded = {name: getattr(self, name).clone() for name in names if hasattr(self, name)}
            start(self)
            for name, saved in loaded.items():
                if getattr(self, name).shape == saved.shape:  # else another number of processes
                    getattr(self, name).copy_(saved)

        cls.on_load_checkpoint = on_load_checkpoint  # type: ignore[attr-defined]
        cls.on_train_start = on_train_start  # type: ignore[attr-defined]

    for cls, names in _LATE_BUFFERS.items():
        repair(cls, names)


def _momentum_forgets_its_step() -> bool:
    method = bare_method(
        BYOL, pred_hidden_dim=8, base_tau_momentum=0.5, final_tau_momentum=1.0, momentum_classifier=False
    )
    trainer = SimpleNamespace(global_step=3, accumulate_grad_batches=1, train_dataloader=range(2), max_epochs=3)
    method._trainer = trainer
    method.on_train_start()
    return method.momentum_updater.cur_tau == 0.5


@fixes(broken=_momentum_forgets_its_step)
def momentum_after_resume() -> None:
    """A resumed run takes its first step with the first step's tau, and counts a step before one was made."""

    def on_train_start(self: Any) -> None:
        trainer = self.trainer
        self.last_step = trainer.global_step
        if self.last_step:
            self.momentum_updater.update_tau(
                cur_step=self.last_step * trainer.accumulate_grad_batches,
                max_steps=len(trainer.train_dataloader) * trainer.max_epochs,
            )

    BaseMomentumMethod.on_train_start = on_train_start


def _whitening_fails() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch 2.6 still has both functions, with a warning that they will go
        try:
            Whitening2d(2)(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
        except (RuntimeError, UserWarning):
            return True
    return False


@fixes(broken=_whitening_fails)
def wmse_whitening() -> None:
    """`torch.cholesky` and `torch.triangular_solve` only raise now; `torch.linalg` has both."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            centred = x.float() - x.float().mean(dim=0)
            covariance = centred.T @ centred / (len(x) - 1)
            eye = torch.eye(self.output_dim, device=x.device)
            factor = torch.linalg.cholesky((1 - self.eps) * covariance + self.eps * eye)
            return torch.linalg.solve_triangular(factor, centred.T, upper=False).T

    Whitening2d.forward = forward
