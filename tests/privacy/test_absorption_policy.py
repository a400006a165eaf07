"""Policies of the absorption bound: never below the least cost, as a solver of least squares finds it, and near it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from sottovoce import account, algorithm, dropout, metropolis, trace, uniform, views
from sottovoce.core.participation import parse_participation
from sottovoce.privacy import absorption_policy
from sottovoce.privacy.absorption import couple
from sottovoce.privacy.absorption_policy import Policy, least_cost, policy_for
from sottovoce.privacy.guarantee import Kind

EVERY = parse_participation("every")


def rounds_of(net, view, rounds, sigma=1.0):
    return couple(trace(algorithm("dp-d-sgd", sigma=sigma), net, rounds=rounds), view)


def least_squares(rounds, victim, part):
    """The least cost over all that may be carried, q >= 0: absorbed, `p - q` over noise, is linear in q.

    To carry more than there is never pays, so that `q <= p` holds by itself.
    """
    n, T = len(rounds[0].fresh), len(rounds)
    free = [(t, w) for t in range(T) for w in range(n) if not rounds[t].must_absorb[w]]
    place = {key: number for number, key in enumerate(free)}
    matrix, shift = np.zeros((T * n, len(free))), np.zeros(T * n)
    for t, coupling in enumerate(rounds):
        for w in range(n):
            row = t * n + w
            if t:
                for v in np.flatnonzero(rounds[t - 1].transfer[[w]].toarray()[0]):
                    if (t - 1, v) in place:
                        matrix[row, place[t - 1, v]] += rounds[t - 1].transfer[w, v]
            shift[row] = float(part[t] and w == victim and coupling.takes[w])
            if (t, w) in place:
                matrix[row, place[t, w]] -= 1
            noise = coupling.fresh[w] or 1e-4  # without noise all is carried: to absorb there costs far too much
            matrix[row] /= noise
            shift[row] /= noise
    return 2 * lsq_linear(matrix, -shift, bounds=(0, np.inf), tol=1e-12, lsq_solver="exact").cost


UNEVEN = np.linspace(0.5, 3.0, 8)

CASES = {
    "ring": (metropolis("ring:8"), 1.0, "every"),
    "uneven noise": (metropolis("ring:8"), UNEVEN, "every"),
    "hubs": (uniform("star:6"), 1.0, "every"),
    "changing": (dropout("ring:8", rate=0.3, seed=2), 1.0, "every"),
    "twice": (metropolis("path:6"), 1.0, "2x2"),
}


@pytest.mark.parametrize("name", CASES)
def test_policies_are_never_below_the_least_cost_and_close_to_it(name):
    net, sigma, participation = CASES[name]
    scheme = parse_participation(participation)
    rounds, victims = rounds_of(net, views.node(1), 5, sigma), np.setdiff1d(np.arange(net.n), [1])
    found = {policy: least_cost(rounds, victims, scheme, policy) for policy in Policy}
    for number, victim in enumerate(victims):
        parts = [np.isin(np.arange(5), pattern) for pattern in scheme.patterns(5)]
        oracle = max(least_squares(rounds, victim, part) for part in parts)
        for policy, near in ((Policy.OPTIMISED, 1e-3), (Policy.SWEPT, 0.05)):
            cost = found[policy][number]
            assert oracle * (1 - 1e-6) - 1e-12 <= cost <= oracle * (1 + near) + 1e-9, (victim, policy)


def test_blocks_of_victims_do_not_change_their_figures(monkeypatch):
    rounds, victims = rounds_of(metropolis("grid:4x5"), views.node(0), 6), np.arange(1, 20)
    whole = least_cost(rounds, victims, EVERY, Policy.SWEPT)
    monkeypatch.setattr(absorption_policy, "IN_CACHE", 3 * 20)
    np.testing.assert_allclose(least_cost(rounds, victims, EVERY, Policy.SWEPT), whole, rtol=1e-12)


def test_figures_of_small_graphs_do_not_depend_on_the_number_of_cores(monkeypatch):
    rounds, victims = rounds_of(metropolis("ring:16"), views.node(0), 25), np.arange(1, 16)
    found = least_cost(rounds, victims, EVERY)
    for cores in (1, 2, 4):
        monkeypatch.setattr(absorption_policy, "WORKERS", cores)
        np.testing.assert_array_equal(least_cost(rounds, victims, EVERY), found)


def test_heard_nodes_without_noise_make_those_before_them_absorb():
    """On a path seen from one end, node 1 adds nothing: all that reaches it is seen as it is."""
    sigma = np.array([1.0, 0.0, 1.0, 1.0])
    rounds = rounds_of(metropolis("path:4"), views.node(0), 3, sigma)
    for policy in Policy:
        near, middle, far = least_cost(rounds, np.array([1, 2, 3]), EVERY, policy)
        assert np.isinf(near)
        assert middle == pytest.approx(2)  # its last step comes too late
        assert far == pytest.approx(least_squares(rounds, 3, np.ones(3, dtype=bool)), rel=0.05)


def test_size_decides_which_policy_is_used_and_the_account_says_so():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("regular:3000,d=10,seed=0"), rounds=30)
    assert policy_for(system, 2999, EVERY, optimised=False) is Policy.SWEPT
    assert policy_for(system, 2999, EVERY, optimised=True) is Policy.OPTIMISED
    assert policy_for(system, 1, EVERY, optimised=False) is Policy.OPTIMISED
    few = account(system, "node:0", kinds=["convex-training"], victims=range(1, 60))
    assert few.absorption_policy is Policy.SWEPT
    assert few.document(1e-5)["absorption_policy"] == "swept"
    one = account(system, "node:0", kinds=["any-training"], victims=[5])
    assert one.absorption_policy is one.document(1e-5)["absorption_policy"] is None


@pytest.mark.parametrize(("policy", "lengths"), [(Policy.SWEPT, (20, 200, 800)), (Policy.OPTIMISED, (20, 200))])
def test_policies_are_not_lost_beside_others_that_carry_far_more(policy, lengths, monkeypatch):
    """Where sums are seen, what is carried unheard grows tenfold in every few rounds, beyond all numbers in the end.

    On a complete graph each of T rounds has a sum of 7 noises, alone: no policy can cost less than T / 7.
    """
    monkeypatch.setattr(absorption_policy, "ITERATIONS", 10)
    view, net = views.node(0, secure_sum=True), metropolis("complete:8")
    costs = [float(least_cost(rounds_of(net, view, T), np.array([1]), EVERY, policy)[0]) for T in lengths]
    for T, cost in zip(lengths, costs, strict=True):
        assert T / 7 <= cost <= T
    assert 0.98 * costs[0] * lengths[1] / lengths[0] <= costs[1]


def test_a_sum_over_nodes_with_little_noise_is_not_lost_beside_one_with_much():
    """Both members see sums of node 1 alone with nodes that are theirs, and of node 2 with far more noise."""
    sigmas = (1.0, 1.0, 1e8, 1.0, 1.0, 1.0)
    system = trace(algorithm("dp-d-sgd", sigma=sigmas), metropolis("ring:6"), rounds=2)
    view = views.coalition(0, 3, secure_sum=True)
    found = account(system, view, kinds=["convex-training", "fixed-streams"], convex=True, covering=False)
    mus = {(one.victim, one.kind): one.mu for one in found.guarantees}
    for victim in (1, 2, 4, 5):
        assert mus[victim, Kind.CONVEX_TRAINING] >= (1 - 1e-6) * mus[victim, Kind.FIXED_STREAMS]
    assert mus[1, Kind.CONVEX_TRAINING] >= 1
