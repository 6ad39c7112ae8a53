"""`python -m solo_hcsc.zeroshot`: weighted KNN on another data set than that of pretraining, without training."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.errors import UserError, command, note
from solo_hcsc.cli.quiet import quiet

if TYPE_CHECKING:
    from torch.utils.data import Dataset


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.framework.registry import load_methods

    load_methods()
    from solo_hcsc.data import folders as data
    from solo_hcsc.commands import knn

    args = parse(argv)
    data.resolve_folders(args, needs_val=True)
    knn.evaluate(args, "zeroshot", lambda transform: read_sets(args, transform))


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.commands import knn
    from solo_hcsc.data.folders import DATASETS

    parser = knn.build_parser(
        "zeroshot",
        "KNN accuracy of a frozen encoder on a labelled data set that it was not pretrained on: CUB-200-2011 as it is "
        "distributed, or any other. Its training images are the bank, its test or validation images the queries.",
    )
    parser.choose("dataset", (*DATASETS, "cub"))
    args = knn.check(parser.parse(argv))
    if args.dataset == "cub" and (args.train_dir or args.val_dir):
        raise UserError("--dataset cub has its own split in --data_dir; leave out --train_dir and --val_dir")
    return args


def read_sets(args: Namespace, transform: Callable) -> "tuple[Dataset, Dataset]":
    """The bank and the queries; says so if they are what the encoder knows from pretraining."""
    from solo_hcsc.data import cub
    from solo_hcsc.data import folders as data
    from solo_hcsc.evaluation.encoders import find_checkpoint, recorded_args

    sets: tuple[Dataset, Dataset]
    if args.dataset == "cub":
        sets = cub.read_parts(cub.find_folder(args.data_dir), transform)
        data.refuse_single_class(sets[0], "--data_dir")
    else:
        sets = data.evaluation_sets(args, transform, transform)
    checkpoint = find_checkpoint(args.pretrained_feature_extractor)
    if pretrained_on(recorded_args(checkpoint), args):
        note("this is the data set that it was pretrained on; zeroshot means another one")
    return sets


def pretrained_on(trained: dict[str, Any], args: Namespace) -> bool:
    """Whether the pretraining run's arguments name this data set; folders of one's own are told apart by their path."""
    if trained.get("dataset") != args.dataset:
        return False
    if args.dataset != "custom":
        return True
    folder = Path(str(trained.get("data_dir")), str(trained.get("train_dir")))
    return folder.resolve() == Path(args.data_dir, args.train_dir).resolve()


if __name__ == "__main__":
    main()
