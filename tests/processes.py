"""Run by torchrun: pretrains, and leaves what each process ended with in RANK.pt in the current folder."""

import os
import sys

import pytorch_lightning as pl
import torch
from tiny import run_here


def pretrain_and_keep(*flags: object) -> None:
    """Pretrains and saves the method's whole state, of every process."""
    fit = pl.Trainer.fit

    def fit_and_keep(self: pl.Trainer, model: pl.LightningModule, *args: object, **kwargs: object) -> None:
        fit(self, model, *args, **kwargs)
        torch.save(model.state_dict(), f"{os.environ.get('RANK', 0)}.pt")

    pl.Trainer.fit = fit_and_keep
    try:
        run_here("pretrain", *flags)
    finally:
        pl.Trainer.fit = fit


if __name__ == "__main__":
    pretrain_and_keep(*sys.argv[1:])
