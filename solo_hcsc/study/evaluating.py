"""KNN, a linear classifier and clustering as jobs: what a study does with each of its runs."""

from collections.abc import Mapping
from typing import Any

from solo_hcsc.evaluation import frozen_settings as frozen
from solo_hcsc.evaluation.knn_of_runs import knn_of_run
from solo_hcsc.evaluation.linear import linear_of_run
from solo_hcsc.evaluation.of_runs import clustering_of_run
from solo_hcsc.evaluation.protocols import settled_linear
from solo_hcsc.runs.images import evaluated_images, find_labelled, find_split
from solo_hcsc.settings import Settings
from solo_hcsc.study.job import invocation


def settle(function: str, given: Mapping[str, Any]) -> Settings:
    """Return all settings of an evaluation; refuse wrong ones."""
    if function == "linear":
        return settled_linear(given)
    rows, check = {
        "knn": (frozen.KNN, frozen.check_features),
        "clustering": (frozen.CLUSTERING, frozen.check_clustering),
    }[function]
    settings = frozen.settled(rows, given)
    check(settings)
    return settings


def call(function: str, given: Mapping[str, Any]) -> None:
    """Evaluate, write the result, and say what was found."""
    settings, command = settle(function, given), invocation(function, given)
    if function == "knn":
        return knn_of_run(settings, *find_labelled(settings), command).tell()
    if function == "clustering":
        return clustering_of_run(settings, *find_split(settings), command).tell()
    linear_of_run(settings, evaluated_images(settings).located(needs_val=True).labelled(), command)
    return None
