"""Features of a frozen encoder: which checkpoint, which images, on which device."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from solo_hcsc.evaluation.encoders import Encoder, find_checkpoint, load_encoder, load_projector
from solo_hcsc.data.folders import plain_loader
from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.flags import Parser, refuse_unlabelled
from solo_hcsc.training.progress import watch


@dataclass(frozen=True)
class Features:
    """Feature vectors `x (N, D)` and labels `y (N,)` of a data set's images, in its order, on the CPU."""

    x: torch.Tensor
    y: torch.Tensor


class Frozen:
    """A checkpoint's encoder, or its encoder and projector, on the device that the flags ask for."""

    def __init__(self, args: Namespace) -> None:
        self.device = choose_device(args.accelerator)
        self.encoder: Encoder = load_encoder(
            find_checkpoint(args.pretrained_feature_extractor), args.encoder, args.crop_size[0]
        )
        module = self.encoder.module
        if args.features == "projector":
            module = nn.Sequential(module, load_projector(self.encoder))
        self.module = module.eval().to(self.device)

    def of(self, dataset: Dataset, args: Namespace, title: str) -> Features:
        return extract(self.module, dataset, args, title, self.device)


@torch.no_grad()
def extract(
    module: Callable[[torch.Tensor], torch.Tensor], dataset: Dataset, args: Namespace, title: str, device: torch.device
) -> Features:
    """Every image once, through a module in evaluation mode."""
    images, done = len(dataset), 0  # type: ignore[arg-type]
    x, y = torch.empty(0), torch.empty(0)
    for batch, labels in watch(plain_loader(dataset, args), images, title):
        out = module(batch.to(device, non_blocking=True)).float().cpu()
        if not done:  # written in place: collecting and joining would take the memory twice
            x, y = out.new_empty(images, *out.shape[1:]), labels.new_empty(images, *labels.shape[1:])
        x[done : done + len(out)] = out
        y[done : done + len(out)] = labels
        done += len(out)
    if not x.isfinite().all():
        raise UserError(f"{title}: the encoder's output has NaN or infinite values; take a checkpoint from before that")
    return Features(x, y)


def choose_device(accelerator: str) -> torch.device:
    gpu = torch.cuda.is_available()
    if accelerator == "gpu" and not gpu:
        raise UserError("--accelerator gpu: there is no GPU here; use --accelerator cpu")
    return torch.device("cuda" if gpu and accelerator != "cpu" else "cpu")


def add_encoder_flags(parser: Parser) -> None:
    """Which checkpoint; for every evaluation."""
    group = parser.add_argument_group("encoder")
    group.add_argument(
        "--pretrained_feature_extractor",
        "--pretrained_checkpoint_dir",
        type=Path,
        help="the checkpoint, or a folder whose newest one is taken: of any method, of MoCo or the authors' HCSC, "
        "or a torchvision or timm ResNet",
    )
    group.add_argument("--method", help="what made the checkpoint, for the tables, where no args.json beside it tells")


def add_feature_flags(parser: Parser) -> None:
    """Which features, how and where; for evaluations that train nothing."""
    from solo.methods.base import BaseMethod

    add_encoder_flags(parser)
    group = parser.add_argument_group("encoder")
    group.add_argument(
        "--encoder", choices=BaseMethod._SUPPORTED_ENCODERS, help="architecture, where no args.json tells it"
    )
    group.add_argument(
        "--features",
        choices=["backbone", "projector"],
        default="backbone",
        help="the encoder's features, or what the method's projector makes of them",
    )
    group.add_argument(
        "--accelerator", choices=["auto", "cpu", "gpu"], default="auto", help="where to compute features"
    )


def add_dataset_flags(parser: Parser) -> Any:
    """Which images; for every evaluation. Returns the group, for further ones."""
    from solo.args.dataset import custom_dataset_args, dataset_args, linear_augmentations_args

    group = parser.add_argument_group("data")
    dataset_args(group)
    linear_augmentations_args(group)
    custom_dataset_args(group)
    return group


def add_data_flags(parser: Parser) -> None:
    """Which images and how they are read; for evaluations that train nothing."""
    group = add_dataset_flags(parser)
    group.add_argument("--batch_size", type=int, default=128, help="images per forward pass")
    group.add_argument("--num_workers", type=int, default=4)


def check(args: Namespace) -> None:
    """Refuses what cannot be right in the flags above."""
    require_checkpoint(args)
    for flag in ("crop_size", "batch_size"):
        value = getattr(args, flag)
        lowest = min(value) if isinstance(value, list) else value
        if lowest < 1:
            raise UserError(f"--{flag} {lowest}: must be at least 1")
    if args.num_workers < 0:
        raise UserError(f"--num_workers {args.num_workers}: must not be negative")
    for flag in ("mean", "std"):
        if len(getattr(args, flag)) != 3:
            raise UserError(f"--{flag}: give three values, one for each colour")
    if min(args.std) <= 0:
        raise UserError(f"--std {min(args.std)}: must be greater than 0")
    if args.dali:
        raise UserError("--dali: features are read with the default loader; leave it out")
    refuse_unlabelled(args)


def require_checkpoint(args: Namespace) -> None:
    if args.pretrained_feature_extractor is None:
        raise UserError("--pretrained_feature_extractor is missing: the checkpoint to evaluate")
