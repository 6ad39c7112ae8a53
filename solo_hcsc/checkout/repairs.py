"""What keeps solo-learn 1.0.6 from running on today's packages, on few classes, and on a machine without a GPU."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import solo.methods.base
import solo.methods.linear
import solo.utils.knn
import solo.utils.metrics
import torch
from torchmetrics import Metric

from solo_hcsc.hcsc.knn import NeighbourVotes

_accuracy_at_k = solo.utils.metrics.accuracy_at_k


class WeightedKNNClassifier(NeighbourVotes, Metric):
    """solo-learn's metric, as it works today: torchmetrics 1 refuses the original's `compute_on_step`."""


def accuracy_at_k(outputs: torch.Tensor, targets: torch.Tensor, top_k: Sequence[int] = (1, 5)) -> Sequence[int]:
    """solo-learn's, where there are fewer classes than `k` too: a momentum classifier asks for 5 of any number."""
    return _accuracy_at_k(outputs, targets, [min(k, outputs.size(1)) for k in top_k])


def _without_gpu(pipeline: Callable[..., Any]) -> Callable[..., Any]:
    """A builder's DALI pipeline, told of no GPU: DALI refuses the number of one that is not there."""

    @wraps(pipeline)
    def built(builder: Any, **settings: Any) -> Any:
        return pipeline(builder, **settings | {"device_id": None})

    return built


def _saving_no_code(configure: Callable[..., Any]) -> Callable[..., Any]:
    """A method's `configure_optimizers`, whose scheduler saves numbers only.

    SimSiam's and NNSiam's saves a function, and then torch refuses the checkpoint, also in `main_linear.py`.
    """

    @wraps(configure)
    def configure_optimizers(self: Any) -> Any:
        result = configure(self)
        for item in result[1] if isinstance(result, tuple) else []:
            scheduler = item["scheduler"] if isinstance(item, dict) else item
            if "get_lr" in vars(scheduler):
                scheduler.state_dict = partial(_state_without_get_lr, scheduler)
        return result

    return configure_optimizers


def _state_without_get_lr(scheduler: Any) -> dict[str, Any]:
    state = type(scheduler).state_dict(scheduler)
    return {name: value for name, value in state.items() if name not in ("get_lr", "state_dict")}


def _stay(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _repair_dali() -> None:
    try:
        from solo.data import dali_dataloader  # an optional package, which takes seconds to import
    except ImportError:
        return
    for builder in (dali_dataloader.PretrainPipelineBuilder, dali_dataloader.NormalPipelineBuilder):
        builder.pipeline = _without_gpu(builder.pipeline)


def repair() -> None:
    """Mends what is broken; nothing else changes."""
    for module in (solo.utils.knn, solo.methods.base):
        module.WeightedKNNClassifier = WeightedKNNClassifier
    for module in (solo.methods.base, solo.methods.linear):
        module.accuracy_at_k = accuracy_at_k
    base = solo.methods.base.BaseMethod
    base.configure_optimizers = _saving_no_code(base.configure_optimizers)
    if not torch.cuda.is_available():
        setattr(torch.Tensor, "cuda", _stay)  # noqa: B010  main_knn.py moves every batch to a GPU
        _repair_dali()
