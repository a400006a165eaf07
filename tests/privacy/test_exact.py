"""The exact loss: routes against each other, against 50-digit arithmetic, and against what must hold of any figure."""

from __future__ import annotations

import gc
import weakref

import mpmath
import numpy as np
import pytest

from sottovoce import (
    Graph,
    account,
    algorithm,
    dropout,
    fresh_erdos_renyi,
    from_matrix,
    metropolis,
    push,
    random_edges,
    trace,
    uniform,
    views,
)
from sottovoce.core.algorithm import sums_over_neighbours
from sottovoce.core.participation import parse_participation
from sottovoce.core.random_streams import NoiseKey
from sottovoce.privacy.exact import gram as gram_route
from sottovoce.privacy.exact import routes, whitening
from sottovoce.privacy.exact.deflation import Deflated
from sottovoce.privacy.exact.elimination import eliminate_known_messages, without_implied_models
from sottovoce.privacy.exact.whitening import Singular, kalman
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import worst_case
from tests.cases import Case, cases
from tests.privacy.losses import dense, single, whole
from tests.selection import rest_slow

EVERY = parse_participation("every")
IDENTITY = [case for case in cases() if case.algorithm.compression.name == "identity"]


def seen(name, net, view, rounds, **settings):
    return observe(trace(algorithm(name, **({"sigma": 1.0} | settings)), net, rounds=rounds), view)


def mu2(view_of):
    return worst_case(routes.losses(view_of), EVERY, view_of.gradient_rounds)


def mpmath_losses(view_of, digits=50):
    """M by exact rank-revealing elimination in 50 digits: the definition, with no float in sight."""
    A_RTV, B_RZ = view_of.dense()
    R, T, V = A_RTV.shape
    with mpmath.workdps(digits):
        B = [[mpmath.mpf(float(x)) for x in row] for row in B_RZ]
        A = [[mpmath.mpf(float(x)) for x in row] for row in A_RTV.reshape(R, T * V)]
        basis, signals = [], []
        for b, a in zip(B, A, strict=True):
            b, a = list(b), list(a)
            for unit, signal in zip(basis, signals, strict=True):
                dot = mpmath.fsum(x * y for x, y in zip(b, unit, strict=True))
                b = [x - dot * y for x, y in zip(b, unit, strict=True)]
                a = [x - dot * y for x, y in zip(a, signal, strict=True)]
            size = mpmath.sqrt(mpmath.fsum(x * x for x in b))
            if size > mpmath.mpf(10) ** -13:
                basis.append([x / size for x in b])
                signals.append([x / size for x in a])
        white = np.array([[float(x) for x in row] for row in signals]).reshape(-1, T, V)
    return np.einsum("ksv,ktv->vst", white, white)


SMALL = [
    ("dp-d-sgd", metropolis("path:5"), views.node(4), 6, {}),
    ("dp-d-sgd", metropolis("path:12"), views.node(0), 12, {}),
    ("dp-d-sgd", metropolis("ring:6"), views.node(0), 5, {}),
    ("dp-d-sgd", metropolis("grid:2x3"), views.coalition(0, 5), 4, {}),
    ("dp-d-sgd", push("star:4"), views.node(1), 4, {}),
    ("zip-dl", metropolis("path:4"), views.node(0), 4, {}),
    ("zip-dl", metropolis("ring:5"), views.everyone(), 3, {}),
    ("decor", metropolis("path:4"), views.node(0), 4, {"sigma_pair": 3.0}),
    ("anti-pgd", metropolis("path:4"), views.node(0), 5, {}),
    ("muffliato", metropolis("path:10"), views.node(9), 10, {}),
    ("muffliato", metropolis("path:12"), views.node(0), 12, {"chebyshev": True}),
    ("muffliato", metropolis("karate"), views.node(3), 4, {}),
    ("muffliato-sgd", metropolis("path:4"), views.node(0), 3, {"gossip_steps": 3}),
    ("dp2sgd", metropolis("ring:5"), views.node(0), 4, {}),
    ("dp-csgp", push("exponential:6"), views.node(0), 4, {}),
    ("dp-d-sgd", fresh_erdos_renyi(6, 0.5, seed=1), views.node(0), 4, {}),
    ("dp-d-sgd", dropout("ring:6", rate=0.3, seed=5), views.node(0), 4, {}),
    ("muffliato", random_edges("ring:5", seed=1), views.node(0), 12, {}),
]
SMALL = [case for case in SMALL if not (case[0] == "dp-d-sgd" and case[1].name.endswith("push"))]


@pytest.mark.parametrize("secure_sum", [False, True])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case[0]} on {case[1].name} {case[2]}")
def test_every_route_agrees_with_fifty_digits(case, secure_sum):
    name, net, view, rounds, settings = case
    view = type(view)(view.kind, view.members, secure_sum=secure_sum and view.kind != "everyone")
    view_of = seen(name, net, view, rounds, **settings)
    truth = mpmath_losses(view_of)
    scale = 1e-6 * np.abs(truth).max(axis=(1, 2), keepdims=True) + 1e-12
    agreed = 0
    for route in (routes.losses, dense, routes.deflated, routes.gram, routes.kalman):
        if route is routes.kalman and view_of.system.correlation is not None:
            continue
        try:
            found = route(view_of)
            found = found.losses if isinstance(found, Deflated) else found
            found = found if isinstance(found, np.ndarray) else whole(view_of, found)
        except Singular:
            continue
        assert np.all(np.abs(found - truth) <= scale), route.__name__
        agreed += 1
    assert agreed >= 3


@pytest.mark.parametrize("case", rest_slow(IDENTITY))
def test_routes_agree_for_every_algorithm(case: Case):
    system = trace(case.algorithm, case.topology, rounds=4)
    for view in single(system, views.everyone(), views.node(1), views.coalition(0, 2)):
        view_of = observe(system, view)
        oracle = dense(view_of)
        found = routes.losses(view_of)
        assert (np.isfinite(found) == np.isfinite(oracle)).all()
        there = np.isfinite(oracle)
        np.testing.assert_allclose(found[there], oracle[there], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", rest_slow([case for case in IDENTITY if not sums_over_neighbours(case.algorithm)]))
def test_the_closed_form_of_everyone_is_the_exact_loss(case: Case):
    view_of = observe(trace(case.algorithm, case.topology, rounds=4), views.everyone())
    plain = routes.losses(view_of)
    there = np.isfinite(plain).all(axis=(1, 2))
    found = routes.squared(view_of, EVERY)
    np.testing.assert_allclose(found[there], worst_case(plain[there], EVERY, plain.shape[1]), rtol=2e-5)
    assert np.isinf(found[~there]).all()


def test_the_closed_form_is_used_where_it_should_be():
    uses = {case.example.name for case in cases() if case.place == "ring:5" and _closed_form(case)}
    assert {"dp-d-sgd", "anti-pgd", "mf-d-sgd", "mafalda", "decor", "muffliato-sgd", "dp-csgp"} <= uses
    assert not uses & {"zip-dl", "muffliato", "dp-fedavg", "rss-lb"}


def _closed_form(case):
    if case.algorithm.compression.name != "identity" or sums_over_neighbours(case.algorithm):
        return False
    seen = observe(trace(case.algorithm, case.topology, rounds=3), views.everyone())
    return routes.loss_of_noisy_gradients(seen, EVERY) is not None


@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize("T", [1, 4, 10])
def test_complete_graph_gives_no_amplification(n, T):
    np.testing.assert_allclose(mu2(seen("dp-d-sgd", metropolis(f"complete:{n}"), views.node(0), T, sigma=2.0)), T / 4)


@pytest.mark.parametrize("scheme", ["every", "2x3", "shuffle:2"])
@pytest.mark.parametrize("net", [metropolis("complete:5"), metropolis("star:6"), uniform("complete:4")])
def test_who_hears_everybody_learns_from_each_round_by_itself(net, scheme):
    view_of, participation = seen("dp-d-sgd", net, views.node(0), 6, sigma=2.0), parse_participation(scheme)
    smaller, _ = eliminate_known_messages(view_of)
    assert not smaller.steps[0].observed.state.shape[0]
    oracle = worst_case(dense(view_of), participation, 6)
    np.testing.assert_allclose(routes.squared(view_of, participation), oracle, rtol=1e-9)


def test_everyone_is_the_composition_of_gaussians():
    for spec in ("ring:7", "path:4", "florentine"):
        np.testing.assert_allclose(mu2(seen("dp-d-sgd", metropolis(spec), views.everyone(), 9, sigma=3.0)), 1.0)


def test_isolated_attacker_learns_nothing():
    net = metropolis(Graph.from_edges([(0, 1), (1, 2)], nodes=4))
    assert not mu2(seen("dp-d-sgd", net, views.node(3), 5)).any()


def test_no_noise_is_infinite_for_those_who_are_heard():
    losses = routes.losses(observe(trace(algorithm("d-psgd"), metropolis("path:4"), rounds=2), views.node(0)))
    assert np.isinf(losses[0]).all()
    assert not losses[2].any()
    partly = seen("dp-d-sgd", metropolis("path:3"), views.node(2), 3, sigma=[1.0, 0.0, 1.0])
    assert np.isinf(routes.losses(partly)[1]).all()


@pytest.mark.parametrize("name", ["dp-d-sgd", "zip-dl", "anti-pgd", "muffliato"])
def test_more_colluders_more_rounds_less_noise_never_lower_mu(name):
    net = metropolis("erdos-renyi:9,p=0.4,seed=3")
    one, two = (mu2(seen(name, net, view, 5)) for view in (views.node(0), views.coalition(0, 4)))
    rest = np.setdiff1d(np.arange(1, 9), [4]) - 1
    assert (two >= one[rest] - 1e-9).all()
    longer = mu2(seen(name, net, views.node(0), 7))
    assert (longer >= one - 1e-9).all()
    noisier = mu2(seen(name, net, views.node(0), 5, sigma=2.0))
    np.testing.assert_allclose(noisier, one / 4, rtol=1e-6)
    fewer = mu2(seen(name, net, views.node(0), 5, sigma=[1.0] * 5 + [0.5] * 4))
    assert (fewer >= one - 1e-9).all()


@pytest.mark.parametrize("name", ["dp-d-sgd", "zip-dl", "muffliato", "anti-pgd", "decor"])
def test_secure_summation_never_raises_mu_and_everyone_is_above_a_node(name):
    net = metropolis("florentine")
    settings = {"sigma_pair": 2.0} if name == "decor" else {}
    plain = mu2(seen(name, net, views.node(2), 4, **settings))
    summed = mu2(seen(name, net, views.node(2, secure_sum=True), 4, **settings))
    assert (summed <= plain + 1e-9).all()
    if name != "decor":
        everything = mu2(seen(name, net, views.everyone(), 4, **settings))
        assert (plain <= np.delete(everything, 2) + 1e-9).all()


def test_a_neighbour_with_secrets_is_stronger_than_everyone():
    """Path of 2, pair noise 5, T = 3: everyone 1.53, the neighbour 3.00 (mu squared)."""
    net = metropolis("path:2")
    np.testing.assert_allclose(mu2(seen("decor", net, views.everyone(), 3, sigma_pair=5.0)), 3 * 26 / 51)
    np.testing.assert_allclose(mu2(seen("decor", net, views.node(1), 3, sigma_pair=5.0)), 3.0)
    np.testing.assert_allclose(mu2(seen("decor", net, views.everyone(secrets_of=(1,)), 3, sigma_pair=5.0)), 3.0)


@pytest.mark.parametrize("T", [1, 2, 3, 6])
@pytest.mark.parametrize("spec", ["path:10", "ring:9", "florentine", "karate"])
def test_averaging_losses_sum_to_the_rank_and_chebyshev_changes_nothing(spec, T):
    net = metropolis(spec)
    plain = seen("muffliato", net, views.node(2), T)
    losses = mu2(plain)
    _, B = plain.dense()
    assert losses.sum() == pytest.approx(np.linalg.matrix_rank(B, tol=1e-11))
    np.testing.assert_allclose(mu2(seen("muffliato", net, views.node(2), T, chebyshev=True)), losses, atol=1e-8)


@pytest.mark.parametrize("chebyshev", [False, True])
def test_averaging_hides_nothing_from_the_end_of_a_long_path(chebyshev):
    """In real arithmetic the end of a path solves for everybody, though the last share is (1/3)^29, below rounding."""
    np.testing.assert_allclose(
        mu2(seen("muffliato", metropolis("path:30"), views.node(0), 35, chebyshev=chebyshev)), 1.0
    )
    some = mu2(seen("muffliato", metropolis("path:30"), views.node(0), 10, chebyshev=chebyshev))
    assert some.sum() == pytest.approx(10)


@pytest.mark.parametrize("T", [1, 2, 3, 6])
def test_averaging_on_a_complete_graph_is_over_after_one_step(T):
    np.testing.assert_allclose(mu2(seen("muffliato", metropolis("complete:6"), views.node(0), T)), 1.0)
    summed = mu2(seen("muffliato", metropolis("complete:6"), views.node(0, secure_sum=True), T))
    np.testing.assert_allclose(summed, 0.2)


def test_zip_dl_closed_forms():
    ring = metropolis("ring:7")
    for T in (1, 3, 6):
        np.testing.assert_allclose(
            mu2(seen("zip-dl", ring, views.everyone(), T)), 6 * sum(t * t for t in range(1, T + 1))
        )
    neighbour = [mu2(seen("zip-dl", ring, views.node(0), T))[0] for T in (3, 6, 9, 12)]
    np.testing.assert_allclose(neighbour, [8.5, 27.9, 56.2, 93.5], atol=0.06)
    independent = [mu2(seen("dp-d-sgd", ring, views.node(0), T))[0] for T in (3, 6, 9, 12)]
    np.testing.assert_allclose(independent, [2.8, 5.6, 8.4, 11.2], atol=0.06)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_zip_dl_of_several_gossip_steps_by_hand(steps):
    """Noise on the first messages only, zero in sum at the sender; what node 0 hears of a ring, its own draws known."""
    n = 7
    values, draws = np.eye(n), np.eye(3 * n).reshape(n, 3, 3 * n)  # to the left, to itself, to the right
    noise = draws - draws.mean(axis=1, keepdims=True)
    heard = [(values[a], noise[a, to]) for a, to in ((1, 0), (n - 1, 2))]
    mix = sum(np.roll(np.eye(n), shift, axis=1) for shift in (-1, 0, 1)) / 3
    models = mix @ values, sum(noise[(np.arange(n) + d) % n, 1 - d] for d in (-1, 0, 1)) / 3
    for _ in range(steps - 1):
        heard += [(models[0][a], models[1][a]) for a in (1, n - 1)]
        models = mix @ models[0], mix @ models[1]
    signal, spread = (np.array(part) for part in zip(*heard, strict=True))
    covariance = spread[:, 3:] @ spread[:, 3:].T
    expected = np.einsum("rv,rs,sv->v", signal[:, 1:], np.linalg.pinv(covariance, rcond=1e-9), signal[:, 1:])
    assert np.linalg.matrix_rank(covariance, tol=1e-9) == len(covariance)
    found = mu2(seen("zip-dl", metropolis("ring:7"), views.node(0), 1, gossip_steps=steps))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_zip_dl_of_several_gossip_steps_hides_nothing_in_the_end():
    """The same noise is heard again and again: messages without noise of their own tell it apart from the values."""
    net = metropolis("ring:7")
    for view, steps in ((views.everyone(), 2), (views.node(0), 10)):
        assert np.isinf(routes.exact_loss(seen("zip-dl", net, view, 1, gossip_steps=steps), EVERY).squares).all()
    assert (mu2(seen("muffliato-sgd", net, views.node(0), 1, gossip_steps=10)) < 1.001).all()


def test_zip_dl_collusion():
    """Uniform weights, closed neighbourhood of d + 1: one receiver learns (d + 1) / d, all d receivers (d + 1) d."""
    d, net = 4, metropolis("star:5")
    W = net.at(0).weights.toarray()
    assert W[0, 0] == pytest.approx(W[0, 1])
    one = mu2(seen("zip-dl", net, views.eavesdropper((0, 1)), 1))[0]
    every = mu2(seen("zip-dl", net, views.coalition(1, 2, 3, 4), 1))[0]
    assert (one, every) == (pytest.approx((d + 1) / d), pytest.approx((d + 1) * d))


def test_correlated_noise_for_everyone_is_C_transposed_C():
    rng = np.random.default_rng(0)
    C = np.tril(rng.random((6, 6))) + np.eye(6)
    view_of = seen("mf-d-sgd", metropolis("ring:5"), views.everyone(), 6, sigma=2.0, correlation=C)
    for M in routes.losses(view_of):
        np.testing.assert_allclose(M, C.T @ C / 4, rtol=1e-8)


def test_row_stochastic_and_directed_weights_are_accounted_for():
    for net in (
        uniform("exponential:7"),
        uniform("path:5"),
        from_matrix([[0.2, 0.8, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]]),
    ):
        view_of = seen("dp-d-sgd", net, views.node(0), 5)
        np.testing.assert_allclose(routes.losses(view_of), dense(view_of), atol=1e-9)


@pytest.mark.parametrize("net", [metropolis("erdos-renyi:20,p=0.3,seed=0"), fresh_erdos_renyi(9, 0.4, seed=2)], ids=str)
def test_routes_by_size_and_little_memory(monkeypatch, net):
    view_of = seen("dp-d-sgd", net, views.node(0), 8)
    plain = dense(view_of)
    monkeypatch.setattr(whitening, "RESPONSES", 50)
    monkeypatch.setattr(whitening, "LOSSES_AT_ONCE", 400)
    for rows, state, route in (
        (5, 100, kalman),
        (10**6, 5, gram_route.gram),
    ):
        monkeypatch.setattr(routes, "GRAM_ROWS", rows)
        monkeypatch.setattr(routes, "FILTER_STATE", state)
        assert routes.route_of(view_of) is route
        np.testing.assert_allclose(routes.losses(view_of), plain, atol=1e-10)


UNLIKE = {
    "symmetric": metropolis("erdos-renyi:20,p=0.3,seed=0"),
    "directed": uniform("exponential:12"),
    "changing": fresh_erdos_renyi(9, 0.4, seed=2),
}


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("models", ["none", "average", "all"])
def test_effects_by_lags_have_the_covariance_of_all_noise(name, models):
    view_of = seen("dp-d-sgd", UNLIKE[name], views.with_final_models(views.node(0), models), 7)
    for one in (view_of, eliminate_known_messages(view_of)[0]):
        _, B_RZ = one.dense()
        found = gram_route.covariance(one, gram_route.effects(one, gradients=False))
        np.testing.assert_allclose(found, B_RZ @ B_RZ.T, rtol=1e-13, atol=1e-15)


def test_a_view_is_given_back_when_its_loss_is_known():
    """What is kept of it for later use must not keep it alive: all pairs of a graph are thousands of views."""
    for models in ("none", "average"):
        view_of = seen("dp-d-sgd", metropolis("ring:80"), views.with_final_models(views.node(0), models), 5)
        routes.squared(view_of, EVERY)
        alive = weakref.ref(view_of)
        del view_of
        gc.collect()
        assert alive() is None


@pytest.mark.parametrize("net", [metropolis("ring:12"), dropout("ring:12", rate=0.3, seed=5)], ids=str)
def test_one_victim_alone_has_the_figure_it_has_among_all(net):
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=4)
    few = observe(system, views.node(0), victims=[3])
    assert gram_route.are_few(few)
    np.testing.assert_allclose(whole(few, routes.gram(few))[0], dense(observe(system, views.node(0)))[2], atol=1e-10)


@pytest.mark.parametrize("case", rest_slow(IDENTITY))
@pytest.mark.parametrize("models", ["none", "average", "all"])
def test_a_view_without_what_was_said_is_the_same_view(case: Case, models):
    system = trace(case.algorithm, case.topology, rounds=4)
    for view in single(system, views.node(1), views.coalition(0, 2), views.everyone(), views.node(1, secure_sum=True)):
        view_of = observe(system, views.with_final_models(view, models))
        smaller, direct = eliminate_known_messages(view_of)
        if smaller is view_of:
            continue
        sizes = [
            sum(step.observed.state.shape[0] + step.out.state.nnz for step in one.steps) for one in (smaller, view_of)
        ]
        assert sizes[0] < sizes[1]
        heard = any(step.observed.state.shape[0] for step in smaller.steps)
        found = direct[:, None, None] * np.eye(view_of.gradient_rounds) + (dense(smaller) if heard else 0)
        np.testing.assert_allclose(found, dense(view_of), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", rest_slow(IDENTITY))
@pytest.mark.parametrize("models", ["none", "average", "all"])
def test_losses_with_final_models_are_not_below_the_pseudo_inverse_nor_above_the_long_way(case: Case, models):
    """Whatever closed form is taken, and whatever is left out because it follows from the rest."""
    system = trace(case.algorithm, case.topology, rounds=4)
    for view in single(system, views.node(1), views.coalition(0, 2), views.everyone(), views.node(1, secure_sum=True)):
        view_of = observe(system, views.with_final_models(view, models))
        found = routes.squared(view_of, EVERY)
        assert (found >= (1 - 2e-5) * worst(dense(view_of)) - 1e-9).all()
        assert (found <= (1 + 2e-5) * worst(routes.losses(view_of)) + 1e-9).all()


def worst(M_VTT):
    """mu^2 of every victim; infinite where its M is, or where noise cancels but for rounding."""
    there = np.isfinite(M_VTT).all(axis=(1, 2))
    found = np.full(len(M_VTT), np.inf)
    found[there] = worst_case(M_VTT[there], EVERY, M_VTT.shape[1])
    return np.where(found > routes.CANCELLED, np.inf, found)


def test_models_are_left_out_only_where_they_follow_from_what_was_seen():
    def left_out(name, spec, view, models, **settings):
        view_of = seen(name, uniform(spec), views.with_final_models(view, models), 5, **settings)
        return without_implied_models(view_of) is not view_of

    for models in ("average", "all"):
        assert left_out("secure-average", "complete:5", views.node(1), models)
        assert left_out("secure-average", "complete:5", views.coalition(0, 3), models, sigma=[1.0, 2.0, 0.5, 1.0, 3.0])
        assert left_out("dp-d-sgd", "complete:5", views.node(1), models)
        assert not left_out("dp-d-sgd", "ring:5", views.node(1), models)  # two nodes are not heard
        assert not left_out("secure-gossip", "ring:5", views.node(1), models)
        assert not left_out("dp2sgd", "complete:5", views.node(1), models)  # a model keeps its last gradient
        assert not left_out("zip-dl", "complete:5", views.everyone(), models)


def test_a_hub_is_left_with_those_who_know_somebody_else():
    edges = [(0, leaf) for leaf in range(1, 9)] + [(8, 9), (9, 10), (1, 2)]
    smaller, direct = eliminate_known_messages(seen("dp-d-sgd", metropolis(Graph.from_edges(edges)), views.node(0), 5))
    assert smaller.steps[0].observed.state.shape == (1, 3)
    np.testing.assert_allclose(direct, [1] * 7 + [0] * 3)


def test_optimal_attacker_reaches_the_figure():
    """Fixed streams: the likelihood ratio of real runs separates the two worlds by exactly mu."""
    from sottovoce.core.loop import play_round, start_run
    from sottovoce.core.noise_feed import NoiseFeed

    for spec, attacker, victim in (("path:4", 3, 0), ("ring:6", 0, 2), ("florentine", 4, 9)):
        net, T, D = metropolis(spec), 5, 4000
        dp = algorithm("dp-d-sgd", sigma=1.0, step_size=1.0)
        view_of = observe(trace(dp, net, rounds=T), views.node(attacker))
        A, B = view_of.dense()
        u = int(np.flatnonzero(view_of.victims == victim)[0])
        direction = np.linalg.pinv(B @ B.T) @ A[:, :, u].sum(axis=1)
        mu = np.sqrt(routes.losses(view_of)[u].sum())
        x0, zeros = np.zeros((net.n, D)), np.zeros((net.n, D))
        fitted, loop_state = start_run(dp, net, x0, T)
        feed, scores = NoiseFeed(1, NoiseKey.of_seed(1), lambda t, x, zeros=zeros: zeros, x0), np.zeros(D)
        at, known = 0, attacker
        for t in range(T):
            played = play_round(fitted, net, loop_state, feed, t)
            loop_state = played.loop_state
            sender, _, rows = played.steps[0].sent_messages()
            heard = [i for i, v in enumerate(sender) if v != known and net.at(0).weights[known, v] != 0]
            own = _own_part(dp, net, known, t, T, D)
            scores += direction[at : at + len(heard)] @ (rows[heard] - own[heard])
            at += len(heard)
        spread = scores.std()
        assert spread == pytest.approx(mu, rel=5 / np.sqrt(2 * D))


def _own_part(dp, net, known, t, T, D):
    """What the attacker's own noise contributes to the messages of round t: it subtracts that."""
    system = trace(dp, net, rounds=T)
    _, B, labels = system.dense()
    Z = system.draw(NoiseKey.of_seed(1), D)
    mine = np.zeros(B.shape[1], dtype=bool)
    mine[known :: net.n] = True
    return (B[labels.round == t][:, mine]) @ Z[mine]


def test_one_round_of_a_state_that_grows():
    built = algorithm("muffliato-sgd", sigma=1.5, gossip_steps=3, chebyshev=True)
    seen = observe(trace(built, metropolis("ring:5"), rounds=1), views.node(1))
    np.testing.assert_allclose(routes.losses(seen), dense(seen), rtol=1e-9)


def test_one_victim_of_a_singular_view_has_the_figure_it_has_among_all():
    net = dropout("ring:6", rate=0.3, correlation=0.2, seed=5)
    system = trace(algorithm("muffliato-sgd", sigma=1.5, gossip_steps=3), net, rounds=3)
    everybody = observe(system, views.everyone())
    for number, victim in enumerate(everybody.victims):
        alone = observe(system, views.everyone(), victims=[int(victim)])
        np.testing.assert_allclose(routes.losses(alone)[0], routes.losses(everybody)[number], rtol=1e-9)


@pytest.mark.parametrize("sigma", [1.0, 3e6, 1e12])
def test_noise_that_cancels_in_a_published_average_protects_nobody_whatever_its_size(sigma):
    system = trace(algorithm("zip-dl", sigma=sigma), metropolis("ring:5"), rounds=3)
    assert account(system, "everyone", final_models="average", covering=False).headline.mu == float("inf")


def test_noise_on_messages_that_is_lost_beside_that_of_others_is_refused():
    """The smaller one is known by differences of the larger: figures were down to a fiftieth of the loss."""
    unequal = algorithm("zip-dl", sigma=1.0, sensitivity=(1.0, 1.0, 1.0, 1e6))
    found = account(trace(unequal, metropolis("complete:4"), rounds=4), "everyone", covering=False)
    assert found.headline.proves_nothing
    assert "differs by more than a factor of 100,000" in found.refusals[0]
