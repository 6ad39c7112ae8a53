"""The whole method of a run, as solo-learn 1.0.2 makes it, and the parts on top of its encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule
from torch import nn

from solo_hcsc.data.source import framework_name
from solo_hcsc.encoders.checkpoints import Checkpoint, open_checkpoint
from solo_hcsc.encoders.loading import check_equal, fit
from solo_hcsc.encoders.recorded import EVALUATION, EXPORTED, find_run, role_of
from solo_hcsc.encoders.twins import OURS, THEIRS
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.hierarchy import Hierarchy
from solo_hcsc.solo102 import load_methods
from solo_hcsc.solo102.method import HCSC
from solo_hcsc.solo_version import RELEASE

# What making a model by settings raises that no run writes: of the wrong type, or larger than the memory.
_MAKING_ERRORS = (
    TypeError,
    LookupError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    AssertionError,
)


def load_projector(checkpoint: Checkpoint) -> nn.Module:
    """Load what the method put on top of the encoder: its projector, or the `fc` of MoCo's and the authors' files."""
    path = checkpoint.path
    for place in ("module.encoder_q.fc.", "encoder_q.fc."):
        found = {key.removeprefix(place): one for key, one in checkpoint.weights.items() if key.startswith(place)}
        if found:
            head = _moco_projector(found)
            fit(head, found, f"{path}: its projector is none of MoCo's")
            return head
    projector = getattr(method_in(checkpoint), "projector", None)
    if not isinstance(projector, nn.Module):
        method = checkpoint.recorded["method"]
        raise UserError(f"`features` projector: {method} has none; leave the flag out for the encoder's features")
    return projector


def _moco_projector(weights: dict[str, Any]) -> nn.Module:
    """Make the projector that fits these weights: MoCo's has one layer, that of MoCo v2 and HCSC two."""
    shapes = [(value.shape[1], value.shape[0]) for value in weights.values() if getattr(value, "ndim", 0) == 2]
    layers = [nn.Linear(*shape) for shape in shapes]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1]) if len(layers) == 2 else (layers or [nn.Linear(1, 1)])[0]


def load_method(path: Path) -> LightningModule:
    """Load the whole method of a pretraining run, as it was when the checkpoint was written."""
    return method_in(open_checkpoint(find_run(path)))


def method_in(checkpoint: Checkpoint) -> LightningModule:
    """Make the method of a checkpoint that has been read."""
    path, flags, methods = checkpoint.path, checkpoint.recorded, load_methods()
    method = flags.get("method")
    check_equal(checkpoint)
    if not isinstance(method, str):
        method = None
    if method and method not in methods and "solo_learn" in flags:
        raise UserError(
            f"{path}: solo-learn {RELEASE}, which computes here, has no {method}; only this run's encoder can be used"
        )
    if method not in methods:
        raise UserError(f"{path}: no args.json of a pretraining run beside it, which tells the method and its settings")
    try:
        model = methods[method](**_arguments(checkpoint))
    except _MAKING_ERRORS as error:
        reason = on_one_line((str(error) or type(error).__name__).splitlines()[0])[:150]
        raise UserError(f"{path.parent / 'args.json'}: does not describe a {method} run ({reason})") from error
    model.on_load_checkpoint(checkpoint.content)  # makes the buffers that SwAV and DeepCluster v2 make when they start
    try:
        model.load_state_dict(_named_as_ours(checkpoint.weights))
    except (RuntimeError, LookupError, TypeError, ValueError) as error:  # the last three: of HCSC's extra state
        raise _misfit(path, error) from error
    return model


def _misfit(path: Path, error: Exception) -> UserError:
    reason = on_one_line(str(error).splitlines()[-1])
    return UserError(f"{path}: does not fit its args.json, or is of an older version; {reason}")


def _arguments(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the method's arguments; solo-learn 1.0.6 learns of HCSC's images and options when it starts."""
    flags, content = checkpoint.recorded, checkpoint.content
    options = flags.get("hcsc_options") or content.get("hcsc_options") or {}  # as resolved: a preset may change
    images = {"num_images": content["hcsc_images"]} if "hcsc_images" in content else {}
    sizes = {} if "proj_hidden_dim" in flags else {"proj_hidden_dim": None}
    return {**sizes, **flags, **options, **images, "dataset": framework_name(flags["dataset"])}


def _named_as_ours(state: dict[str, Any]) -> dict[str, Any]:
    """Rename the weights of solo-learn since 1.0.3 as those of 1.0.2."""
    prefixes = {THEIRS: OURS, f"momentum_{THEIRS}": f"momentum_{OURS}"}
    return {
        next((new + key.removeprefix(old) for old, new in prefixes.items() if key.startswith(old)), key): value
        for key, value in state.items()
    }


@dataclass(frozen=True)
class RunTree:
    """The tree of prototypes that an HCSC run has, and how it embeds an image: what `load_tree` returns."""

    side: nn.Sequential  # encoder and projector whose embeddings were clustered
    coding: SelectiveCoding  # the tree, the run's options and its selection

    @property
    def hierarchy(self) -> Hierarchy:
        """Return the tree itself."""
        found = self.coding.hierarchy
        assert found is not None, "only made of a run that has clustered"
        return found


def load_tree(path: str | Path) -> RunTree | None:
    """Load the tree of an HCSC run.

    Args:
        path: the run's checkpoint, or a folder whose newest one is taken.

    Returns:
        The tree with what embeds images for it, `tree.side`; None for another method, or before the first clustering.

    Example:
        >>> tree = load_tree("trained_models/hcsc")  # doctest: +SKIP
        >>> clusters = tree.hierarchy.assign(embeddings)  # doctest: +SKIP
    """
    return tree_in(open_checkpoint(find_run(path)))


def tree_in(checkpoint: Checkpoint) -> RunTree | None:
    """Return the tree of a checkpoint that has been read, or None."""
    trained = checkpoint.recorded
    method = load_methods().get(str(trained.get("method")), object)
    if role_of(trained) == EVALUATION or not issubclass(method, HCSC) or checkpoint.path.suffix == EXPORTED:
        return None
    model = method_in(checkpoint)
    assert isinstance(model, HCSC)
    try:
        hierarchy = model.coding.hierarchy
    except ValueError as error:  # of a file that was changed
        raise _misfit(checkpoint.path, error) from error
    return None if hierarchy is None else RunTree(model.clustered_side, model.coding)
