"""`python -m solo_hcsc.linear`: trains a linear classifier on a frozen encoder."""

import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.errors import UserError, command
from solo_hcsc.flags import Parser, add_record_flags, add_trainer_flags, refuse_unlabelled
from solo_hcsc.quiet import quiet

_DEFAULTS = {"optimizer": "sgd", "data_dir": Path("datasets"), "project": "solo-learn"}


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.registry import load_methods

    methods = load_methods()
    args = parse(argv)

    from solo.args.utils import additional_setup_linear

    from solo_hcsc import dali, data, training
    from solo_hcsc.checkpoints import find_checkpoint, load_encoder
    from solo_hcsc.hardware import describe_devices, resolve_hardware
    from solo_hcsc.results import table, write_result
    from solo_hcsc.resume import check_resume

    # ---- every check comes before the first thing written ----
    training.check_ranges(args)
    resolve_hardware(args)
    dali.check(args)
    training.check_wandb(args)
    checkpoint = find_checkpoint(args.pretrained_feature_extractor)
    backbone, args.encoder, taken = load_encoder(checkpoint, args.encoder, args.crop_size[0])
    data.resolve_folders(args, needs_val=True)
    dataset, args.dataset = args.dataset, data.framework_name(args.dataset)
    additional_setup_linear(args)
    args.dataset = dataset
    args.num_classes = data.count_classes(args) or args.num_classes
    started = training.start(args)
    train_set, val_set = data.evaluation_sets(args, *data.evaluation_transforms(args))
    images = len(train_set)  # type: ignore[arg-type]
    batches = training.check_batches("--train_dir", images, args)
    model_class = methods["linear"]
    if args.dali:
        model_class = dali.linear_class(model_class, train_set, val_set, args)
    model = model_class(backbone, **data.framework_settings(args))
    resume = args.resume_from_checkpoint
    if resume is not None:
        check_resume(resume, model, args)

    run = training.Run(args, "linear")
    trainer = run.trainer([])

    # ---- the run ----
    run.begin(model, trainer)
    training.announce(taken)
    training.announce(
        f"linear evaluation of {checkpoint} ({args.encoder}) on {dataset}: {images} images, "
        f"{args.num_classes} classes; {describe_devices(args)}; {batches} batches of "
        f"{args.batch_size} per epoch, {args.max_epochs} epochs; writing to {run.folder}"
    )
    train_loader = val_loader = None
    if not args.dali:
        train_loader, val_loader = data.training_loader(train_set, args), data.plain_loader(val_set, args)
    run.fit(trainer, model, train_loader, val_loader, resume)
    logged = trainer.callback_metrics
    if trainer.is_global_zero and "val_acc1" in logged:
        accuracy = {f"acc{k}": float(logged[f"val_acc{k}"]) for k in (1, 5)}
        settings = {k: getattr(args, k) for k in ("lr", "batch_size", "max_epochs", "scheduler", "seed")}
        seconds = time.monotonic() - started
        write_result(run.folder / "linear.json", "linear", dataset, checkpoint, accuracy, settings, seconds)
        print(table(("evaluation", "top-1 %", "top-5 %"), [("linear", *accuracy.values())]))
    run.report(started, f"{training.python_command('summary')} {args.checkpoint_dir}")


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.registry import load_methods

    args = build_parser(load_methods()["linear"]).parse(argv)
    if args.pretrained_feature_extractor is None:
        raise UserError("--pretrained_feature_extractor is missing: the checkpoint to evaluate")
    refuse_unlabelled(args)
    if args.name is None:
        args.name = f"linear-{args.dataset}"
    return args


def build_parser(linear_class: type) -> Parser:
    from solo.args.dataset import custom_dataset_args, dataset_args, linear_augmentations_args

    from solo_hcsc.data import DATASETS

    parser = Parser(
        prog="solo_hcsc.linear",
        usage="%(prog)s --pretrained_feature_extractor PATH --dataset NAME [flags]",
        description="Trains a linear classifier on the frozen encoder of a checkpoint.",
    )
    parser.add_argument_group("encoder").add_argument("--pretrained_feature_extractor", type=Path)
    group = parser.add_argument_group("data")
    dataset_args(group)
    linear_augmentations_args(group)
    custom_dataset_args(group)
    linear_class.add_model_specific_args(parser)  # type: ignore[attr-defined]
    add_trainer_flags(parser, max_epochs=100)
    add_record_flags(parser)
    group = parser.add_argument_group("records")
    group.add_argument("--resume_from_checkpoint", type=Path, help="go on from this checkpoint")
    parser.explain(_DEFAULTS)
    parser.choose("dataset", DATASETS)
    return parser


if __name__ == "__main__":
    main()
