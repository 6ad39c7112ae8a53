"""Run by torchrun: pretrains, and leaves what each process ended with in RANK.pt in the current folder."""

import os
import sys

import pytorch_lightning as pl
import torch
from tiny import run_here

fit = pl.Trainer.fit


def fit_and_keep(self: pl.Trainer, model: pl.LightningModule, *args: object, **kwargs: object) -> None:
    fit(self, model, *args, **kwargs)
    torch.save({"coding": model.coding.state_dict(), "state": model.state_dict()}, f"{os.environ.get('RANK', 0)}.pt")


pl.Trainer.fit = fit_and_keep
run_here("pretrain", *sys.argv[1:])
