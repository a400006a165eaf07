"""The linear attack: what can be solved for, how sharply, and that real runs agree."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce import (
    Coordinate,
    InputError,
    Unaccountable,
    algorithm,
    metropolis,
    push,
    receive,
    reconstruct,
    trace,
    views,
)
from sottovoce.privacy.observation import observe
from tests.cases import Case, cases
from tests.selection import rest_slow


def values(n, columns=1, seed=0):
    drawn = np.random.default_rng(seed).standard_normal((n, columns)) * 3
    return drawn, lambda round, x: drawn if round == 0 else 0 * drawn


@pytest.mark.parametrize("spec", ["ring:6", "star:5", "florentine"])
def test_without_noise_direct_neighbours_values_are_exact(spec):
    net = metropolis(spec)
    truth, gradient = values(net.n, 4)
    attack = reconstruct(trace(algorithm("muffliato", sigma=0.0), net, rounds=1), views.node(0))
    found = attack.attack(gradient, np.zeros((net.n, 4)))
    near = set(np.flatnonzero(net.at(0).weights.toarray()[0])) - {0}
    for i, v in enumerate(attack.nodes):
        assert attack.deviation_of(v) == (0.0 if v in near else math.inf)
        if v in near:
            np.testing.assert_allclose(found[0, i], truth[v], atol=1e-12)
        else:
            assert np.isnan(found[0, i]).all()


def test_without_noise_enough_gossip_reveals_everybody():
    """The end of a path solves for the whole path, one node further every step."""
    truth, gradient = values(6)
    for steps in (1, 3, 5):
        attack = reconstruct(
            trace(algorithm("muffliato", sigma=0.0), metropolis("path:6"), rounds=steps), views.node(0)
        )
        assert [v for _, v, _ in attack.solved()] == list(range(1, steps + 1))
        found = attack.attack(gradient, np.zeros((6, 1)))[0]
        np.testing.assert_allclose(found[:steps], truth[1 : steps + 1], atol=1e-8)


def test_gradients_of_the_first_round_and_of_all_where_everything_is_heard():
    net = metropolis("ring:5")
    plain = reconstruct(trace(algorithm("d-psgd"), net, rounds=3), views.node(0))
    assert [(t, v) for t, v, _ in plain.solved()] == [(0, 1), (0, 4)]
    whole = reconstruct(trace(algorithm("dp-d-sgd", sigma=1.5, sensitivity=2.0), net, rounds=3))
    np.testing.assert_allclose(whole.deviation_TV, 3.0)
    hub = reconstruct(trace(algorithm("dp-d-sgd", sigma=1.5), metropolis("star:5"), rounds=3), views.node(0))
    np.testing.assert_allclose(hub.deviation_TV, 1.5)


@pytest.mark.parametrize(
    "case", rest_slow(case for case in cases() if case.place in ("ring:5", "exponential:6", "dropout"))
)
def test_real_runs_have_the_stated_errors(case: Case):
    """Whatever can be solved for is unbiased, with the stated deviation: two-sided, for every algorithm and view."""
    if case.algorithm.compression.name != "identity":
        return
    n, D, T = case.topology.n, 3000, 3
    system = trace(case.algorithm, case.topology, rounds=T)
    G_TND = np.random.default_rng(4).standard_normal((T, n, D))
    for view in (views.node(1), views.coalition(0, 2), views.node(1, secure_sum=True)):
        attack = reconstruct(system, view)
        errors = attack.attack(lambda t, x: G_TND[t], np.zeros((n, D)), seed=8)
        errors -= G_TND[list(attack.rounds)][:, list(attack.nodes)]
        for error, deviation in zip(errors.reshape(-1, D), attack.deviation_TV.ravel(), strict=True):
            if math.isinf(deviation):
                assert np.isnan(error).all()
                continue
            assert abs(error.mean()) <= 6 * deviation / math.sqrt(D) + 1e-9
            assert abs(error.std() - deviation) <= 6 * deviation / math.sqrt(2 * D) + 1e-9


def test_no_unbiased_combination_is_better():
    """Against the definition: random unbiased estimators of a case with noise to cancel are never sharper."""
    system = trace(algorithm("zip-dl", sigma=1.0), metropolis("ring:5"), rounds=2)
    attack = reconstruct(system, views.everyone())
    A, B = attack.observation.dense()
    flat, rng = A.reshape(len(A), -1), np.random.default_rng(0)
    free = np.linalg.svd(flat)[0][:, np.linalg.matrix_rank(flat) :]
    assert free.shape[1] > 0
    for t, v, deviation in attack.solved():
        weights = attack.weights_RTV[:, t, v]
        pick = np.zeros(flat.shape[1])
        pick[t * 5 + v] = 1
        np.testing.assert_allclose(flat.T @ weights, pick, atol=1e-9)
        for _ in range(20):
            other = weights + 0.3 * free @ rng.standard_normal(free.shape[1])
            assert np.linalg.norm(B.T @ other) >= deviation * (1 - 1e-9)


def test_secure_sums_hide_single_values():
    net = metropolis("ring:6")
    silent = trace(algorithm("muffliato", sigma=0.0), net, rounds=1)
    assert reconstruct(silent, views.node(0, secure_sum=True)).solved() == []
    end = trace(algorithm("muffliato", sigma=0.0), metropolis("path:4"), rounds=1)
    assert [v for _, v, _ in reconstruct(end, views.node(0, secure_sum=True)).solved()] == [1]
    together = reconstruct(silent, views.coalition(0, 2, secure_sum=True))
    assert [v for _, v, _ in together.solved()] == []


def test_a_start_and_own_gradients_are_taken_off():
    """The attacker's own noise, its own gradients and a public start that is not zero change no estimate."""
    net, T = metropolis("ring:5"), 3
    system = trace(algorithm("dp-d-sgd", sigma=1.0, step_size=0.1), net, rounds=T)
    seen = observe(system, views.node(0))
    rng = np.random.default_rng(1)
    G, x0 = rng.standard_normal((T, 5, 2)), rng.standard_normal((5, 2))
    own = G.copy()
    own[:, 0] += 100.0
    plain = receive(seen, lambda t, x: G[t], np.zeros((5, 2)), seed=3)
    np.testing.assert_allclose(receive(seen, lambda t, x: own[t], x0, seed=3), plain, atol=1e-9)


def test_pair_secrets_that_members_share_are_taken_off():
    """DECOR: a neighbour knows the secret it shares, so huge pair noise does not blur its neighbours on a path."""
    system = trace(algorithm("decor", sigma=0.5, sigma_pair=1e3), metropolis("path:3"), rounds=1)
    assert reconstruct(system, views.coalition(0, 2)).deviation_of(1) == pytest.approx(0.5)
    assert reconstruct(system, views.node(0)).deviation_of(1) > 100
    found = reconstruct(system, views.coalition(0, 2)).attack(lambda t, x: np.ones_like(x), np.zeros((3, 4000)), seed=2)
    assert found.std() == pytest.approx(0.5, rel=0.06)


def test_some_victims_only():
    system = trace(algorithm("muffliato", sigma=1.0), metropolis("ring:6"), rounds=2)
    whole, some = reconstruct(system, views.node(0)), reconstruct(system, views.node(0), victims=[5, 2])
    assert some.nodes == (2, 5)
    for v in some.nodes:
        assert some.deviation_of(v) == pytest.approx(whole.deviation_of(v))


def test_a_hundred_nodes_and_twenty_rounds():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("erdos-renyi:100,p=0.06,seed=1"), rounds=20)
    attack = reconstruct(system, views.node(0))
    degree = int((metropolis("erdos-renyi:100,p=0.06,seed=1").at(0).weights[[0]] != 0).sum()) - 1
    assert len(attack.solved()) == degree
    assert attack.deviation_TV.shape == (20, 99)


def test_one_clear_line_for_bad_input():
    system = trace(algorithm("muffliato", sigma=1.0), metropolis("ring:6"), rounds=2)
    attack = reconstruct(system, views.node(0))
    large = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:100"), rounds=50)
    asked = {
        "node 9 in view node:9; nodes are 0..5": lambda: reconstruct(system, "node:9"),
        "victim 0 belongs to node:0; an adversary knows": lambda: reconstruct(system, "node:0", victims=[0]),
        "node 7; the attack covers 1, 2, 3, 4, 5": lambda: attack.deviation_of(7),
        "round 1; the attack covers 0": lambda: attack.deviation_of(1, round=1),
        r"messages of shape \(3, 1\); the view receives": lambda: attack.estimates(np.zeros((3, 1))),
        r"a starting point of \(2, 1\)": lambda: attack.attack(lambda t, x: x, np.zeros((2, 1))),
        "5000 messages with 5000 unknowns": lambda: reconstruct(large),
        "eavesdropper:0>3 taps 0>3": lambda: reconstruct(system, views.eavesdropper((0, 3))),
    }
    for line, ask in asked.items():
        with pytest.raises(InputError, match=line) as caught:
            ask()
        assert "\n" not in str(caught.value)
    squeezed = algorithm("dp-csgp", sigma=1.0, compression="rand:0.5")
    with pytest.raises(Unaccountable, match="coordinates are not all sent"):
        reconstruct(trace(squeezed, push("ring:5"), rounds=2, coordinate=Coordinate(0, 4)))
