"""The flags: solo-learn 1.0.2's unchanged, Lightning 2's, Lightning 1's old spellings, and ours, each with its bounds.

solo-learn's flags are declared here and not by its own functions, so that a help needs neither torch nor solo-learn;
`tests/cli/test_flags.py` compares each with solo-learn's own. Only a method's own flags come from its class.
"""

from argparse import SUPPRESS, Namespace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.parser import (
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_SHARE,
    SHARE,
    Bound,
    Parser,
    at_least,
    at_most,
    below,
    count_or_share,
    nearest,
    yes_or_no,
)

DATASETS = ("cifar10", "cifar100", "stl10", "imagenet", "imagenet100", "custom", "digits")
ENCODERS = (
    *("resnet18", "resnet50", "vit_tiny", "vit_small", "vit_base", "vit_large"),
    *("swin_tiny", "swin_small", "swin_base", "swin_large"),
)
SCHEDULERS = ("reduce", "cosine", "warmup_cosine", "step", "exponential", "none")
METHODS = (
    *("barlow_twins", "byol", "deepclusterv2", "dino", "hcsc", "mocov2plus", "nnbyol", "nnclr", "nnsiam", "ressl"),
    *("simclr", "simsiam", "swav", "vicreg", "wmse"),
)
METHOD_GROUP = "solo_learn.methods"  # entry points of packages that add methods
ONE = at_least(1)


def method_names() -> list[str]:
    """The names that `--method` takes: solo-learn's, ours, and those of installed packages."""
    return sorted({*METHODS, *(entry.name for entry in entry_points(group=METHOD_GROUP))})


def check_method(name: str, flag: str = "--method") -> None:
    known = method_names()
    if name not in known:
        near = nearest(name, known)
        raise UserError(f"{flag} {name}: unknown; {near + ' or ' if near else ''}choose from {', '.join(known)}")


# ---- images ----


def add_dataset_flags(parser: Parser) -> Any:
    """Which images; for every command that reads any. Returns the group, for further ones."""
    group = parser.add_argument_group("data")
    group.add_argument("--dataset", choices=DATASETS, required=True, help="which data set")
    group.add_argument("--data_dir", type=Path, default=Path("datasets"), help="folder that holds the data sets")
    group.add_argument("--train_dir", type=Path, help="training images, below --data_dir")
    group.add_argument("--val_dir", type=Path, help="validation images, below --data_dir")
    group.add_argument(
        "--dali", action="store_true", help="decode and augment with NVIDIA DALI (folders and lists of images)"
    )
    group.add_argument("--dali_device", default="gpu", help="where DALI works: gpu or cpu")
    group.add_argument(
        "--no_labels", action="store_true", help="the training folder holds images without class folders"
    )
    for name, default, what in (("mean", [0.485, 0.456, 0.406], "means"), ("std", [0.228, 0.224, 0.225], "deviations")):
        group.add_argument(
            f"--{name}",
            type=float,
            nargs="+",
            default=default,
            bound=POSITIVE if name == "std" else None,
            help=f"channel {what} for normalising (all but cifar, stl10 and imagenet)",
        )
    return group


def check_colours(flags: Namespace) -> None:
    for name in ("mean", "std"):
        if len(getattr(flags, name)) != 3:
            raise UserError(f"--{name}: give three values, one for each colour")


AUGMENTATIONS = {  # one value for all pipelines, or one for each
    "brightness": (float, 0.4, NOT_NEGATIVE, "strength of brightness jitter"),
    "contrast": (float, 0.4, NOT_NEGATIVE, "strength of contrast jitter"),
    "saturation": (float, 0.4, NOT_NEGATIVE, "strength of saturation jitter"),
    "hue": (float, 0.1, at_most(0.5), "strength of hue jitter"),
    "color_jitter_prob": (float, 0.8, SHARE, "probability of colour jitter"),
    "gray_scale_prob": (float, 0.2, SHARE, "probability of turning grey"),
    "horizontal_flip_prob": (float, 0.5, SHARE, "probability of a flip"),
    "gaussian_prob": (float, 0.5, SHARE, "probability of a blur"),
    "solarization_prob": (float, 0.0, SHARE, "probability of solarisation"),
    "crop_size": (int, 224, ONE, "side of the crops in pixels, the first one of the large ones"),
    "min_scale": (float, 0.08, POSITIVE_SHARE, "smallest share of the image that a crop covers"),
    "max_scale": (float, 1.0, POSITIVE_SHARE, "largest share of the image that a crop covers"),
}


def add_augmentation_flags(parser: Parser) -> None:
    """solo-learn's; the colour jitter, which it requires, is MoCo v2's if not given."""
    group = parser.add_argument_group("augmentation")
    group.add_argument(
        "--num_crops_per_aug",
        type=int,
        nargs="+",
        default=[2],
        bound=ONE,
        help="crops that each augmentation pipeline makes, e.g. 1 1 6",
    )
    for name, (kind, default, bound, what) in AUGMENTATIONS.items():
        group.add_argument(
            f"--{name}", type=kind, nargs="+", default=[default], bound=bound, help=f"{what}, per pipeline"
        )
    group.add_argument("--debug_augmentations", action="store_true", help="print the augmentation pipelines")


def add_crop_flag(parser: Parser) -> None:
    parser.add_argument_group("data").add_argument(
        "--crop_size", type=int, nargs="+", default=[224], bound=ONE, help="side of the images in pixels"
    )


def add_loading_flags(parser: Parser, batch_size: str) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("--batch_size", type=int, default=128, bound=ONE, help=batch_size)
    group.add_argument("--num_workers", type=int, default=4, bound=NOT_NEGATIVE, help="processes that load images")


# ---- methods ----

_BASE = "encoder, optimiser and online evaluation"


def add_method_flags(parser: Parser) -> None:
    """What solo-learn's methods share."""
    group = parser.add_argument_group(_BASE)
    group.add_argument("--encoder", choices=ENCODERS, default="resnet18", help="architecture of the encoder")
    group.add_argument(
        "--zero_init_residual", action="store_true", help="start each residual block of a ResNet as the identity"
    )
    group.add_argument("--patch_size", type=int, default=16, bound=ONE, help="side of a ViT's patches")
    lr = "learning rate; pretraining multiplies it by batch size x devices / 256"
    _add_optimiser_flags(group, lr, ("sgd", "adam", "adamw"), "warmup_cosine")
    group.add_argument("--grad_clip_lars", action="store_true", help="LARS: never enlarge a step")
    group.add_argument("--eta_lars", type=float, default=1e-3, help="LARS: trust coefficient")
    group.add_argument("--min_lr", type=float, default=0.0, help="where the cosine ends")
    group.add_argument("--warmup_start_lr", type=float, default=0.003, help="where warmup_cosine starts")
    group.add_argument(
        "--warmup_epochs", type=int, default=10, bound=NOT_NEGATIVE, help="epochs of linear warm-up in warmup_cosine"
    )
    group.add_argument(
        "--encode_indexes_into_labels",
        action="store_true",
        help="accepted for old bash files: DALI always hands out true indexes",
    )
    group.add_argument("--knn_eval", action="store_true", help="weighted KNN accuracy at each validation")
    group.add_argument("--knn_k", type=int, default=20, bound=ONE, help="neighbours of --knn_eval")


def add_linear_flags(parser: Parser) -> None:
    """What solo-learn's linear evaluation has."""
    group = parser.add_argument_group("linear")
    group.add_argument("--encoder", choices=ENCODERS, help="architecture, where no args.json tells it")
    group.add_argument("--patch_size", type=int, default=16, help=SUPPRESS)
    _add_optimiser_flags(group, "learning rate", ("sgd", "adam"), "reduce")
    parser.hide("classifier_lr")


def _add_optimiser_flags(group: Any, lr: str, optimisers: tuple[str, ...], scheduler: str) -> None:
    group.add_argument("--batch_size", type=int, default=128, bound=ONE, help="images per step and process")
    group.add_argument("--lr", type=float, default=0.3, bound=NOT_NEGATIVE, help=lr)
    group.add_argument(
        "--classifier_lr", type=float, default=0.3, bound=NOT_NEGATIVE, help="learning rate of the online classifier"
    )
    group.add_argument("--weight_decay", type=float, default=0.0001, bound=NOT_NEGATIVE, help="weight decay")
    group.add_argument("--num_workers", type=int, default=4, bound=NOT_NEGATIVE, help="processes that load images")
    group.add_argument("--optimizer", choices=optimisers, default="sgd", help="optimiser")
    group.add_argument("--lars", action="store_true", help="scale SGD's steps layer by layer (LARS)")
    group.add_argument("--exclude_bias_n_norm", action="store_true", help="LARS: leave biases and norms out")
    group.add_argument("--scheduler", choices=SCHEDULERS, default=scheduler, help="learning rate schedule")
    group.add_argument(
        "--lr_decay_steps",
        type=int,
        nargs="+",
        help="epochs at which --scheduler step divides the learning rate by 10",
    )


def probe_parser(
    command: str, description: str, defaults: dict[str, Any], best: str = "val_acc1", dataset: str = "--dataset NAME"
) -> Parser:
    """The flags of commands that train a classifier on an encoder, with a protocol's defaults."""
    parser = Parser(command, description, f"--pretrained_feature_extractor PATH {dataset} [flags]")
    add_checkpoint_flags(parser)
    add_dataset_flags(parser)
    add_crop_flag(parser)
    add_linear_flags(parser)
    add_trainer_flags(parser, max_epochs=100)
    add_record_flags(parser, best=(best,))
    parser.hide("no_labels")
    for name, value in defaults.items():
        parser.change(name, default=value)
    return parser


def add_cache_flag(parser: Parser) -> None:
    parser.add_argument_group("linear").add_argument(
        "--cache_features",
        action="store_true",
        help="compute each image's features once, without augmentation: quick, and marked so in the tables",
    )


def without_folders(parser: Parser, dataset: str, data_dir: Path, meaning: str) -> None:
    """For an evaluation on one data set that is laid out otherwise than in a folder for each class."""
    parser.change("dataset", choices=[dataset], default=dataset)
    parser.change("data_dir", default=data_dir, help=meaning)
    parser.hide("train_dir", "val_dir")


def refuse_folders(flags: Namespace, instead: str) -> None:
    """Says so where the flags that `without_folders` hides are given all the same."""
    for name in ("train_dir", "val_dir"):
        if getattr(flags, name) is not None:
            raise UserError(f"--{name}: --dataset {flags.dataset} has no such folder; {instead}")


# Of flags that solo-learn's method classes declare.
METHOD_HELP = {
    "base_tau_momentum": "momentum of the momentum encoder at the start",
    "final_tau_momentum": "momentum of the momentum encoder at the end",
    "momentum_classifier": "train an online classifier on the momentum encoder too",
    "proj_output_dim": "size of the projection",
    "proj_hidden_dim": "size of the projector's hidden layers",
    "pred_hidden_dim": "size of the predictor's hidden layer",
    "temperature": "temperature of the loss",
    "temperature_q": "temperature of the queries",
    "temperature_k": "temperature of the keys",
    "queue_size": "embeddings kept in the queue",
    "num_prototypes": "number of prototypes",
    "sk_epsilon": "SwAV: entropy regularisation of Sinkhorn-Knopp",
    "sk_iters": "SwAV: iterations of Sinkhorn-Knopp",
    "freeze_prototypes_epochs": "SwAV: first epochs with fixed prototypes",
    "epoch_queue_starts": "SwAV: epoch from which the queue is used",
    "kmeans_iters": "DeepCluster v2: iterations of k-means",
    "supervised": "SimCLR: use the labels (supervised contrastive learning)",
    "clip_grad": "DINO: clip each parameter's gradient norm; 0: off",
    "freeze_last_layer": "DINO: first epochs with a fixed last layer",
    "norm_last_layer": "DINO: normalise the last layer",
    "use_bn_in_head": "DINO: batch norm in the head",
    "student_temperature": "DINO: temperature of the student",
    "teacher_temperature": "DINO: temperature of the teacher",
    "warmup_teacher_temperature": "DINO: temperature of the teacher at the start",
    "warmup_teacher_temperature_epochs": "DINO: epochs of the teacher's temperature warm-up",
    "sim_loss_weight": "VICReg: weight of the invariance term",
    "var_loss_weight": "VICReg: weight of the variance term",
    "cov_loss_weight": "VICReg: weight of the covariance term",
    "lamb": "Barlow Twins: weight of the off-diagonal terms",
    "scale_loss": "Barlow Twins: scale of the loss",
    "whitening_iters": "W-MSE: whitenings per step",
    "whitening_size": "W-MSE: images whitened together",
    "whitening_eps": "W-MSE: shrinkage of the covariance",
}
METHOD_BOUNDS: dict[str, Bound] = {
    "base_tau_momentum": SHARE,
    "final_tau_momentum": SHARE,
    "proj_output_dim": POSITIVE,
    "proj_hidden_dim": POSITIVE,
    "temperature": POSITIVE,
    "queue_size": NOT_NEGATIVE,
}


# ---- checkpoints to evaluate ----


def add_checkpoint_flags(parser: Parser) -> Any:
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
    return group


def add_feature_flags(parser: Parser) -> None:
    """Which features of which images, how and where; for evaluations that train nothing."""
    group = add_checkpoint_flags(parser)
    group.add_argument("--encoder", choices=ENCODERS, help="architecture, where no args.json tells it")
    group.add_argument(
        "--features",
        choices=["backbone", "projector"],
        default="backbone",
        help="the encoder's features, or what the method's projector makes of them",
    )
    group.add_argument(
        "--accelerator", choices=["auto", "cpu", "gpu"], default="auto", help="where to compute features"
    )
    add_dataset_flags(parser)
    add_crop_flag(parser)
    add_loading_flags(parser, "images per forward pass")
    parser.hide("dali", "dali_device", "no_labels")


def add_split_flags(group: Any, split: str, seed: str) -> None:
    """For what compares clusters with labels; `split` and `seed` are help texts."""
    group.add_argument("--split", choices=["train", "val"], default="train", help=split)
    group.add_argument("--seed", type=int, default=5, bound=below(2**31), help=seed)
    group.add_argument(
        "--label_hierarchy",
        type=Path,
        help="a text file of lines `child: parent`, to compare with groups of classes too; cifar10 and digits have one",
    )


def check_labelled_checkpoint(flags: Namespace) -> None:
    """Refuses an evaluation without a checkpoint or without labels."""
    if flags.pretrained_feature_extractor is None:
        raise UserError("--pretrained_feature_extractor is missing: the checkpoint to evaluate")
    check_labelled(flags)


def check_labelled(flags: Namespace) -> None:
    if flags.no_labels:
        raise UserError("--no_labels: an evaluation needs labels; leave it out")


def check_features(flags: Namespace) -> None:
    """Refuses what cannot be right in the flags of an evaluation that trains nothing."""
    check_labelled_checkpoint(flags)
    check_colours(flags)
    if flags.dali:
        raise UserError("--dali: features are read with the default loader; leave it out")


# ---- Lightning, records, wandb ----


def add_trainer_flags(parser: Parser, max_epochs: int) -> None:
    """Lightning 2's Trainer flags, and the spellings that scripts for Lightning 1 use."""
    where = parser.add_argument_group("devices (Lightning)")
    where.add_argument(
        "--accelerator",
        default="auto",
        help="cpu, gpu or auto; `ddp`, as scripts for Lightning 1 have it, means --strategy ddp",
    )
    where.add_argument(
        "--devices", help="number of GPUs (or CPU processes), or GPU indexes as in 0,1; one if not given"
    )
    where.add_argument(
        "--gpus", help="indexes of the GPUs to use, as in 0,1 (Lightning 1's spelling); ignored with --accelerator cpu"
    )
    where.add_argument(
        "--num_processes", type=int, help="number of CPU processes (Lightning 1's spelling of --devices)"
    )
    where.add_argument("--num_nodes", type=int, default=1, bound=ONE, help="number of machines")
    where.add_argument("--strategy", help="how processes work together; ddp as soon as there are several")
    where.add_argument("--distributed_backend", help=SUPPRESS)
    where.add_argument("--precision", default="32", help="32, 16 or bf16 (mixed), or Lightning 2's own names")
    _switch(where, "--sync_batchnorm", "batch statistics over all GPUs")
    _switch(where, "--use_distributed_sampler", "let Lightning shard the data over processes", True)
    _switch(where, "--replace_sampler_ddp", SUPPRESS, None)
    _switch(where, "--benchmark", "let cuDNN choose the fastest algorithms", None)
    _switch(where, "--deterministic", "only deterministic algorithms", None)

    loop = parser.add_argument_group("training loop (Lightning)")
    loop.add_argument(
        "--seed",
        type=int,
        default=5,
        bound=Bound(lambda value: 0 <= value < 2**32, f"must be below {2**32} and not negative"),
        help="seed of Python, NumPy and torch",
    )
    loop.add_argument("--max_epochs", type=int, default=max_epochs, bound=ONE, help="epochs to train")
    loop.add_argument("--min_epochs", type=int, help="epochs to train at least")
    loop.add_argument(
        "--max_steps",
        type=int,
        default=-1,
        bound=Bound(lambda value: value == -1 or value >= 1, "must be at least 1, or -1 for no limit"),
        help="stop after so many steps; -1: no limit",
    )
    loop.add_argument("--min_steps", type=int, help="steps to train at least")
    loop.add_argument("--max_time", help="stop after this time, as DD:HH:MM:SS")
    loop.add_argument("--accumulate_grad_batches", type=int, default=1, bound=ONE, help="batches per optimiser step")
    loop.add_argument("--gradient_clip_val", type=float, help="clip gradients at this value")
    loop.add_argument("--gradient_clip_algorithm", choices=["norm", "value"], help="clip by norm or by value")
    some = Bound(lambda value: value != 0, "nothing would be trained on; leave it out")
    for stage, bound in (("train", some), ("val", None)):
        loop.add_argument(
            f"--limit_{stage}_batches",
            type=count_or_share,
            bound=bound,
            help=f"use only so many (10) or this share (0.1) of the {stage} batches",
        )
    loop.add_argument(
        "--overfit_batches", type=count_or_share, default=0.0, help="train and validate on so few batches only"
    )
    loop.add_argument("--check_val_every_n_epoch", type=int, default=1, bound=ONE, help="epochs between validations")
    loop.add_argument(
        "--val_check_interval",
        type=count_or_share,
        help="validate within an epoch, after so many batches or this share",
    )
    loop.add_argument("--num_sanity_val_steps", type=int, default=2, help="validation batches to try before training")
    loop.add_argument("--log_every_n_steps", type=int, default=50, help="steps between rows of metrics.csv")
    _switch(loop, "--fast_dev_run", "one batch of everything, to see that it runs")
    _switch(loop, "--detect_anomaly", "let autograd name the operation that made a NaN")
    _switch(loop, "--terminate_on_nan", SUPPRESS, True)
    loop.add_argument("--profiler", choices=["simple", "advanced"], help="print where the time went")
    _switch(loop, "--enable_progress_bar", "show progress", True)
    loop.add_argument("--progress_bar_refresh_rate", type=int, help="batches between the bar's updates; 0 hides it")
    loop.add_argument("--default_root_dir", type=Path, help=SUPPRESS)


def add_record_flags(parser: Parser, best: tuple[str, ...]) -> Any:
    """What a run writes; `best`: the metrics that --keep_best takes."""
    group = parser.add_argument_group("records")
    group.add_argument(
        "--checkpoint_dir",
        type=Path,
        default=Path("trained_models"),
        help="the run's folder is made below this, as METHOD/ID",
    )
    group.add_argument(
        "--checkpoint_frequency",
        type=int,
        default=1,
        bound=ONE,
        help="epochs between checkpoints; the last epoch is always saved",
    )
    group.add_argument(
        "--checkpoint_every_n_steps",
        type=int,
        default=0,
        bound=NOT_NEGATIVE,
        help="also save within an epoch, after so many steps; 0: only after epochs",
    )
    group.add_argument(
        "--keep_checkpoints", type=int, default=1, bound=ONE, help="how many of the run's epochs keep their checkpoint"
    )
    group.add_argument("--keep_best", choices=best, help="also keep the one with the highest")
    group.add_argument(
        "--save_checkpoint", action="store_true", default=True, help="always on: kept for existing scripts"
    )
    group.add_argument("--resume_from_checkpoint", type=Path, help="go on from this checkpoint")
    add_wandb_flags(parser, "name of the run, in file names and wandb")
    return group


def add_wandb_flags(parser: Parser, name: str = "name of the run") -> None:
    group = parser.add_argument_group("Weights & Biases")
    group.add_argument("--wandb", action="store_true", help="log to Weights & Biases")
    group.add_argument("--offline", action="store_true", help="with --wandb: write to disk only; needs no account")
    group.add_argument("--project", default="solo-learn", help="wandb project")
    group.add_argument("--entity", help="wandb user or team")
    group.add_argument("--name", help=name)


def _switch(group: Any, flag: str, help: str, default: bool | None = False) -> None:
    """A flag that stands alone or is followed by true or false, as Lightning 1's were."""
    group.add_argument(flag, nargs="?", const=True, default=default, type=yes_or_no, help=help)


def check_training(flags: Namespace) -> None:
    """Refuses flags of a training that do not go together."""
    check_colours(flags)
    if flags.scheduler == "reduce" and flags.limit_val_batches == 0:
        raise UserError("--scheduler reduce watches the validation loss: --limit_val_batches 0 leaves none")
    if flags.keep_best and flags.limit_val_batches == 0:
        raise UserError(f"--keep_best {flags.keep_best}: --limit_val_batches 0 leaves nothing to compare")
    if flags.name and "/" in flags.name:
        raise UserError(f"--name {flags.name}: is part of a file name and must not contain /")
    if flags.scheduler == "step" and not flags.lr_decay_steps:
        raise UserError("--scheduler step needs --lr_decay_steps, e.g. 60 80")
    if flags.lars and flags.optimizer != "sgd":
        raise UserError(f"--lars works with --optimizer sgd, not {flags.optimizer}")
