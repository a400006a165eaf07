"""Views of one system: noise that cancels in them covers nothing, and each has the figures that it has by itself."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import account, algorithm, dropout, metropolis, trace, views
from sottovoce.core.participation import parse_participation
from sottovoce.core.topologies import weigh
from sottovoce.privacy.exact import routes, whitening
from sottovoce.privacy.exact.deflation import noise_cancels_in_average
from sottovoce.privacy.exact.whitening import Singular
from sottovoce.privacy.guarantee import Figure
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import worst_case
from tests.privacy.losses import dense, whole
from tests.privacy.test_exact import mpmath_losses

NET = metropolis("regular:9,d=4,seed=3")


def views_of(nodes, models=("none", "average", "all")):
    return [views.with_final_models(views.node(node), which) for which in models for node in nodes]


@pytest.mark.parametrize("net", ["path:12", "erdos-renyi:16,p=0.3,seed=1"])
def test_rounding_of_a_filter_is_less_than_what_is_added_for_it(net):
    """Against fifty digits: M of a view, with its rounding, is not below the truth in any direction."""
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis(net), rounds=8)
    seen = observe(system, views.node(0))
    for M, truth in zip(whole(seen, whitening.kalman(seen)), mpmath_losses(seen), strict=True):
        assert np.linalg.eigvalsh(M - truth)[0] >= -1e-14 * np.trace(truth)


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
    assert np.isinf(dense(seen)).any(axis=(1, 2)).tolist() == (seen.victims == bare).tolist()


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
        oracle = dense(seen)
        there = np.isfinite(oracle).all(axis=(1, 2))
        found = routes.squared(seen, every)
        assert np.isfinite(found).tolist() == there.tolist()
        np.testing.assert_allclose(found[there], worst_case(oracle[there], every, 3), rtol=1e-6)


@pytest.mark.parametrize("sigma_pair", [1e2, 1e5, 9.4e6])
def test_pair_noise_that_cancels_in_the_average_leaves_the_figure_of_own_noise(sigma_pair):
    system = trace(algorithm("decor", sigma=1.0, sigma_pair=sigma_pair), metropolis("ring:8"), rounds=14)
    seen = observe(system, views.with_final_models(views.node(0), "average"))
    oracle = worst_case(dense(seen, rank=1e-13), parse_participation("every"), 14)
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
    """Who knows noise by its squares alone takes rounding for noise: figures were down to a tenth of the loss."""
    graph, rounds = "regular:80,d=10,seed=0", 12
    net = dropout(graph, rate=0.2, seed=2, announced=True) if changes else metropolis(graph)
    system = trace(algorithm("decor", sigma=1.0, sigma_pair=sigma_pair), net, rounds=rounds)
    seen = observe(system, views.with_final_models(views.coalition(0, 5, 9), "average"))
    M_VTT = _losses_with_pair_noise(net, rounds, [0, 5, 9], sigma_pair)
    every = parse_participation("every")
    oracle = worst_case(M_VTT, every, rounds)
    found = routes.exact_loss(seen, every)
    assert found.figure is Figure.EXACT
    assert (found.squares >= oracle * (1 - 1e-9)).all()
    np.testing.assert_allclose(found.squares, oracle, rtol=1e-9 + 1e-12 * sigma_pair)


def test_an_average_into_which_all_noise_goes_with_one_sign_takes_the_usual_route():
    for name, settings in (("dp-d-sgd", {}), ("decor", {"sigma_pair": 3.0})):
        system = trace(algorithm(name, sigma=1.0, **settings), metropolis("ring:30"), rounds=4)
        seen = observe(system, views.with_final_models(views.node(0), "average"))
        assert noise_cancels_in_average(seen) == (name == "decor")


def test_patterns_of_rounds_that_are_not_heard_do_not_hide_others():
    net = dropout("path:3", rate=0.3, seed=4, announced=True)
    seen = observe(trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=9), views.node(0))
    scheme = parse_participation("3x3")
    np.testing.assert_allclose(routes.squared(seen, scheme), worst_case(dense(seen), scheme, 9), rtol=1e-6)


@pytest.mark.parametrize("ratio", [1e1, 1e5, 1e7])
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
            list(whitening.kalman(observe(system, view)))
