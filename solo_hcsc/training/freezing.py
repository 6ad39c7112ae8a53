"""Keep what an encoder has learnt elsewhere from being lost in the first steps."""

from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

ENCODERS = ("encoder", "momentum_encoder")


class FreezeEncoder(Callback):
    """Freeze the statistics of the encoders' batch norms, or in the first epochs all of the encoder.

    In short runs at another image size the statistics of a batch are far from those that the weights were trained
    with, and the features of the evaluation, which uses the running ones, are lost. docs/when-hcsc.md has the figures.

    Args:
        frozen_epochs: first epochs in which only what comes after the encoder learns.
        batchnorm: whether the statistics stay for the whole run; scales and shifts learn all the same.
    """

    def __init__(self, frozen_epochs: int = 0, batchnorm: bool = False) -> None:
        self.frozen_epochs, self.batchnorm = frozen_epochs, batchnorm

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Freeze in every step: Lightning sets modules to training after a validation, methods after clustering."""
        frozen = trainer.current_epoch < self.frozen_epochs
        if self.batchnorm or frozen:
            for module in self._modules(pl_module):
                if isinstance(module, _BatchNorm):
                    module.eval()
        if self.frozen_epochs and trainer.world_size == 1:  # several processes expect each other's gradients
            pl_module.get_submodule("encoder").requires_grad_(not frozen)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: object) -> None:
        """Take the gradients away: without one, neither momentum nor weight decay moves a parameter."""
        if trainer.current_epoch < self.frozen_epochs:
            for parameter in pl_module.get_submodule("encoder").parameters():
                parameter.grad = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for module in self._modules(pl_module):
            if isinstance(module, _BatchNorm):
                module.train(pl_module.training)

    @staticmethod
    def _modules(pl_module: LightningModule) -> list[nn.Module]:
        """Return all parts of the encoder, and of the momentum encoder if there is one."""
        names = [name for name in ENCODERS if name in pl_module._modules]
        return [module for name in names for module in pl_module.get_submodule(name).modules()]
