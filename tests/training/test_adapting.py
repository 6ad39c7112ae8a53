"""An adapter on cached views: what its losses do, and that worse features are never handed over."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from tiny import make_images
from torchvision.models import resnet18

from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders.adapter import Adapted, Adapter
from solo_hcsc.encoders.embedding import Embeddings
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.errors import UserError
from solo_hcsc.runs.run import _EncoderAlone
from solo_hcsc.settings import Settings
from solo_hcsc.training import adapting
from solo_hcsc.training.adapt import fit, given_labels
from solo_hcsc.training.adapting import Recipe, _even, fit_adapter, levels_for
from solo_hcsc.training.held_out import Held, Judged, few_labels, hold_out, judge_labelled, judge_views
from solo_hcsc.training.tuning import Tuning, layers_of, trained_parameters, tune_encoder

CLASSES, EACH, VIEWS = 6, 20, 3


@pytest.fixture(scope="module")
def features():
    """(N, V + 1, F) of classes whose images differ more in directions that are no class's."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    classes = torch.randn(CLASSES, 1, 8, generator=random)[labels]
    images = 0.7 * torch.randn(len(labels), 1, 8, generator=random)
    views = torch.cat([classes + images, torch.zeros(len(labels), 1, 8)], dim=2).repeat(1, VIEWS + 1, 1)
    return views + 0.9 * torch.randn(views.shape, generator=random), labels


@pytest.fixture(scope="module")
def adapter(features):
    return Adapter.of(features[0][:, 0].numpy())


def test_an_adapter_that_is_not_trained_keeps_every_cosine(adapter, features):
    points = adapter.points(features[0][:, 0])
    torch.testing.assert_close(adapter.adapted(points), points)
    both = adapter.beside(points)
    torch.testing.assert_close(both @ both.T, points @ points.T)


def test_points_are_principal_components_at_unit_length(features):
    given = features[0][:, 0].double()
    centred = given - given.mean(dim=0)
    expected = F.normalize(
        torch.from_numpy(np.linalg.svd(centred.numpy(), full_matrices=False)[2][:5]) @ centred.T, dim=0
    )
    found = Adapter.of(given.numpy(), width=5).points(given.float())
    torch.testing.assert_close(found.abs(), expected.T.float().abs(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("loss", ["hcsc", "infonce", "swav"])
def test_views_of_an_image_come_closer(adapter, features, loss):
    views = adapter.points(features[0])
    after = fit_adapter(adapter, views.half(), Recipe(loss, epochs=30))
    again = fit_adapter(adapter, views.half(), Recipe(loss, epochs=30))
    assert all(torch.equal(one, other) for one, other in zip(after.parameters(), again.parameters(), strict=True))

    def separation(points):
        same = (points[:, 1] * points[:, 2]).sum(dim=1)
        others = points[:, 1] @ points[:, 2].T
        return float(same.mean() - others.mean())

    with torch.no_grad():
        adapted = after.adapted(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        assert separation(adapted) > separation(views) + 0.05
    assert all(bool((value == 0).all()) for value in adapter.outer.state_dict().values())  # the given one is as it was


def test_loss_none_returns_the_adapter_as_it_is(adapter, features):
    assert fit_adapter(adapter, adapter.points(features[0]), Recipe("none")) is adapter


def test_true_labels_as_the_tree_gather_the_classes(adapter, features):
    views, labels = adapter.points(features[0]), features[1]
    recipe = Recipe(epochs=30)
    plain, oracle = (fit_adapter(adapter, views, recipe, given) for given in (None, labels[:, None]))

    def share(one):
        with torch.no_grad():
            points = one.adapted(views[:, 0])
        return judge_labelled(points, labels, points, labels).measures["labels_1"]

    assert share(oracle) > share(plain)


def test_balanced_epochs_draw_rare_clusters_more_often(monkeypatch):
    classes = torch.tensor([0] * 20 + [1] * 20 + [2] * 20 + [3] * 6)
    noise = 0.05 * torch.randn(66, 3, 8, generator=torch.Generator().manual_seed(0))
    views = F.normalize(torch.eye(8)[classes][:, None] + noise, dim=2)
    seen = torch.zeros(66)
    draw = adapting._draw

    def watched(views, rows, *rest):
        seen.index_add_(0, rows, torch.ones(len(rows)))
        return draw(views, rows, *rest)

    monkeypatch.setattr(adapting, "_draw", watched)
    recipe = Recipe("infonce", epochs=10, batch=22, balance_strength=1.0)
    fit_adapter(Adapter(torch.zeros(8), torch.eye(8)), views, recipe)
    assert seen[60:].mean() > 1.5 * seen[:60].mean()


def test_swapped_assignments_use_all_prototypes_alike():
    scores = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    found = _even(0.02 * scores)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(40))
    torch.testing.assert_close(found.sum(dim=0), torch.full((5,), 8.0), atol=0.2, rtol=0)


def test_levels_suit_few_images_too():
    for images in (20, 41, 100, 1000, 10**6):
        levels = levels_for(images)
        assert list(levels) == sorted(set(levels), reverse=True)
        assert 2 <= levels[-1] <= levels[0] <= max(2, images // 10)


# ---- judging ----


def test_few_labels_are_those_of_the_nearest_class_mean():
    bank = torch.eye(4).repeat_interleave(3, dim=0)
    labels = torch.arange(4).repeat_interleave(3)
    queries, wanted = torch.eye(4) + 0.1, torch.tensor([0, 1, 2, 0])
    assert few_labels(bank, labels, queries, wanted, each=1) == pytest.approx(75)


def test_agreement_is_the_share_of_common_neighbours():
    random = torch.Generator().manual_seed(0)
    bank, queries, views = (torch.randn(count, 6, generator=random) for count in (50, 8, 8))
    near = [
        [sorted(range(50), key=lambda row: -float(F.cosine_similarity(one, bank[row], dim=0)))[:10] for one in points]
        for points in (queries, views)
    ]
    expected = np.mean([len({*one} & {*other}) / 10 for one, other in zip(*near, strict=True)])
    assert judge_views(bank, queries, views).measures["agreement"] == pytest.approx(100 * expected)
    assert judge_views(bank, queries, queries).measures["agreement"] == 100


def test_higher_on_average_is_better_unless_knn_falls_by_more_than_its_noise():
    before = Judged({"knn": 50.0, "labels_1": 20.0}, np.repeat([True, False], 50))
    few_more = Judged({"knn": 50.0, "labels_1": 25.0}, before.hits)
    knn_lost = Judged({"knn": 40.0, "labels_1": 35.0}, np.repeat([True, False], [40, 60]))
    assert few_more.beats(before)
    assert not before.beats(few_more)
    assert not before.beats(before)
    assert not knn_lost.beats(before)


def test_training_that_makes_features_worse_ends_early_with_the_adapter_from_before(adapter, features):
    views, labels = adapter.points(features[0]), features[1]
    held = Held(views[::2, 0], views[1::2, 0], None, labels[::2], labels[1::2])
    epochs = []

    recipe = Recipe("infonce", epochs=200, lr=3.0)  # a rate at which the adapter forgets everything
    _, judged = fit(adapter, views, recipe, held, lambda done, _: epochs.append(done))
    assert sum(judged.measures.values()) >= sum(held.judge(adapter.beside).measures.values())
    assert epochs[-1] < 200


def found(names, vectors):
    classes = tuple(sorted({name for name in names if name}))
    numbers = np.array([classes.index(name) if name else -1 for name in names])
    return Embeddings([f"{number}.png" for number in range(len(names))], vectors.numpy(), numbers, classes)


def test_validation_images_judge_by_the_names_of_classes(adapter, features):
    vectors, labels = features[0][:, 0], [f"class {label}" for label in features[1].tolist()]
    train, val = found(labels, vectors), found(["other", *labels[20:60]], vectors[19:60])
    classes = given_labels(Settings(labels=None), train)
    views = adapter.points(features[0])
    held, kept = hold_out(adapter, views, train, val, classes, seed=0)
    assert len(kept) == len(views)  # nothing else is held out
    assert held.wanted.tolist() == features[1][20:60].tolist()  # and a class of nothing known asks nothing
    assert held.judge_frozen().measures["knn"] > 90  # each is in the bank


def test_images_of_one_class_or_none_are_judged_by_another_view(adapter, features):
    views = adapter.points(features[0])
    for name in ("only", None):
        train = found([name] * len(views), features[0][:, 0])
        held, kept = hold_out(adapter, views, train, None, given_labels(Settings(labels=None), train), seed=0)
        assert held.labels is None
        assert len(kept) + len(held.queries) == len(views)
        assert list(held.judge_frozen().measures) == ["agreement"]


# ---- files ----


def test_weights_of_an_adapter_are_read_whole_or_refused(adapter):
    weights = {f"adapter.{name}": value for name, value in adapter.state_dict().items()}
    assert Adapter.within({"encoder.conv1.weight": torch.zeros(1)}, "x.ckpt") is None
    found = Adapter.within(weights, "x.ckpt")
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in adapter.state_dict().items())
    missing = {name: value for name, value in weights.items() if not name.endswith("mean")}
    other = weights | {"adapter.inner.bias": torch.zeros(3)}
    broken = weights | {"adapter.mean": torch.full_like(adapter.mean, float("nan"))}
    for bad, told in ((missing, "not whole"), (other, "not whole"), (broken, "NaN")):
        with pytest.raises(UserError, match=rf"x\.ckpt: its adapter .*{told}"):
            Adapter.within(bad, "x.ckpt")


def test_adapted_encoder_tells_the_size_of_its_features(adapter):
    module = Adapted(torch.nn.Flatten(), adapter)
    assert module(torch.zeros(2, 16)).shape == (2, module.num_features)


# ---- an encoder itself ----


def test_only_the_last_layers_are_trained_each_with_its_rate():
    encoder = timm.create_model("resnet10t", num_classes=0)
    groups = trained_parameters(encoder, Tuning(depth=2, lr=0.1))
    trained = {id(one) for group in groups for one in group["params"]}
    assert {id(one) for one in encoder.parameters() if one.requires_grad} == trained
    assert encoder.layer4[0].conv1.weight.requires_grad
    assert not encoder.conv1[0].weight.requires_grad
    everything = trained_parameters(timm.create_model("resnet10t", num_classes=0), Tuning(lr=0.1))
    rates = sorted({group["lr"] for group in everything})
    assert len(rates) > 3
    assert rates[-1] == 0.1
    assert layers_of(resnet18())["conv1.weight"] < layers_of(resnet18())["layer4.0.conv1.weight"]


def test_tuning_moves_weights_and_keeps_the_statistics_of_batch_norm(tmp_path):
    make_images(tmp_path, classes=3, per_class=14)
    encoder = Encoder.timm("resnet10t", crop_size=32, pretrained=False)
    before = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    embedder = _EncoderAlone(encoder).embedder(str(tmp_path), no_labels=True)
    found = tune_encoder(embedder, Loading(16, 0), Tuning(epochs=2, batch=16, lr=1e-2)).state_dict()
    moved = {name for name, value in before.items() if not torch.equal(found[name], value)}
    assert "layer4.0.conv1.weight" in moved
    assert not {name for name in moved if "running" in name}
    assert all(torch.equal(value, before[name]) for name, value in encoder.module.state_dict().items())
