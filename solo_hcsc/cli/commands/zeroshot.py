"""`solo-hcsc zeroshot`: weighted KNN on another data set than that of pretraining, without training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.flags import knn_parser
from solo_hcsc.data.source import DATASETS, ImageSource, check_folder
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.frozen_settings import check_features
from solo_hcsc.progress import note
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings

if TYPE_CHECKING:
    from torch.utils.data import Dataset


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    files = find_run(flags.pretrained_feature_extractor)
    trained = files.settings
    seen = {name: value for name, value in trained.items() if name in ("crop_size", "mean", "std")}  # no folders
    if flags.dataset == "cub":
        check_folder("data_dir", flags.data_dir)
    source = ImageSource.of_run(flags, seen).located(needs_val=True).labelled()

    from solo_hcsc.evaluation.knn import zeroshot
    from solo_hcsc.evaluation.knn_of_runs import knn_of_run

    if pretrained_on(trained, source):
        note("the encoder was pretrained on this data set; give another one for a zero-shot accuracy")
    knn_of_run(flags, files, source, Invocation("zeroshot", tuple(argv)), zeroshot, read_sets).tell()


def read_sets(source: ImageSource, transform: Callable) -> "tuple[Dataset, Dataset]":
    """Read the bank and the queries."""
    from solo_hcsc.data.cub import find_folder, read_parts
    from solo_hcsc.data.folders import refuse_single_class
    from solo_hcsc.data.sets import evaluation_sets

    if source.dataset != "cub":
        return evaluation_sets(source, transform, transform)
    parts = read_parts(find_folder(source.data_dir), transform)
    refuse_single_class(parts[0], "--data_dir")
    return parts


def pretrained_on(trained: Mapping[str, Any], source: ImageSource) -> bool:
    """Return whether the pretraining run's flags name this data set; folders are compared by their path."""
    if trained.get("dataset") != source.dataset:
        return False
    if source.dataset != "custom" and not source.is_stored:
        return True
    folder = Path(str(trained.get("data_dir")), str(trained.get("train_dir")))
    return folder.resolve() == source.folder("train").resolve()


def parse(argv: Sequence[str]) -> Settings:
    parser = knn_parser(
        "zeroshot",
        "KNN accuracy of a frozen encoder on a labelled data set that it was not pretrained on: CUB-200-2011 as it is "
        "distributed, or any other. Its training images are the bank, its test or validation images the queries.",
    )
    choices = (*DATASETS, "cub")
    parser.change("dataset", choices=choices, required=True, help=f"one of {', '.join(choices)}")
    flags = parser.parse(argv)
    check_features(flags)
    if flags.dataset == "cub" and (flags.train_dir or flags.val_dir):
        raise UserError("--dataset cub has its own split in --data_dir; leave out --train_dir and --val_dir")
    return flags
