"""solo-learn's classes and functions as they are after the repairs."""

from solo.methods.base import BaseMethod
from solo.utils.checkpointer import random_string
from solo.utils.knn import WeightedKNNClassifier
from solo.utils.metrics import accuracy_at_k

__all__ = ["BaseMethod", "WeightedKNNClassifier", "accuracy_at_k", "random_string"]
