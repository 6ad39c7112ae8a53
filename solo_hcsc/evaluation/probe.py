"""Training a classifier on a checkpoint's encoder: what linear, semisup, voc and places share."""

import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from solo.methods.linear import LinearModel
from torch import nn
from torch.utils.data import DataLoader, Dataset

from solo_hcsc.framework import dali
from solo_hcsc.data import folders as data
from solo_hcsc.training import run as training
from solo_hcsc.evaluation.encoders import find_checkpoint, load_encoder
from solo_hcsc.cli.errors import UserError, note
from solo_hcsc.evaluation.features import Features, add_dataset_flags, add_encoder_flags, extract, require_checkpoint
from solo_hcsc.cli.flags import Parser, add_record_flags, add_trainer_flags, refuse_unlabelled
from solo_hcsc.cli.devices import describe_devices, resolve_hardware
from solo_hcsc.data.loaders import EpochSampler, ResumableLoader
from solo_hcsc.evaluation.results import describe_data, table, write_result
from solo_hcsc.training.resume import check_resume, check_same_flags


class Probe:
    """One classifier's training, from the flags to the result's file."""

    def __init__(
        self, args: Namespace, evaluation: str, protocol: dict[str, Any], images_flag: str = "--train_dir"
    ) -> None:
        """Checks the flags and loads the encoder; the data set's folders are known by now.

        `protocol`: the paper's settings, empty where it has none; what differs from them is in the result.
        """
        from solo.args.utils import additional_setup_linear

        self.args, self.evaluation, self.images_flag = args, evaluation, images_flag
        self.cached = getattr(args, "cache_features", False)
        self.protocol = protocol and PLAIN | protocol
        training.check_ranges(args)
        resolve_hardware(args)
        if self.cached and args.dali:
            note("--cache_features: each image is read once, with the default loader instead of --dali")
            args.dali = False
        if args.max_epochs % args.check_val_every_n_epoch:
            raise UserError(
                f"--check_val_every_n_epoch {args.check_val_every_n_epoch}: must divide --max_epochs "
                f"{args.max_epochs}, or the last epoch is not evaluated"
            )
        if self.cached and len(args.gpus) * args.num_nodes > 1:
            raise UserError("--cache_features works on one device; leave it out, or use --devices 1")
        dali.check(args)
        training.check_wandb(args)
        checkpoint = find_checkpoint(args.pretrained_feature_extractor)
        self.encoder = load_encoder(checkpoint, args.encoder, args.crop_size[0])
        args.encoder = self.encoder.name
        args.checkpoint_sha256 = self.encoder.fingerprint  # in args.json: a resumed run must have the same encoder
        dataset, args.dataset = args.dataset, "imagenet"  # any that it knows: the classes are counted below
        additional_setup_linear(args)
        args.dataset = dataset
        self.started = training.start(args)

    @property
    def deviations(self) -> list[str]:
        """The flags that differ from the paper's protocol."""
        found = [name for name, value in self.protocol.items() if getattr(self.args, name) != value]
        several = len(self.args.gpus) * self.args.num_nodes > 1  # each with a batch of its own
        return [*found, "devices"] if self.protocol and several else found

    @property
    def transforms(self) -> tuple[Callable, Callable]:
        """Of training and of validation images; cached features are those of the latter."""
        train, val = data.evaluation_transforms(self.args)
        return (val, val) if self.cached else (train, val)

    def fit(
        self, model_class: type[LinearModel], num_classes: int, train_set: Dataset, val_set: Dataset
    ) -> dict[str, float]:
        """Trains `model_class`, which gets every flag, and returns what it logged last."""
        args = self.args
        args.num_classes = num_classes
        images = len(train_set)  # type: ignore[arg-type]
        batches = training.check_batches(self.images_flag, images, args)
        if args.dali:
            model_class = dali.linear_class(model_class, train_set, val_set, args)
        backbone = Cached(self.encoder.module) if self.cached else self.encoder.module
        model = model_class(backbone, **data.framework_settings(args))
        resume = args.resume_from_checkpoint
        if resume is not None:
            check_resume(resume, model, args)
            check_same_flags(resume, args)
        self.data = describe_data(args, train_set, val_set) | {"classes": num_classes}
        self.run = training.Run(args, self.evaluation)
        trainer = self.run.trainer([])
        train_loader: DataLoader | None = None
        val_loader: DataLoader | None = None
        if not (self.cached or args.dali):
            train_loader, val_loader = data.training_loader(train_set, args), data.validation_loader(val_set, args)

        self.run.begin(model, trainer)
        training.announce(self.encoder.taken)
        training.announce(
            f"{self.evaluation} evaluation of {self.encoder.checkpoint} ({args.encoder}) on {args.dataset}: "
            f"{images} images, {num_classes} classes; {describe_devices(args)}; {batches} batches of "
            f"{args.batch_size} per epoch, {args.max_epochs} epochs; writing to {self.run.folder}"
        )
        if self.cached:
            train_loader, val_loader = self._cached_loaders(train_set, val_set)
        self.run.fit(trainer, model, train_loader, val_loader, resume)
        return {name: float(value) for name, value in trainer.callback_metrics.items()}

    def _cached_loaders(self, train_set: Dataset, val_set: Dataset) -> tuple[DataLoader, DataLoader]:
        device = torch.device("cuda", self.args.gpus[0]) if self.args.accelerator == "gpu" else torch.device("cpu")
        module = self.encoder.module.eval().to(device)
        train, val = (
            FeatureBatches(extract(module, images, self.args, title, device))
            for images, title in ((train_set, "training features"), (val_set, "validation features"))
        )
        sampler = EpochSampler(train, self.args.seed, shards=False)
        size = self.args.batch_size
        return (
            ResumableLoader(train, size, sampler=sampler, drop_last=True, collate_fn=_as_it_is),
            DataLoader(val, size, collate_fn=_as_it_is),
        )

    def report(
        self,
        metrics: dict[str, float],
        settings: dict[str, Any],
        header: tuple[str, ...],
        rows: list[tuple[Any, ...]],
        remark: str = "",
    ) -> None:
        """Writes the result, prints the table and where things are; `metrics` may be empty if nothing was validated."""
        if not metrics:
            training.announce("nothing was validated: no result is written")
        elif training.is_main_process():
            names = (
                "optimizer lr weight_decay extra_optimizer_args lars batch_size max_epochs scheduler lr_decay_steps"
                " precision gpus num_nodes crop_size seed"
            )
            settings = {name: getattr(self.args, name) for name in names.split()} | settings
            settings["deviations"] = self.deviations
            if self.cached:
                settings["features"] = "cached, without augmentation"
            file = self.run.folder / f"{self.evaluation}.json"
            seconds = time.monotonic() - self.started
            write_result(file, self.evaluation, self.args, self.encoder, self.data, metrics, settings, seconds)
            print(table(header, rows))
            if remark:
                print(remark)
            if self.cached:
                print("features were computed once, without augmentation: a quick answer, not the paper's protocol")
        self.run.report(self.started, f"{training.python_command('summary')} {self.args.checkpoint_dir}")


# What the paper does not do in any evaluation, and what changes the figures.
PLAIN = {
    "optimizer": "sgd",
    "lars": False,
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
    "limit_train_batches": None,
    "limit_val_batches": None,
    "overfit_batches": 0.0,
    "fast_dev_run": False,
    "max_steps": -1,
    "max_time": None,
}


class Cached(nn.Identity):
    """Stands for an encoder whose features are computed already."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.num_features = getattr(encoder, "inplanes", None) or encoder.num_features


class FeatureBatches(Dataset):
    """Cached features, a batch at a time; counts on after the last one as RepeatableImages does."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def __getitems__(self, places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.tensor(places) % len(self)
        return self.features.x[index], self.features.y[index]

    def __len__(self) -> int:
        return len(self.features.y)


def _as_it_is(batch: Any) -> Any:
    return batch


class GroupedModel(LinearModel):
    """solo-learn's linear model with a learning rate for each group of parameters."""

    classifier: Any

    def groups(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        classifier, self.classifier = self.classifier, _Groups(self.groups())  # whose parameters it optimises
        try:
            return super().configure_optimizers()
        finally:
            self.classifier = classifier


class _Groups(nn.Module):
    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__()
        self._groups = groups

    def parameters(self, recurse: bool = True) -> Any:
        return self._groups


def build_parser(module: str, description: str, defaults: dict[str, Any]) -> Parser:
    """The flags of solo-learn's linear evaluation and Lightning's, with other defaults."""
    parser = Parser(
        prog=f"solo_hcsc.{module}",
        usage="%(prog)s --pretrained_feature_extractor PATH --dataset NAME [flags]",
        description=description,
    )
    add_encoder_flags(parser)
    add_dataset_flags(parser)
    LinearModel.add_model_specific_args(parser)
    add_trainer_flags(parser, max_epochs=100)
    add_record_flags(parser)
    group = parser.add_argument_group("records")
    group.add_argument("--resume_from_checkpoint", type=Path, help="go on from this checkpoint")
    own = {"optimizer": "sgd", "data_dir": Path("datasets"), "project": "solo-learn"}
    parser.explain(own | defaults)
    parser.describe(lr="learning rate")
    parser.hide("no_labels", "classifier_lr", "patch_size")  # solo-learn has them; they mean nothing here
    parser.choose("keep_best", ["val_acc1"])
    return parser


def add_cache_flag(parser: Parser) -> None:
    parser.add_argument_group("linear").add_argument(
        "--cache_features",
        action="store_true",
        help="compute each image's features once, without augmentation: quick, and marked so in the tables",
    )


def without_folders(parser: Parser, dataset: str, data_dir: str) -> None:
    """For an evaluation on one data set that is laid out otherwise than in a folder for each class."""
    parser.usage = "%(prog)s --pretrained_feature_extractor PATH --data_dir FOLDER [flags]"
    parser.choose("dataset", [dataset])
    parser.describe(data_dir=data_dir, train_dir=SUPPRESS, val_dir=SUPPRESS)


def refuse_folders(args: Namespace, instead: str) -> None:
    """Says so where the flags that `without_folders` hides are given all the same."""
    for flag in ("train_dir", "val_dir"):
        if getattr(args, flag) is not None:
            raise UserError(f"--{flag}: --dataset {args.dataset} has no such folder; {instead}")


def check(args: Namespace, evaluation: str) -> Namespace:
    require_checkpoint(args)
    refuse_unlabelled(args)
    if args.name is None:
        args.name = f"{evaluation}-{args.dataset}"
    return args
