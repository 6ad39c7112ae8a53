"""The command line: solo-learn 1.0.2's flags unchanged, Lightning 2's own, and Lightning 1's old spellings."""

import argparse
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from solo_hcsc.cli.errors import UserError


class _Help(argparse.HelpFormatter):
    """Shows a default where it says something."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        says_nothing = isinstance(default, bool) or default in (None, "", argparse.SUPPRESS)
        if action.help is None or action.required or says_nothing:
            return action.help
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        return f"{action.help} ({shown})".replace("%", "%%")

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return "N" if action.type in (int, float, count_or_share) else "X"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose groups of one name are one group."""

    def __init__(self, **kwargs: Any) -> None:
        self._by_title: dict[str | None, argparse._ArgumentGroup] = {}
        super().__init__(allow_abbrev=False, formatter_class=_Help, **kwargs)

    def add_argument_group(self, title: Any = None, *args: Any, **kwargs: Any) -> Any:
        # solo-learn's methods add to a group "base", once for each base class.
        title = "encoder, optimiser and online evaluation" if title == "base" else title
        if title not in self._by_title:
            self._by_title[title] = super().add_argument_group(title, *args, **kwargs)
        return self._by_title[title]

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")

    def parse(self, argv: Iterable[str]) -> argparse.Namespace:
        """Parses all of `argv`; an unknown flag is named together with the nearest known one."""
        args, unknown = self.parse_known_args(list(argv))
        if unknown:
            flag = next((word for word in unknown if word.startswith("--")), unknown[0])
            flag = flag.partition("=")[0]
            if flag in _GONE:
                raise UserError(f"{flag} no longer exists in Lightning 2; leave it out")
            known = [text for action in self._actions for text in action.option_strings]
            near = difflib.get_close_matches(flag, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "see --help for the known ones"
            raise UserError(f"unknown flag or stray value {flag}: {hint}")
        return args

    def explain(self, defaults: dict[str, Any] | None = None) -> None:
        """Gives solo-learn's flags, which have no help, theirs; `defaults` makes required flags optional."""
        for action in self._actions:
            if action.help is None:
                action.help = HELP.get(action.dest)
            if defaults and action.dest in defaults:
                action.default = defaults[action.dest]
                action.required = False

    def choose(self, dest: str, choices: Iterable[str]) -> None:
        """Replaces the choices of a flag that solo-learn added."""
        for action in self._actions:
            if action.dest == dest:
                action.choices = list(choices)

    def hide(self, *dests: str) -> None:
        """Leaves flags out of the help that solo-learn has and that mean nothing here."""
        self.describe(**dict.fromkeys(dests, argparse.SUPPRESS))

    def describe(self, **helps: str) -> None:
        """Replaces the help texts of flags that mean something else here."""
        for action in self._actions:
            action.help = helps.get(action.dest, action.help)


def yes_or_no(text: str) -> bool:
    answer = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in answer:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return answer[text.lower()]


def count_or_share(text: str) -> int | float:
    """`10` batches, or `0.1` of them."""
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def refuse_unlabelled(args: argparse.Namespace) -> None:
    if args.no_labels:
        raise UserError("--no_labels: an evaluation needs labels; leave it out")


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
    where.add_argument("--num_nodes", type=int, default=1, help="number of machines")
    where.add_argument("--strategy", help="how processes work together; ddp as soon as there are several")
    where.add_argument("--distributed_backend", help=argparse.SUPPRESS)
    where.add_argument("--precision", default="32", help="32, 16 or bf16 (mixed), or Lightning 2's own names")
    _switch(where, "--sync_batchnorm", "batch statistics over all GPUs")
    _switch(where, "--use_distributed_sampler", "let Lightning shard the data over processes", True)
    _switch(where, "--replace_sampler_ddp", argparse.SUPPRESS, None)
    _switch(where, "--benchmark", "let cuDNN choose the fastest algorithms", None)
    _switch(where, "--deterministic", "only deterministic algorithms", None)

    loop = parser.add_argument_group("training loop (Lightning)")
    loop.add_argument("--seed", type=int, default=5, help="seed of Python, NumPy and torch")
    loop.add_argument("--max_epochs", type=int, default=max_epochs, help="epochs to train")
    loop.add_argument("--min_epochs", type=int, help="epochs to train at least")
    loop.add_argument("--max_steps", type=int, default=-1, help="stop after so many steps; -1: no limit")
    loop.add_argument("--min_steps", type=int, help="steps to train at least")
    loop.add_argument("--max_time", help="stop after this time, as DD:HH:MM:SS")
    loop.add_argument("--accumulate_grad_batches", type=int, default=1, help="batches per optimiser step")
    loop.add_argument("--gradient_clip_val", type=float, help="clip gradients at this value")
    loop.add_argument("--gradient_clip_algorithm", choices=["norm", "value"], help="clip by norm or by value")
    for stage in ("train", "val"):
        loop.add_argument(
            f"--limit_{stage}_batches",
            type=count_or_share,
            help=f"use only so many (10) or this share (0.1) of the {stage} batches",
        )
    loop.add_argument(
        "--overfit_batches", type=count_or_share, default=0.0, help="train and validate on so few batches only"
    )
    loop.add_argument("--check_val_every_n_epoch", type=int, default=1, help="epochs between validations")
    loop.add_argument(
        "--val_check_interval",
        type=count_or_share,
        help="validate within an epoch, after so many batches or this share",
    )
    loop.add_argument("--num_sanity_val_steps", type=int, default=2, help="validation batches to try before training")
    loop.add_argument("--log_every_n_steps", type=int, default=50, help="steps between rows of metrics.csv")
    _switch(loop, "--fast_dev_run", "one batch of everything, to see that it runs")
    _switch(loop, "--detect_anomaly", "let autograd name the operation that made a NaN")
    _switch(loop, "--terminate_on_nan", argparse.SUPPRESS, True)
    loop.add_argument("--profiler", choices=["simple", "advanced"], help="print where the time went")
    _switch(loop, "--enable_progress_bar", "show progress", True)
    loop.add_argument("--progress_bar_refresh_rate", type=int, help="batches between the bar's updates; 0 hides it")
    loop.add_argument("--default_root_dir", type=Path, help=argparse.SUPPRESS)


def add_record_flags(parser: Parser) -> None:
    group = parser.add_argument_group("records")
    group.add_argument(
        "--checkpoint_dir",
        type=Path,
        default=Path("trained_models"),
        help="the run's folder is made below this, as METHOD/ID",
    )
    group.add_argument(
        "--checkpoint_frequency", type=int, default=1, help="epochs between checkpoints; the last epoch is always saved"
    )
    group.add_argument(
        "--checkpoint_every_n_steps",
        type=int,
        default=0,
        help="also save within an epoch, after so many steps; 0: only after epochs",
    )
    group.add_argument(
        "--keep_checkpoints", type=int, default=1, help="how many of the run's epochs keep their checkpoint"
    )
    group.add_argument(
        "--keep_best",
        choices=["val_acc1", "val_knn_acc1"],
        help="also keep the one with the highest",
    )
    group.add_argument(
        "--save_checkpoint", action="store_true", default=True, help="always on: kept for existing scripts"
    )


def _switch(group: Any, flag: str, help: str, default: bool | None = False) -> None:
    """A flag that stands alone or is followed by true or false, as Lightning 1's were."""
    group.add_argument(flag, nargs="?", const=True, default=default, type=yes_or_no, help=help)


_GONE = {
    f"--{name}"
    for name in [
        "amp_backend",
        "amp_level",
        "auto_lr_find",
        "auto_scale_batch_size",
        "auto_select_gpus",
        "checkpoint_callback",
        "flush_logs_every_n_steps",
        "ipus",
        "log_gpu_memory",
        "move_metrics_to_cpu",
        "plugins",
        "prepare_data_per_node",
        "process_position",
        "stochastic_weight_avg",
        "tpu_cores",
        "track_grad_norm",
        "truncated_bptt_steps",
        "weights_save_path",
        "weights_summary",
    ]
}

HELP = {
    # data
    "dataset": "which data set",
    "data_dir": "folder that holds the data sets",
    "train_dir": "training images, below --data_dir",
    "val_dir": "validation images, below --data_dir",
    "dali": "decode and augment with NVIDIA DALI (folders and lists of images)",
    "dali_device": "where DALI works: gpu or cpu",
    "no_labels": "the training folder holds images without class folders",
    "mean": "channel means for normalising (all but cifar, stl10 and imagenet)",
    "std": "channel deviations for normalising (all but cifar, stl10 and imagenet)",
    # augmentation: one value for all pipelines, or one for each
    "num_crops_per_aug": "crops that each augmentation pipeline makes, e.g. 1 1 6",
    "brightness": "strength of brightness jitter, per pipeline",
    "contrast": "strength of contrast jitter, per pipeline",
    "saturation": "strength of saturation jitter, per pipeline",
    "hue": "strength of hue jitter, per pipeline",
    "color_jitter_prob": "probability of colour jitter, per pipeline",
    "gray_scale_prob": "probability of turning grey, per pipeline",
    "horizontal_flip_prob": "probability of a flip, per pipeline",
    "gaussian_prob": "probability of a blur, per pipeline",
    "solarization_prob": "probability of solarisation, per pipeline",
    "crop_size": "side of the crops in pixels, per pipeline; the first is the large one",
    "min_scale": "smallest share of the image that a crop covers, per pipeline",
    "max_scale": "largest share of the image that a crop covers, per pipeline",
    "debug_augmentations": "print the augmentation pipelines",
    # encoder, optimiser and online evaluation
    "encoder": "architecture of the encoder",
    "zero_init_residual": "start each residual block of a ResNet as the identity",
    "patch_size": "side of a ViT's patches",
    "batch_size": "images per step and process",
    "lr": "learning rate; pretraining multiplies it by batch size x devices / 256",
    "classifier_lr": "learning rate of the online classifier",
    "weight_decay": "weight decay",
    "num_workers": "processes that load images",
    "name": "name of the run, in file names and wandb",
    "project": "wandb project",
    "entity": "wandb user or team",
    "wandb": "log to Weights & Biases",
    "offline": "with --wandb: write to disk only; needs no account",
    "optimizer": "optimiser",
    "lars": "scale SGD's steps layer by layer (LARS)",
    "grad_clip_lars": "LARS: never enlarge a step",
    "eta_lars": "LARS: trust coefficient",
    "exclude_bias_n_norm": "LARS: leave biases and norms out",
    "scheduler": "learning rate schedule",
    "lr_decay_steps": "epochs at which --scheduler step divides the learning rate by 10",
    "min_lr": "where the cosine ends",
    "warmup_start_lr": "where warmup_cosine starts",
    "warmup_epochs": "epochs of linear warm-up in warmup_cosine",
    "encode_indexes_into_labels": "accepted for old bash files: DALI always hands out true indexes",
    "knn_eval": "weighted KNN accuracy at each validation",
    "knn_k": "neighbours of --knn_eval",
    "base_tau_momentum": "momentum of the momentum encoder at the start",
    "final_tau_momentum": "momentum of the momentum encoder at the end",
    "momentum_classifier": "train an online classifier on the momentum encoder too",
    "pretrained_feature_extractor": "checkpoint, or a folder: its newest checkpoint",
    # methods
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
    # callbacks
    "auto_umap_dir": "folder for the UMAP pictures",
    "auto_umap_frequency": "epochs between UMAP pictures",
    "auto_resumer_max_hours": "--auto_resume looks at checkpoints this young only",
}
