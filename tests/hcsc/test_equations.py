"""The equations against plain loops, on random and on adversarial inputs; gradients against finite differences."""

import numpy as np
import oracles
import pytest
import torch
from torch.autograd import gradcheck

from solo_hcsc.hcsc import losses, selection

B, Q, D, M, UPPER = 5, 17, 6, 8, 3
KINDS = ["random", "identical", "one prototype", "tiny temperatures", "huge temperatures", "opposite"]


def unit(*shape, seed):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def case(kind):
    z, key, queue, prototypes, upper = (unit(n, D, seed=i) for i, n in enumerate((B, B, Q, M, UPPER)))
    temperatures = torch.rand(M, generator=torch.Generator().manual_seed(9), dtype=torch.float64) * 0.3 + 0.1
    upper_temperatures = temperatures[:UPPER] * 2
    clusters = torch.tensor([0, 3, 3, 7, 1])
    parents = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    if kind == "identical":
        z = key = unit(1, D, seed=5).expand(B, D).contiguous()
        queue = z[:1].expand(Q, D).contiguous()
        prototypes = z[:1].expand(M, D).contiguous()
    if kind == "opposite":
        queue, prototypes = -z[:1].expand(Q, D).contiguous(), -z[:1].expand(M, D).contiguous()
    if kind == "one prototype":
        prototypes, temperatures, parents = prototypes[:1], temperatures[:1], parents[:1]
        clusters = torch.zeros(B, dtype=torch.long)
    if kind == "tiny temperatures":
        temperatures, upper_temperatures = temperatures * 0 + 0.004, upper_temperatures * 0 + 0.004
    if kind == "huge temperatures":
        temperatures, upper_temperatures = temperatures * 1e4, upper_temperatures * 1e4
    return z, key, queue, prototypes, temperatures, upper, upper_temperatures, clusters, parents


def masks(rows, columns, seed=3):
    keep = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) < 0.6
    keep[0] = False  # a query all of whose negatives are left out
    return keep


@pytest.mark.parametrize("kind", KINDS)
def test_eq_1_and_6(kind):
    z, key, queue, *_ = case(kind)
    keep = [masks(B, Q, seed) for seed in (1, 2)]
    levels = [losses.info_nce(z, key, queue, 0.2, mask) for mask in keep]
    expected = oracles.eq6(z.numpy(), key.numpy(), queue.numpy(), [m.numpy() for m in keep], 0.2)
    assert losses.over_levels(levels).item() == pytest.approx(expected, abs=1e-9)
    everything = losses.info_nce(z, key, queue, 0.2)
    plain = np.mean([oracles.eq1(z[b].numpy(), key[b].numpy(), queue.numpy(), 0.2) for b in range(B)])
    assert everything.item() == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_eq_6_by_shared_draws(kind):
    z, key, queue, *_ = case(kind)
    generator = torch.Generator().manual_seed(4)
    drawn, clusters = torch.randint(4, (3, Q), generator=generator), torch.randint(4, (3, B), generator=generator)
    drawn[2] = clusters[2] = 1  # a level that leaves out everything
    keep = [(a != c[:, None]).numpy() for a, c in zip(drawn, clusters, strict=True)]
    for levels in (3, 2):
        expected = oracles.eq6(z.numpy(), key.numpy(), queue.numpy(), keep[:levels], 0.2)
        ours, _ = losses.selected_info_nce(z, key, queue, 0.2, drawn[:levels], clusters[:levels])
        assert ours.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_eq_2_and_9(kind):
    z, _, _, prototypes, temperatures, upper, upper_temperatures, clusters, parents = case(kind)
    keep = masks(B, len(prototypes))
    upper_clusters = parents[clusters]
    ours = losses.over_levels(
        [
            losses.proto_nce(z, prototypes, temperatures, clusters, keep),
            losses.proto_nce(z, upper, upper_temperatures, upper_clusters),
        ]
    )
    expected = oracles.eq9(
        z.numpy(),
        [prototypes.numpy(), upper.numpy()],
        [temperatures.numpy(), upper_temperatures.numpy()],
        [clusters.tolist(), upper_clusters.tolist()],
        [keep.numpy(), None],
    )
    assert ours.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    fast = [
        losses.selected_proto_nce(z, prototypes, temperatures, clusters, keep, z @ prototypes.T),
        losses.selected_proto_nce(z, upper, upper_temperatures, upper_clusters, None, z @ upper.T),
    ]
    assert losses.over_levels(fast).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_eq_3_4_and_7(kind):
    z, _, queue, prototypes, temperatures, upper, upper_temperatures, clusters, parents = case(kind)
    for b in range(B):
        scores = [oracles.eq3_similarity(z[b], c, t) for c, t in zip(prototypes, temperatures, strict=True)]
        best = selection.most_similar(z @ prototypes.T, temperatures)[b]
        assert scores[best] == pytest.approx(max(scores))
    keep = selection.instance_keep_probability(queue, prototypes, temperatures, clusters)
    upper_keep = selection.prototype_keep_probability(prototypes, upper, upper_temperatures, parents, clusters)
    for b in range(B):
        for j in range(Q):
            expected = oracles.eq4(queue[j].numpy(), prototypes.numpy(), temperatures.numpy(), clusters[b])
            assert keep[b, j].item() == pytest.approx(expected, abs=1e-9)
        for j in range(len(prototypes)):
            arrays = (x.numpy() for x in (prototypes, upper, upper_temperatures, parents))
            assert upper_keep[b, j].item() == pytest.approx(oracles.eq7(j, *arrays, clusters[b]), abs=1e-9)


@pytest.mark.parametrize("left_out", ["removed", "zero_logit"])
def test_gradients_agree_with_finite_differences(left_out):
    z, key, queue, prototypes, temperatures, _, _, clusters, _ = case("random")
    z.requires_grad_()
    same_image = torch.arange(B)[:, None]
    assert gradcheck(lambda x: losses.info_nce(x, key, queue, 0.2, masks(B, Q), left_out, same_image), z)
    keep = masks(B, M)
    assert gradcheck(lambda x: losses.proto_nce(x, prototypes, temperatures, clusters, keep, left_out), z)


SHARED = {  # queries, entries, clusters they have in common, and the way that this takes
    "few": (64, 300, 40, "_Listed"),
    "many": (64, 300, 2, "_Masked"),
    "one query": (1, 300, 40, "_Listed"),
    "all of one query": (1, 300, 1, "_Masked"),
}


def some_rare_pairs(drawn, asked, same_image, chance, generator):
    """Places as `rare_pairs` gives them, with any chance; and two that are none."""
    free = ~selection.left_out_masks(drawn, asked)
    free = torch.stack([of_level.scatter(1, same_image, False) for of_level in free])
    places = (free & (torch.rand(free.shape, generator=generator) < chance)).view(-1).nonzero()[:, 0]
    return torch.cat([places, torch.full((2,), free.numel())])


@pytest.mark.parametrize("shape", SHARED)
@pytest.mark.parametrize("tau", [0.2, losses.LEAST_TEMPERATURE])
@pytest.mark.parametrize("in_queue", [0, 2])
@pytest.mark.parametrize("left_out", ["removed", "zero_logit"])
@pytest.mark.parametrize("chance", [None, 0.01])
def test_shared_draws_give_the_same_losses_and_gradients_as_masks(shape, tau, in_queue, left_out, chance):
    batch, size, clusters, way = SHARED[shape]
    generator = torch.Generator().manual_seed(0)
    z, key, queue = unit(batch, D, seed=1).float(), unit(batch, D, seed=2).float(), unit(size, D, seed=3).float()
    drawn = torch.randint(clusters, (3, size), generator=generator)
    asked = torch.randint(clusters, (3, batch), generator=generator)
    same_image = torch.stack([torch.arange(batch), torch.arange(batch) + batch], dim=1)[:, :in_queue]
    drawn[1] = -1  # a level that leaves out nothing
    drawn[2] += 1000  # and one whose clusters are in no query's reach
    pairs, _ = losses._left_out(drawn, asked, torch.ones(batch, size))
    assert type(pairs).__name__ == way
    rare = None if chance is None else some_rare_pairs(drawn, asked, same_image, chance, generator)
    fast, slow = z.clone().requires_grad_(), z.clone().requires_grad_()
    mean, levels = losses.selected_info_nce(fast, key, queue, tau, drawn, asked, same_image, left_out, rare)
    keep = torch.stack([a != c[:, None] for a, c in zip(drawn, asked, strict=True)])
    if rare is not None:
        keep.view(-1)[rare[:-2]] = False
    expected = torch.stack([losses.info_nce(slow, key, queue, tau, mask, left_out, same_image) for mask in keep])
    (3 * mean).backward()
    (3 * expected.mean()).backward()
    torch.testing.assert_close(levels, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mean, expected.mean(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-4, atol=1e-5)


def test_left_out_entries_that_are_nearly_all_of_the_sum_do_not_spoil_the_rest():
    z = unit(4, D, seed=1).float()
    queue = torch.cat([z, -z.mean(0, keepdim=True).repeat(200, 1)])  # four perfect matches among far ones
    queue = queue / queue.norm(dim=1, keepdim=True)
    drawn = torch.cat([torch.arange(4), torch.full((200,), 9)])[None]
    clusters = torch.arange(4)[None]
    keep = drawn[0] != clusters[0][:, None]
    fast, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    loss, _ = losses.selected_info_nce(fast, -z, queue, 0.05, drawn, clusters)
    expected = losses.info_nce(exact, -z.double(), queue.double(), 0.05, keep)
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(fast.grad, exact.grad.float(), rtol=1e-4, atol=1e-5)


def test_shared_draws_gradient_agrees_with_finite_differences():
    z, key, queue, *_ = case("random")
    z.requires_grad_()
    drawn = torch.arange(Q).remainder(7).expand(2, Q)
    clusters = torch.tensor([[0, 1, 2, 3, 4], [6, 6, 6, 6, 6]])
    assert gradcheck(lambda x: losses.selected_info_nce(x, key, queue, 0.2, drawn, clusters)[0], z)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("selecting", [True, False])
@pytest.mark.parametrize("left_out", ["removed", "zero_logit"])
@pytest.mark.parametrize("outside_batch", [True, False])
def test_prototype_loss_from_known_products_is_the_same(kind, selecting, left_out, outside_batch):
    z, _, _, prototypes, temperatures, _, _, clusters, _ = case(kind)
    keep = masks(B, len(prototypes)) if selecting else None
    candidates = torch.ones(len(prototypes), dtype=torch.bool).index_fill(0, clusters, False) if outside_batch else None
    fast, slow = z.clone().requires_grad_(), z.clone().requires_grad_()
    against = prototypes, temperatures, clusters, keep
    loss = losses.selected_proto_nce(fast, *against, z @ prototypes.T, left_out, candidates)
    expected = losses.proto_nce(slow, *against, left_out, candidates)
    (2 * loss).backward()
    (2 * expected).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(fast.grad, slow.grad)


def test_gradient_of_a_loss_that_brings_its_own_cannot_be_differentiated_again():
    z, _, _, prototypes, temperatures, _, _, clusters, _ = case("random")
    z.requires_grad_()
    loss = losses.selected_proto_nce(z, prototypes, temperatures, clusters, None, (z @ prototypes.T).detach())
    (slope,) = torch.autograd.grad(loss, z, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        slope.sum().backward()


def test_masked_negative_leaves_the_denominator():
    z, key, queue, *_ = case("random")
    keep = torch.ones(B, Q, dtype=torch.bool)
    keep[:, 4:] = False
    shorter = losses.info_nce(z, key, queue[:4], 0.2)
    torch.testing.assert_close(losses.info_nce(z, key, queue, 0.2, keep), shorter)
    assert losses.info_nce(z, key, queue, 0.2, keep, "zero_logit") > shorter


def test_query_without_negatives_has_a_finite_loss_and_gradient():
    z, key, queue, prototypes, temperatures, _, _, clusters, _ = (
        x.float() if x.is_floating_point() else x for x in case("random")
    )
    z.requires_grad_()
    nothing = torch.zeros(B, Q, dtype=torch.bool)
    loss = losses.info_nce(z, key, queue, 0.2, nothing)
    loss = loss + losses.proto_nce(z, prototypes, temperatures, clusters, nothing[:, :M])
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert z.grad.isfinite().all()


def test_a_querys_prototype_counts_even_where_the_mask_leaves_it_out():
    z, _, _, prototypes, temperatures, _, _, clusters, _ = case("random")
    keep = torch.ones(B, M, dtype=torch.bool)
    expected = losses.proto_nce(z, prototypes, temperatures, clusters, keep)
    keep[torch.arange(B), clusters] = False
    torch.testing.assert_close(losses.proto_nce(z, prototypes, temperatures, clusters, keep), expected)


@pytest.mark.parametrize("equation", [4, 7])
def test_draws_have_the_equations_frequencies_and_are_independent(equation):
    _, _, queue, prototypes, temperatures, upper, upper_temperatures, clusters, parents = case("random")
    if equation == 4:
        keep = selection.instance_keep_probability(queue, prototypes, temperatures, clusters)
    else:
        keep = selection.prototype_keep_probability(prototypes, upper, upper_temperatures, parents, clusters)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([~selection.keep_by_chance(keep, generator) for _ in range(20_000)]).double()
    frequency, error = draws.mean(0), (keep * (1 - keep) / len(draws)).sqrt()
    # 4 standard errors; one count more for pairs that are hardly ever left out
    assert ((frequency - (1 - keep)).abs() <= 4 * error + 1 / len(draws)).all()
    centred = draws[:, 0] - frequency[0]
    correlation = centred.T @ centred / len(draws)
    scale = correlation.diagonal().sqrt().clamp(min=1e-6)
    correlation = correlation / scale / scale[:, None] - torch.eye(keep.size(1))
    assert correlation.abs().max() < 5 / len(draws) ** 0.5


def test_sparse_places_are_independent_trials():
    times, count, chance = 20_000, 30, 0.03
    generator = torch.Generator().manual_seed(0)
    places = [selection.sparse_places(count, chance, generator, torch.device("cpu")) for _ in range(times)]
    assert len({len(found) for found in places}) == 1, "processes draw equally many numbers"
    hits = torch.zeros(times, count + 1, dtype=torch.float64)
    for row, found in zip(hits, places, strict=True):
        assert len(set(found[found < count].tolist())) == (found < count).sum()
        row[found] = 1
    hits = hits[:, :count]
    error = (chance * (1 - chance) / times) ** 0.5
    assert (hits.mean(0) - chance).abs().max() < 4 * error
    centred = hits - chance
    correlation = centred.T @ centred / times / (chance * (1 - chance)) - torch.eye(count)
    assert correlation.fill_diagonal_(0).abs().max() < 5 / times**0.5


@pytest.mark.parametrize("least", [0.001, 0.04, 0.3])
def test_clamped_draws_have_the_direct_ways_frequencies_and_are_independent(least):
    """Drawn clusters and rare pairs together leave out with max(p, least), as 1 - clamp(1 - p, max=1 - least) does."""
    _, _, queue, prototypes, temperatures, upper, upper_temperatures, clusters, parents = case("random")
    levels = [(prototypes, temperatures * 0.8), (upper, upper_temperatures)]
    asked = torch.stack([clusters, parents[clusters]])
    keep = torch.stack(
        [selection.instance_keep_probability(queue, *level, of) for level, of in zip(levels, asked, strict=True)]
    )
    out = (1 - keep).clamp(min=least)
    assert (keep > 1 - least).any()
    assert (keep < 1 - least).any()
    times = 40_000
    generator = torch.Generator().manual_seed(0)
    entries = queue.repeat(times, 1)  # every draw is one of an entry of its own
    drawn = torch.stack([selection.draw_clusters(entries, *level, generator) for level in levels])
    partitions = torch.stack([selection.log_partitions(entries, *level) for level in levels])
    of_queries = [
        torch.stack([column[of] for column, of in zip(columns, asked, strict=True)])
        for columns in zip(*levels, strict=True)
    ]
    none = torch.empty(B, 0, dtype=torch.long)
    rare = selection.rare_pairs(entries, partitions, drawn, asked, *of_queries, none, least, generator)
    places = rare[rare < 2 * B * len(entries)]
    assert len(places.unique()) == len(places)
    assert not selection.left_out_masks(drawn, asked).view(-1)[places].any(), "none is left out already"
    left_out = selection.left_out_masks(drawn, asked, rare).view(2, B, times, Q)
    counts = left_out.sum(dim=2).double()
    deviation = (counts - times * out) / (times * out * (1 - out)).sqrt()
    assert deviation.abs().max() < 4
    # Queries of one cluster share an entry's draw, but entries share nothing: chi-square over those of each query.
    chi_square = (deviation**2).sum(dim=2)
    assert ((chi_square - Q).abs() < 4 * (2 * Q) ** 0.5).all()
    for of_query in left_out.double().flatten(0, 1):
        centred = of_query - of_query.mean(0)
        scale = centred.std(0, correction=0).clamp(min=1e-6)
        covariance = (centred.T @ centred / times).fill_diagonal_(0)
        # one coincidence more for entries that are hardly ever left out
        assert (covariance.abs() < 5 * scale * scale[:, None] / times**0.5 + 1 / times).all()


def test_rare_pairs_are_never_of_the_querys_image():
    _, _, queue, prototypes, temperatures, _, _, clusters, _ = case("random")
    drawn, partitions = torch.full((1, Q), -1), selection.log_partitions(queue, prototypes, temperatures * 0.01)[None]
    same_image = torch.arange(2 * B).view(B, 2)
    of_queries = prototypes[clusters][None], temperatures[clusters][None] * 0.01
    masks = torch.zeros(1, B, Q, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        draws = queue, partitions, drawn, clusters[None], *of_queries
        rare = selection.rare_pairs(*draws, same_image, 0.2, generator)
        masks |= selection.left_out_masks(drawn, clusters[None], rare)
    assert not masks[0].gather(1, same_image).any()
    assert masks.any(dim=1).all()


def test_draws_repeat_with_the_generators_seed():
    keep = torch.full((4, 9), 0.5)
    first, again, other = (selection.keep_by_chance(keep, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
