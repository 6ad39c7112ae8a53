"""Which labels the tree speaks against."""

import numpy as np
import pytest

from solo_hcsc.trees.mislabelled import LEAST_MARGIN, WEIGHT, find_suspects


def shares_by_loop(labels, clusters, image):
    """The smoothed share of each class around an image, which is not counted: from all images down to its cluster."""
    others = [i for i in range(len(labels)) if i != image and labels[i] >= 0]
    classes = range(max(labels) + 1)
    shares = {name: sum(labels[i] == name for i in others) / len(others) for name in classes}
    for level in reversed(range(len(clusters[0]))):
        near = [i for i in others if clusters[i][level] == clusters[image][level]]
        shares = {
            name: (sum(labels[i] == name for i in near) + WEIGHT * shares[name]) / (len(near) + WEIGHT)
            for name in classes
        }
    return shares


def planted(images=300, wrong=15):
    """Two levels of clusters, each bottom one of one class but for a few images with a wrong label."""
    random = np.random.default_rng(0)
    bottom = random.integers(0, 12, images)
    true = bottom // 4
    labels = true.copy()
    which = random.choice(images, wrong, replace=False)
    labels[which] = (true[which] + random.integers(1, 3, wrong)) % 3
    return labels, true, np.stack([bottom, bottom // 2], axis=1), np.sort(which)


def test_planted_labels_are_found_with_the_true_class():
    labels, true, clusters, which = planted()
    found = find_suspects(labels, clusters)
    assert np.sort(found.images).tolist() == which.tolist()
    assert found.suggested.tolist() == true[found.images].tolist()


def test_margins_are_those_of_a_loop():
    labels, _, clusters, _ = planted(80, 10)
    labels[[3, 7]] = -1
    found = find_suspects(labels, clusters)
    expected = {}
    for image in np.flatnonzero(labels >= 0):
        shares = shares_by_loop(labels.tolist(), clusters.tolist(), image)
        own = shares.pop(labels[image])
        if max(shares.values()) - own >= LEAST_MARGIN:
            expected[int(image)] = max(shares.values()) - own
    assert expected
    assert dict(zip(found.images.tolist(), found.margins, strict=True)) == pytest.approx(expected)
    assert (np.diff(found.margins) <= 0).all()


@pytest.mark.parametrize("labels", [[-1] * 6, [0] * 6, [0]])
def test_without_a_second_class_nothing_is_suspect(labels):
    assert len(find_suspects(np.array(labels), np.zeros((len(labels), 2), int)).images) == 0
