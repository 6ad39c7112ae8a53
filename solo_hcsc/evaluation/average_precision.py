"""Average precision as the PASCAL VOC challenges define it."""

from typing import Literal

import numpy as np
from sklearn.metrics import precision_recall_curve


def average_precision(relevant: np.ndarray, scores: np.ndarray, points: Literal["11", "all"]) -> float:
    """Of `N` images, `relevant (N,)` bool, ranked by `scores (N,)`; NaN if none is relevant.

    `points` says how the precision-recall curve is summed up, in which the precision at a recall is the highest at this
    recall or a higher one: "11" is its mean at recall 0, 0.1, ..., 1 (VOC 2007), "all" the area under it (VOC 2010).
    Images of equal score are one step of the curve, so that their order does not matter.
    """
    if not relevant.any():
        return float("nan")
    precision, recall, _ = precision_recall_curve(relevant, scores)
    # From the highest recall to the lowest, at whose end scikit-learn adds precision 1 at recall 0.
    highest = np.maximum.accumulate(precision[:-1])
    if points == "all":
        return float(-np.diff(recall) @ highest)
    levels = np.arange(11) / 10  # not np.linspace, whose 0.3 is above 3 of 10
    return float(np.mean([highest[recall[:-1] >= level][-1] for level in levels]))
