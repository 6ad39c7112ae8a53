"""Measures without labels: against plain loops, and on cases whose answer is known."""

import math

import oracles
import pytest
import torch

from solo_hcsc import alignment, dead_dimensions, rankme, uniformity


def features(n=20, dim=7, seed=0):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).relu() + 0.1


@pytest.mark.parametrize(("n", "dim"), [(20, 7), (7, 20), (9, 9)])
def test_rankme_is_the_oracles(n, dim):
    x = features(n, dim)
    assert rankme(x) == pytest.approx(oracles.rankme(x.numpy()), rel=1e-6)


def test_alignment_and_uniformity_are_the_oracles():
    x, y = features(), features(seed=1)
    for power in (1.0, 2.0, 3.0):
        assert alignment(x, y, power) == pytest.approx(oracles.alignment(x.numpy(), y.numpy(), power), rel=1e-12)
        assert uniformity(x, power) == pytest.approx(oracles.uniformity(x.numpy(), power), rel=1e-12)


def test_dead_dimensions_are_the_oracles():
    x = features(dim=10)
    x[:, 3] = 5.0
    x[:, 7] = 2.0 + 1e-5 * x[:, 0]
    for still in (1e-8, 1e-3, 0.5):
        assert dead_dimensions(x, still) == pytest.approx(oracles.dead_dimensions(x.numpy(), still))
    assert dead_dimensions(x) == 0.2


def test_rank_is_that_of_the_directions_that_the_features_fill():
    orthogonal = torch.linalg.qr(features(8, 8))[0]
    assert rankme(orthogonal) == pytest.approx(8, rel=1e-4)
    assert rankme(orthogonal[:, :3]) == pytest.approx(3, rel=1e-4)
    assert rankme(features(9, 1) @ features(1, 5)) == pytest.approx(1, rel=1e-4)


def test_no_measure_depends_on_the_scale():
    x, y = features(), features(seed=1)
    for scale in (1e-4, 1e4):
        assert rankme(scale * x) == pytest.approx(rankme(x))
        assert alignment(scale * x, y) == pytest.approx(alignment(x, y))
        assert uniformity(scale * x) == pytest.approx(uniformity(x))
        assert dead_dimensions(scale * x) == dead_dimensions(x)


def test_total_collapse_is_seen_by_all():
    same = torch.full((6, 4), 3.0)
    assert (alignment(same, same), dead_dimensions(same), dead_dimensions(0 * same)) == (0, 1, 1)
    assert uniformity(same) == pytest.approx(0, abs=1e-12)
    assert rankme(same) == pytest.approx(1, rel=1e-4)


def test_features_that_are_no_numbers_have_no_rank_and_end_no_run():
    for value in (math.nan, math.inf):
        assert math.isnan(rankme(torch.tensor([[1.0, value], [1.0, 2.0]])))
    assert math.isnan(rankme(torch.zeros(3, 3)))


def test_half_precision_is_enough():
    x = features(30, 12)
    assert rankme(x.bfloat16()) == pytest.approx(rankme(x), rel=0.01)
    assert uniformity(x.half()) == pytest.approx(uniformity(x), rel=0.01)
