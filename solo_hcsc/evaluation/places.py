"""Train a linear classifier for Places205, or any images in two lists, on a frozen encoder."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from solo_hcsc.data.lists import check_labels, read_list
from solo_hcsc.data.source import ImageSource
from solo_hcsc.evaluation.probe import Evaluated, Probe
from solo_hcsc.evaluation.protocols import PLACES, PLACES_SETTINGS, check_places, place_lists, settled
from solo_hcsc.quiet import hushed
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation, Result, column, shown_accuracies
from solo_hcsc.settings import Settings
from solo_hcsc.solo102 import LinearModel
from solo_hcsc.typed import typed


@typed
def places(weights: Any, data_dir: str | PathLike[str], **settings: Any) -> Result:
    """Train a linear classifier for Places205, or any images in two lists, by the paper's protocol.

    Args:
        weights: a `Run`, an `Encoder` from a file, or the path of a run or of weights.
        data_dir: the folder that the paths in the lists start from.
        **settings: any setting of `solo-hcsc places`, such as `train_list`, `val_list` or `cache_features=True`.

    Returns:
        The accuracies; `origin["run"]` is the folder of the classifier.

    Example:
        >>> places("trained_models/hcsc", "places205").metrics  # doctest: +SKIP
        {'acc1': 51.2, 'acc5': 80.3}
    """
    asked = settled(PLACES_SETTINGS, weights, {"data_dir": data_dir, **settings})
    check_places(asked)
    with hushed():
        return train_places(asked, evaluated_images(asked), place_lists(asked, asked.data_dir)).result


def train_places(
    settings: Settings, source: ImageSource, lists: Mapping[str, Path], command: Invocation | None = None
) -> Evaluated:
    """Train the classifier on the listed images, and write a run's folder.

    Args:
        settings: all that `solo-hcsc places` has, by name.
        source: the folder that the paths in the lists start from.
        lists: the files `train_list` and `val_list`.
        command: as it was typed, for the record.
    """
    probe = Probe("places", settings, source, PLACES, "train_list", command)
    train_set, val_set = (
        read_list(file, source.data_dir, transform)
        for file, transform in zip(lists.values(), probe.transforms, strict=True)
    )
    check_labels(train_set, val_set)
    trained = probe.fit(LinearModel, len(train_set.classes), train_set, val_set, lists)
    tops = shown_accuracies(len(train_set.classes))
    metrics = trained.accuracies(tops)
    rows = [{"evaluation": "places (cached)" if settings.cache_features else "places", **metrics}]
    columns = {"evaluation": "evaluation", **{f"acc{k}": column(k) for k in tops}}
    return probe.result(trained, metrics, {}, rows, columns, **{name: str(file) for name, file in lists.items()})
