"""The flags: solo-learn 1.0.2's unchanged, Lightning 2's, Lightning 1's old spellings, and ours, each with its bounds.

solo-learn's flags are declared here and not by its own functions, so that a help needs neither torch nor solo-learn;
`tests/cli/test_flags.py` compares each with solo-learn's own. Only a method's own flags come from its class.
"""

import os
from argparse import SUPPRESS, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from solo_hcsc.cli.parser import Parser, class_level, count_or_share
from solo_hcsc.data.augmentation import OWN_SIZE, PIPELINE
from solo_hcsc.data.source import DATASETS
from solo_hcsc.encoders.names import ENCODERS, TIMM
from solo_hcsc.errors import UserError
from solo_hcsc.files import check_readable
from solo_hcsc.methods.names import method_names
from solo_hcsc.settings import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Bound,
    at_least,
    below,
    nearest,
    yes_or_no,
)
from solo_hcsc.trees.names import WAYS

SCHEDULERS = ("reduce", "cosine", "warmup_cosine", "step", "exponential", "none")
_LATER_METHODS = {"vibcreg": "1.0.3", "supcon": "1.0.4", "mocov3": "1.0.5", "mae": "1.0.6"}  # and solo-learn's release
_LATER_ENCODERS = {"poolformer": "1.0.3", "convnext": "1.0.4", "wide_resnet": "1.0.4"}  # what their names begin with
ONE = at_least(1)
LONGEST_NAME = 200  # bytes; the ID, the epoch and the step follow it in a checkpoint's name, of 255 at most


def check_method(name: str, flag: str = "--method") -> None:
    known = method_names()
    if name not in known and name in _LATER_METHODS:
        raise UserError(f"{flag} {name}: {_came_later(name, _LATER_METHODS[name])}")
    if name not in known:
        near = nearest(name, known)
        raise UserError(f"{flag} {name}: unknown; {near + ' or ' if near else ''}choose from {', '.join(known)}")


def _came_later(name: str, release: str) -> str:
    return f"solo-learn 1.0.2 does not have {name}; it came with {release}"


def encoder(text: str) -> str:
    """Accept a name of solo-learn's, or `timm/` and a name that is looked up later: timm takes seconds to import."""
    for family, release in _LATER_ENCODERS.items():
        if text.startswith(family):
            hint = "" if family == "wide_resnet" else f"; {TIMM}{text} is timm's"
            raise ArgumentTypeError(_came_later(text, release) + hint)
    if text not in ENCODERS and not text.startswith(TIMM):
        near = nearest(text, ENCODERS)
        raise ArgumentTypeError(
            f"{text}: unknown; {near + ' Or ' if near else ''}choose from {', '.join(ENCODERS)}, or any model of timm "
            f"as timm/NAME: {TIMM}{text} if it has that"
        )
    return text


def key_value(text: str) -> str:
    if not text.partition("=")[0].isidentifier() or "=" not in text:
        raise ArgumentTypeError(f"{text!r} is not of the form key=value")
    return text


def _add(group: Any, *rows: tuple[str, Any, Any, Bound | None, str]) -> None:
    """Add flags by rows: name, type, default, bound, help. A list is a flag of several values; `bool` stands alone;
    `yes_or_no` stands alone or is followed by true or false, as Lightning 1's switches."""
    for name, kind, default, bound, help in rows:
        settings: dict[str, Any] = {"type": kind, "default": default, "bound": bound, "help": help}
        if kind is bool:
            settings = {"action": "store_true", "default": default, "help": help}
        elif kind is yes_or_no:
            settings |= {"nargs": "?", "const": True}
        elif isinstance(kind, tuple):
            settings |= {"type": str, "choices": kind}
        if isinstance(default, list):
            settings |= {"nargs": "+"}
        group.add_argument(f"--{name}", **settings)


# ---- images ----


SKIP_UNREADABLE = (
    "leave out images that cannot be read and list them at the end, instead of stopping at the first one; in training "
    "the next image replaces each of them"
)


def add_dataset_flags(parser: Parser) -> Any:
    """Add the flags that choose images, for every command that reads any; return the group, for further ones."""
    group = parser.add_argument_group("data")
    group.add_argument("--dataset", choices=DATASETS, required=True, help="which data set")
    normalising = "for normalising (all but cifar, stl10 and imagenet)"
    level = "which folder is an image's class: 1, the first below --train_dir, 2 the second, ..., or leaf, the last"
    _add(
        group,
        ("data_dir", Path, Path("datasets"), None, "folder that holds the data sets"),
        ("train_dir", Path, None, None, "training images, below --data_dir"),
        ("val_dir", Path, None, None, "validation images, below --data_dir"),
        ("class_level", class_level, None, None, f"{level}; 1 if not given"),
        ("dali", bool, False, None, "decode and augment with NVIDIA DALI (folders and lists of images)"),
        ("dali_device", str, "gpu", None, "where DALI works: gpu or cpu"),
        ("no_labels", bool, False, None, "the training folder holds images without class folders"),
        ("skip_unreadable", bool, False, None, SKIP_UNREADABLE),
        ("mean", float, [0.485, 0.456, 0.406], None, f"channel means {normalising}"),
        ("std", float, [0.228, 0.224, 0.225], POSITIVE, f"channel deviations {normalising}"),
    )
    return group


def check_colours(flags: Namespace) -> None:
    for name in ("mean", "std"):
        if len(getattr(flags, name)) != 3:
            raise UserError(f"--{name}: give three values, one for each colour")


def add_augmentation_flags(parser: Parser) -> None:
    _add(
        parser.add_argument_group("augmentation"),
        ("num_crops_per_aug", int, [2], ONE, "crops that each augmentation pipeline makes, e.g. 1 1 6"),
        *PIPELINE,
        ("debug_augmentations", bool, False, None, "print the augmentation pipelines"),
    )


def add_evaluated_images_flags(parser: Parser) -> Any:
    """Add the flags that choose an evaluation's images: as in pretraining, but for what is typed."""
    group = add_dataset_flags(parser)
    _add(group, ("crop_size", int, [224], ONE, f"side of the images in pixels; {OWN_SIZE}"))
    parser.change("dataset", default=None, help="which data set; as in pretraining if not given, like its folders")
    return group


# ---- methods ----

_ENCODER_ARGS = "settings of a timm/NAME, as key=value: what timm.create_model takes, e.g. drop_path_rate=0.1"
_INIT_WEIGHTS = (
    "weights that the encoder starts from: a run or checkpoint of ours, a file of torchvision, timm, MoCo, HCSC or "
    "EfficientNet-PyTorch (.pth, .safetensors), or `timm` for those that timm has of a timm/NAME"
)
_FOREIGN: tuple[Any, ...] = (
    ("encoder", encoder, None, None, "architecture, where no args.json tells it"),
    ("encoder_args", key_value, [], None, f"{_ENCODER_ARGS}; where no args.json tells them"),
)


def add_method_flags(parser: Parser) -> None:
    """Add the flags that solo-learn's methods share."""
    # solo-learn calls it base; its momentum methods add theirs.
    group = parser.add_argument_group("encoder, optimiser and online evaluation", also="base")
    lr = "learning rate; pretraining multiplies it by batch size x devices / 256"
    _add(
        group,
        ("encoder", encoder, "resnet18", None, f"architecture: {', '.join(ENCODERS)}, or any of timm's as timm/NAME"),
        ("encoder_args", key_value, [], None, _ENCODER_ARGS),
        ("init_weights", str, None, None, _INIT_WEIGHTS),
        ("zero_init_residual", bool, False, None, "start each residual block of a ResNet as the identity"),
        ("patch_size", int, 16, ONE, "side of a ViT's patches"),
        *_optimiser(lr, ("sgd", "lars", "adam", "adamw"), "warmup_cosine"),
        ("grad_clip_lars", bool, False, None, "LARS: never enlarge a step"),
        ("eta_lars", float, 1e-3, None, "LARS: trust coefficient"),
        ("min_lr", float, 0.0, None, "where the cosine ends"),
        ("warmup_start_lr", float, 0.003, None, "where warmup_cosine starts"),
        ("warmup_epochs", int, 10, NOT_NEGATIVE, "epochs of linear warm-up in warmup_cosine; of a short run a fifth"),
        ("encode_indexes_into_labels", bool, False, None, "for old bash files: DALI always hands out true indexes"),
        ("knn_eval", bool, False, None, "weighted KNN accuracy at each validation"),
        ("knn_k", int, 20, ONE, "neighbours of --knn_eval"),
    )
    _add_decay_steps(group)


def add_linear_flags(parser: Parser) -> None:
    """Add the flags of solo-learn's linear evaluation."""
    group = parser.add_argument_group("linear")
    _add(
        group,
        *_FOREIGN,
        ("patch_size", int, 16, None, SUPPRESS),
        *_optimiser("learning rate", ("sgd", "lars", "adam"), "reduce"),
        ("min_lr", float, 0.0, None, "where warmup_cosine ends"),
        ("warmup_start_lr", float, 0.0, None, "where warmup_cosine starts"),
        ("warmup_epochs", int, 10, NOT_NEGATIVE, "epochs of linear warm-up in warmup_cosine"),
    )
    _add_decay_steps(group)
    parser.hide("classifier_lr")


def _optimiser(lr: str, optimisers: tuple[str, ...], scheduler: str) -> tuple[Any, ...]:
    return (
        ("batch_size", int, 128, ONE, "images per step and process"),
        ("lr", float, 0.3, NOT_NEGATIVE, lr),
        ("classifier_lr", float, 0.3, NOT_NEGATIVE, "learning rate of the online classifier"),
        ("weight_decay", float, 0.0001, NOT_NEGATIVE, "weight decay"),
        ("num_workers", int, 4, NOT_NEGATIVE, "processes that load images"),
        ("optimizer", optimisers, "sgd", None, "optimiser; lars means --optimizer sgd --lars"),
        ("lars", bool, False, None, "scale SGD's steps layer by layer (LARS)"),
        ("exclude_bias_n_norm", bool, False, None, "LARS: leave biases and norms out"),
        ("scheduler", SCHEDULERS, scheduler, None, "learning rate schedule"),
    )


def _add_decay_steps(group: Any) -> None:
    told = "epochs at which --scheduler step divides the learning rate by 10"
    group.add_argument("--lr_decay_steps", type=int, nargs="+", help=told)


def probe_parser(
    command: str, description: str, defaults: dict[str, Any], best: str = "val_acc1", images: str = ""
) -> Parser:
    """Build the parser of a command that trains a classifier on an encoder, with a protocol's defaults."""
    parser = Parser(command, description, f"--pretrained_feature_extractor PATH {images}[flags]")
    add_checkpoint_flags(parser)
    add_evaluated_images_flags(parser)
    add_linear_flags(parser)
    add_trainer_flags(parser, max_epochs=100)
    add_record_flags(parser, best=(best,))
    parser.hide("no_labels")
    for name, value in defaults.items():
        parser.change(name, default=value)
    return parser


def add_cache_flag(parser: Parser) -> None:
    told = "compute each image's features once, without augmentation: quick, and marked so in the tables"
    _add(parser.add_argument_group("linear"), ("cache_features", bool, False, None, told))


def without_folders(parser: Parser, dataset: str, data_dir: Path, meaning: str) -> None:
    """Adapt the flags to a data set that is not laid out in a folder for each class."""
    parser.change("dataset", choices=[dataset], default=dataset)
    parser.change("data_dir", default=data_dir, help=meaning)
    parser.hide("train_dir", "val_dir", "class_level")


def refuse_folders(flags: Namespace, instead: str) -> None:
    """Refuse the flags that `without_folders` hides."""
    for name in ("train_dir", "val_dir", "class_level"):
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
# Of the same flags: what they take; True for a switch.
METHOD_KINDS: dict[str, Any] = {
    **dict.fromkeys(
        "proj_output_dim proj_hidden_dim pred_hidden_dim queue_size num_prototypes kmeans_iters sk_iters"
        " freeze_last_layer freeze_prototypes_epochs epoch_queue_starts warmup_teacher_temperature_epochs"
        " whitening_iters whitening_size".split(),
        int,
    ),
    **dict.fromkeys(
        "lamb scale_loss base_tau_momentum final_tau_momentum temperature temperature_q temperature_k clip_grad"
        " student_temperature teacher_temperature warmup_teacher_temperature sk_epsilon sim_loss_weight"
        " var_loss_weight cov_loss_weight whitening_eps".split(),
        float,
    ),
    **dict.fromkeys(("norm_last_layer", "use_bn_in_head"), yes_or_no),
    **dict.fromkeys(("momentum_classifier", "supervised"), True),
}
METHOD_BOUNDS: dict[str, Bound] = {
    "base_tau_momentum": SHARE,
    "final_tau_momentum": SHARE,
    "proj_output_dim": POSITIVE,
    "proj_hidden_dim": POSITIVE,
    "temperature": POSITIVE,
    "queue_size": NOT_NEGATIVE,
}


def add_known_flags(parser: Parser) -> None:
    """Add the flags that solo-learn's method classes declare, to check their values before these are imported."""
    for name, kind in METHOD_KINDS.items():
        settings: dict[str, Any] = {"action": "store_true"} if kind is True else {"type": kind}
        if name == "num_prototypes":
            settings["nargs"] = "+"
        bound = None if kind is True else METHOD_BOUNDS.get(name)
        parser.add_argument(f"--{name}", bound=bound, **settings)


# ---- checkpoints to evaluate ----


_CHECKPOINT = (
    "the checkpoint, or a folder whose newest one is taken: of any method, of MoCo or the authors' HCSC, or weights "
    "of torchvision or timm"
)


def add_checkpoint_flags(parser: Parser) -> Any:
    """Add the flags that choose a checkpoint, for every evaluation."""
    group = parser.add_argument_group("encoder")
    group.add_argument("--pretrained_feature_extractor", type=Path, help=_CHECKPOINT)
    group.add_argument("--method", help="what made the checkpoint, for the tables, where no args.json beside it tells")
    return group


def add_feature_flags(parser: Parser, group: Any = None) -> None:
    """Add the flags that choose features, images and a device, for evaluations that train nothing.

    `group` has the checkpoint's flag already, if it is given.
    """
    group = group or add_checkpoint_flags(parser)
    features = "the encoder's features, or what the method's projector makes of them"
    _add(
        group,
        *_FOREIGN,
        ("features", ("backbone", "projector"), "backbone", None, features),
        ("accelerator", ("auto", "cpu", "gpu"), "auto", None, "where to compute features"),
    )
    group = add_evaluated_images_flags(parser)
    _add(
        group,
        ("batch_size", int, 128, ONE, "images per forward pass"),
        ("num_workers", int, 4, NOT_NEGATIVE, "processes that load images"),
    )
    parser.hide("dali", "dali_device", "no_labels")


_EMBED = (
    "One row per image: its path, label, embedding and, of an HCSC run, clusters; as Parquet and NPY. Works on any "
    "folder of images, also one without labels and one that was not trained on."
)


def embed_parser(
    command: str = "embed", description: str = _EMBED, usage: str = "RUN [--data_dir FOLDER] --out FOLDER [flags]"
) -> Parser:
    """Build the parser of `embed` and of others that read any images; without the flags for what they write."""
    parser = Parser(command, description, usage)
    group = parser.add_argument_group("encoder")
    group.add_argument("pretrained_feature_extractor", type=Path, metavar="RUN", help=_CHECKPOINT)
    add_feature_flags(parser, group)
    split = "which images, where the data set has both"
    _add(parser.add_argument_group("data"), ("split", ("train", "val"), "train", None, split))
    images = "a folder of images, with class folders or without; with --dataset or --train_dir, what these are below"
    parser.change("data_dir", help=f"{images}; the run's own images if not given")
    parser.change("no_labels", help="no column of labels; implied when there are no class folders")
    return parser


def add_way_flags(group: Any) -> None:
    told = "which image of a cluster: the most typical, the nearest to its centre; or farthest-first, without a tree"
    tree = "whose clusters: the run's own tree, or one made of the features; auto: the run's own, if an HCSC run"
    _add(
        group,
        ("way", WAYS, "typical", None, told),
        ("tree", ("auto", "run", "features"), "auto", None, f"{tree} started from random weights"),
    )


def _path(images: str) -> dict[str, Any]:
    """Return the settings of a flag for a folder that is not below --data_dir."""
    return {"type": lambda text: Path(text).absolute(), "help": f"{images} images, wherever they are"}


def data_format(text: str) -> str:
    if text != "image_folder":
        raise ArgumentTypeError(f"{text}: images are read from folders (image_folder)")
    return text


def knn_parser(command: str, description: str) -> Parser:
    """Build the parser of a command that classifies by a frozen encoder's nearest features."""
    parser = Parser(command, description, "--pretrained_feature_extractor PATH [flags]")
    add_feature_flags(parser)
    _add(
        parser.add_argument_group("KNN"),
        ("k", int, [10, 20, 100, 200], ONE, "neighbours to try; the best is reported"),
        ("temperature", float, [0.07], POSITIVE, "of the votes' weights (cosine); of several, each is tried"),
        ("distance_function", ("cosine", "euclidean"), ["cosine"], None, "between features; of several, each is tried"),
    )
    parser.add_argument_group("data").add_argument("--train_data_path", dest="train_dir", **_path("training"))
    parser.add_argument_group("data").add_argument("--val_data_path", dest="val_dir", **_path("validation"))
    _add(parser.add_argument_group("data"), ("data_format", data_format, "image_folder", None, SUPPRESS))
    told = "the encoder's features, what the method's projector makes of them, or both, one after the other"
    parser.change("features", nargs="+", default=["backbone"], help=told)
    return parser


def add_split_flags(group: Any, split: str, seed: str) -> None:
    """Add the flags of commands that compare clusters with labels; `split` and `seed` are help texts."""
    told = "a text file of lines `child: parent`, to compare with groups of classes too; cifar10 and digits have one"
    _add(
        group,
        ("split", ("train", "val"), "train", None, split),
        ("seed", int, 5, below(2**31), seed),
        ("label_hierarchy", Path, None, None, told),
    )


def check_labelled_checkpoint(flags: Namespace) -> None:
    """Refuse an evaluation without a checkpoint or without labels."""
    check_checkpoint(flags)
    check_labelled(flags)


def check_checkpoint(flags: Namespace) -> None:
    if flags.pretrained_feature_extractor is None:
        raise UserError("--pretrained_feature_extractor is missing: the checkpoint to evaluate")


def check_labelled(flags: Namespace) -> None:
    if flags.no_labels:
        raise UserError("--no_labels: an evaluation needs labels; leave it out")


def check_features(flags: Namespace) -> None:
    """Refuse mistakes in the flags of an evaluation that trains nothing."""
    check_labelled(flags)
    check_frozen(flags)


def check_skipping(flags: Namespace) -> None:
    """Refuse --skip_unreadable where images are not read one by one from files."""
    if flags.skip_unreadable and flags.dali:
        raise UserError("--skip_unreadable: --dali cannot skip images; leave out one of them")
    if flags.skip_unreadable and flags.dataset in ("cifar10", "cifar100", "stl10"):
        raise UserError(f"--skip_unreadable is for folders of images, not --dataset {flags.dataset}; leave it out")


def check_label_hierarchy(flags: Namespace) -> None:
    """Refuse a --label_hierarchy that cannot be read."""
    if flags.label_hierarchy is not None:
        name = f"--label_hierarchy {flags.label_hierarchy}"
        check_readable(flags.label_hierarchy, name, "give a text file of lines `child: parent`")


def check_frozen(flags: Namespace) -> None:
    """Refuse mistakes in the flags of an evaluation that trains nothing and needs no labels."""
    check_checkpoint(flags)
    check_colours(flags)
    if flags.dali:
        raise UserError("--dali: features are read with the default loader; leave it out")
    check_skipping(flags)


# ---- Lightning, records, wandb ----

_SEED = Bound(lambda value: 0 <= value < 2**32, f"must be below {2**32} and not negative")
_STEPS = Bound(lambda value: value == -1 or value >= 1, "must be at least 1, or -1 for no limit")
_SOME = Bound(lambda value: value != 0, "nothing would be trained on; leave it out")


def add_trainer_flags(parser: Parser, max_epochs: int) -> None:
    """Add Lightning 2's Trainer flags, and the spellings that scripts for Lightning 1 use."""
    accelerator = "cpu, gpu or auto; `ddp`, as scripts for Lightning 1 have it, means --strategy ddp"
    gpus = "indexes of the GPUs to use, as in 0,1 (Lightning 1's spelling); ignored with --accelerator cpu"
    _add(
        parser.add_argument_group("devices (Lightning)"),
        ("accelerator", str, "auto", None, accelerator),
        ("devices", str, None, None, "number of GPUs (or CPU processes), or GPU indexes as in 0,1; one if not given"),
        ("gpus", str, None, None, gpus),
        ("num_processes", int, None, None, "number of CPU processes (Lightning 1's spelling of --devices)"),
        ("num_nodes", int, 1, ONE, "number of machines"),
        ("strategy", str, None, None, "how processes work together; ddp as soon as there are several"),
        ("distributed_backend", str, None, None, SUPPRESS),
        ("precision", str, "32", None, "32, 16 or bf16 (mixed), or Lightning 2's own names"),
        ("sync_batchnorm", yes_or_no, False, None, "batch statistics over all GPUs"),
        ("use_distributed_sampler", yes_or_no, True, None, "let Lightning shard the data over processes"),
        ("replace_sampler_ddp", yes_or_no, None, None, SUPPRESS),
        ("benchmark", yes_or_no, None, None, "let cuDNN choose the fastest algorithms"),
        ("deterministic", yes_or_no, None, None, "only deterministic algorithms"),
    )
    interval = "validate within an epoch, after so many batches or this share"
    some_of = "use only so many (10) or this share (0.1) of the {} batches"
    _add(
        parser.add_argument_group("training loop (Lightning)"),
        ("seed", int, 5, _SEED, "seed of Python, NumPy and torch"),
        ("max_epochs", int, max_epochs, ONE, "epochs to train"),
        ("min_epochs", int, None, None, "epochs to train at least"),
        ("max_steps", int, -1, _STEPS, "stop after so many steps; -1: no limit"),
        ("min_steps", int, None, None, "steps to train at least"),
        ("max_time", str, None, None, "stop after this time, as DD:HH:MM:SS"),
        ("accumulate_grad_batches", int, 1, ONE, "batches per optimiser step"),
        ("gradient_clip_val", float, None, None, "clip gradients at this value"),
        ("gradient_clip_algorithm", ("norm", "value"), None, None, "clip by norm or by value"),
        ("limit_train_batches", count_or_share, None, _SOME, some_of.format("train")),
        ("limit_val_batches", count_or_share, None, None, some_of.format("val")),
        ("overfit_batches", count_or_share, 0.0, None, "train and validate on so few batches only"),
        ("check_val_every_n_epoch", int, 1, ONE, "epochs between validations"),
        ("val_check_interval", count_or_share, None, None, interval),
        ("num_sanity_val_steps", int, 2, None, "validation batches to try before training"),
        ("log_every_n_steps", int, 50, None, "steps between rows of metrics.csv"),
        ("fast_dev_run", yes_or_no, False, None, "one batch of everything, to see that it runs"),
        ("detect_anomaly", yes_or_no, False, None, "let autograd name the operation that made a NaN"),
        ("terminate_on_nan", yes_or_no, True, None, SUPPRESS),
        ("profiler", ("simple", "advanced"), None, None, "print where the time went"),
        ("enable_progress_bar", yes_or_no, True, None, "show progress"),
        ("progress_bar_refresh_rate", int, None, None, "batches between the bar's updates; 0 hides it"),
        ("default_root_dir", Path, None, None, SUPPRESS),
    )


def add_record_flags(parser: Parser, best: tuple[str, ...]) -> Any:
    """Add the flags for what a run writes; `best`: the metrics that --keep_best takes."""
    group = parser.add_argument_group("records")
    every = "also save within an epoch, after so many steps; 0: only after epochs"
    folder = "the run's folder is made below this, as METHOD/ID"
    _add(
        group,
        ("checkpoint_dir", Path, Path("trained_models"), None, folder),
        ("checkpoint_frequency", int, 1, ONE, "epochs between checkpoints; the last epoch is always saved"),
        ("checkpoint_every_n_steps", int, 0, NOT_NEGATIVE, every),
        ("keep_checkpoints", int, 1, ONE, "how many of the run's epochs keep their checkpoint"),
        ("keep_best", best, None, None, "also keep the one with the highest"),
        ("save_checkpoint", bool, True, None, "always on: kept for existing scripts"),
        ("resume_from_checkpoint", Path, None, None, "go on from this checkpoint"),
    )
    add_wandb_flags(parser, "name of the run, in file names and wandb")
    return group


def add_wandb_flags(parser: Parser, name: str = "name of the run") -> None:
    _add(
        parser.add_argument_group("Weights & Biases"),
        ("wandb", bool, False, None, "log to Weights & Biases"),
        ("offline", bool, False, None, "with --wandb: write to disk only; needs no account"),
        ("project", str, "solo-learn", None, "wandb project"),
        ("entity", str, None, None, "wandb user or team"),
        ("name", str, None, None, name),
    )


def add_resume_flags(group: Any) -> None:
    """Add the flags of a run that can find its own checkpoint."""
    found = "go on from the newest checkpoint below --checkpoint_dir of a run with the same flags, or start anew"
    young = "--auto_resume looks at checkpoints this young only"
    _add(
        group,
        ("auto_resume", bool, False, None, found),
        ("auto_resumer_max_hours", int, 36, None, young),
    )


def check_training(flags: Namespace) -> None:
    """Refuse flags of a training that do not go together."""
    check_colours(flags)
    check_skipping(flags)
    if flags.scheduler == "reduce" and flags.limit_val_batches == 0:
        raise UserError("--scheduler reduce watches the validation loss: --limit_val_batches 0 leaves none")
    if flags.keep_best and flags.limit_val_batches == 0:
        raise UserError(f"--keep_best {flags.keep_best}: --limit_val_batches 0 leaves nothing to compare")
    check_name(flags)
    if flags.scheduler == "step" and not flags.lr_decay_steps:
        raise UserError("--scheduler step needs --lr_decay_steps, e.g. 60 80")
    if flags.lars and flags.optimizer not in ("sgd", "lars"):
        raise UserError(f"--lars works with --optimizer sgd, not {flags.optimizer}")


def check_name(flags: Namespace) -> None:
    if flags.name and "/" in flags.name:
        raise UserError(f"--name {flags.name}: is part of a file name and must not contain /")
    if flags.name and len(os.fsencode(flags.name)) > LONGEST_NAME:
        raise UserError(f"--name {flags.name[:20]}...: is part of a file name and must not exceed {LONGEST_NAME} bytes")
