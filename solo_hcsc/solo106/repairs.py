"""What keeps solo-learn 1.0.6 from running on today's packages, on few classes, and on a machine without a GPU.

`FIXES` mend solo-learn's own modules. `WHILE_RUNNING` change functions of torch: only while one of solo-learn's scripts
runs. `tests/solo106/test_repairs.py` checks that each probe finds its fault, and only without the fix.
"""

import ast
import io
import logging
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import solo
import solo.methods.base
import solo.methods.linear
import solo.utils.knn
import solo.utils.metrics
import torch
from torchmetrics import Metric

from solo_hcsc.encoders.twins import THEIRS, with_twins
from solo_hcsc.fixes import Fixes
from solo_hcsc.methods.knn_metric import NeighbourVotes

FIXES, WHILE_RUNNING = Fixes(), Fixes()
CHECKOUT = Path(str(solo.__file__)).parent.parent
_accuracy_at_k = solo.utils.metrics.accuracy_at_k


@contextmanager
def while_running() -> Iterator[None]:
    """Change what solo-learn's scripts need of torch; afterwards torch is as it was."""
    with ExitStack() as stack:
        for fix in WHILE_RUNNING.all:
            stack.enter_context(fix.apply())
        yield


# ---- the KNN metric ----


class WeightedKNNClassifier(NeighbourVotes, Metric):
    """solo-learn's metric, as it works today: torchmetrics 1 refuses the original's `compute_on_step`."""


def _metric_cannot_be_made() -> bool:
    try:
        solo.methods.base.WeightedKNNClassifier(k=1)
    except ValueError:
        return True
    return False


@FIXES.of(broken=_metric_cannot_be_made)
def knn_metric() -> None:
    """Replace the KNN metric of `knn_eval` and main_knn.py."""
    for module in (solo.utils.knn, solo.methods.base):
        module.WeightedKNNClassifier = WeightedKNNClassifier


# ---- few classes ----


def accuracy_at_k(outputs: torch.Tensor, targets: torch.Tensor, top_k: Sequence[int] = (1, 5)) -> Sequence[int]:
    """solo-learn's, where there are fewer classes than `k` too: a momentum classifier asks for 5 of any number."""
    return _accuracy_at_k(outputs, targets, [min(k, outputs.size(1)) for k in top_k])


def _needs_five_classes() -> bool:
    try:
        solo.methods.base.accuracy_at_k(torch.eye(2), torch.arange(2))
    except RuntimeError:
        return True
    return False


@FIXES.of(broken=_needs_five_classes)
def few_classes() -> None:
    """Let a momentum classifier be judged on fewer than five classes."""
    for module in (solo.methods.base, solo.methods.linear):
        module.accuracy_at_k = accuracy_at_k


# ---- checkpoints of SimSiam and NNSiam ----


def _saves_a_function() -> bool:
    """Whether the scheduler of parameters with a rate of their own saves what torch refuses to load."""
    method = SimpleNamespace(
        learnable_params=[{"params": [torch.nn.Parameter(torch.zeros(1))], "static_lr": True}],
        exclude_bias_n_norm_wd=False,
        _OPTIMIZERS={"sgd": torch.optim.SGD},
        optimizer="sgd",
        lr=0.1,
        weight_decay=0.0,
        extra_optimizer_args={},
        scheduler="step",
        lr_decay_steps=[1],
    )
    saved = io.BytesIO()
    torch.save(solo.methods.base.BaseMethod.configure_optimizers(method)[1][0].state_dict(), saved)
    saved.seek(0)
    try:
        torch.load(saved, weights_only=True)
    except pickle.UnpicklingError:
        return True
    return False


@FIXES.of(broken=_saves_a_function)
def saved_schedulers() -> None:
    """Let schedulers save numbers only: torch refuses the checkpoint otherwise, also in main_linear.py."""
    base = solo.methods.base.BaseMethod
    base.configure_optimizers = _saving_no_code(base.configure_optimizers)


def _saving_no_code(configure: Callable[..., Any]) -> Callable[..., Any]:
    """A method's `configure_optimizers`, whose scheduler saves numbers only."""

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


# ---- DALI without a GPU ----


def _dali() -> Any:
    """solo-learn's DALI pipelines; None without DALI."""
    try:
        from solo.data import dali_dataloader  # an optional package, which takes seconds to import
    except ImportError:
        return None
    return dali_dataloader


def _dali_needs_a_gpu() -> bool:
    if torch.cuda.is_available() or _dali() is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "class").mkdir()
        (Path(folder) / "class" / "image.png").touch()
        builder = _dali().NormalPipelineBuilder(folder, batch_size=1, device="cpu")
        try:
            builder.pipeline(batch_size=1, num_threads=1, device_id=0).build()
        except RuntimeError:
            return True
    return False


@FIXES.of(broken=_dali_needs_a_gpu)
def dali_without_gpu() -> None:
    """Build DALI's pipelines for no GPU: DALI refuses the number of one that is not there."""
    if torch.cuda.is_available() or _dali() is None:
        return
    for builder in (_dali().PretrainPipelineBuilder, _dali().NormalPipelineBuilder):
        builder.pipeline = _without_gpu(builder.pipeline)


def _without_gpu(pipeline: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(pipeline)
    def built(builder: Any, **settings: Any) -> Any:
        return pipeline(builder, **settings | {"device_id": None})

    return built


# ---- while a script runs: old checkpoints ----


def _loses_old_weights() -> bool:
    """Whether main_linear.py's own loop over a checkpoint drops weights that have their old names."""
    script = CHECKOUT / "main_linear.py"
    loops = (node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.For))
    loop = next(node for node in loops if "state.keys()" in ast.unparse(node.iter))
    saved = io.BytesIO()
    torch.save({"state_dict": {"encoder.conv1.weight": torch.ones(1)}}, saved)
    saved.seek(0)
    names = {"state": torch.load(saved)["state_dict"], "logging": logging}
    exec(compile(ast.Module([loop], []), str(script), "exec"), names)
    return "conv1.weight" not in names["state"]


@WHILE_RUNNING.of(broken=_loses_old_weights)
@contextmanager
def old_checkpoints() -> Iterator[None]:
    """Give an encoder's weights in old checkpoints their new name, `backbone.`, as well.

    `main_linear.py` means to rename them, drops them all, and would evaluate a random encoder without a word.
    """
    with patch.object(torch, "load", _with_both_names(torch.load)):
        yield


def _with_both_names(load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        content = load(*args, **kwargs)
        state = content.get("state_dict") if isinstance(content, dict) else None
        if isinstance(state, dict) and not any(str(name).startswith(THEIRS) for name in state):
            content["state_dict"] = with_twins(state)
        return content

    return loaded


# ---- while a script runs: no GPU ----


def _asks_for_a_gpu() -> bool:
    if not any("cuda" in (CHECKOUT / name).read_text() for name in ("main_knn.py", "main_umap.py")):
        return False
    try:
        torch.nn.Linear(1, 1).to("cuda:0")
        torch.zeros(1).cuda().to("cuda:0")
    except (AssertionError, RuntimeError):  # torch without CUDA; torch with CUDA, on a machine without
        return True
    return False


@WHILE_RUNNING.of(broken=_asks_for_a_gpu)
@contextmanager
def cpu_for_gpu() -> Iterator[None]:
    """Let main_knn.py and main_umap.py, which move all to a GPU, work on the CPU where there is none."""
    if torch.cuda.is_available():
        yield
        return
    with (
        patch.object(torch.Tensor, "cuda", _stay),
        patch.object(torch.Tensor, "to", _to_cpu(torch.Tensor.to)),
        patch.object(torch.nn.Module, "to", _to_cpu(torch.nn.Module.to)),
    ):
        yield


def _stay(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _to_cpu(move: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.to` or `Module.to` that takes a GPU's name for the CPU's."""

    @wraps(move)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        return move(self, *("cpu" if str(one).startswith("cuda") else one for one in args), **kwargs)

    return moved
