"""`python -m solo_hcsc.semisup`: fine-tunes an encoder and a linear classifier on few labels."""

import random
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.errors import UserError, command, note, on_one_line
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.quiet import quiet

if TYPE_CHECKING:
    from torch.utils.data import Dataset

# The paper's appendix A; it has one learning rate, which the classifier has too unless --head_lr says otherwise.
PROTOCOL = {
    "lr": 0.005,
    "scheduler": "step",
    "lr_decay_steps": [30, 60],
    "weight_decay": 0.0,
    "batch_size": 256,
    "max_epochs": 70,
    "head_lr": 0.005,
}


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.framework.registry import load_methods

    load_methods()
    args = parse(argv)

    from torch.utils.data import Subset

    from solo_hcsc.data import folders as data
    from solo_hcsc.evaluation.fine_tuning import FineTuned
    from solo_hcsc.evaluation.probe import Probe
    from solo_hcsc.training.run import announce

    data.resolve_folders(args, needs_val=True)
    probe = Probe(args, "semisup", PROTOCOL)
    train_set, val_set = data.evaluation_sets(args, *probe.transforms)
    classes, images = data.classes_of(train_set), len(train_set)  # type: ignore[arg-type]
    labels = data.labels_of(train_set)
    if args.label_list:
        chosen = listed(args.label_list, train_set)
        source = f"the images of {args.label_list}"
    else:
        chosen = draw(labels, args.label_fraction, args.seed)
        source = f"{args.label_fraction:.2%} of each class, drawn with seed {args.seed}"
    missing = classes - len({labels[index] for index in chosen})
    if missing:
        note(f"{missing} of {classes} classes have no labelled image")
    each = len(chosen) // (len(args.gpus) * args.num_nodes)
    if min(each, args.batch_size) < 2:
        raise UserError(
            f"{len(chosen)} labelled images in batches of {args.batch_size}: batch norm needs at least two images in "
            "each process's batch; use more labels or a larger --batch_size"
        )
    if each < args.batch_size:
        note(f"--batch_size {args.batch_size}: lowered to {each}, since there are {len(chosen)} labelled images")
        args.batch_size = each
    announce(f"semisup: {len(chosen)} labels for {images} images ({source})")

    logged = probe.fit(FineTuned, classes, Subset(train_set, chosen), val_set)
    probe.data["labelled_images"] = len(chosen)
    last, best = (
        {f"acc{k}": logged[f"{which}val_acc{k}"] for k in (1, 5) if f"{which}val_acc{k}" in logged}
        for which in ("", "best_")
    )
    settings = {
        "labels": source,
        "label_fraction": args.label_fraction or len(chosen) / images,  # of a list: what it comes to
        "head_lr": args.head_lr,
        "best": best,
    }
    rows = [("last epoch", *last.values()), ("best epoch (chosen on the validation images)", *best.values())]
    probe.report(last, settings, ("semisup", "top-1 %", "top-5 %"), rows)


def draw(labels: Sequence[int], share: float, seed: int) -> list[int]:
    """Indexes of the same share of every class, at least one of each."""
    of_class = defaultdict(list)
    for index, label in enumerate(labels):
        of_class[label].append(index)
    generator = random.Random(seed)
    chosen: list[int] = []
    for label in sorted(of_class):
        chosen += generator.sample(of_class[label], max(1, round(share * len(of_class[label]))))
    return sorted(chosen)


def listed(file: Path, dataset: "Dataset") -> list[int]:
    """Indexes of the images that a file names: one in each line, by its name or the end of its path.

    The usual lists of ImageNet's 1 % and 10 % have names (`n02389026_4329.JPEG`); a label after the name is not read.
    """
    from solo_hcsc.data.folders import files_and_labels

    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise UserError(f"--label_list {file}: cannot be read ({reason})") from error
    files = files_and_labels(dataset)[0]
    ends = defaultdict(list)  # images by the end of their path: `x.png`, `class/x.png`, `train/class/x.png`, ...
    depth = 1 + max(line.count("/") for line in [*lines, ""])
    for index, path in enumerate(files):
        parts = Path(path).parts
        for length in range(1, min(depth, len(parts)) + 1):
            ends["/".join(parts[-length:])].append(index)
    chosen = set()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        found = next((ends[name] for name in (line, line.rpartition(" ")[0].strip()) if name in ends), [])
        where = f"--label_list {file}, line {number}: {line!r}"
        if not found:
            raise UserError(f"{where} is not among the training images")
        if len(found) > 1:
            both = " and ".join(on_one_line(files[index]) for index in found[:2])
            raise UserError(f"{where} may be {both}; give as much of the path as tells them apart")
        chosen.add(found[0])
    if not chosen:
        raise UserError(f"--label_list {file}: it names no image")
    return sorted(chosen)


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.evaluation.probe import check

    args = build_parser().parse(argv)
    if args.label_list and args.label_fraction is not None:
        raise UserError("--label_list and --label_fraction exclude each other; give one of them")
    if not args.label_list and args.label_fraction is None:
        raise UserError("--label_fraction is missing: the share of labels to use, such as 0.01, or --label_list FILE")
    if args.label_fraction is not None and not 0 < args.label_fraction <= 1:
        raise UserError(f"--label_fraction {args.label_fraction:g}: must be above 0 and at most 1")
    if args.head_lr is None:
        args.head_lr = args.lr
    if args.head_lr <= 0:
        raise UserError(f"--head_lr {args.head_lr:g}: must be greater than 0")
    if args.dali:
        raise UserError("--dali: semisup reads its few images with the default loader; leave it out")
    if args.label_list and args.dataset in ("cifar10", "cifar100", "stl10"):
        raise UserError(f"--label_list names files, and --dataset {args.dataset} has none; use --label_fraction")
    return check(args, "semisup")


def build_parser() -> Parser:
    from solo_hcsc.evaluation import probe as probing
    from solo_hcsc.data.folders import DATASETS

    parser = probing.build_parser(
        "semisup",
        "Fine-tunes the encoder of a checkpoint, and a linear classifier on it, on a part of the labels.",
        PROTOCOL,
    )
    parser.choose("dataset", DATASETS)
    parser.hide("dali", "dali_device")
    group = parser.add_argument_group("labels")
    group.add_argument(
        "--label_fraction", type=float, metavar="N", help="share of each class's labels, e.g. 0.01 or 0.1"
    )
    group.add_argument(
        "--label_list",
        type=Path,
        help="file that names the labelled images, one in each line, as ImageNet's 1 %% lists",
    )
    group.add_argument("--head_lr", type=float, help="learning rate of the classifier; --lr if not given")
    return parser


if __name__ == "__main__":
    main()
