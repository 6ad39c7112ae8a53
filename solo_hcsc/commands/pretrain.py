"""`python -m solo_hcsc.pretrain`: trains any solo-learn method, with solo-learn's flags."""

import os
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.errors import UserError, command, note
from solo_hcsc.cli.flags import Parser, add_record_flags, add_trainer_flags
from solo_hcsc.cli.quiet import quiet

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule
    from torch.utils.data import Dataset

# MoCo v2's colour jitter: solo-learn requires these flags, we make them optional.
_DEFAULTS = {
    "brightness": [0.4],
    "contrast": [0.4],
    "saturation": [0.4],
    "hue": [0.1],
    "optimizer": "sgd",
    "encoder": "resnet18",
    "scheduler": "warmup_cosine",  # solo-learn's default `reduce` raises in pretraining
    "data_dir": Path("datasets"),
    "project": "solo-learn",
}
AUGMENTATIONS = [
    "brightness",
    "contrast",
    "saturation",
    "hue",
    "color_jitter_prob",
    "gray_scale_prob",
    "horizontal_flip_prob",
    "gaussian_prob",
    "solarization_prob",
    "crop_size",
    "min_scale",
    "max_scale",
]
# solo-learn's methods that unpack exactly two features and have no term for small crops.
_TWO_CROPS = [
    "barlow_twins",
    "deepclusterv2",
    "dino",
    "mocov2plus",
    "nnbyol",
    "nnclr",
    "nnsiam",
    "ressl",
    "simsiam",
    "vicreg",
    "wmse",
]


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    args = parse(argv)

    from solo_hcsc.data import folders as data
    from solo_hcsc.training import run as training
    from solo_hcsc.cli.devices import describe_devices
    from solo_hcsc.data.images import SkipUnreadable, UnreadableImage
    from solo_hcsc.training.resume import FinishedError, find_resume

    # ---- every check comes before the first thing written ----
    started, model, train_set, val_set = prepare(args)
    images = len(train_set)  # type: ignore[arg-type]
    source = "--train_dir" if args.data_fraction == 1 else f"--data_fraction {args.data_fraction:g}"
    batches = training.check_batches(source, images, args)
    vars(args).update(getattr(model, "resolved_options", {}))
    try:
        resume = find_resume(args, model)
    except FinishedError as finished:
        if not args.auto_resume:
            raise
        return training.announce(f"nothing to do: {finished}")
    args.resume_from_checkpoint = resume
    run = training.Run(args, args.method)
    callbacks = [umap_callback(args)] if args.auto_umap else []
    if isinstance(train_set, SkipUnreadable):
        train_set.unreadable.file = run.folder / "unreadable.txt"
        callbacks.append(train_set.unreadable)
    trainer = run.trainer(callbacks)
    train_loader = None if args.dali else data.training_loader(train_set, args)
    val_loader = None if val_set is None else data.validation_loader(val_set, args)

    # ---- the run ----
    run.begin(model, trainer)
    labels = "no labels" if args.no_labels else f"{args.num_classes} classes"
    training.announce(
        f"{args.method} ({args.encoder}) on {args.dataset}: {images} images, {labels}; "
        f"{describe_devices(args)}; {batches} batches of {args.batch_size} per epoch, "
        f"{args.max_epochs} epochs; writing to {run.folder}"
    )
    if resume is not None:
        training.announce(f"resuming from {resume}")
    try:
        run.fit(trainer, model, train_loader, val_loader, resume)
    except UnreadableImage as error:
        could_skip = not (args.skip_unreadable or args.dali)
        raise UnreadableImage(f"{error}, or add --skip_unreadable") if could_skip else error from error
    knn = ["--pretrained_feature_extractor", run.folder, "--dataset", args.dataset, "--data_dir", args.data_dir]
    if args.dataset in ("custom", "imagenet", "imagenet100"):
        knn += ["--train_dir", args.train_dir, "--val_dir", args.val_dir or "LABELLED_IMAGES"]
    knn += ["--crop_size", args.crop_size[0]]
    run.report(started, f"{training.python_command('knn')} {shlex.join(map(str, knn))}")


def prepare(args: Namespace) -> "tuple[float, LightningModule, Dataset, Dataset | None]":
    """Checks and completes the arguments; returns when the work began, the method, its training and validation set."""
    from solo_hcsc.framework import dali
    from solo_hcsc.data import folders as data
    from solo_hcsc.training import run as training
    from solo_hcsc.training.convolutions import make_fast
    from solo_hcsc.cli.devices import resolve_hardware
    from solo_hcsc.data.images import SkipUnreadable, UnreadableList
    from solo_hcsc.framework.registry import load_methods

    method_class = load_methods()[args.method]
    check_flags(args, method_class)
    resolve_hardware(args)
    dali.check(args)
    training.check_wandb(args)
    data.resolve_folders(args, needs_val=False)
    set_up(args)
    started = training.start(args)

    train_set = data.pretraining_set(args)
    val_set = data.validation_set(args)
    data.align_classes(train_set, val_set)
    images = len(train_set)  # type: ignore[arg-type]
    if val_set is None and args.knn_eval:
        raise UserError("--knn_eval needs labelled validation images; give --val_dir, or leave it out")
    if val_set is None and args.keep_best:
        raise UserError(f"--keep_best {args.keep_best} needs labelled validation images; give --val_dir")

    if args.dali:
        method_class = dali.pretraining_class(method_class, train_set, args)
    args.num_images = images
    model = method_class(**data.framework_settings(args))
    if args.accelerator == "cpu":
        make_fast(model)
    if args.skip_unreadable:
        unreadable = UnreadableList(images + (len(val_set) if val_set is not None else 0))  # type: ignore[arg-type]
        train_set = SkipUnreadable(train_set, unreadable)
        val_set = None if val_set is None else SkipUnreadable(val_set, unreadable)
    if hasattr(model, "clustering_images"):
        source = dali if args.dali else data
        model.clustering_images = source.clustering_images(train_set, args)
    return started, model, train_set, val_set


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.framework.registry import load_methods, method_names

    known = method_names()
    first = Parser(add_help=False)
    first.add_argument("--method")
    method = first.parse_known_args(list(argv))[0].method
    wants_help = {"-h", "--help"} & set(argv)
    if method is not None and method not in known:
        raise UserError(f"--method {method}: unknown; choose from {', '.join(known)}")
    if method is None and not wants_help:
        raise UserError(f"--method is missing; choose from {', '.join(known)}")
    parser = build_parser(load_methods()[method or "base"], known)
    args = parser.parse(argv)
    if args.name is None:
        args.name = f"{args.method}-{args.dataset}"
    return args


def build_parser(method_class: type, known: Sequence[str]) -> Parser:
    from solo.args.dataset import augmentations_args, custom_dataset_args, dataset_args
    from solo.utils.auto_resumer import AutoResumer

    from solo_hcsc.data.folders import DATASETS

    parser = Parser(
        prog="solo_hcsc.pretrain",
        usage="%(prog)s --method NAME --dataset NAME [flags]",
        description="Pretrains any solo-learn method. Add --method NAME to see that method's own flags.",
    )
    group = parser.add_argument_group("method")
    group.add_argument("--method", required=True, metavar="NAME", help=f"one of {', '.join(known)}")
    group = parser.add_argument_group("data")
    dataset_args(group)
    custom_dataset_args(group)
    group.add_argument(
        "--data_fraction", type=float, default=1.0, help="train on this share of the images, drawn with --seed"
    )
    group.add_argument(
        "--skip_unreadable",
        action="store_true",
        help="the next image stands for one that cannot be read, which is named in the run's unreadable.txt; "
        "without it such an image ends the run",
    )
    augmentations_args(parser.add_argument_group("augmentation"))
    method_class.add_model_specific_args(parser)  # type: ignore[attr-defined]
    add_trainer_flags(parser, max_epochs=100)
    add_record_flags(parser)
    group = parser.add_argument_group("records")
    group.add_argument("--resume_from_checkpoint", type=Path, help="go on from this checkpoint")
    group.add_argument(
        "--auto_resume",
        action="store_true",
        help="go on from the newest checkpoint below --checkpoint_dir of a run with the same flags, or start anew",
    )
    group.add_argument(
        "--auto_umap", action="store_true", help="a UMAP picture of the validation features (needs the extra umap)"
    )
    group.add_argument("--auto_umap_dir", type=Path, default=Path("auto_umap"))
    group.add_argument("--auto_umap_frequency", type=int, default=1)
    AutoResumer.add_autoresumer_args(parser)
    parser.explain(_DEFAULTS)
    parser.choose("dataset", DATASETS)
    return parser


def check_flags(args: Namespace, method_class: type) -> None:
    from solo_hcsc.training.run import check_ranges

    check_ranges(args)
    if hasattr(method_class, "check_flags"):
        method_class.check_flags(args)
    if not 0 < args.data_fraction <= 1:
        raise UserError(f"--data_fraction {args.data_fraction}: must be above 0 and at most 1")
    if args.scheduler in ("reduce", "exponential"):
        raise UserError(f"--scheduler {args.scheduler}: pretraining has warmup_cosine, cosine, step and none")
    if args.no_labels and args.dataset != "custom":
        raise UserError(f"--no_labels is for --dataset custom, not {args.dataset}")
    if args.no_labels and args.knn_eval:
        raise UserError("--knn_eval needs labels, and --no_labels says there are none; leave one out")

    if args.skip_unreadable and args.dali:
        raise UserError("--skip_unreadable: --dali cannot skip images; leave out one of them")
    if args.skip_unreadable and args.dataset in ("cifar10", "cifar100", "stl10"):
        raise UserError(f"--skip_unreadable is for folders of images, not --dataset {args.dataset}; leave it out")

    pipelines = max(len(getattr(args, name)) for name in AUGMENTATIONS)
    for name in AUGMENTATIONS:
        if len(getattr(args, name)) not in (1, pipelines):
            raise UserError(f"--{name}: give one value, or {pipelines} as the other augmentation flags")
    if len(args.num_crops_per_aug) != pipelines:
        raise UserError(
            f"--num_crops_per_aug has {len(args.num_crops_per_aug)} values for {pipelines} "
            "augmentation pipelines; give one number of crops for each"
        )
    for low, high in zip(_spread(args.min_scale, pipelines), _spread(args.max_scale, pipelines), strict=True):
        if low > high:
            raise UserError(f"--min_scale {low} is larger than --max_scale {high}")
    sizes = _spread(args.crop_size, pipelines)
    large = sum(n for n, size in zip(args.num_crops_per_aug, sizes, strict=True) if size == sizes[0])
    small = sum(args.num_crops_per_aug) - large
    if large != 2 and args.method != "wmse":
        raise UserError(f"--num_crops_per_aug: {args.method} wants two large crops, not {large}")
    if small and args.method in _TWO_CROPS:
        raise UserError(f"--crop_size: {args.method} takes no small crops; byol, simclr and swav do")
    if small and "resnet" not in args.encoder:
        raise UserError(f"--encoder {args.encoder} takes crops of one size; use a resnet for small crops")
    if args.method == "wmse" and args.batch_size % args.whitening_size:
        raise UserError(f"--whitening_size {args.whitening_size} must divide --batch_size {args.batch_size}")
    if args.method == "dino" and args.warmup_teacher_temperature_epochs > args.max_epochs:
        note(f"--warmup_teacher_temperature_epochs: shortened to the run's {args.max_epochs} epochs")
        args.warmup_teacher_temperature_epochs = args.max_epochs
    if args.method == "deepclusterv2" and args.checkpoint_every_n_steps:
        raise UserError("--checkpoint_every_n_steps: deepclusterv2 cannot go on within an epoch; leave it out")
    if args.method == "deepclusterv2" and len(set(args.num_prototypes)) > 1:
        raise UserError(f"--num_prototypes: deepclusterv2 wants equal numbers, not {args.num_prototypes}")
    low, high = getattr(args, "base_tau_momentum", 0), getattr(args, "final_tau_momentum", 1)
    if low > high:
        raise UserError(f"--base_tau_momentum {low} is larger than --final_tau_momentum {high}")
    if args.auto_umap:
        try:
            from solo.utils.auto_umap import AutoUMAP  # noqa: F401
        except ImportError:
            raise UserError("--auto_umap: UMAP is not installed; run: pip install 'solo_hcsc[umap]'") from None


def set_up(args: Namespace) -> None:
    """solo-learn's own resolution of arguments, and the checks that need its outcome."""
    from solo.args.utils import additional_setup_pretrain

    from solo_hcsc.data.folders import count_classes, framework_name

    dataset, args.dataset = args.dataset, framework_name(args.dataset)
    additional_setup_pretrain(args)
    args.dataset = dataset
    args.num_classes = count_classes(args) or args.num_classes
    processes = len(args.gpus) * args.num_nodes
    if args.method in ("mocov2plus", "ressl", "nnclr", "nnbyol", "nnsiam"):
        if args.queue_size < 1 or args.queue_size % (args.batch_size * processes):
            raise UserError(
                f"--queue_size {args.queue_size}: {args.method} wants a multiple of the batch over all "
                f"processes, {args.batch_size * processes}"
            )
    elif args.method == "hcsc":
        from solo_hcsc.framework.method import HCSC

        HCSC.check_batch(args, args.batch_size * processes)
    elif args.method == "swav" and 0 < args.queue_size // processes < args.batch_size:
        raise UserError(f"--queue_size {args.queue_size} is smaller than one batch over all processes")


def umap_callback(args: Namespace):  # type: ignore[no-untyped-def]
    from solo.utils.auto_umap import AutoUMAP

    folder = os.path.join(args.auto_umap_dir, args.method)
    return AutoUMAP(args, logdir=folder, frequency=args.auto_umap_frequency)


def _spread(values: list, count: int) -> list:
    return values * count if len(values) == 1 else values


if __name__ == "__main__":
    main()
