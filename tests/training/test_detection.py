"""The detectors' schedule by hand, their optimiser's groups, and batch norm's averages against a direct computation."""

import pytest
import torch
from torch import nn

from solo_hcsc.training.detection import DetectorTraining, Schedule
from solo_hcsc.training.precise_bn import Moments, has_batch_norm, recompute

MOCO = Schedule(0.02, (18000, 22000), 100, 0.001)
BY_HAND = {
    0: 0.00002,
    1: 0.0002198,  # 0.02 * (0.001 * 0.99 + 0.01)
    2: 0.0004196,
    10: 0.002018,
    25: 0.005015,
    33: 0.0066134,
    50: 0.01001,
    75: 0.015005,
    98: 0.0196004,
    99: 0.0198002,
    100: 0.02,
    101: 0.02,
    5000: 0.02,
    17999: 0.02,
    18000: 0.002,
    18001: 0.002,
    21999: 0.002,
    22000: 0.0002,
    23000: 0.0002,
    23999: 0.0002,
}


class Chain(nn.Module):
    """Not a detector, but what the trainer needs of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 5, 3, stride=2),
            nn.BatchNorm2d(5),
        )

    def forward(self, images, targets=None):
        return {"loss": self.layers(torch.stack(list(images))).square().mean()}


@pytest.mark.parametrize("iteration", BY_HAND)
def test_learning_rate_by_hand(iteration):
    assert MOCO.lr * MOCO.factor(iteration) == pytest.approx(BY_HAND[iteration], rel=1e-9)


def test_optimiser_follows_the_schedule_step_by_step():
    model = DetectorTraining(Chain(), Schedule(0.02, (6, 8), 4, 0.001), 1e-4, 0.0)
    (optimizer,), (entry,) = model.configure_optimizers()
    assert entry["interval"] == "step"
    rates = []
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        entry["scheduler"].step()
    assert rates == pytest.approx([0.00002, 0.005015, 0.01001, 0.015005, 0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002])


def test_norms_have_no_weight_decay_and_every_parameter_learns():
    model = DetectorTraining(Chain(), MOCO, 1e-4, 0.0)
    (optimizer,), _ = model.configure_optimizers()
    plain, norms = optimizer.param_groups
    assert (plain["weight_decay"], norms["weight_decay"], plain["momentum"]) == (1e-4, 0.0, 0.9)
    assert {tuple(one.shape) for one in norms["params"]} == {(4,), (5,)}
    assert len(plain["params"]) + len(norms["params"]) == len(list(model.parameters())) == 7


def test_batch_norms_averages_are_those_of_all_the_batches():
    torch.manual_seed(0)
    model = Chain()
    batches = [torch.randn(size, 3, 9, 11) * (1 + size) + size for size in (2, 5, 3)]
    inputs: dict[int, list[torch.Tensor]] = {1: [], 4: []}
    hooks = [
        model.layers[place].register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0].detach().clone()))
        for place, seen in inputs.items()
    ]
    recompute(model, batches, model)
    for hook in hooks:
        hook.remove()
    for place, seen in inputs.items():
        assert len(seen) == 3
        whole = torch.cat([x.transpose(0, 1).flatten(1) for x in seen], dim=1).double()
        layer = model.layers[place]
        assert torch.allclose(layer.running_mean.double(), whole.mean(1), rtol=1e-5, atol=1e-6)
        assert torch.allclose(layer.running_var.double(), whole.var(1), rtol=1e-5)
    # What the second layer saw was normalised by each batch's own statistics, not by averages.
    first = model.layers[1]
    x = inputs[1][0]
    batch_mean, batch_var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    normal = (x - batch_mean[:, None, None]) / (batch_var[:, None, None] + first.eps).sqrt()
    by_hand = model.layers[3](torch.relu(normal))
    assert torch.allclose(by_hand, inputs[4][0], atol=1e-5)


def test_moments_of_parts_are_those_of_the_whole():
    values = torch.randn(7, 3, 5, 2)
    whole, parts = Moments.of(values), Moments.of(values[:2]).joined(Moments.of(values[2:]))
    assert whole.count == parts.count == 70
    assert torch.allclose(whole.mean, parts.mean)
    assert torch.allclose(whole.deviations, parts.deviations)


def test_model_without_batch_norm_has_nothing_to_recompute():
    assert has_batch_norm(Chain())
    assert not has_batch_norm(
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.BatchNorm1d(2, track_running_stats=False))
    )
