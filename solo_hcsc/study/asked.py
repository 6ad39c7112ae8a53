"""What a study is asked for: its rows and its evaluations as values, and what is wrong with them; needs no torch."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.data.source import DATASETS, STORED, check_folder
from solo_hcsc.errors import ArgumentError
from solo_hcsc.settings import Settings
from solo_hcsc.study.job import plain

EVALUATIONS = ("knn", "linear", "clustering", "analyse")
ON_REQUEST = ("fewlabels",)
ORACLE = "oracle"  # among methods: HCSC with the true labels as its tree
ORACLES_ROW = "hcsc with true labels (oracle)"
_SET_HERE = ("method", "seed", "checkpoint_dir", "auto_resume", "resume_from_checkpoint")
_LINEAR = {
    "cache_features": True,
    "optimizer": "sgd",
    "lr": 0.01,
    "scheduler": "cosine",
    "weight_decay": 0,
    "max_epochs": 50,
}

# Evaluations by name, with their settings; None for the usual ones.
Evaluations = Sequence[str] | Mapping[str, Mapping[str, Any] | None]


def usual(evaluation: str, images: int = 2**31) -> dict[str, Any]:
    """Return the settings of an evaluation, on so many training images, that nobody gave any for."""
    if evaluation == "knn":
        return {"k": [min(20, images)]}
    return {**_LINEAR, "batch_size": 256 if images >= 256 else max(1, images // 4)} if evaluation == "linear" else {}


def by_name(evaluations: Evaluations) -> dict[str, Mapping[str, Any] | None]:
    """Return evaluations with their settings; refuse unknown ones."""
    found = dict(evaluations) if isinstance(evaluations, Mapping) else dict.fromkeys(evaluations)
    for name in found:
        if name not in (*EVALUATIONS, *ON_REQUEST):
            raise ArgumentError(f"`evaluations` {name}: unknown; choose from {', '.join((*EVALUATIONS, *ON_REQUEST))}")
    return found


def settings_of_data(data: str | Path | None) -> dict[str, Any]:
    """Return the settings of pretraining for a data set's name or a folder of images."""
    if data is None:
        return {}
    return {"dataset": data} if data in DATASETS else {"data_dir": str(data)}


def rows_of(
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the settings of each row of a comparison, by its name.

    Example:
        >>> rows_of({"byol": {"lr": 0.2}, "simclr": {}}, {"max_epochs": 3})["byol"]
        {'method': 'byol', 'max_epochs': 3, 'lr': 0.2}
    """
    own: Mapping[str, Mapping[str, Any]] = methods if isinstance(methods, Mapping) else {name: {} for name in methods}
    refuse_repeated("methods", methods, "a method")
    rows: dict[str, dict[str, Any]] = {}
    for name, settings in own.items():
        refuse_set_here([*shared, *settings])
        refuse_oracle([*shared, *settings])
        one = plain({**shared, **settings})
        rows |= (
            {ORACLES_ROW: {"method": "hcsc", **one, "oracle_labels": True}}
            if name == ORACLE
            else {name: {"method": name, **one}}
        )
    return rows


def refuse_repeated(argument: str, values: Iterable[Any], what: str) -> None:
    """Refuse a list that is empty, or has something twice."""
    values = list(values)
    if not values:
        raise ArgumentError(f"`{argument}`: give {what}, or several")
    if len(set(values)) < len(values):
        raise ArgumentError(f"`{argument}` {' '.join(map(str, values))}: names {what} twice")


def refuse_set_here(names: Iterable[str]) -> None:
    """Refuse settings that a study chooses for each run."""
    for name in names:
        if name in _SET_HERE:
            raise ArgumentError(f"`{name}`: is set for each run; leave it out (`methods`, `seeds` and `out` are there)")


def refuse_oracle(names: Iterable[str]) -> None:
    """Refuse `oracle_labels`: a comparison has true labels only in a row of their own, which says so."""
    if "oracle_labels" in names:
        raise ArgumentError(
            "`oracle_labels`: trains with the true labels, and a comparison has that only as a row of its own; leave "
            f"it out, and add {ORACLE} to `methods`"
        )


def check_test_images(test_dir: Path | None, first: Settings) -> None:
    """Refuse test images that are not there; `first`: the settings of the first row."""
    if test_dir is None:
        return
    if first.dataset not in ("custom", *STORED):
        raise ArgumentError(
            f"`test_dir` {test_dir}: is for `dataset` custom, shards and hf; {first.dataset} has test images of its own"
        )
    if first.dataset == "custom":
        check_folder("test_dir", first.data_dir / test_dir)
