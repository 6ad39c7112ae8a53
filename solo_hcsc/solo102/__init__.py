"""solo-learn: the one door to it.

`import solo_hcsc.solo102` repairs solo-learn 1.0.2 for today's packages, after which `import solo` works and
`solo.methods.METHODS` has "hcsc". Nothing outside this package imports `solo`: it takes the repaired names from here.
"""

from solo_hcsc.solo102 import repairs  # first: without it `import solo` fails
from solo_hcsc.solo102.encoders import BaseMethod  # which takes timm's models, too
from solo_hcsc.solo102.linear import LinearModel
from solo_hcsc.solo102.names import WeightedKNNClassifier, accuracy_at_k, random_string
from solo_hcsc.solo102.registry import load_methods

__all__ = [
    "BaseMethod",
    "LinearModel",
    "WeightedKNNClassifier",
    "accuracy_at_k",
    "load_methods",
    "random_string",
    "repairs",
]
