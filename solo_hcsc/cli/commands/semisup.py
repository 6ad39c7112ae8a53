"""`solo-hcsc semisup`: fine-tunes an encoder and a linear classifier on few labels."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import check_labelled_checkpoint, probe_parser
from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.files import check_readable
from solo_hcsc.progress import note, say
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import POSITIVE, POSITIVE_SHARE, Settings

# The paper's appendix A; it has one learning rate, which the classifier has too unless --head_lr says otherwise.
PROTOCOL = {
    "lr": 0.005,
    "scheduler": "step",
    "lr_decay_steps": [30, 60],
    "weight_decay": 0.0,
    "batch_size": 256,
    "max_epochs": 70,
}


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    source = evaluated_images(flags).located(needs_val=True).labelled()

    from torch.utils.data import Subset

    from solo_hcsc.data.folders import classes_of, labels_of
    from solo_hcsc.evaluation.few_labels import listed_images, stratified_sample
    from solo_hcsc.evaluation.models import FineTuned
    from solo_hcsc.evaluation.probe import Probe
    from solo_hcsc.runs.results import column, shown_accuracies
    from solo_hcsc.solo102.datasets import evaluation_sets

    if flags.label_list and not source.in_folders:
        raise UserError(f"--label_list names files, and --dataset {source.dataset} has none; use --label_fraction")
    head_lr = flags.lr if flags.head_lr is None else flags.head_lr
    probe = Probe(flags, Invocation("semisup", tuple(argv)), source, PROTOCOL | {"head_lr": PROTOCOL["lr"]})
    train_set, val_set = evaluation_sets(source, *probe.transforms)
    classes, images, labels = classes_of(train_set), len(train_set), labels_of(train_set)  # type: ignore[arg-type]
    if flags.label_list:
        chosen = listed_images(flags.label_list, train_set)
        told = f"the images of {flags.label_list}"
    else:
        chosen = stratified_sample(labels, flags.label_fraction, flags.seed)
        told = f"{flags.label_fraction:.2%} of each class, drawn with seed {flags.seed}"
    missing = classes - len({labels[index] for index in chosen})
    if missing:
        note(f"{missing} of {classes} classes have no labelled image")
    batch_size = batch_that_fits(len(chosen), flags.batch_size, probe.devices.processes)
    say(f"semisup: {len(chosen)} labels for {images} images ({told})")

    changes = {"batch_size": batch_size, "head_lr": head_lr}
    trained = probe.fit(FineTuned, classes, Subset(train_set, chosen), val_set, changes)
    tops = shown_accuracies(classes)
    last, best = (
        {f"acc{k}": trained.logged[f"{which}val_acc{k}"] for k in tops if f"{which}val_acc{k}" in trained.logged}
        for which in ("", "best_")
    )
    settings = {
        "labels": told,
        "label_fraction": flags.label_fraction or len(chosen) / images,  # of a list: what it comes to
        "head_lr": head_lr,
        "best": best,
    }
    rows = [("last epoch", *last.values()), ("best epoch (chosen on the validation images)", *best.values())]
    header = ("semisup", *map(column, tops))
    probe.report(trained, last, settings, header, rows, labelled_images=len(chosen))


def batch_that_fits(labelled: int, batch_size: int, processes: int) -> int:
    """Lower the batch size to what each process has."""
    each = labelled // processes
    if min(each, batch_size) < 2:
        raise UserError(
            f"{labelled} labelled images in batches of {batch_size}: batch norm needs at least two images in "
            "each process's batch; use more labels or a larger --batch_size"
        )
    if each < batch_size:
        note(f"--batch_size {batch_size}: lowered to {each}, since there are {labelled} labelled images")
    return min(each, batch_size)


def parse(argv: Sequence[str]) -> Settings:
    flags = build_parser().parse(argv)
    if flags.label_list and flags.label_fraction is not None:
        raise UserError("--label_list and --label_fraction exclude each other; give one of them")
    if not flags.label_list and flags.label_fraction is None:
        raise UserError("--label_fraction is missing: the share of labels to use, such as 0.01, or --label_list FILE")
    if flags.dali:
        raise UserError("--dali: semisup reads its few images with the default loader; leave it out")
    check_labelled_checkpoint(flags)
    if flags.label_list:
        check_readable(flags.label_list, f"--label_list {flags.label_list}", "give a text file of images' names")
    return flags


def build_parser() -> Parser:
    parser = probe_parser(
        "semisup",
        "Fine-tunes the encoder of a checkpoint, and a linear classifier on it, on a part of the labels.",
        PROTOCOL,
    )
    parser.hide("dali", "dali_device")
    group = parser.add_argument_group("labels")
    group.add_argument(
        "--label_fraction",
        type=float,
        metavar="N",
        bound=POSITIVE_SHARE,
        help="share of each class's labels, e.g. 0.01 or 0.1",
    )
    group.add_argument(
        "--label_list",
        type=Path,
        help="file that names the labelled images, one in each line, as ImageNet's 1 %% lists",
    )
    group.add_argument(
        "--head_lr", type=float, bound=POSITIVE, help="learning rate of the classifier; --lr if not given"
    )
    return parser
