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

from solo_hcsc.cli.twins import THEIRS, with_twins
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


def _with_both_names(load: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.load` that gives an encoder's weights in old checkpoints their new name, `backbone.`, as well.

    `main_linear.py` means to rename them, drops them all, and would evaluate a random encoder without a word.
    """

    @wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        content = load(*args, **kwargs)
        state = content.get("state_dict") if isinstance(content, dict) else None
        if isinstance(state, dict) and not any(str(name).startswith(THEIRS) for name in state):
            content["state_dict"] = with_twins(state)
        return content

    return loaded


def _stay(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _to_cpu(move: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.to` or `Module.to` that takes a GPU's name for the CPU's."""

    @wraps(move)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        return move(self, *("cpu" if str(one).startswith("cuda") else one for one in args), **kwargs)

    return moved


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
    setattr(torch, "load", _with_both_names(torch.load))  # noqa: B010
    if not torch.cuda.is_available():
        # main_knn.py and main_umap.py move the encoder and every batch to a GPU.
        setattr(torch.Tensor, "cuda", _stay)  # noqa: B010
        for kind in (torch.Tensor, torch.nn.Module):
            kind.to = _to_cpu(kind.to)  # type: ignore[method-assign]
        _repair_dali()
