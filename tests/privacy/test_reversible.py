"""One filter for all rounds of symmetric weights: never below the truth, however rough the filter is."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import algorithm, metropolis, trace, uniform, views, weigh
from sottovoce.core.participation import parse_participation
from sottovoce.privacy.all_pairs import ABOVE, all_pairs
from sottovoce.privacy.exact import fourier, reversible, routes
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import GAP

EVERY = parse_participation("every")
ETA = 1e-3

CASES = {
    "regular": ("regular:60,d=3,seed=1", 30),
    "florentine": ("florentine", 12),
    "random": ("erdos-renyi:20,p=0.3,seed=0", 9),
    "three rounds": ("erdos-renyi:20,p=0.2,seed=1", 3),
}


def eliminated(net, rounds, attacker=0, **settings):
    system = trace(algorithm("dp-d-sgd", **({"sigma": 0.7} | settings)), net, rounds=rounds)
    view_of = observe(system, views.node(attacker))
    return view_of, *routes._reduced(view_of, always=True)


def losses(view_of, smaller, direct, eta=ETA):
    groups = reversible.reversible(smaller, eta, True)
    if groups is None:
        return None
    return routes.whole(view_of, groups) + direct[:, None, None] * np.eye(view_of.gradient_rounds)


def assert_above(found, truth, eta=None):
    """In the order of psd matrices, and by no more than eta."""
    for ours, exactly in zip(found, truth, strict=True):
        above = np.linalg.eigvalsh(ours - exactly)
        assert above[0] >= -1e-11 * np.trace(exactly)
        if eta is not None:
            assert above[-1] <= eta * np.linalg.eigvalsh(exactly)[-1]


@pytest.mark.parametrize("name", CASES)
def test_losses_are_above_the_pseudo_inverse_and_hardly(name, monkeypatch):
    spec, rounds = CASES[name]
    monkeypatch.setattr(fourier, "AT_ONCE", 7 * rounds**2)
    monkeypatch.setattr(fourier, "IN_CACHE", 500)
    for attacker in (0, 3):
        found = eliminated(metropolis(spec), rounds, attacker)
        assert_above(losses(*found), routes.dense(found[0]), ETA)


@pytest.mark.parametrize(
    ("spec", "weights", "rounds", "scheme", "sigma"),
    [
        ("ring:30", "metropolis", 150, "3x40", 1.0),
        ("ring:30", "metropolis,lazy=0.999999", 20, "every", 1.0),
        ("regular:20,d=3,seed=1", "metropolis", 8, "every", 1e12),
        ("regular:20,d=3,seed=1", "metropolis", 8, "every", 1e-12),
    ],
)
def test_long_runs_lazy_weights_and_noise_of_any_size_stay_within_what_is_promised(
    spec, weights, rounds, scheme, sigma
):
    """In long runs single precision would add more than is allowed; lazy weights leave the filter nothing to mend."""
    system = trace(algorithm("dp-d-sgd", sigma=sigma), weigh(spec, weights), rounds=rounds)
    view_of, scheme = observe(system, views.node(5)), parse_participation(scheme)
    smaller, _ = routes._reduced(view_of, always=True)
    assert reversible.reversible(smaller, 1.6 * ABOVE, scheme.times is None) is not None
    rough, exactly = routes.squared(view_of, scheme, above=ABOVE), routes.squared(view_of, scheme)
    assert (rough >= exactly * (1 - GAP)).all()
    assert (rough <= exactly * (1 + ABOVE) ** 2).all()


@pytest.mark.parametrize("steps", [2, 3])
def test_a_rough_filter_costs_accuracy_and_never_soundness(steps, monkeypatch):
    found = eliminated(metropolis("regular:60,d=3,seed=1"), 30)
    truth = routes.dense(found[0])
    monkeypatch.setattr(reversible, "STEPS", steps)
    monkeypatch.setattr(reversible, "MORE", 3)
    assert losses(*found) is None
    rough = losses(*found, eta=10.0)
    assert_above(rough, truth)
    assert (np.einsum("vtt->v", rough) > 1.5 * np.einsum("vtt->v", truth)).any()


def test_what_the_filter_lacks_is_found_by_recursion():
    _, smaller, _ = eliminated(metropolis("erdos-renyi:20,p=0.3,seed=0"), 9, sigma=1.0)
    lags = reversible._lags(smaller.steps[0], 9)
    filter_TPP, largest = reversible._filter(lags, 9)
    P = filter_TPP.shape[1]
    _, B_RZ = smaller.dense()
    G = B_RZ @ B_RZ.T
    assert np.linalg.eigvalsh(G)[-1] <= largest
    filter_TPP = filter_TPP + 0.02 * np.random.default_rng(0).standard_normal(filter_TPP.shape)  # any filter will do
    C = np.block([[filter_TPP[t - s] if s <= t else np.zeros((P, P)) for s in range(9)] for t in range(9)])
    D, rounding = reversible._lacks(lags, filter_TPP)
    np.testing.assert_allclose(D, np.eye(len(G)) - C @ G @ C.T, atol=3e-7)
    assert rounding < 1e-6


def test_the_norm_of_what_is_left_out_is_bounded():
    draw = np.random.default_rng(0)
    for size in (1.0, 1e-3):
        D = draw.standard_normal((60, 60)) * size
        D = ((D + D.T) / 2).astype(np.float32)
        U = draw.standard_normal((60, 4)).astype(np.float32) * np.float32(size)
        left = np.linalg.norm(D.astype(float) - U.astype(float) @ U.T.astype(float), 2)
        assert left <= reversible._rest(D, U, 5) <= 6 * left


def test_the_error_of_single_precision_is_bounded():
    draw = np.random.default_rng(0)
    T, P, K, V = 20, 6, 8, 30
    transform = fourier._Transform.of(T)
    filters = np.eye(P) * (np.arange(T) == 0)[:, None, None] + 0.05 * draw.standard_normal((T, P, P))
    maps = fourier._Maps.of(transform, filters, draw.standard_normal((T, P, K)))
    responses = draw.standard_normal((T, V, P))
    both = np.concatenate(transform.parts(responses), axis=2)
    exact = fourier._mapped(both, tuple(part.astype(float) for part in maps.lacks), transform.back).copy()
    rough = fourier._mapped(both.astype(np.float32), maps.lacks, transform.back.astype(np.float32))
    errors = np.linalg.norm(rough - exact, axis=(0, 2))
    bounds = fourier.rounding(both.astype(np.float32), maps.sizes())
    assert (errors > 0).all()
    assert (errors < bounds).all()
    assert bounds.max() < 1e-3 * np.linalg.norm(exact, axis=(0, 2)).min()


def test_responses_and_directions_are_those_of_sums_over_rounds():
    draw = np.random.default_rng(1)
    T, P, K, V = 7, 3, 4, 5
    transform = fourier._Transform.of(T)
    filters, Y = draw.standard_normal((T, P, P)), draw.standard_normal((T, P, K))
    responses = draw.standard_normal((T, V, P))
    M = np.empty((V, T, T))
    maps = fourier._Maps.of(transform, filters, Y)
    fourier._products_(M, responses, transform, maps, maps.sizes(), True)
    C = np.block([[filters[t - s] if s <= t else np.zeros((P, P)) for s in range(T)] for t in range(T)])
    whitened = np.eye(T * P) + Y.reshape(-1, K) @ Y.reshape(-1, K).T
    for victim in range(V):
        A = np.zeros((T, P, T))
        for s in range(T):
            A[s:, :, s] = responses[: T - s, victim]
        white = C @ A.reshape(-1, T)
        exact = white.T @ whitened @ white
        assert_above([M[victim]], [exact], 2 * fourier.SLACK)


@pytest.mark.parametrize(
    ("net", "settings"),
    [(uniform("exponential:12"), {}), (metropolis("ring:8"), {"sigma": np.linspace(0.5, 3.0, 8)})],
    ids=["directed", "uneven noise"],
)
def test_other_systems_are_left_to_other_routes(net, settings):
    _, smaller, _ = eliminated(net, 6, **settings)
    assert reversible.reversible(smaller, ETA, True) is None


@pytest.mark.parametrize("rounds", [30])
def test_pairs_of_an_ego_graph_are_hardly_above_the_exact_loss(data, rounds, monkeypatch):
    net = metropolis(f"file:{data('facebook_ego/414.edges.gz')}")
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=rounds)
    by_degree = np.argsort(net.graph.out_degrees, kind="stable")
    some = [int(by_degree[place]) for place in (0, 20, system.n // 2, system.n - 1)]
    exact = [routes.squared(observe(system, views.node(attacker)), EVERY) for attacker in some]
    monkeypatch.setattr(routes, "gram", None)  # neither of the others is taken
    monkeypatch.setattr(routes, "kalman", None)
    _assert_pairs(system, some, exact)


@pytest.mark.slow
def test_pairs_of_a_graph_of_thousands_are_hardly_above_the_exact_loss(data):
    net = metropolis(f"file:{data('facebook_ego/facebook_combined.txt.gz')}")
    system = trace(algorithm("dp-d-sgd", sigma=1.0), net, rounds=50)
    some = [2, 107, 158, 2000, 500]  # from 10 to 83 messages a round that tell anything, and the largest hub
    _assert_pairs(system, some, [routes.squared(observe(system, views.node(attacker)), EVERY) for attacker in some])


def _assert_pairs(system, attackers, exact):
    rows = all_pairs(system, EVERY, attackers=attackers)
    for attacker, row, truth in zip(attackers, rows, exact, strict=True):
        ours = np.delete(row, attacker)
        assert (ours >= np.sqrt(truth) * (1 - 2e-5)).all()  # the exact one is rounded up too
        assert (ours <= np.sqrt(truth) * (1 + ABOVE)).all()
