"""Views that are accounted for together have the figures that each has by itself."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import Unaccountable, account, algorithm, dropout, metropolis, trace, views
from sottovoce.core.participation import parse_participation
from sottovoce.core.topologies import weigh
from sottovoce.privacy.accountant import account_for_each
from sottovoce.privacy.exact import kalman, routes, several, small_views
from sottovoce.privacy.exact.average import _adds_up, separated
from sottovoce.privacy.exact.several import SeveralViews
from sottovoce.privacy.exact.whitening import Singular
from sottovoce.privacy.guarantee import KINDS
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import worst_case
from tests.privacy.test_exact import mpmath_losses

NET = metropolis("regular:9,d=4,seed=3")
NAMES = ["dp-d-sgd", "zip-dl", "dp2sgd", "muffliato-sgd", "anti-pgd", "secure-gossip", "muffliato"]


def views_of(nodes, models=("none", "average", "all")):
    return [views.with_final_models(views.node(node), which) for which in models for node in nodes]


@pytest.mark.parametrize("scheme", ["every", "2x3", "shuffle:3"])
@pytest.mark.parametrize("name", NAMES)
def test_losses_together_are_those_of_each(name, scheme):
    system, scheme = trace(algorithm(name, sigma=1.5), NET, rounds=7), parse_participation(scheme)
    seen = [observe(system, view) for view in [*views_of([0, 2, 5]), views.everyone(), views.coalition(1, 4)]]
    together = routes.squared_of_each(seen, scheme)
    for one, found in zip(seen, together, strict=True):
        np.testing.assert_allclose(found, routes.squared(one, scheme), rtol=1e-9)


@pytest.mark.parametrize("rounds", [2, 12])
def test_models_are_added_to_what_the_filter_knows_of_the_same_view(rounds, monkeypatch):
    system = trace(algorithm("dp-d-sgd", sigma=0.8), NET, rounds=rounds)
    begun = []
    filters = small_views._filters
    monkeypatch.setattr(small_views, "_filters", lambda bases: begun.extend(bases) or filters(bases))
    seen = [observe(system, view) for view in views_of([0, 3])]
    found = routes.squared_of_each(seen, parse_participation("every"))
    assert [base.view for base in begun] == [views.node(0), views.node(3)]
    for one, squares in zip(seen, found, strict=True):
        oracle = worst_case(routes.dense(one), parse_participation("every"), rounds)
        np.testing.assert_allclose(squares, oracle, rtol=1e-8)


@pytest.mark.parametrize(("sigma", "rounds"), [(2.0, 5), (1.0, 6)])
def test_what_is_known_of_a_view_is_used_only_where_rounds_are_alike(sigma, rounds):
    one = trace(algorithm("dp-d-sgd", sigma=1.0), NET, rounds=5)
    other = trace(algorithm("dp-d-sgd", sigma=sigma), NET, rounds=rounds)
    with_models = observe(other, views.with_final_models(views.node(0), "average"))
    _, found = small_views.small_losses([observe(one, views.node(0)), with_models], 1)
    np.testing.assert_allclose(found[0], routes.dense(with_models), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("apart", [1, 3, 5, 13, 20])
@pytest.mark.parametrize(
    ("name", "net"), [("dp-d-sgd", "path:12"), ("dp-d-sgd", "star:9"), ("dp2sgd", "grid:3x3"), ("zip-dl", "ring:6")]
)
def test_small_views_are_filtered_as_larger_ones_are(name, net, apart):
    """Entry by entry, in units of what the two rounds tell by themselves: the far end of a path tells 1e-8 of it."""
    system = trace(algorithm(name, sigma=1.5), metropolis(net), rounds=13)
    seen = [
        observe(system, view) for view in views_of([1, 4], ("none", "average") if name == "dp-d-sgd" else ("none",))
    ]
    for one, found in zip(seen, small_views.small_losses(seen, apart), strict=True):
        larger = routes.whole(one, kalman.kalman(one, apart))
        own = np.sqrt(np.einsum("vtt->vt", larger))
        for r, M_VJJ in enumerate(found):
            rounds = np.arange(r, 13, apart)
            apart_by, sizes = larger[:, rounds[:, None], rounds], own[:, rounds]
            there = M_VJJ[:, : len(rounds), : len(rounds)]
            assert np.all(np.abs(there - apart_by) <= 1e-11 * sizes[:, :, None] * sizes[:, None, :])
            assert not M_VJJ[:, len(rounds) :].any()


@pytest.mark.parametrize("net", ["path:12", "erdos-renyi:16,p=0.3,seed=1"])
def test_rounding_of_small_views_is_less_than_what_is_added_for_it(net):
    """Against fifty digits: M of a view, with its rounding, is not below the truth in any direction."""
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis(net), rounds=8)
    seen = observe(system, views.node(0))
    (found,) = small_views.small_losses([seen], 1)
    for M, truth in zip(found[0], mpmath_losses(seen), strict=True):
        assert np.linalg.eigvalsh(M - truth)[0] >= -1e-14 * np.trace(truth)


def test_memory_decides_how_many_views_are_filtered_at_once_and_no_bit_of_them(monkeypatch):
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("star:9"), rounds=9)
    seen = [observe(system, view) for view in [views.node(0), *views_of(range(1, 9), ("none", "average"))]]
    together = small_views.small_losses(seen, 1)
    monkeypatch.setattr(small_views, "AT_ONCE", 1)
    for one, alone in zip(together, small_views.small_losses(seen, 1), strict=True):
        assert np.array_equal(one, alone)


def test_one_view_without_enough_noise_leaves_the_others_as_they_are():
    net = metropolis("path:4")
    sigma = [0.0, 1.0, 1.0, 1.0]
    system = trace(algorithm("dp-d-sgd", sigma=sigma), net, rounds=5)
    seen = [observe(system, views.node(node)) for node in (1, 3, 2)]
    bare, one, other = small_views.small_losses(seen, 1)
    assert bare is None
    for found, view in ((one, seen[1]), (other, seen[2])):
        np.testing.assert_allclose(found[0], routes.dense(view), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("rounds", [1, 2, 7, 20])
@pytest.mark.parametrize("name", ["dp-d-sgd", "dp2sgd"])
def test_figures_do_not_depend_in_any_bit_on_the_views_beside_them(name, rounds):
    """A run that is killed while it accounts, and started again, computes the rest of its views without the others."""
    system, scheme = trace(algorithm(name, sigma=1.5), NET, rounds=rounds), parse_participation("every")
    seen = [observe(system, view) for view in [views.everyone(), *views_of([0, 2, 5])]]
    for one, found in zip(seen, routes.squared_of_each(seen, scheme), strict=True):
        assert found.tolist() == routes.squared(one, scheme).tolist(), one.view


@pytest.mark.parametrize("times", [1.0, 1e3])
@pytest.mark.parametrize(
    ("name", "sigma", "rounds", "node", "bare"),
    [("dp-csgp", [2.0, 2.0, 0.0, 1.0, 0.0], 3, 2, 4), ("rss-lb", [1.0] * 5, 5, 1, 2)],
)
def test_noise_that_cancels_over_rounds_covers_nothing(name, sigma, rounds, node, bare, times):
    """What a node passes on was heard before, in other messages: what rounding leaves of that is no noise."""
    net = dropout("complete:5", rate=0.4, seed=2, announced=True)
    system = trace(algorithm(name, sigma=[times * one for one in sigma]), net, rounds=rounds)
    seen = observe(system, views.node(node))
    squares = routes.squared(seen, parse_participation("every"))
    assert np.isinf(squares).tolist() == (seen.victims == bare).tolist()
    assert np.isinf(routes.dense(seen)).any(axis=(1, 2)).tolist() == (seen.victims == bare).tolist()


@pytest.mark.parametrize("sigma", [0.95, 1e4, 1e8])
@pytest.mark.parametrize(("net", "rounds"), [("path:7", 38), ("star:8", 9), ("ring:70", 6)])
def test_noise_that_cancels_in_the_average_of_models_covers_nothing(net, rounds, sigma):
    system = trace(algorithm("zip-dl", sigma=sigma), metropolis(net), rounds=rounds)
    seen = observe(system, views.with_final_models(views.node(4), "average"))
    assert np.isinf(routes.squared(seen, parse_participation(f"1x{rounds}"))).all()


def test_an_average_without_messages_and_one_of_nodes_without_noise_have_figures():
    apart = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("edges:0--1,2--3"), rounds=3)
    quiet = trace(algorithm("dp-d-sgd", sigma=[1.0, 0.0, 1.0, 1.0]), metropolis("complete:4"), rounds=3)
    every = parse_participation("every")
    for system, node in ((apart, 0), (quiet, 0), (quiet, 1)):
        seen = observe(system, views.with_final_models(views.node(node), "average"))
        oracle = routes.dense(seen)
        there = np.isfinite(oracle).all(axis=(1, 2))
        found = routes.squared(seen, every)
        assert np.isfinite(found).tolist() == there.tolist()
        np.testing.assert_allclose(found[there], worst_case(oracle[there], every, 3), rtol=1e-6)


@pytest.mark.parametrize("sigma_pair", [1e2, 1e5, 9.4e6])
def test_pair_noise_that_cancels_in_the_average_leaves_the_figure_of_own_noise(sigma_pair):
    system = trace(algorithm("decor", sigma=1.0, sigma_pair=sigma_pair), metropolis("ring:8"), rounds=14)
    seen = observe(system, views.with_final_models(views.node(0), "average"))
    oracle = worst_case(routes.dense(seen, rank=1e-13), parse_participation("every"), 14)
    found = routes.squared(seen, parse_participation("every"))
    assert (found >= oracle * (1 - 1e-6)).all()
    np.testing.assert_allclose(found, oracle, rtol=1e-3)


def _losses_with_pair_noise(net, rounds, members, sigma_pair):
    """M of all victims from B itself, made without the accountant: no pair noise is in the average, by definition.

    The factor is one of B, not of its covariance, so that its condition costs half as many digits.
    """
    n, weights = net.n, [net.at(t).weights.toarray() for t in range(rounds)]
    there = [np.ones(n) if net.at(t).active is None else net.at(t).active.astype(float) for t in range(rounds)]
    honest, unknown = np.setdiff1d(np.arange(n), members), np.ones(n)
    unknown[members] = 0
    pairs = np.argwhere(np.triu(net.graph.adjacency.toarray(), 1))
    shared = np.zeros((n, len(pairs)))
    shared[pairs[:, 0], np.arange(len(pairs))], shared[pairs[:, 1], np.arange(len(pairs))] = sigma_pair, -sigma_pair
    sources = [np.hstack([np.diag(who * unknown), shared * (who * unknown)[pairs].prod(axis=1)]) for who in there]
    A, B = [], []
    for t in range(rounds):
        told = np.eye(n)[np.setdiff1d(np.flatnonzero(weights[t][members].any(axis=0)), members)]
        noise, signal = np.zeros((len(told), rounds, sources[0].shape[1])), np.zeros((len(told), rounds, n))
        for s in range(t, -1, -1):
            noise[:, s], signal[:, s] = told @ sources[s], told * there[s]
            told = told @ weights[s - 1]
        A.append(signal)
        B.append(noise)
    average = np.array(there) * unknown / n
    A_RTV = np.concatenate([*A, average[None]])[:, :, honest]
    B_RZ = np.concatenate([*B, np.hstack([average, np.zeros((rounds, len(pairs)))])[None]]).reshape(len(A_RTV), -1)
    sizes = np.linalg.norm(B_RZ, axis=1)
    factor = np.linalg.qr((B_RZ / sizes[:, None]).T, mode="r")
    white = np.linalg.solve(factor.T, (A_RTV / sizes[:, None, None]).reshape(len(A_RTV), -1)).reshape(A_RTV.shape)
    return np.einsum("rsv,rtv->vst", white, white)


@pytest.mark.parametrize("sigma_pair", [3.0, 1e3, 1e6, 1e7])
@pytest.mark.parametrize("changes", [False, True])
def test_pair_noise_that_cancels_in_the_average_counts_nowhere_on_larger_graphs(changes, sigma_pair):
    """The filter, which larger coalitions take, knew it by its squares: figures were down to a tenth of the loss."""
    graph, rounds = "regular:80,d=10,seed=0", 12
    net = dropout(graph, rate=0.2, seed=2, announced=True) if changes else metropolis(graph)
    system = trace(algorithm("decor", sigma=1.0, sigma_pair=sigma_pair), net, rounds=rounds)
    seen = observe(system, views.with_final_models(views.coalition(0, 5, 9), "average"))
    M_VTT = _losses_with_pair_noise(net, rounds, [0, 5, 9], sigma_pair)
    every = parse_participation("every")
    oracle = worst_case(M_VTT, every, rounds)
    by_filter = routes.whole(seen, kalman.kalman(separated(seen).observation))
    for found in (routes.squared(seen, every), worst_case(by_filter, every, rounds)):
        assert (found >= oracle * (1 - 1e-9)).all()
        np.testing.assert_allclose(found, oracle, rtol=1e-9 + 1e-12 * sigma_pair)


def test_an_average_of_which_little_cancels_is_left_as_it_is():
    for name, settings in (("dp-d-sgd", {}), ("decor", {"sigma_pair": 3.0})):
        system = trace(algorithm(name, sigma=1.0, **settings), metropolis("ring:80"), rounds=4)
        seen = observe(system, views.with_final_models(views.node(0), "average"))
        found = separated(seen)
        assert found.observation is seen
        assert 1 <= found.factor < 1 + 1e-11
        assert _adds_up(seen) == (name == "dp-d-sgd")


def test_patterns_of_rounds_that_are_not_heard_do_not_hide_others():
    net = dropout("path:3", rate=0.3, seed=4, announced=True)
    seen = observe(trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=9), views.node(0))
    scheme = parse_participation("3x3")
    np.testing.assert_allclose(routes.squared(seen, scheme), worst_case(routes.dense(seen), scheme, 9), rtol=1e-6)


def test_accounts_of_several_views_are_those_of_each():
    system = trace(algorithm("dp-d-sgd", sigma=1.5), NET, rounds=6)
    settings = {"adjacency": "user", "participation": "every", "convex": True, "kinds": KINDS}
    asked = [views.everyone(), *views_of(range(9), ("none", "average"))]
    for view, found in zip(asked, account_for_each(system, asked, **settings), strict=True):
        alone = account(system, view, covering=False, **settings)
        assert found.view == alone.view
        assert found.refusals == alone.refusals
        assert [one.victim for one in found.guarantees] == [one.victim for one in alone.guarantees]
        np.testing.assert_allclose(
            [one.mu for one in found.guarantees], [one.mu for one in alone.guarantees], rtol=1e-9
        )


def test_small_views_are_searched_once_and_as_many_as_fit(monkeypatch):
    system, scheme = trace(algorithm("dp-d-sgd", sigma=1.0), NET, rounds=6), parse_participation("every")
    sizes = []
    each = several.squared_of_each
    monkeypatch.setattr(
        several, "squared_of_each", lambda batch, scheme: sizes.append(len(batch)) or each(batch, scheme)
    )
    monkeypatch.setattr(several, "AT_ONCE", 4 * 8 * 6**2)
    asked = views_of(range(9), ("none",))
    work = SeveralViews(system, scheme, asked)
    found = {view: work.squared(work.observe(view)) for view in asked}
    assert sizes == [4, 4, 1]
    for view, squares in found.items():
        np.testing.assert_allclose(squares, routes.squared(observe(system, view), scheme), rtol=1e-9)


def test_what_cannot_be_accounted_for_does_not_spoil_what_can(monkeypatch):
    system, scheme = trace(algorithm("dp-d-sgd", sigma=1.0), NET, rounds=4), parse_participation("every")
    check = routes._check_sizes_of_messages

    def refuse_one(observation):
        if observation.view == views.node(1):
            raise Unaccountable("node 1 is refused")
        check(observation)

    monkeypatch.setattr(routes, "_check_sizes_of_messages", refuse_one)
    work = SeveralViews(system, scheme, [views.node(0), views.node(1), views.node(2)])
    assert work.squared(work.observe(views.node(0))).all()
    with pytest.raises(Unaccountable, match="node 1 is refused"):
        work.squared(work.observe(views.node(1)))
    assert work.squared(work.observe(views.node(2))).all()


@pytest.mark.parametrize("ratio", [1e1, 1e5, 1e7, 3e8, 1e9])
def test_noise_that_cancels_in_a_secure_sum_does_not_count_by_what_rounding_leaves_of_it(ratio):
    """On a complete graph the pair noise of others cancels in their sum: T sums of n - 1 noisy gradients are left."""
    T, n = 6, 5
    net = weigh(f"complete:{n}", "metropolis,lazy=0.5")
    system = trace(algorithm("decor", sigma=1.0, sigma_pair=ratio), net, rounds=T)
    view = views.node(0, secure_sum=True)
    found = account(system, view, kinds=["fixed-streams"], covering=False)
    for guarantee in found.guarantees:
        assert np.sqrt(T / (n - 1)) * (1 - 1e-12) < guarantee.mu < np.sqrt(T / (n - 1)) * (1 + 1e-4)
    if ratio > 1e4:
        with pytest.raises(Singular):
            list(kalman.kalman(observe(system, view)))
