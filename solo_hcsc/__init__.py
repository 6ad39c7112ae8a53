"""HCSC (Hierarchical Contrastive Selective Coding, CVPR 2022) for solo-learn, and for any training loop.

The names below are the library. They are imported when they are first used, so that `import solo_hcsc` needs neither
torch nor solo-learn. What is of a run (`HCSC`, `load_encoder`, `load_tree`, `embed`, `features_of`,
`knn_accuracy`) needs solo-learn; the others do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from solo_hcsc.version import __version__

if TYPE_CHECKING:
    from solo_hcsc.encoders.embedding import Embeddings
    from solo_hcsc.encoders.loading import Encoder, load_encoder
    from solo_hcsc.errors import ArgumentError, UserError
    from solo_hcsc.evaluation.features import features_of
    from solo_hcsc.evaluation.knn import knn_accuracy
    from solo_hcsc.hcsc.coding import Coded, SelectiveCoding
    from solo_hcsc.hcsc.hierarchy import Hierarchy, Level, build_hierarchy
    from solo_hcsc.hcsc.measures import alignment, dead_dimensions, rankme, uniformity
    from solo_hcsc.hcsc.options import Options
    from solo_hcsc.hcsc.processes import Processes
    from solo_hcsc.runs.methods import RunTree, load_tree
    from solo_hcsc.runs.run import Run, embed, open_run
    from solo_hcsc.solo102.method import HCSC
    from solo_hcsc.training.pretraining import pretrain
    from solo_hcsc.trees.picking import Pick, pick
    from solo_hcsc.trees.spreading import spread

__all__ = [
    "HCSC",
    "ArgumentError",
    "Coded",
    "Embeddings",
    "Encoder",
    "Hierarchy",
    "Level",
    "Options",
    "Pick",
    "Processes",
    "Run",
    "RunTree",
    "SelectiveCoding",
    "UserError",
    "__version__",
    "alignment",
    "build_hierarchy",
    "dead_dimensions",
    "embed",
    "features_of",
    "knn_accuracy",
    "load_encoder",
    "load_tree",
    "open_run",
    "pick",
    "pretrain",
    "rankme",
    "spread",
    "uniformity",
]

_ROOMS = {
    "hcsc.options": ("Options",),
    "errors": ("ArgumentError", "UserError"),
    "hcsc.coding": ("SelectiveCoding", "Coded"),
    "hcsc.processes": ("Processes",),
    "hcsc.hierarchy": ("Hierarchy", "Level", "build_hierarchy"),
    "hcsc.measures": ("rankme", "alignment", "uniformity", "dead_dimensions"),
    "solo102.method": ("HCSC",),
    "encoders.loading": ("Encoder", "load_encoder"),
    "encoders.embedding": ("Embeddings",),
    "runs.run": ("Run", "embed", "open_run"),
    "runs.methods": ("RunTree", "load_tree"),
    "evaluation.features": ("features_of",),
    "evaluation.knn": ("knn_accuracy",),
    "training.pretraining": ("pretrain",),
    "trees.picking": ("Pick", "pick"),
    "trees.spreading": ("spread",),
}
_MODULES = {name: module for module, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
