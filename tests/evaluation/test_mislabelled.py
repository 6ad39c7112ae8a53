"""Which labels the other images speak against."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from solo_hcsc.errors import ArgumentError
from solo_hcsc.trees import mislabelled
from solo_hcsc.trees.mislabelled import LEAST_MARGIN, find_mislabelled, margins_of


def planted(images=300, wrong=15):
    """Points around three centres, some of which have a wrong label."""
    draw = np.random.default_rng(0)
    true = draw.integers(0, 3, images)
    points = np.eye(3)[true] @ draw.normal(size=(3, 8)) + draw.normal(size=(images, 8)) / 4
    labels, which = true.copy(), np.sort(draw.choice(images, wrong, replace=False))
    labels[which] = (true[which] + draw.integers(1, 3, wrong)) % 3
    return points / np.linalg.norm(points, axis=1, keepdims=True), labels, true, which


def test_planted_labels_are_found_with_the_true_class():
    points, labels, true, which = planted()
    found = find_mislabelled(points, labels)
    assert np.sort(found.images).tolist() == which.tolist()
    assert found.suggested.tolist() == true[found.images].tolist()
    assert (np.diff(found.margins) <= 0).all()
    assert found.margins.min() >= LEAST_MARGIN


@pytest.mark.parametrize("images", [60, 6])  # more than there are features, and fewer
def test_margins_are_those_of_classifiers_trained_without_the_image(images, monkeypatch):
    """Each image's scores are those of scikit-learn's ridge regression of one-hot labels on all the others."""
    points, labels, _, _ = planted(images + 2, 1)
    labels[[3, 6]] = -1
    labels[:3] = range(3)
    monkeypatch.setattr(mislabelled, "PENALTIES", (0.3,))
    images, others, margins = margins_of(points, labels)
    assert images.tolist() == np.flatnonzero(labels >= 0).tolist()
    known, own = points[images], labels[images]
    for row in range(0, len(images), 5):
        rest = np.arange(len(images)) != row
        # The penalty is relative to the variance of all images, and the mean is each training's own.
        penalty = 0.3 * np.square(known - known.mean(axis=0)).sum() / known.shape[1]
        ridge = Ridge(alpha=penalty).fit(known[rest], np.eye(3)[own[rest]])
        scores = ridge.predict(known[[row]])[0]
        best = max((scores[label], label) for label in range(3) if label != own[row])
        assert (others[row], margins[row]) == (best[1], pytest.approx(best[0] - scores[own[row]], abs=1e-4))


def test_blocks_and_a_sample_change_nothing(monkeypatch):
    points, labels, _, _ = planted()
    whole = margins_of(points, labels)
    monkeypatch.setattr(mislabelled, "BLOCK", 32)
    assert margins_of(points, labels)[2] == pytest.approx(whole[2], abs=1e-5)


@pytest.mark.parametrize("labels", [[-1] * 6, [0] * 6, [0]])
def test_without_a_second_class_nothing_is_suspect(labels):
    assert len(find_mislabelled(np.eye(6)[: len(labels)], np.array(labels)).images) == 0


def test_labels_of_other_images_are_refused():
    with pytest.raises(ArgumentError, match=r"`labels` has shape \(2,\)"):
        find_mislabelled(np.eye(3), [0, 1])
