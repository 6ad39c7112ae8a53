"""HCSC (Hierarchical Contrastive Selective Coding, CVPR 2022) for solo-learn, and for any training loop.

The names below are the library. They are imported when they are first used, so that `import solo_hcsc` needs neither
torch nor solo-learn. `HCSC`, `load_tree` and `features_of` need solo-learn, and so do a run's tree and its projector;
the others do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from solo_hcsc.version import __version__

if TYPE_CHECKING:
    from solo_hcsc.data.flaws import find_flaws
    from solo_hcsc.data.indexing import index_shards
    from solo_hcsc.data.packing import pack
    from solo_hcsc.data.shard_writing import Packed
    from solo_hcsc.encoders.embedding import Embeddings
    from solo_hcsc.encoders.loading import Encoder, load_encoder
    from solo_hcsc.errors import ArgumentError, UserError
    from solo_hcsc.evaluation.budgets import fewlabels
    from solo_hcsc.evaluation.clusters import clustering
    from solo_hcsc.evaluation.detection import detect
    from solo_hcsc.evaluation.features import features_of
    from solo_hcsc.evaluation.knn import knn, zeroshot
    from solo_hcsc.evaluation.linear import linear, linear_on_images
    from solo_hcsc.evaluation.places import places
    from solo_hcsc.evaluation.semisup import semisup
    from solo_hcsc.evaluation.voc import voc
    from solo_hcsc.hcsc.coding import Coded, SelectiveCoding
    from solo_hcsc.hcsc.hierarchy import Hierarchy, Level, build_hierarchy
    from solo_hcsc.hcsc.measures import alignment, dead_dimensions, rankme, uniformity
    from solo_hcsc.hcsc.options import Options
    from solo_hcsc.hcsc.processes import Processes
    from solo_hcsc.report.analysis import analyse
    from solo_hcsc.report.checked import Checked, check
    from solo_hcsc.report.explore import explore
    from solo_hcsc.runs.methods import RunTree, load_tree
    from solo_hcsc.runs.results import Result
    from solo_hcsc.runs.run import Run, embed, export, open_run
    from solo_hcsc.solo102.method import HCSC
    from solo_hcsc.study.ablate import ablate
    from solo_hcsc.study.compare import compare
    from solo_hcsc.study.record import Comparison
    from solo_hcsc.training.adapt import adapt
    from solo_hcsc.training.pretraining import pretrain
    from solo_hcsc.trees.building import build_tree
    from solo_hcsc.trees.curating import Curated, curate
    from solo_hcsc.trees.duplicates import find_duplicates
    from solo_hcsc.trees.handover import Chosen, hand_over
    from solo_hcsc.trees.label_files import read_labels
    from solo_hcsc.trees.mislabelled import find_mislabelled
    from solo_hcsc.trees.naming import name_clusters
    from solo_hcsc.trees.outliers import find_outliers
    from solo_hcsc.trees.picking import Pick, Picks, pick
    from solo_hcsc.trees.sorting import sort_into
    from solo_hcsc.trees.spreading import Spread, spread
    from solo_hcsc.trees.tree import Tree

__all__ = [
    "HCSC",
    "ArgumentError",
    "Checked",
    "Chosen",
    "Coded",
    "Comparison",
    "Curated",
    "Embeddings",
    "Encoder",
    "Hierarchy",
    "Level",
    "Options",
    "Packed",
    "Pick",
    "Picks",
    "Processes",
    "Result",
    "Run",
    "RunTree",
    "SelectiveCoding",
    "Spread",
    "Tree",
    "UserError",
    "__version__",
    "ablate",
    "adapt",
    "alignment",
    "analyse",
    "build_hierarchy",
    "build_tree",
    "check",
    "clustering",
    "compare",
    "curate",
    "dead_dimensions",
    "detect",
    "embed",
    "explore",
    "export",
    "features_of",
    "fewlabels",
    "find_duplicates",
    "find_flaws",
    "find_mislabelled",
    "find_outliers",
    "hand_over",
    "index_shards",
    "knn",
    "linear",
    "linear_on_images",
    "load_encoder",
    "load_tree",
    "name_clusters",
    "open_run",
    "pack",
    "pick",
    "places",
    "pretrain",
    "rankme",
    "read_labels",
    "semisup",
    "sort_into",
    "spread",
    "uniformity",
    "voc",
    "zeroshot",
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
    "runs.results": ("Result",),
    "runs.run": ("Run", "embed", "export", "open_run"),
    "runs.methods": ("RunTree", "load_tree"),
    "evaluation.features": ("features_of",),
    "study.compare": ("compare",),
    "study.ablate": ("ablate",),
    "study.record": ("Comparison",),
    "report.analysis": ("analyse",),
    "evaluation.knn": ("knn", "zeroshot"),
    "evaluation.budgets": ("fewlabels",),
    "evaluation.clusters": ("clustering",),
    "report.checked": ("Checked", "check"),
    "report.explore": ("explore",),
    "trees.building": ("build_tree",),
    "trees.tree": ("Tree",),
    "trees.curating": ("Curated", "curate"),
    "data.flaws": ("find_flaws",),
    "trees.duplicates": ("find_duplicates",),
    "trees.outliers": ("find_outliers",),
    "trees.mislabelled": ("find_mislabelled",),
    "trees.naming": ("name_clusters",),
    "trees.sorting": ("sort_into",),
    "training.adapt": ("adapt",),
    "training.pretraining": ("pretrain",),
    "trees.label_files": ("read_labels",),
    "trees.handover": ("Chosen", "hand_over"),
    "trees.picking": ("Pick", "Picks", "pick"),
    "trees.spreading": ("Spread", "spread"),
    "evaluation.detection": ("detect",),
    "evaluation.linear": ("linear", "linear_on_images"),
    "evaluation.places": ("places",),
    "evaluation.semisup": ("semisup",),
    "evaluation.voc": ("voc",),
    "data.packing": ("pack",),
    "data.indexing": ("index_shards",),
    "data.shard_writing": ("Packed",),
}
_MODULES = {name: module for module, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
