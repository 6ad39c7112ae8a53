"""The queue, the tree and the loss of a batch together; presets, ablations and state."""

from dataclasses import fields, replace

import numpy as np
import oracles
import pytest
import torch
import torch.nn.functional as F
from solo.losses.moco import moco_loss_func
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from solo_hcsc.hcsc import coding as coding_module
from solo_hcsc.hcsc.coding import SelectiveCoding, precision_and_recall
from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.flags import Parser
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.options import PRESETS, Options, add_option_flags, as_dict, check_schedule, resolve_options
from solo_hcsc.hcsc.selection import instance_keep_probability, prototype_keep_probability

D, N = 8, 120


def unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def make(clustered=True, seed=0, **flags):
    base = {"num_prototypes": [10, 5, 3], "queue_size": 24, "min_cluster_size": 2, "proto_warmup_epochs": 0}
    options = resolve_options(base | flags)
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
    expected = moco_loss_func(z, key, coding.queue.T, coding.options.temperature)
    assert coding(z, key, index, local, 1.0).loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_before_the_first_clustering_it_is_mocos_info_nce_too():
    z, key, index, local = batch()
    coding = make(clustered=False, preset="official")
    expected = moco_loss_func(z, key, coding.queue.T, coding.options.temperature)
    assert coding(z, key, index, local, 1.0).loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_one_level_without_selection_is_pcls_pair_of_terms():
    z, key, index, local = batch()
    coding = make(num_prototypes=[10], instance_selection=False, prototype_selection=False)
    prototypes, temperatures, _ = coding.level(0)
    clusters = coding.assignments[0, index]
    proto = F.cross_entropy(z @ prototypes.T / temperatures, clusters)
    expected = moco_loss_func(z, key, coding.queue.T, 0.2) + proto
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
        clusters = list(coding.assignments[:, index])
    arrays = [x.double().numpy() for x in (z, key, coding.queue)]
    instance = oracles.eq6(*arrays, [~mask.numpy() for mask in coded.left_out()], 0.2)
    prototypes = [p.double().numpy() for p, _, _ in levels]
    temperatures = [t.double().numpy() for _, t, _ in levels]
    keep = [(drawn[n] != levels[n][2][clusters[n]][:, None]).numpy() for n in range(2)]
    proto = oracles.eq9(arrays[0], prototypes, temperatures, [c.tolist() for c in clusters], [*keep, None])
    assert coded.loss.item() == pytest.approx(instance + proto, rel=1e-5)
    for level in range(3):
        assert coded.parts[f"left_out_{level}"] == pytest.approx(coded.left_out()[level].float().mean().item())


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("shares_draws", [True, False])
def test_keys_of_the_querys_own_image_are_no_negatives(shares_draws, clustered):
    coding = make(clustered=clustered, prototype_loss=False)
    coding.shares_draws = shares_draws
    index, keys = torch.arange(6), [unit(6, D, seed=2), unit(6, D, seed=3)]
    own = torch.stack([coding.enqueue(key, index, 0) for key in keys], dim=1)
    z = unit(6, D, seed=1).requires_grad_()
    coded = coding(z, keys[0], index, [], 1.0, own)
    left_out = coded.left_out() if clustered else [torch.zeros(6, 24, dtype=torch.bool)]
    expected = []
    for level, out in enumerate(left_out):
        assert not out.gather(1, own).any()
        for query, of_query in enumerate(out):
            others = [place for place in range(24) if place not in own[query] and not of_query[place]]
            against = torch.cat([keys[0][query : query + 1], coding.queue[others]])
            expected.append(F.cross_entropy(z[query : query + 1] @ against.T / 0.2, torch.tensor([0])))
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
    keep = instance_keep_probability(coding.queue, prototypes, temperatures, clusters).double()
    times = 20_000
    drawn = coding.draw_clusters(coding.queue.repeat(times, 1))[number].view(times, -1)
    left_out = (drawn[:, None, :] == clusters[:, None]).double()  # (times, M, Q)
    error = (keep * (1 - keep) / times).sqrt()
    assert ((left_out.mean(0) - (1 - keep)).abs() <= 4 * error + 1 / times).all()
    query = left_out[:, 0] - left_out[:, 0].mean(0)
    correlation = query.T @ query / times
    scale = correlation.diagonal().sqrt().clamp(min=1e-6)
    assert (correlation / scale / scale[:, None] - torch.eye(len(scale))).abs().max() < 5 / times**0.5


def test_parents_are_drawn_with_eq_7s_frequencies(monkeypatch):
    coding = make()
    prototypes, _, parents = coding.level(0)
    upper, upper_temperatures, _ = coding.level(1)
    clusters = torch.tensor([0, 4])
    keep = prototype_keep_probability(prototypes, upper, upper_temperatures, parents, clusters).double()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([~coding._prototype_mask(clusters, 0, generator) for _ in range(20_000)]).double()
    error = (keep * (1 - keep) / len(drawn)).sqrt()
    assert ((drawn.mean(0) - (1 - keep)).abs() <= 4 * error + 1 / len(drawn)).all()


def test_a_new_tree_redraws_the_queues_clusters_and_a_new_key_draws_its_own():
    coding = make()
    first = coding.queue_clusters.clone()
    assert (first >= 0).all()
    assert (first.amax(1) < torch.tensor(coding.kept)).all()
    coding.install(build_hierarchy(unit(N, D, seed=8), coding.options), epoch=1)
    second = coding.queue_clusters.clone()
    assert not torch.equal(first, second)
    coding.enqueue(unit(3, D, seed=3), torch.zeros(3, dtype=torch.long), 0)
    assert torch.equal(coding.queue_clusters[:, 3:], second[:, 3:])


def test_official_preset_is_the_released_codes_loss_and_gradient(monkeypatch):
    drawn = record(monkeypatch, "draw")
    z, key, index, local = batch()
    z.requires_grad_()
    coding = make(preset="official")
    loss = coding(z, key, index, local, 1.0).loss
    loss.backward()

    levels = [coding.level(number) for number in range(3)]
    clusters = [coding.assignments[number, index].tolist() for number in range(3)]
    masks = [mask.numpy() for mask in drawn]
    prototypes = [p.double().numpy() for p, _, _ in levels]
    temperatures = [t.double().numpy() for _, t, _ in levels]
    highest = [int(coding.assignments[number].max()) for number in range(3)]

    def released(queries):
        instance = oracles.released_instance(
            queries, key.double().numpy(), coding.queue.double().numpy(), masks[:3], 0.2
        )
        keep = [masks[3], masks[4], None]
        return instance + oracles.released_prototype(queries, prototypes, temperatures, clusters, keep, highest)

    queries = z.detach().double().numpy()
    assert loss.item() == pytest.approx(released(queries), rel=1e-5)
    for b in range(2):
        for d in range(D):
            step = np.zeros_like(queries)
            step[b, d] = 1e-6
            slope = (released(queries + step) - released(queries - step)) / 2e-6
            assert z.grad[b, d].item() == pytest.approx(slope, abs=1e-5)


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
    own = [make(**plain, prototype_loss=False)(view, key, index, [], 1.0).loss for view in (z, *local)]
    mean = make(**plain, prototype_loss=False)(z, key, index, local, 1.0).loss
    assert mean.item() == pytest.approx((own[0] + (own[1] + own[2]) / 2).item(), rel=1e-5)
    total = make(**plain, prototype_loss=False, local_views="sum")(z, key, index, local, 1.0).loss
    assert total.item() == pytest.approx(sum(own).item(), rel=1e-5)
    for other in ({"prototype_loss": False}, {"instance_loss": False, "instance_selection": False}):
        losses = [make(local_selection=flag, **other)(z, key, index, local, 1.0).loss for flag in (True, False)]
        assert losses[0] != losses[1]


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
        coding.get_buffer(f"prototypes_{level}")[:] = unit(1, D)
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
    assert int(coding.queue_ptr) == 23 % 10
    expected = {tuple(row.tolist()) for row in written[-10:]}
    assert {tuple(row.tolist()) for row in coding.queue} == expected
    assert sorted(coding.queue_labels.tolist()) == [1, 2, *[3] * 8]
    assert coding.queue_age(4).item() == pytest.approx((8 * 1 + 1 * 2 + 1 * 3) / 10)


def test_a_batch_larger_than_the_queue_leaves_its_last_keys():
    coding = make(queue_size=4)
    keys = unit(11, D, seed=3)
    coding.enqueue(keys, torch.arange(11), 0)
    assert sorted(coding.queue_labels.tolist()) == [7, 8, 9, 10]
    assert int(coding.queue_ptr) == 11 % 4
    coding.enqueue(keys[:1], torch.tensor([99]), 1)
    assert sorted(coding.queue_labels.tolist()) == [8, 9, 10, 99]


def test_averages_of_an_images_keys_are_clustered():
    coding = make()
    assert len(coding.remembered()[0]) == 0
    first, second = unit(10, D, seed=3), unit(10, D, seed=4)
    index = torch.randperm(N, generator=torch.Generator().manual_seed(0))[:10]
    coding.remember(first, index)
    embeddings, images = coding.remembered()
    assert images.tolist() == sorted(index.tolist())
    torch.testing.assert_close(embeddings, first[index.argsort()])
    coding.remember(second, index)
    expected = F.normalize(first / 4 + second / 2, dim=1)
    torch.testing.assert_close(coding.remembered()[0], expected[index.argsort()])
    for _ in range(20):
        coding.remember(second.repeat(5, 1), index.repeat(5))
    torch.testing.assert_close(coding.remembered()[0], second[index.argsort()]), "an image may come more than once"
    assert len(make(clustered_features="images").keys) == 0, "nothing is kept where nothing needs it"


@pytest.mark.parametrize("sample", [25, 1, N - 1, N])
def test_sample_keeps_averages_of_images_at_equal_distances(sample):
    coding = make(num_prototypes=[1], min_cluster_size=1, cluster_sample=sample, clustered=False)
    written = unit(N, D, seed=3)
    for part in torch.randperm(N, generator=torch.Generator().manual_seed(0)).split(32):
        coding.remember(written[part], part)
    embeddings, images = coding.remembered()
    assert len(images) == sample
    assert (sample == N) == (coding.keys[-1] == 0).all(), "images without a row share the last"
    assert images[0] == 0
    assert set(images.diff().tolist()) <= {N // sample, -(-N // sample)}
    torch.testing.assert_close(embeddings, written[images])


def test_image_that_was_not_clustered_has_the_nearest_cluster():
    coding = make(query_cluster="assignment")
    tree, images = build_hierarchy(unit(50, D, seed=7), coding.options), torch.arange(0, 100, 2)
    coding.install(tree, 1, images)
    z = unit(100, D, seed=5)
    nearest = (z @ coding.level(0)[0].T).argmax(dim=1)
    for level, found in enumerate(coding.find_clusters(coding._cosines(z), torch.arange(100))):
        assert torch.equal(found[::2], tree.assignments[level])
        assert torch.equal(found[1::2], nearest[1::2])
        nearest = coding.level(level)[2][nearest]


class NoGenerator(SelectiveCoding):
    """A random generator needs a real device."""

    def generator(self, device):
        return None


@pytest.mark.parametrize("preset", ["recommended", "paper"])
def test_step_on_a_gpu_waits_for_nothing(preset):
    """A pretended GPU has shapes but no values: what a real one would have to be waited for raises."""
    keys = {"clustered_features": "keys", "clustered_encoder": "momentum"}
    coding = make(preset=preset, **keys)
    coding.__class__ = NoGenerator
    with FakeTensorMode(allow_non_fake_inputs=True):
        coding.to("cuda")
        z, key = torch.empty(6, D, device="cuda", requires_grad=True), torch.empty(6, D, device="cuda")
        index = torch.zeros(6, dtype=torch.long, device="cuda")
        own = coding.enqueue(key, index, 3)[:, None]
        coded = coding(z, key, index, [z], 1.0, own)  # with its gradient; the backward pass only scales it
        coding.remember(key, index)
        assert coding.queue_age(4).shape == ()
        precision_and_recall(coded.left_out()[0], index, coding.queue_labels, own)
        for waits in (coded.loss.item, coding.queue_labels.nonzero):  # what this test relies on
            with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
                waits()


def test_precision_and_recall_of_left_out_negatives():
    left_out = torch.tensor([[True, True, False, False, False], [False, True, False, True, False]])
    labels, queue_labels, own = torch.tensor([0, 1]), torch.tensor([0, 1, 0, -1, 1]), torch.tensor([[4], [4]])
    precision, recall = precision_and_recall(left_out, labels, queue_labels, own)
    assert precision.item() == pytest.approx(2 / 4)  # queue entry 0 for query 0, entry 1 for query 1
    assert recall.item() == pytest.approx(2 / 3)


# ---- state ----


def test_state_loads_strictly_with_another_number_of_clusters_and_goes_on_the_same():
    coding = make()
    other = make(seed=9)
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


# ---- options ----


def test_presets_differ_as_documented():
    paper, official, recommended = (resolve_options({"preset": name}) for name in PRESETS)
    assert (paper.left_out, official.left_out, recommended.left_out) == ("removed", "zero_logit", "removed")
    assert (paper.query_cluster, official.query_cluster) == ("similarity", "assignment")
    assert recommended.query_cluster == "assignment"
    assert (paper.batch_negatives, official.batch_negatives, recommended.batch_negatives) == (False, False, True)
    assert (paper.icsc_levels, official.icsc_levels) == ("mean", "sum")
    assert (paper.temperature_members, official.temperature_members) == ("images", "children")
    assert (paper.temperature_scaling, official.temperature_scaling) == ("none", "clipped")
    assert (paper.temperature_centre, official.temperature_centre) == ("prototype", "centroid")
    assert (paper.min_cluster_size, official.min_cluster_size) == (10, 0)
    assert (paper.clustering_start, official.clustering_start) == (0, 20)
    assert (paper.proto_negatives, official.proto_negatives) == ("all", "outside_batch")
    assert (paper.clamp_probabilities, official.clamp_probabilities) == (False, True)
    assert (paper.clustered_encoder, official.clustered_encoder) == ("online", "momentum")
    assert (paper.local_views, official.local_views) == ("mean", "sum")
    assert (official.kmeans_seed, official.kmeans_iterations, official.kmeans_restarts) == ("level", 20, 5)
    assert (paper.clustered_features, official.clustered_features) == ("images", "images")
    assert (paper.kmeans, official.kmeans, recommended.kmeans) == ("plain", "plain", "fast")


def test_any_option_of_a_preset_can_be_overridden_by_its_flag():
    parser = Parser()
    add_option_flags(parser)
    flags = "--preset official --left_out removed --num_prototypes 9 4 --instance_selection false --symmetric"
    options = resolve_options(parser.parse(flags.split()))
    assert (options.preset, options.left_out, options.query_cluster) == ("official", "removed", "assignment")
    assert (options.num_prototypes, options.instance_selection, options.symmetric) == ((9, 4), False, True)
    flagged = {action.dest for action in parser._actions} - {"help"}
    assert flagged == {field.name for field in fields(Options)}
    assert as_dict(options)["num_prototypes"] == [9, 4]


BAD = {
    "preset": ({"preset": "best"}, "choose from paper, official, recommended"),
    "no prototypes": ({"num_prototypes": [0]}, "--num_prototypes 0: every level needs at least 1"),
    "growing levels": ({"num_prototypes": [10, 20]}, "each level must have fewer"),
    "as many": ({"num_prototypes": [10, 10]}, "each level must have fewer"),
    "temperature": ({"temperature": 0.0}, "--temperature 0.0: must be greater than 0"),
    "nothing to train": ({"instance_loss": False, "prototype_loss": False}, "nothing is left to train with"),
    "idle warm-up": ({"instance_loss": False}, "add --proto_warmup_epochs 0"),
    "late clustering": ({"clustering_start": 30}, "needs prototypes by then"),
    "recluster": ({"recluster_every": 0}, "--recluster_every 0"),
    "negative sample": ({"cluster_sample": -1}, "--cluster_sample -1: must not be negative"),
    "keys of the other encoder": (
        {"clustered_encoder": "online"},
        "--clustered_encoder online: keys are the momentum one's; add --clustered_features images",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_make_no_sense_are_refused(case):
    flags, reason = BAD[case]
    with pytest.raises(UserError, match=reason):
        resolve_options(flags)


def test_warmup_must_be_shorter_than_the_run():
    with pytest.raises(UserError, match="--proto_warmup_epochs 20: must be shorter than the run, --max_epochs 20"):
        check_schedule(resolve_options({}), 20)
    check_schedule(resolve_options({}), 21)
    with pytest.raises(UserError, match="nothing would be clustered"):
        check_schedule(resolve_options({"prototype_loss": False}), 5)
    check_schedule(resolve_options({"prototype_loss": False, "instance_selection": False}), 5)
