"""Average precision of boxes and of masks, as COCO and as the PASCAL VOC challenges define it.

Both rank what was found of a class by its score, over all images, and ask of each whether it is a true object that no
better one has found. They differ in how:

- COCO gives a detection the best object that is still free; takes the mean over the thresholds 0.5, 0.55, ..., 0.95 of
  the overlap (AP), or one of them (AP50, AP75); and reads the precision off at 101 recalls. Of an image, the best 100
  detections of a class count.
- VOC gives a detection the object that it overlaps most; if that has been found, the detection is wrong. The precision
  is read off at 11 recalls (2007) or summed over all of them (since 2010).

A detection of an ignored object, a difficult one or a crowd, counts neither for nor against. pycocotools would need
the extra `coco` also for VOC, and takes every ignored object for a crowd; the tests compare all figures with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from solo_hcsc.data.detection import AnnotatedImage
from solo_hcsc.data.outlines import encoded
from solo_hcsc.evaluation.average_precision import area
from solo_hcsc.evaluation.detecting import Detections

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # as COCO's own code has them, to the last bit, like the recalls
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # detections of a class and an image
# Of objects, in pixels; a detection that matches none counts where its own area belongs.
RANGES = {"": (0.0, 1e10), "_small": (0.0, 32.0**2), "_medium": (32.0**2, 96.0**2), "_large": (96.0**2, 1e10)}
Overlaps = Callable[[AnnotatedImage, Detections, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Pair:
    """Hold objects and detections of one class in one image, the detections from the best to the worst."""

    overlaps: np.ndarray  # (D, G)
    scores: np.ndarray  # (D,)
    sizes: np.ndarray  # (D,) areas in pixels
    ignored: np.ndarray  # (G,)
    crowds: np.ndarray  # (G,)
    areas: np.ndarray  # (G,)


@dataclass(frozen=True)
class Ranked:
    """Hold a class's detections over all images, at each of T thresholds: right, wrong, or neither."""

    scores: np.ndarray  # (N,)
    right: np.ndarray  # (T, N)
    wrong: np.ndarray  # (T, N)
    objects: int  # to be found

    def curve(self, threshold: int) -> tuple[np.ndarray, np.ndarray]:
        """Return precision and recall after each detection that counts, the best first."""
        order = np.argsort(-self.scores, kind="stable")
        right, wrong = (np.cumsum(part[threshold][order]) for part in (self.right, self.wrong))
        return right / np.maximum(right + wrong, 1), right / self.objects


def average_precisions(
    images: Sequence[AnnotatedImage], found: Sequence[Detections], classes: Sequence[str], masks: bool = False
) -> dict[str, dict[str, float]]:
    """Return each class's figures in percent, and their means as "mean"; NaN where there is nothing to find.

    Args:
        images: with their true objects.
        found: what was found in each of them.
        classes: their names.
        masks: whether overlaps are those of masks; then the figures are COCO's only.

    Returns:
        AP, AP50, AP75, AP_small, AP_medium, AP_large as COCO defines them; and for boxes, as VOC does, AP_11, AP50_11
        and AP75_11 (11 points) and AP_all, AP50_all, AP75_all (all points).
    """
    overlaps = mask_overlaps if masks else box_overlaps
    each = {}
    for label, name in enumerate(classes):
        pairs = [_pair(image, one, label, overlaps) for image, one in zip(images, found, strict=True)]
        pairs = [pair for pair in pairs if len(pair.scores) or len(pair.areas)]
        each[name] = _coco(pairs) | ({} if masks else _voc(pairs))
    means = {name: _mean([one[name] for one in each.values()]) for name in next(iter(each.values()))}
    return each | {"mean": means}


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _pair(image: AnnotatedImage, found: Detections, label: int, overlaps: Overlaps) -> Pair:
    mine = np.flatnonzero(found.labels == label)
    mine = mine[np.argsort(-found.scores[mine], kind="stable")][:MOST]
    truth = np.flatnonzero(image.objects.labels == label)
    if len(mine) and found.masks and overlaps is mask_overlaps:
        from pycocotools import mask

        sizes = mask.area([found.masks[place] for place in mine]).astype(float)
    else:
        sizes = np.prod(found.boxes[mine, 2:] - found.boxes[mine, :2], axis=1, dtype=float)
    between = overlaps(image, found, mine, truth) if len(mine) and len(truth) else np.zeros((len(mine), len(truth)))
    shown = image.objects[truth]
    return Pair(between, found.scores[mine], sizes, shown.ignored, shown.crowds, shown.areas)


def box_overlaps(image: AnnotatedImage, found: Detections, mine: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return intersection over union (D, G); with a crowd, over the detection alone."""
    boxes, objects = found.boxes[mine].astype(float), image.objects[truth]
    true = objects.boxes.astype(float)
    low, high = np.maximum(boxes[:, None, :2], true[None, :, :2]), np.minimum(boxes[:, None, 2:], true[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    mine_area, true_area = ((one[:, 2:] - one[:, :2]).prod(axis=1) for one in (boxes, true))
    union = mine_area[:, None] + np.where(objects.crowds, 0, true_area - shared)
    return shared / np.maximum(union, 1e-12)


def mask_overlaps(image: AnnotatedImage, found: Detections, mine: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the same of masks."""
    from pycocotools import mask

    objects = image.objects[truth]
    true = [encoded(outline, image.width, image.height) for outline in objects.outlines]
    crowds = objects.crowds.astype(np.uint8).tolist()
    return np.asarray(mask.iou([found.masks[place] for place in mine], true, crowds)).reshape(len(mine), len(truth))


# ---- COCO ----


def _coco(pairs: Sequence[Pair]) -> dict[str, float]:
    figures = {}
    for name, limits in RANGES.items():
        each = coco_precisions(ranked_by_coco(pairs, limits))
        figures[f"AP{name}"] = float(each.mean())
        if not name:
            figures |= {f"AP{100 * THRESHOLDS[place]:.0f}": float(each[place]) for place in (0, 5)}
    return {name: 100 * value for name, value in figures.items()}


def ranked_by_coco(pairs: Sequence[Pair], limits: tuple[float, float] = RANGES[""]) -> Ranked:
    """Tell which detections are right; objects out of the limits of area are ignored, and so are detections of none."""
    matched = [_matched_by_coco(pair, limits) for pair in pairs]
    outside = [(pair.areas < limits[0]) | (pair.areas > limits[1]) for pair in pairs]
    objects = sum(int((~pair.ignored & ~out).sum()) for pair, out in zip(pairs, outside, strict=True))
    return _joined(pairs, matched, objects)


def _matched_by_coco(pair: Pair, limits: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return right and wrong, (T, D) each."""
    ignored = pair.ignored | (pair.areas < limits[0]) | (pair.areas > limits[1])
    detections, objects = pair.overlaps.shape
    needed = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    taken = np.zeros((len(THRESHOLDS), objects), dtype=bool)
    out_of_range = (pair.sizes < limits[0]) | (pair.sizes > limits[1])
    right, wrong = (np.zeros((len(THRESHOLDS), detections), dtype=bool) for _ in range(2))
    if not objects:
        wrong[:] = ~out_of_range
        return right, wrong
    for place, row in enumerate(pair.overlaps):
        possible = (row >= needed) & (~taken | pair.crowds)
        counted = possible & ~ignored
        chosen = np.where(counted.any(axis=1, keepdims=True), counted, possible)
        best = objects - 1 - np.argmax(np.where(chosen, row, -1.0)[:, ::-1], axis=1)  # the last of equal ones, as COCO
        found = chosen.any(axis=1)
        taken[found, best[found]] = True
        right[:, place] = found & ~ignored[best]
        wrong[:, place] = ~found & ~out_of_range[place]
    return right, wrong


def coco_precisions(ranked: Ranked) -> np.ndarray:
    """Return the mean precision over 101 recalls at each threshold (T,); NaN where there is nothing to find."""
    if not ranked.objects:
        return np.full(len(THRESHOLDS), np.nan)
    found = []
    for threshold in range(len(THRESHOLDS)):
        precision, recall = ranked.curve(threshold)
        highest = np.maximum.accumulate(precision[::-1])[::-1]
        places = np.searchsorted(recall, RECALLS, side="left")
        found.append(np.append(highest, 0.0)[np.minimum(places, len(highest))].mean())
    return np.array(found)


# ---- VOC ----


def _voc(pairs: Sequence[Pair]) -> dict[str, float]:
    ranked = ranked_by_voc(pairs)
    figures: dict[str, float] = {}
    kinds: tuple[Literal["11", "all"], ...] = ("11", "all")
    for points in kinds:
        each = [
            area(*ranked.curve(place), points) if ranked.objects else float("nan") for place in range(len(THRESHOLDS))
        ]
        figures |= {f"AP_{points}": float(np.mean(each)), f"AP50_{points}": each[0], f"AP75_{points}": each[5]}
    return {name: 100 * value for name, value in figures.items()}


def ranked_by_voc(pairs: Sequence[Pair]) -> Ranked:
    """Tell which detections are right; a second one of an object is wrong."""
    matched = [_matched_by_voc(pair) for pair in pairs]
    return _joined(pairs, matched, sum(int((~pair.ignored).sum()) for pair in pairs))


def _matched_by_voc(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    detections, objects = pair.overlaps.shape
    right, wrong = (np.zeros((len(THRESHOLDS), detections), dtype=bool) for _ in range(2))
    if not objects:
        return right, ~wrong
    taken = np.zeros((len(THRESHOLDS), objects), dtype=bool)
    for place, row in enumerate(pair.overlaps):
        best = int(np.argmax(row))
        enough = row[best] >= THRESHOLDS
        counts = ~(enough & pair.ignored[best])
        right[:, place] = enough & counts & ~taken[:, best]
        wrong[:, place] = counts & ~right[:, place]
        taken[:, best] |= enough
    return right, wrong


def _joined(pairs: Sequence[Pair], matched: Sequence[tuple[np.ndarray, np.ndarray]], objects: int) -> Ranked:
    none: Any = np.zeros((len(THRESHOLDS), 0), dtype=bool)
    right, wrong = (np.concatenate([none, *(one[kind] for one in matched)], axis=1) for kind in (0, 1))
    return Ranked(np.concatenate([np.zeros(0), *(pair.scores for pair in pairs)]), right, wrong, objects)
