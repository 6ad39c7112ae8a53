"""Average precision as the PASCAL VOC challenges define it."""

from typing import Literal

import numpy as np
from sklearn.metrics import precision_recall_curve


def average_precision(relevant: np.ndarray, scores: np.ndarray, points: Literal["11", "all"]) -> float:
    """Return that of `N` images, `relevant (N,)` bool, ranked by `scores (N,)`; NaN if none is relevant.

    `points` says how the precision-recall curve is summed up, in which the precision at a recall is the highest at this
    recall or a higher one: "11" is its mean at recall 0, 0.1, ..., 1 (VOC 2007), "all" the area under it (VOC 2010).
    Images of equal score are one step of the curve, so that their order does not matter.
    """
    if not relevant.any():
        return float("nan")
    precision, recall, _ = precision_recall_curve(relevant, scores)
    return area(precision[-2::-1], recall[-2::-1], points)  # scikit-learn adds precision 1 at recall 0


def area(precision: np.ndarray, recall: np.ndarray, points: Literal["11", "all"]) -> float:
    """Sum a precision-recall curve up as one number; its points (N,) are in the order of rising recall.

    Example:
        >>> area(np.array([1.0, 0.5]), np.array([0.5, 0.5]), "all")  # half of the objects are never found
        0.5
    """
    if not len(precision):
        return 0.0
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    if points == "all":
        return float(np.diff(recall, prepend=0.0) @ highest)
    reached = [highest[recall >= tenth / 10] for tenth in range(11)]  # not np.linspace, whose 0.3 is above 3 of 10
    return float(np.mean([part[0] if len(part) else 0.0 for part in reached]))
