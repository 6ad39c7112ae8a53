"""The queue, the tree and the loss of a batch together; ablations, whole steps and state."""

from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
import torch.nn.functional as F
from solo.losses.moco import moco_loss_func
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc import coding as coding_module
from solo_hcsc.hcsc.coding import SelectiveCoding, selection_quality
from solo_hcsc.hcsc.hierarchy import MIN_TEMPERATURE, build_hierarchy
from solo_hcsc.hcsc.options import Options
from solo_hcsc.hcsc.processes import Processes
from solo_hcsc.hcsc.random_numbers import SeededNumbers
from solo_hcsc.hcsc.selection import instance_keep_probability, prototype_keep_probability, similarity

D, N = 8, 120


def unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def make(clustered=True, seed=0, **flags):
    base = {"num_prototypes": [10, 5, 3], "queue_size": 24, "min_cluster_size": 2, "proto_warmup_epochs": 0}
    options = Options(**(base | flags))
    coding = SelectiveCoding(options, D, N, seed)
    if clustered:
        coding.install(build_hierarchy(unit(N, D, seed=7), options), epoch=0)
    return coding


def batch(size=6):
    return unit(size, D, seed=1), unit(size, D, seed=2), torch.arange(0, 10 * size, 10), []


# ---- the loss ----


def test_without_selection_and_prototypes_it_is_mocos_info_nce():
    z, key, index, local = batch()
    coding = make(clustered=False, instance_selection=False, prototype_loss=False)
    expected = moco_loss_func(z, key, coding.queue.keys.T, coding.options.temperature)
    assert coding(z, key, index, local, 1.0).loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_before_the_first_clustering_it_is_mocos_info_nce_too():
    z, key, index, local = batch()
    coding = make(clustered=False, preset="official")
    expected = moco_loss_func(z, key, coding.queue.keys.T, coding.options.temperature)
    assert coding(z, key, index, local, 1.0).loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_one_level_without_selection_is_pcls_pair_of_terms():
    z, key, index, local = batch()
    coding = make(num_prototypes=[10], instance_selection=False, prototype_selection=False)
    prototypes, temperatures, _ = coding.level(0)
    clusters = coding.tree.assignments[index, 0]
    proto = F.cross_entropy(z @ prototypes.T / temperatures, clusters)
    expected = moco_loss_func(z, key, coding.queue.keys.T, 0.2) + proto
    assert coding(z, key, index, local, 1.0).loss.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("preset", ["paper", "recommended"])
def test_loss_is_eq_10_for_what_was_left_out(preset, monkeypatch):
    drawn = record(monkeypatch, "sample_rows")
    z, key, index, local = batch()
    coding = make(preset=preset)
    drawn.clear()
    coded = coding(z, key, index, local, 1.0)
    assert len(drawn) == 2  # the prototypes of all levels but the top
    levels = [coding.level(number) for number in range(3)]
    clusters = [coding_module.most_similar(z @ p.T, temperatures) for p, temperatures, _ in levels]
    if preset == "recommended":
        clusters = list(coding.tree.assignments[index].T)
    arrays = [x.double().numpy() for x in (z, key, coding.queue.keys)]
    instance = oracles.eq6(*arrays, [~mask.numpy() for mask in coded.left_out()], 0.2)
    prototypes = [p.double().numpy() for p, _, _ in levels]
    temperatures = [t.double().numpy() for _, t, _ in levels]
    keep = [(drawn[n] != levels[n][2][clusters[n]][:, None]).numpy() for n in range(2)]
    proto = oracles.eq9(arrays[0], prototypes, temperatures, [c.tolist() for c in clusters], [*keep, None])
    assert coded.loss.item() == pytest.approx(instance + proto, rel=1e-5)
    for level in range(3):
        assert coded.parts[f"left_out_{level}"] == pytest.approx(coded.left_out()[level].float().mean().item())


CLAMPED = {"left_out": "zero_logit", "clamp_probabilities": True}  # the released code's options of Eq. 4 and 6


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("shares_draws", [True, False])
@pytest.mark.parametrize("flags", [{}, CLAMPED], ids=["removed", "clamped"])
def test_keys_of_the_querys_own_image_are_no_negatives(flags, shares_draws, clustered):
    coding = make(clustered=clustered, prototype_loss=False, **flags)
    coding.shares_draws = shares_draws
    index, keys = torch.arange(6), [unit(6, D, seed=2), unit(6, D, seed=3)]
    same_image = torch.stack([coding.enqueue(key, index, 0) for key in keys], dim=1)
    z = unit(6, D, seed=1).requires_grad_()
    coded = coding(z, keys[0], index, [], 1.0, same_image)
    left_out = coded.left_out() if clustered else [torch.zeros(6, 24, dtype=torch.bool)]
    expected = []
    for level, out in enumerate(left_out):
        assert not out.gather(1, same_image).any()
        for query, of_query in enumerate(out):
            others = [place for place in range(24) if place not in same_image[query] and not of_query[place]]
            against = torch.cat([keys[0][query : query + 1], coding.queue.keys[others]])
            logits = z[query : query + 1] @ against.T / 0.2
            if flags:
                logits = F.pad(logits, (0, int(of_query.sum())))
            expected.append(F.cross_entropy(logits, torch.tensor([0])))
        if clustered:
            torch.testing.assert_close(coded.parts[f"left_out_{level}"], out.float().sum() / (6 * (24 - 2)))
    expected = torch.stack(expected).mean()
    torch.testing.assert_close(coded.loss, expected)
    gradients = (torch.autograd.grad(loss, z)[0] for loss in (coded.loss, expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("number", range(3))
def test_shared_draws_have_eq_4s_frequencies_and_are_independent(number):
    coding = make()
    prototypes, temperatures, _ = coding.level(number)
    clusters = torch.arange(len(prototypes))
    keep = instance_keep_probability(coding.queue.keys, prototypes, temperatures, clusters).double()
    times = 20_000
    drawn = coding.draw_clusters(coding.queue.keys.repeat(times, 1))[number].view(times, -1)
    left_out = (drawn[:, None, :] == clusters[:, None]).double()  # (times, M, Q)
    error = (keep * (1 - keep) / times).sqrt()
    assert ((left_out.mean(0) - (1 - keep)).abs() <= 4 * error + 1 / times).all()
    query = left_out[:, 0] - left_out[:, 0].mean(0)
    correlation = query.T @ query / times
    scale = correlation.diagonal().sqrt().clamp(min=1e-6)
    assert (correlation / scale / scale[:, None] - torch.eye(len(scale))).abs().max() < 5 / times**0.5


@pytest.mark.parametrize("preset", ["recommended", "official"])
def test_parents_are_drawn_with_eq_7s_frequencies(preset):
    coding = make(preset=preset)
    coding.tree.temperatures_1 *= 0.15  # so that some prototypes almost surely belong to a parent
    prototypes, _, parents = coding.level(0)
    upper, upper_temperatures, _ = coding.level(1)
    clusters = torch.tensor([0, 4])
    keep = prototype_keep_probability(prototypes, upper, upper_temperatures, parents, clusters).double()
    if preset == "official":
        assert (keep > 0.999).any()
        assert (keep < 0.0001).any()
        keep = keep.clamp(0.0001, 0.999)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([~coding._prototype_mask(clusters, 0, generator) for _ in range(20_000)]).double()
    error = (keep * (1 - keep) / len(drawn)).sqrt()
    assert ((drawn.mean(0) - (1 - keep)).abs() <= 4 * error + 1 / len(drawn)).all()


def test_a_new_tree_redraws_the_queues_clusters_and_a_new_key_draws_its_own():
    coding = make()
    first = coding.queue.clusters.clone()
    assert (first >= 0).all()
    assert (first.amax(1) < torch.tensor(coding.kept)).all()
    coding.install(build_hierarchy(unit(N, D, seed=8), coding.options), epoch=1)
    second = coding.queue.clusters.clone()
    assert not torch.equal(first, second)
    coding.enqueue(unit(3, D, seed=3), torch.zeros(3, dtype=torch.long), 0)
    assert torch.equal(coding.queue.clusters[:, 3:], second[:, 3:])


# The default way draws only prototypes pair by pair; the direct one first makes the three levels' instance masks.
PROTOTYPES_FROM = {True: 0, False: 3}


@pytest.mark.parametrize("shares_draws", [True, False])
@pytest.mark.parametrize("local_selection", [True, False])
def test_official_preset_is_the_released_codes_loss_and_gradient(shares_draws, local_selection, monkeypatch):
    drawn = record(monkeypatch, "keep_by_chance")
    z, key, index, _ = batch()
    local = [unit(6, D, seed=seed).requires_grad_() for seed in (4, 5)]
    z.requires_grad_()
    coding = make(preset="official", local_selection=local_selection)
    coding.shares_draws = shares_draws
    coded = coding(z, key, index, local, 1.0)
    coded.loss.backward()

    levels = [coding.level(number) for number in range(3)]
    clusters = [coding.tree.assignments[index, number].tolist() for number in range(3)]
    instances = [~mask.numpy() for mask in coded.left_out()]
    of_protos = [mask.numpy() for mask in drawn[PROTOTYPES_FROM[shares_draws] :]]
    assert len(of_protos) == 2 * 3, "two levels, for the query and each crop"
    assert not all((one == other).all() for one, other in zip(of_protos[2:4], of_protos[4:], strict=True))
    keep = [[*of_protos[first : first + 2], None] for first in (0, 2, 4)]
    prototypes = [p.double().numpy() for p, _, _ in levels]
    temperatures = [t.double().numpy() for _, t, _ in levels]
    highest = [int(coding.tree.assignments[:, number].max()) for number in range(3)]
    keys = key.double().numpy(), coding.queue.keys.double().numpy()
    of_crops = instances if local_selection else [np.ones_like(instances[0])]

    def released(queries, crops):
        instance = oracles.released_instance(queries, *keys, instances, 0.2)
        tree = prototypes, temperatures, clusters
        proto = oracles.released_prototype(queries, *tree, keep[0], highest)
        return instance + proto + oracles.released_local(crops, *keys, of_crops, 0.2, *tree, keep[1:], highest)

    queries, crops = z.detach().double().numpy(), [crop.detach().double().numpy() for crop in local]
    assert coded.loss.item() == pytest.approx(released(queries, crops), rel=1e-5)
    for b in range(2):
        for d in range(D):
            step = np.zeros_like(queries)
            step[b, d] = 1e-6
            slope = (released(queries + step, crops) - released(queries - step, crops)) / 2e-6
            assert z.grad[b, d].item() == pytest.approx(slope, abs=1e-5)
            slope = released(queries, [crops[0] + step, crops[1]]) - released(queries, [crops[0] - step, crops[1]])
            assert local[0].grad[b, d].item() == pytest.approx(slope / 2e-6, abs=1e-5)


def test_official_preset_has_the_direct_ways_expectations():
    """Losses, gradients and shares of the left-out: means of many draws, each with a queue that draws anew."""
    z, key, index, _ = batch()
    local, times = [unit(6, D, seed=4)], 1500
    means, errors = [], []
    for shares_draws in (True, False):
        coding = make(preset="official", temperature=0.1)
        coding.shares_draws = shares_draws
        rows = []
        for _ in range(times):
            coding._draw_in_queue(slice(None), coding.queue.keys)
            views = [view.clone().requires_grad_() for view in (z, *local)]
            coded = coding(views[0], key, index, views[1:], 1.0)
            coded.loss.backward()
            numbers = [coded.loss.detach(), *(coded.parts[f"left_out_{level}"] for level in range(3))]
            rows.append(torch.cat([torch.stack(numbers), *(view.grad[:, :3].flatten() for view in views)]))
        values = torch.stack(rows).double()
        means.append(values.mean(0))
        errors.append(values.std(0) / times**0.5)
    deviation = (means[0] - means[1]) / (errors[0] ** 2 + errors[1] ** 2).sqrt()
    assert deviation.abs().max() < 4


def uneven_images(tight):
    """Twenty corners: of half of them the images lie within `tight`, which gives these a temperature near 0."""
    corners = F.normalize(torch.cat([torch.eye(D), -torch.eye(D), unit(4, D, seed=1)]), dim=1)
    spread = torch.where(torch.arange(20) % 2 == 0, tight, 0.2)[:, None]
    return F.normalize((corners + spread * unit(6, 20, D, seed=2)).flatten(0, 1), dim=1)


@pytest.mark.parametrize("tight", [1e-5, 0.0])
def test_official_temperatures_have_their_floor_only_where_instances_are_selected(tight):
    flags = {"num_prototypes": [20, 5, 3], "clustered": False, "prototype_selection": False}
    official, ours = make(preset="official", **flags), make(**flags)
    for coding in (official, ours):
        coding.cluster(0, uneven_images(tight))
    assert ours.level(0).temperatures.min() == np.float32(MIN_TEMPERATURE)
    levels = [official.level(number) for number in range(3)]
    temperatures = levels[0].temperatures
    assert 0 < temperatures.min() < MIN_TEMPERATURE, "not 0, by which the released code divides: its loss is NaN there"

    scores = similarity(official.queue.keys, levels[0].prototypes, temperatures.clamp(min=MIN_TEMPERATURE))
    torch.testing.assert_close(official.queue.partitions[0], scores.logsumexp(dim=1))
    z, key, index, local = batch()
    z.requires_grad_()
    coded = official(z, key, index, local, 1.0)
    coded.loss.backward()
    found = sum(coded.parts[f"prototype_loss_{level}"].item() for level in range(3)) / 3
    columns = [[getattr(level, name).double().numpy() for level in levels] for name in ("prototypes", "temperatures")]
    clusters = official.tree.assignments[index].T.tolist()
    queries = z.detach().double().numpy()
    expected = oracles.released_prototype(queries, *columns, clusters, [None] * 3, official.tree.highest)
    assert found == pytest.approx(expected, rel=1e-5)
    assert z.grad.isfinite().all()


def record(monkeypatch, name):
    """What a function of the selection returned, call by call."""
    results = []
    original = getattr(coding_module, name)

    def recorded(*args):
        results.append(original(*args))
        return results[-1]

    monkeypatch.setattr(coding_module, name, recorded)
    return results


def test_small_crops_are_further_queries():
    z, key, index, _ = batch()
    local = [unit(6, D, seed=seed) for seed in (4, 5)]
    plain = {"clustered": False, "instance_selection": False, "prototype_selection": False}
    # A small crop's prototype is the one of the large crop, so compare the instance terms alone.
    alone = [make(**plain, prototype_loss=False)(view, key, index, [], 1.0).loss for view in (z, *local)]
    mean = make(**plain, prototype_loss=False)(z, key, index, local, 1.0).loss
    assert mean.item() == pytest.approx((alone[0] + (alone[1] + alone[2]) / 2).item(), rel=1e-5)
    total = make(**plain, prototype_loss=False, local_views="sum")(z, key, index, local, 1.0).loss
    assert total.item() == pytest.approx(sum(alone).item(), rel=1e-5)


def test_selection_for_small_crops_has_a_switch_for_instances_and_one_for_prototypes():
    z, key, index, _ = batch()
    local = [unit(6, D, seed=seed) for seed in (4, 5)]

    def loss(**flags):
        return make(**flags)(z, key, index, local, 1.0).loss.item()

    instances, prototypes = {"prototype_loss": False}, {"instance_loss": False, "instance_selection": False}
    assert loss(**instances, local_selection=False) != loss(**instances)
    assert loss(**instances, local_proto_selection="none") == loss(**instances)
    assert loss(**prototypes, local_selection=False) == loss(**prototypes)
    ways = [loss(**prototypes, local_proto_selection=way) for way in ("query", "crop", "none")]
    assert len(set(ways)) == 3


ABLATION = {  # the rows of the paper's table: hierarchy, instance loss, prototype loss, and the two selections
    "PCL": {"hierarchy": False, "instance_selection": False, "prototype_selection": False},
    "HP": {"instance_selection": False, "prototype_selection": False},
    "HP+PS": {"instance_selection": False},
    "HP+IS": {"prototype_selection": False},
    "full": {},
    "PL only": {"instance_loss": False, "instance_selection": False},
    "IL only": {"prototype_loss": False, "prototype_selection": False},
}


def test_every_row_of_the_ablation_has_a_loss_of_its_own():
    z, key, index, local = batch()
    losses = {name: make(**flags)(z, key, index, local, 1.0) for name, flags in ABLATION.items()}
    values = [round(coded.loss.item(), 6) for coded in losses.values()]
    assert len(set(values)) == len(values)
    assert losses["PL only"].parts.keys() == {f"prototype_loss_{level}" for level in range(3)}
    assert not any(name.startswith("prototype") for name in losses["IL only"].parts)
    assert "instance_loss_1" not in losses["PCL"].parts


def test_half_precision_queries_are_coded_in_float32():
    z, key, index, local = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coded = make(seed=1)(z.bfloat16(), key.bfloat16(), index, local, 1.0)
    assert coded.loss.dtype == torch.float32


def test_collapsed_prototypes_still_train():
    coding = make()
    for level in range(3):
        coding.tree.get_buffer(f"prototypes_{level}")[:] = unit(1, D)
    z, key, index, local = batch()
    z.requires_grad_()
    loss = coding(z, key, index, local, 1.0).loss
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


# ---- the queue ----


def test_queue_takes_any_batch_wraps_around_and_keeps_the_newest():
    coding = make(queue_size=10)
    written = unit(23, D, seed=3)
    for step, part in enumerate(written.split([7, 7, 1, 8])):
        coding.enqueue(part, torch.full((len(part),), step), step)
    assert int(coding.queue.pointer) == 23 % 10
    expected = {tuple(row.tolist()) for row in written[-10:]}
    assert {tuple(row.tolist()) for row in coding.queue.keys} == expected
    assert sorted(coding.queue.labels.tolist()) == [1, 2, *[3] * 8]
    assert coding.queue.age(4).item() == pytest.approx((8 * 1 + 1 * 2 + 1 * 3) / 10)


def test_a_batch_larger_than_the_queue_leaves_its_last_keys():
    coding = make(queue_size=4)
    keys = unit(11, D, seed=3)
    coding.enqueue(keys, torch.arange(11), 0)
    assert sorted(coding.queue.labels.tolist()) == [7, 8, 9, 10]
    assert int(coding.queue.pointer) == 11 % 4
    coding.enqueue(keys[:1], torch.tensor([99]), 1)
    assert sorted(coding.queue.labels.tolist()) == [8, 9, 10, 99]


def test_averages_of_an_images_keys_are_clustered():
    coding = make()
    assert len(coding.memory.remembered()[0]) == 0
    first, second = unit(10, D, seed=3), unit(10, D, seed=4)
    index = torch.randperm(N, generator=torch.Generator().manual_seed(0))[:10]
    coding.memory.remember(first, index)
    embeddings, images = coding.memory.remembered()
    assert images.tolist() == sorted(index.tolist())
    torch.testing.assert_close(embeddings, first[index.argsort()])
    coding.memory.remember(second, index)
    expected = F.normalize(first / 4 + second / 2, dim=1)
    torch.testing.assert_close(coding.memory.remembered()[0], expected[index.argsort()])
    for _ in range(20):
        coding.memory.remember(second.repeat(5, 1), index.repeat(5))
    (
        torch.testing.assert_close(coding.memory.remembered()[0], second[index.argsort()]),
        "an image may come more than once",
    )
    assert len(make(clustered_features="images").memory.averages) == 0, "nothing is kept where nothing needs it"


@pytest.mark.parametrize("sample", [25, 1, N - 1, N])
def test_sample_keeps_averages_of_images_at_equal_distances(sample):
    coding = make(num_prototypes=[1], min_cluster_size=1, cluster_sample=sample, clustered=False)
    written = unit(N, D, seed=3)
    for part in torch.randperm(N, generator=torch.Generator().manual_seed(0)).split(32):
        coding.memory.remember(written[part], part)
    embeddings, images = coding.memory.remembered()
    assert len(images) == sample
    assert (sample == N) == (coding.memory.averages[-1] == 0).all(), "images without a row share the last"
    assert images[0] == 0
    assert set(images.diff().tolist()) <= {N // sample, -(-N // sample)}
    torch.testing.assert_close(embeddings, written[images])


def test_image_that_was_not_clustered_has_the_nearest_cluster():
    coding = make(query_cluster="assignment")
    tree, images = build_hierarchy(unit(50, D, seed=7), coding.options), torch.arange(0, 100, 2)
    coding.install(tree.over(images, N), 1)
    z = unit(100, D, seed=5)
    nearest = (z @ coding.level(0)[0].T).argmax(dim=1)
    for level, found in enumerate(coding.find_clusters(coding.cosines(z), torch.arange(100))):
        assert torch.equal(found[::2], tree.assignments[:, level])
        assert torch.equal(found[1::2], nearest[1::2])
        nearest = coding.level(level)[2][nearest]


class NoGenerator:
    """A random generator needs a real device."""

    def on(self, device):
        return None

    def of_process(self, device, processes):
        return None


@pytest.mark.parametrize("preset", ["recommended", "paper", "official"])
def test_steps_after_the_first_wait_for_nothing_on_a_gpu(preset):
    """A pretended GPU has shapes but no values: what a real one would have to be waited for raises."""
    keys = {"clustered_features": "keys", "clustered_encoder": "momentum"}
    coding = make(clustered=False, preset=preset, **keys)
    coding.numbers = NoGenerator()
    coding.step([unit(6, D)], [unit(6, D)], torch.arange(6), epoch=0, step=0, local=[unit(6, D)])
    coding.install(build_hierarchy(unit(N, D, seed=7), coding.options), epoch=0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        coding.to("cuda")
        z, key = torch.empty(6, D, device="cuda", requires_grad=True), torch.empty(6, D, device="cuda")
        index = torch.zeros(6, dtype=torch.long, device="cuda")
        same_image = coding.enqueue(key, index, 3)[:, None]
        coded = coding(z, key, index, [z], 1.0, same_image)  # with its gradient; the backward pass only scales it
        coding.memory.remember(key, index)
        assert coding.queue.age(4).shape == ()
        selection_quality(coded.left_out()[0], index, coding.queue.labels, same_image)
        coded = coding.step([z], [key], index, epoch=0, step=4, labels=index, local=[z])
        assert coded.queue_age(5).shape == ()
        for waits in (coded.loss.item, coding.queue.labels.nonzero):  # what this test relies on
            with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
                waits()


def test_quality_of_selection_by_hand():
    left_out = torch.tensor([[True, True, False, False, False], [False, True, False, True, False]])
    labels, queue_labels, same_image = torch.tensor([0, 1]), torch.tensor([0, 1, 0, -1, 1]), torch.tensor([[4], [4]])
    quality = selection_quality(left_out, labels, queue_labels, same_image)
    assert quality.precision.item() == pytest.approx(2 / 3)  # entry 0 for query 0, entry 1 for query 1; not entry 3
    assert quality.recall.item() == pytest.approx(2 / 3)
    assert quality.preservation.item() == pytest.approx(2 / 3)  # entries 0 and 2 for query 1, but not 1 for 0


def test_quality_of_selection_by_loops():
    generator = torch.Generator().manual_seed(0)
    same_image = torch.arange(12).view(6, 2)
    left_out = (torch.rand(6, 40, generator=generator) < 0.3).scatter(1, same_image, False)
    labels, queue_labels = torch.arange(6) % 3, torch.randint(-1, 3, (40,), generator=generator)
    arrays = (x.numpy() for x in (left_out, labels, queue_labels, same_image))
    quality = selection_quality(left_out, labels, queue_labels, same_image)
    assert [value.item() for value in quality] == pytest.approx(oracles.negative_selection(*arrays))


# ---- state ----


@pytest.mark.parametrize("preset", ["recommended", "official"])
def test_state_loads_strictly_with_another_number_of_clusters_and_goes_on_the_same(preset):
    coding = make(preset=preset)
    other = make(preset=preset, seed=9)
    other.install(build_hierarchy(unit(N, D, seed=3), replace(other.options, min_cluster_size=15)), epoch=5)
    assert other.kept != coding.kept
    z, key, index, local = batch()
    coding(z, key, index, local, 1.0)
    coding.enqueue(key, index, 5)
    other.load_state_dict(coding.state_dict(), strict=True)
    assert other.kept == coding.kept
    assert other.clustered_epoch == 0
    for _ in range(3):  # the random generator goes on as well
        assert torch.equal(coding(z, key, index, local, 1.0).loss, other(z, key, index, local, 1.0).loss)


def test_state_is_safe_to_load(tmp_path):
    coding = make(preset="official")
    coding(*batch(), 1.0)
    torch.save(coding.state_dict(), tmp_path / "state.pt")
    make(preset="official", clustered=False).load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


@pytest.mark.parametrize("query_cluster", ["assignment", "cosine"])
def test_tree_in_use_is_the_built_one_and_survives_a_strict_load(query_cluster, tmp_path):
    coding = make(clustered=False, query_cluster=query_cluster)
    fresh = make(clustered=False, query_cluster=query_cluster)
    assert coding.hierarchy is None
    fresh.load_state_dict(coding.state_dict(), strict=True)  # before the first clustering
    assert fresh.hierarchy is None
    built = coding.cluster(0, unit(N, D, seed=7))
    torch.save(coding.state_dict(), tmp_path / "state.pt")
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), strict=True)
    for tree in (coding.hierarchy, fresh.hierarchy):
        for found, expected in zip(tree.levels, built.levels, strict=True):
            for name in ("prototypes", "temperatures", "parents", "sizes", "dropped", "objective"):
                ours, theirs = getattr(found, name), getattr(expected, name)
                assert torch.equal(ours, theirs) if torch.is_tensor(ours) else ours == theirs
            assert found.seconds == 0, "checkpoints of equal runs are equal to the bit"
        if query_cluster == "assignment":
            assert torch.equal(tree.assignments, built.assignments)
        else:
            assert tree.assignments is None
        assert torch.equal(tree.assign(unit(9, D)), built.assign(unit(9, D)))
    coding.hierarchy.levels[0].prototypes.zero_()
    assert coding.level(0).prototypes.any(), "a copy"


def test_tree_that_does_not_fit_is_refused():
    tree = build_hierarchy(unit(N, D), Options(num_prototypes=[12, 5, 3], min_cluster_size=1))
    with pytest.raises(ValueError, match="a tree of 12 5 3 prototypes does not fit `num_prototypes` 10 5 3"):
        make().install(tree, 0)


def test_tree_without_its_images_clusters_gives_them_the_nearest():
    coding, z = make(preset="official"), unit(20, D, seed=5)
    tree = replace(build_hierarchy(unit(N, D, seed=7), coding.options), assignments=None)
    coding.install(tree, 1)
    clusters = coding.find_clusters(coding.cosines(z), torch.arange(20))
    assert torch.equal(torch.stack(clusters, dim=1), tree.assign(z))
    assert coding(z, z, torch.arange(20), [], 1.0).loss.isfinite()


# ---- what is not finite ----


@pytest.mark.parametrize("preset", ["recommended", "paper", "official"])
@pytest.mark.parametrize("shares_draws", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_is_nan_where_an_input_is_not_finite_and_says_which(preset, shares_draws, value):
    """In the direct way of preset `official` such an entry of the queue is always left out, with the logit 0."""
    z, key, index, _ = batch()
    coding = make(preset=preset)
    coding.shares_draws = shares_draws
    finite = coding.step([z], [key], index, epoch=0, step=0)
    assert finite.loss.isfinite()
    assert all(total.isfinite() for total in finite.inputs.values())
    coding.queue.keys[20, 3] = value
    coded = coding.step([z], [key], index, epoch=0, step=1)
    assert coded.loss.isnan()
    assert [name for name, total in coded.inputs.items() if not total.isfinite()] == ["queue"]


def test_second_pairs_keys_are_among_the_inputs():
    coding, (z, key, index, _) = make(symmetric=True, batch_negatives=False), batch()
    coded = coding.step([z, z], [key, key * float("nan")], index, epoch=0, step=0)
    assert [name for name, total in coded.inputs.items() if not total.isfinite()] == ["keys"]


# ---- clustering and whole steps ----


def test_tree_is_due_once_in_the_epochs_asked_for():
    coding = make(clustered=False, proto_warmup_epochs=2, recluster_every=2)
    due = []
    for epoch in range(6):
        due.append(coding.due(epoch))
        if coding.due(epoch):
            coding.cluster(epoch, unit(N, D, seed=epoch))
            assert not coding.due(epoch), "as after a resume within the epoch"
    assert due == [False, False, True, False, True, False]
    assert not make(clustered=False, instance_selection=False, prototype_loss=False).due(0)


def test_clustering_of_remembered_keys():
    coding = make(clustered=False)
    assert not coding.has_enough_keys
    with pytest.raises(ValueError, match="fewer than 20 images have keys to cluster; give `embeddings`"):
        coding.cluster(0)
    keys, index = unit(25, D, seed=3), torch.arange(0, 100, 4)
    coding.memory.remember(keys, index)
    assert coding.has_enough_keys
    tree = coding.cluster(4)
    expected = build_hierarchy(coding.memory.remembered()[0], coding.options, seed=4)
    assert torch.equal(tree.assignments[index], expected.assignments)
    assert (tree.assignments >= 0).sum() == 3 * 25
    assert torch.equal(coding.tree.assignments, tree.assignments)
    assert coding.clustered_epoch == 4


def test_clustering_of_given_embeddings():
    coding, images = make(clustered=False, seed=2), torch.arange(1, N, 2)
    with pytest.raises(ValueError, match="60 embeddings for 120 images; say of which with `images`"):
        coding.cluster(3, unit(60, D))
    tree = coding.cluster(3, unit(60, D), images)
    expected = build_hierarchy(unit(60, D), coding.options, seed=2003)
    assert torch.equal(tree.levels[0].prototypes, expected.levels[0].prototypes)
    assert torch.equal(tree.assignments[images], expected.assignments)
    for level in range(3):
        for number in range(len(tree.levels[level].prototypes)):
            assert set(tree.members(level, number).tolist()) <= set(images.tolist())


def views(count, seed):
    return [unit(6, D, seed=seed + number).requires_grad_() for number in range(count)]


@pytest.mark.parametrize("preset", ["recommended", "paper", "official"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_step_is_the_loss_of_each_pair_with_keys_in_or_after(preset, symmetric):
    """Against the parts put together by hand, with the same random numbers."""
    pairs, index, labels = 2 if symmetric else 1, torch.arange(0, 60, 10), torch.arange(6)
    codings = [make(preset=preset, symmetric=symmetric, proto_ramp_epochs=1, proto_weight=1.0) for _ in range(2)]
    for coding in codings:
        coding.enqueue(unit(9, D, seed=50), torch.full((9,), 3), 0)
    before = codings[0].queue.labels.clone()
    inputs = [(views(pairs, 1), views(pairs, 5), views(2, 9)) for _ in codings]

    coding, (queries, keys, local) = codings[0], inputs[0]
    coded = coding.step(queries, keys, index, epoch=0, step=7, labels=labels, local=local)
    coded.loss.backward()

    other, (z, k, small) = codings[1], inputs[1]
    same_image = None
    if preset == "recommended":
        same_image = torch.stack([other.enqueue(key.detach(), labels, 7) for key in k], dim=1)
        before = other.queue.labels.clone()
    expected = [other(a, b.detach(), index, small, 0.5, same_image) for a, b in zip(z, k, strict=True)]
    left_out, age = expected[0].left_out(), other.queue.age(7)
    if preset != "recommended":
        for key in k:
            other.enqueue(key.detach(), labels, 7)
    other.memory.remember(torch.stack([key.detach() for key in k]).mean(dim=0), index)
    loss = sum(one.loss for one in expected) / pairs
    loss.backward()

    assert torch.equal(coded.loss, loss)
    for ours, theirs in zip([*queries, *local], [*z, *small], strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert all(key.grad is None for key in keys), "keys are targets"
    assert coded.parts.keys() == expected[0].parts.keys()
    assert all(torch.equal(coded.parts[name], expected[0].parts[name]) for name in coded.parts)
    # What is logged is of the queue that the loss saw, though keys may have come in since.
    assert all(torch.equal(*masks) for masks in zip(coded.left_out(), left_out, strict=True))
    assert torch.equal(coded.queue_labels, before)
    assert torch.equal(coded.queue_age(7), age)
    assert coded.same_image.shape == (6, pairs if preset == "recommended" else 0)
    for (name, ours), theirs in zip(coding.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(ours, theirs), name
    assert (coding.queue.steps == 7).sum() == 6 * pairs


def test_step_without_labels_keeps_none():
    coding = make()
    coding.step([unit(6, D)], [unit(6, D)], torch.arange(6), epoch=0, step=0)
    assert (coding.queue.labels == -1).all()


def test_step_refuses_more_keys_than_the_queue_takes():
    with pytest.raises(ArgumentError, match="`queue_size` 4: smaller than the 6 keys of a batch"):
        make(queue_size=4).step([unit(6, D)], [unit(6, D)], torch.arange(6), epoch=0, step=0)


@pytest.mark.parametrize("argument", ["queries", "keys", "local"])
@pytest.mark.parametrize("factor", [30, 0.9, 1e30])
def test_first_step_refuses_vectors_that_are_not_at_unit_length(argument, factor):
    given = {"queries": [unit(6, D)], "keys": [unit(6, D, seed=1)], "local": [unit(6, D, seed=2)]}
    given[argument] = [given[argument][0] * torch.linspace(1, factor, 6)[:, None]]
    coding = make()
    before = coding.queue.keys.clone()
    with pytest.raises(ArgumentError, match=f"`{argument}` has rows of length .* F.normalize\\({argument}, dim=1\\)"):
        coding.step(index=torch.arange(6), epoch=0, step=0, **given)
    assert torch.equal(coding.queue.keys, before), "nothing has come in"


def test_length_is_looked_at_once(monkeypatch):
    looks = []
    monkeypatch.setattr(coding_module, "check_unit_vectors", lambda vectors, argument, *_: looks.append(argument))
    coding = make()
    for step in range(3):
        coding.step([unit(6, D)], [unit(6, D)], torch.arange(6), epoch=0, step=step)
    assert looks == ["queries", "keys", "local"]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_unit_vectors_of_any_precision_pass_and_so_do_zeros(kind):
    """Normalised in that precision, which is less exact than rounding a unit vector."""
    for seed in range(20):
        z = F.normalize((5 * unit(200, D, seed=seed)).to(kind), dim=1)
        z[0] = 0  # of an image without a feature
        coding_module.check_unit_vectors([z], "queries", D, 200)


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (unit(6, D), "`queries` is Tensor: give a list of tensors"),
        ([unit(6, D)[0]], r"`queries` has shape \(8,\): give a list of tensors \(6, 8\)"),
        ([unit(6, D + 1)], r"`queries` has shape \(6, 9\)"),
        ([unit(6, D).numpy()], "`queries` is list: give a list of tensors"),
    ],
)
def test_queries_of_another_shape_are_named(queries, message):
    with pytest.raises(ArgumentError, match=message):
        make().step(queries, [unit(6, D)], torch.arange(6), epoch=0, step=0)


OFFICIAL = {"preset": "official", "queue_size": 256, "num_prototypes": [40, 20, 10]}


def two_ranks(codings, first=0, steps=3):
    """What each of two processes gets from the same queries and keys: only draws can differ."""
    vectors, index, coded = unit(16, D, seed=1), torch.arange(16), [[], []]
    for step in range(first, first + steps):
        for rank, coding in enumerate(codings):
            processes = Processes(rank, 2, lambda values: torch.cat([values, values]))
            coded[rank].append(coding.step([vectors], [vectors], index, epoch=0, step=step, processes=processes))
    return coded


def test_processes_draw_different_numbers_for_their_queries():
    """Preset `official` draws for every query: pairs that are rarely left out (Eq. 4's clamp), prototypes (Eq. 8)."""
    codings = [make(**OFFICIAL) for _ in range(2)]
    ours, theirs = two_ranks(codings)
    for one, other in zip(ours, theirs, strict=True):
        assert not torch.equal(torch.stack(one.left_out()), torch.stack(other.left_out()))
        for level in range(2):  # the top level leaves no prototype out
            assert one.parts[f"prototype_loss_{level}"] != other.parts[f"prototype_loss_{level}"]
    for (name, buffer), same in zip(codings[0].named_buffers(), codings[1].buffers(), strict=True):
        assert torch.equal(buffer, same), name


def test_streams_of_processes_and_steps_have_nothing_in_common():
    numbers = [SeededNumbers(0) for _ in range(3)]
    streams = [
        torch.rand(10_000, generator=one.of_process(torch.device("cpu"), Processes(rank, 3)))
        for rank, one in enumerate(numbers)
        for _ in range(3)
    ]
    correlations = torch.corrcoef(torch.stack(streams)) - torch.eye(9)
    assert correlations.abs().max() < 0.05  # five standard errors


@pytest.mark.parametrize("temperature", [0.2, 0.01])  # by shared draws, and pair by pair
def test_first_processes_checkpoint_is_enough_to_go_on_in_all(temperature):
    flags = OFFICIAL | {"temperature": temperature}
    whole = [make(**flags) for _ in range(2)]
    two_ranks(whole, steps=2)
    saved = whole[0].state_dict()
    resumed = [make(clustered=False, **flags) for _ in range(2)]
    for coding in resumed:
        coding.load_state_dict(saved)
    expected, found = two_ranks(whole, first=2), two_ranks(resumed, first=2)
    for rank in range(2):
        for one, other in zip(expected[rank], found[rank], strict=True):
            assert torch.equal(one.loss, other.loss)
            assert all(torch.equal(*masks) for masks in zip(one.left_out(), other.left_out(), strict=True))


def test_checkpoints_from_before_processes_had_their_own_numbers_load():
    coding, other = make(**OFFICIAL), make(**OFFICIAL)
    state = coding.state_dict()
    del state["_extra_state"]["own_streams"]
    other.load_state_dict(state)
    assert other.numbers.own_streams == 0


def test_one_process_draws_everything_from_one_stream():
    numbers = make().numbers
    cpu = torch.device("cpu")
    assert numbers.of_process(cpu, Processes()) is numbers.on(cpu)
    assert numbers.own_streams == 0


def test_prototypes_draws_for_all_queries_are_the_same_in_all_processes():
    """In `recommended` a step draws once for the whole batch, over however many processes it is spread."""
    flags = {"queue_size": 256, "num_prototypes": [40, 20, 10]}
    ours, theirs = two_ranks([make(**flags) for _ in range(2)])
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(one.parts[name], other.parts[name]) for name in one.parts if "prototype" in name)
        assert "prototype_loss_0" in one.parts


def test_processes_of_preset_official_keep_the_same():
    """Their queries differ, and the pairs that are left out for them, but not what the queue's entries draw."""
    codings = [make(preset="official") for _ in range(2)]
    keys = unit(6, D, seed=2)
    for step in range(3):
        for rank, coding in enumerate(codings):
            processes = Processes(rank, 2, lambda values: torch.cat([values, values]))
            queries, index = unit(6, D, seed=step)[rank::2], torch.arange(6)[rank::2]
            coding.step([queries], [keys[:3]], index, epoch=0, step=step, processes=processes)
    for (name, ours), theirs in zip(codings[0].named_buffers(), codings[1].buffers(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("preset", ["recommended", "paper"])
def test_two_processes_keep_what_one_with_the_whole_batch_keeps(preset):
    queries, keys, index, labels = unit(6, D, seed=1), unit(6, D, seed=2), torch.arange(6) * 7, torch.arange(6)
    whole = make(preset=preset)
    alone = whole.step([queries], [keys], index, epoch=0, step=0, labels=labels)
    shares = []
    for rank in range(2):
        coding = make(preset=preset)
        rows = iter([keys, labels, index])  # in the order in which they are asked for

        def gather(values, rank=rank, rows=rows):
            """One process after the other, as torch.distributed gives them."""
            of_all = next(rows)
            assert torch.equal(of_all[rank::2], values)
            return torch.cat([of_all[0::2], of_all[1::2]])

        part = slice(rank, None, 2)
        processes = Processes(rank, 2, gather)
        coded = coding.step(
            [queries[part]], [keys[part]], index[part], epoch=0, step=0, labels=labels[part], processes=processes
        )
        shares.append(coded)
        for (name, ours), theirs in zip(coding.named_buffers(), whole.buffers(), strict=True):
            assert torch.equal(ours, theirs), name
    assert torch.equal(torch.stack([one.same_image for one in shares], dim=1).flatten(0, 1), alone.same_image)
    instance = [torch.stack([one.parts[f"instance_loss_{level}"] for one in shares]).mean() for level in range(3)]
    torch.testing.assert_close(instance, [alone.parts[f"instance_loss_{level}"] for level in range(3)])


def test_what_processes_share_is_all_but_the_averages_of_keys():
    coding = make()
    shared = {id(buffer) for buffer in coding.shared_buffers()}
    assert [name for name, buffer in coding.named_buffers() if id(buffer) not in shared] == ["memory.averages"]
    assert coding.bytes_of_images == (N + 1) * D * 4 + 3 * N * 8
