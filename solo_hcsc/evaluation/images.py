"""Which images an evaluation reads, known without torch: wrong folders are refused before that is imported."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import flags_of_run
from solo_hcsc.settings import Settings


def evaluated_images(flags: Namespace) -> ImageSource:
    """Return the images that an evaluation's flags mean: as in pretraining, but for what was typed."""
    return ImageSource.of_run(flags, flags_of_run(flags.pretrained_feature_extractor))


def embedded_images(flags: Settings, trained: Mapping[str, Any], tell: bool = True) -> ImageSource:
    """Return the images that flags of `embed_parser` mean: a folder's, or those of the run with the flags `trained`."""
    alone = "data_dir" in flags.typed and not flags.typed & {"dataset", "train_dir", "val_dir"}
    return (ImageSource.of_folder if alone else ImageSource.of_run)(flags, trained, tell)


def check_embedded(flags: Settings, *splits: str) -> None:
    """Refuse a checkpoint or folders that are not there; `splits`: those that are read."""
    source = embedded_images(flags, flags_of_run(flags.pretrained_feature_extractor), tell=False)
    if source.in_folders and source.dataset != "digits":  # which are written when they are read
        for split in splits:
            source.with_split(split)
