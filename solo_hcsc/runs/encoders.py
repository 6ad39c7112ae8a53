"""The earlier place of `encoders/loading.py` and `runs/methods.py`, until its callers are moved."""

from solo_hcsc.encoders.loading import Encoder, check_arguments, fit, load_encoder, load_initial
from solo_hcsc.runs.methods import RunTree, load_method, load_projector, load_tree, tree_in

__all__ = [
    "Encoder",
    "RunTree",
    "check_arguments",
    "fit",
    "load_encoder",
    "load_initial",
    "load_method",
    "load_projector",
    "load_tree",
    "tree_in",
]
