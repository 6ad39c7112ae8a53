"""Which images are read with a run, known without torch: wrong folders are refused before that is imported."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from solo_hcsc.data.source import ImageSource, class_folders
from solo_hcsc.encoders.recorded import RunFiles, find_run, flags_of_run
from solo_hcsc.errors import UserError
from solo_hcsc.progress import say
from solo_hcsc.settings import Settings


def evaluated_images(flags: Settings, trained: Mapping[str, Any] | None = None) -> ImageSource:
    """Return the images that an evaluation's settings mean: as in pretraining, but for what was typed.

    `trained`: the run's own settings, where they have been read.
    """
    return ImageSource.of_run(flags, flags_of_run(flags.pretrained_feature_extractor) if trained is None else trained)


def embedded_images(flags: Settings, trained: Mapping[str, Any], tell: bool = True) -> ImageSource:
    """Return the images that settings mean: a folder's, or those of the run with the settings `trained`."""
    alone = "data_dir" in flags.typed and not flags.typed & {"dataset", "train_dir", "val_dir"}
    return (ImageSource.of_folder if alone else ImageSource.of_run)(flags, trained, tell)


def find_labelled(settings: Settings) -> tuple[RunFiles, ImageSource]:
    """Find the run and its labelled images, of both splits; refuse those that are not there."""
    files = find_run(settings.pretrained_feature_extractor)
    return files, evaluated_images(settings, files.settings).located(needs_val=True).labelled()


def find_split(settings: Settings) -> tuple[RunFiles, ImageSource]:
    """Find the run and its images of the split that is asked for; refuse those that are not there."""
    files = find_run(settings.pretrained_feature_extractor)
    return files, evaluated_images(settings, files.settings).with_split(settings.split)


def find_images(settings: Settings, *splits: str) -> tuple[RunFiles, ImageSource]:
    """Find the run and any images, with labels or without; refuse splits that are not there."""
    files = find_run(settings.pretrained_feature_extractor)
    source = embedded_images(settings, files.settings)
    check_splits(source, *splits)
    return files, source


def check_splits(source: ImageSource, *splits: str) -> None:
    """Refuse folders that are not there."""
    if (source.in_folders or source.is_stored) and source.dataset != "digits":  # which are written when they are read
        for split in splits:
            source.with_split(split)


def choose_labels(source: ImageSource, flags: Settings, trained: Mapping[str, Any]) -> ImageSource:
    """Return the images of the split, without labels where there are none or none are wanted; say so."""
    located = source.with_split(flags.split)
    if flags.no_labels and not located.in_folders and not located.is_stored:
        raise UserError(f"`no_labels`: `dataset` {source.dataset} is not read from folders; leave it out")
    if flags.no_labels and flags.class_level is not None:
        raise UserError("`no_labels`: `class_level` says which folders are the classes; leave one of the two out")
    if flags.no_labels:
        why = "`no_labels`"
    elif located.is_stored and not located.has_labels(flags.split):
        why = f"{located.folder(flags.split)} has none"
    elif "class_level" in flags.typed or not located.in_folders:
        return located
    elif not class_folders(located.folder(flags.split)):
        why = f"{located.folder(flags.split)} has no class folders"
    elif trained.get("no_labels") and same_data(source, trained, f"{flags.split}_dir"):
        why = "the run was pretrained with `no_labels`; `class_level` 1 takes the folders for classes"
    else:
        return located
    say(f"without labels: {why}")
    return replace(located, no_labels=True)


def same_data(source: ImageSource, trained: Mapping[str, Any], *settings: str) -> bool:
    """Return whether the images are the run's, and as in its settings also in further ones."""
    return (
        source.dataset == trained.get("dataset")
        and source.data_dir.resolve() == Path(str(trained.get("data_dir"))).resolve()
        and all(str(getattr(source, setting)) == str(trained.get(setting)) for setting in settings)
    )
