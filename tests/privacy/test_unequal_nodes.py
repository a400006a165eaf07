"""Nodes that differ in sensitivity: each has noise in units of its own, and figures about a change of its own size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce import InputError, Unaccountable, account, algorithm, calibrate, metropolis, trace, views
from sottovoce.auditing.mechanism import audit
from sottovoce.core.loop import iterate_rounds
from sottovoce.core.participation import Participation
from sottovoce.core.random_streams import NoiseKey
from sottovoce.core.sensitivity import largest, relative
from sottovoce.core.topologies import fresh_erdos_renyi
from sottovoce.privacy.all_pairs import all_pairs
from sottovoce.privacy.published_formulas import published
from tests.laws import rejects
from tests.tracing.dense_oracle import trace_dense

SIZES = (0.5, 2.0, 1.0, 0.1, 0.7)
PATH = metropolis("path:5")
RING = metropolis("ring:5")
ROUNDS = 4


def by_hand(built, net, attacker, rounds=ROUNDS):
    """M of every victim: from A and B in the units of messages, with each victim's own Delta."""
    A, B, labels = trace_dense(built, net, rounds=rounds)
    heard = np.isin(labels.sender, np.flatnonzero(net.at(0).weights.toarray()[attacker])) & (labels.sender != attacker)
    unknown = np.arange(B.shape[1]) % net.n != attacker
    B = B[heard][:, unknown]
    inverse = np.linalg.pinv(B @ B.T)
    found = {}
    for victim in (node for node in range(net.n) if node != attacker):
        signal = A[heard][:, victim :: net.n] * built.sensitivity[victim]
        found[victim] = signal.T @ inverse @ signal
    return found


@pytest.mark.parametrize("name", ["dp-d-sgd", "muffliato-sgd", "anti-pgd", "dp2sgd"])
def test_everyone_learns_the_same_about_every_node_at_the_same_sigma(name):
    alike = account(trace(algorithm(name, sigma=2.0), RING, rounds=ROUNDS))
    unlike = account(trace(algorithm(name, sigma=2.0, sensitivity=SIZES), RING, rounds=ROUNDS))
    for victim in range(5):
        assert unlike.of(victim).mu == pytest.approx(alike.of(victim).mu, rel=1e-12)


@pytest.mark.parametrize("net", [PATH, RING], ids=["path", "ring"])
def test_figures_of_a_node_are_those_of_the_dense_matrices_in_the_units_of_messages(net):
    built = algorithm("dp-d-sgd", sigma=1.5, sensitivity=SIZES, step_size=0.3)
    system = trace(built, net, rounds=ROUNDS)
    every = account(system, "node:0", kinds=["fixed-streams"])
    once = account(system, "node:0", kinds=["fixed-streams"], participation=f"1x{ROUNDS}")
    for victim, M in by_hand(built, net, 0).items():
        assert once.of(victim, "fixed-streams").mu ** 2 == pytest.approx(np.diag(M).max(), rel=1e-9)
        assert M.sum() * (1 - 1e-9) <= every.of(victim, "fixed-streams").mu ** 2 <= np.abs(M).sum() * (1 + 1e-9)


@pytest.mark.parametrize("view", ["everyone", "node:1", "coalition:0,3", "eavesdropper:1>2"])
@pytest.mark.parametrize("name", ["dp-d-sgd", "zip-dl", "muffliato-sgd"])
def test_sizes_of_noise_and_of_the_change_are_all_that_differs(name, view):
    """Noise sigma Delta_u at every node, and a change of Delta_u: the figure for a change of 1, times Delta_u."""
    apart = account(
        trace(algorithm(name, sigma=[1.5 * size for size in SIZES]), RING, rounds=ROUNDS), view, convex=True,
        kinds=["convex-training", "fixed-streams"],
    )  # fmt: skip
    unlike = account(
        trace(algorithm(name, sigma=1.5, sensitivity=SIZES), RING, rounds=ROUNDS), view, convex=True,
        kinds=["convex-training", "fixed-streams"],
    )  # fmt: skip
    assert [one.kind for one in unlike.guarantees] == [one.kind for one in apart.guarantees]
    for one, other in zip(unlike.guarantees, apart.guarantees, strict=True):
        assert one.mu == pytest.approx(SIZES[one.victim] * other.mu, rel=1e-4)  # the absorption bound is iterated


def test_secrets_of_pairs_cancel_and_are_as_large_as_the_largest_sensitivity_asks_for():
    decor = algorithm("decor", sigma=1.0, sigma_pair=3.0, sensitivity=SIZES)
    _, B, labels = trace_dense(decor, PATH, rounds=1)
    pairs = B[:, 5:] / decor.step_size
    np.testing.assert_allclose(pairs.sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.abs(pairs[np.abs(pairs) > 0]), 3.0 * max(SIZES))
    np.testing.assert_allclose(np.abs(np.diag(B[:, :5])) / decor.step_size, SIZES)
    assert (labels.sender == np.arange(5)).all()


def test_a_nodes_own_noise_in_a_run_has_its_own_size():
    """Two-sided: sigma Delta_u is accepted, 0.9 and 1.1 of it are rejected, with grids and without."""
    for exact in (False, True):
        built = algorithm("dp-d-sgd", sigma=1.5, sensitivity=SIZES, step_size=1.0)
        built = type(built)(**{**vars(built), "exact_noise": exact})
        first = next(
            iter(
                iterate_rounds(
                    built, RING, np.zeros((5, 20_000)), lambda round, x: np.zeros_like(x), rounds=1,
                    noise_key=NoiseKey.of_seed(3),
                )
            )
        )  # fmt: skip
        for node, size in enumerate(SIZES):
            row = np.asarray(first.steps[0].sent[node])
            assert not rejects(row, 1.5 * size)
            assert rejects(row, 0.9 * 1.5 * size)
            assert rejects(row, 1.1 * 1.5 * size)


@pytest.mark.parametrize("victim", [1, 3])
def test_an_audit_of_runs_never_passes_the_figure_and_comes_near_it(victim):
    system = trace(algorithm("muffliato", sigma=1.0, sensitivity=SIZES), PATH, rounds=3)
    found = audit(system, "node:0", victim=victim, repetitions=20_000)
    claim = account(system, "node:0").of(victim)
    assert found.consistent_with(claim)
    assert found.mu > 0.8 * claim.mu


def test_calibration_holds_for_the_victim_that_is_worst_off():
    """Seen by one node, others' noise protects a victim: one factor on noise in proportion to own sensitivities."""
    built, target = algorithm("dp-d-sgd", sigma=1.0, sensitivity=SIZES), {"epsilon": 2.0, "delta": 1e-5}
    for view in ("everyone", "node:0"):
        sigma = calibrate(built, PATH, view, rounds=ROUNDS, convex=True, **target)
        ready = algorithm("dp-d-sgd", sigma=sigma, sensitivity=SIZES)
        found = account(trace(ready, PATH, rounds=ROUNDS), view, convex=True)
        worst = max(found.of(v).epsilon(1e-5) for v in range(5) if v not in found.view.members)
        assert 2.0 * (1 - 1e-6) < worst <= 2.0
    assert calibrate(built, PATH, rounds=ROUNDS, **target) == pytest.approx(
        calibrate(algorithm("dp-d-sgd", sigma=1.0), PATH, rounds=ROUNDS, **target), rel=1e-12
    )


def test_all_pairs_are_about_a_change_of_the_victims_own_size():
    system = trace(algorithm("dp-d-sgd", sigma=1.5, sensitivity=SIZES), PATH, rounds=ROUNDS)
    found = account(system, "node:0", kinds=["fixed-streams"])
    mu = all_pairs(system, Participation())
    for victim in range(1, 5):
        assert mu[0, victim] == pytest.approx(found.of(victim, "fixed-streams").mu, rel=1e-9)


def test_a_node_with_a_ten_thousandth_of_the_sensitivity_is_accounted_for():
    """Its noise is as much smaller; no route may take it for nothing."""
    sizes = (1.0, 1e-4, 1.0, 1.0)
    net = metropolis("path:4")
    built = algorithm("dp-d-sgd", sigma=1.5, sensitivity=sizes)
    found = account(trace(built, net, rounds=3), "node:0", kinds=["fixed-streams", "any-training"])
    assert found.of(1).mu == pytest.approx(math.sqrt(3) / 1.5, rel=1e-9)  # heard at once
    for victim, M in by_hand(built, net, 0, rounds=3).items():
        assert M.sum() * (1 - 1e-6) <= found.of(victim, "fixed-streams").mu ** 2 <= np.abs(M).sum() * (1 + 1e-6)


def test_formulas_of_papers_are_for_nodes_that_are_alike():
    with pytest.raises(Unaccountable, match="the published formulas need one for all nodes"):
        published(trace(algorithm("dp-d-sgd", sigma=1.0, sensitivity=SIZES), PATH, rounds=2), views.node(0))


def test_wrong_sensitivities_are_refused():
    for wrong in ([1.0, 0.0], [[1.0]], "a", [], [1.0, math.inf], True):
        with pytest.raises(InputError, match="sensitivity"):
            algorithm("dp-d-sgd", sigma=1.0, sensitivity=wrong)
    with pytest.raises(InputError, match="sensitivity for 2 nodes; there are 5"):
        trace(algorithm("dp-d-sgd", sigma=1.0, sensitivity=[1.0, 2.0]), PATH, rounds=1)
    assert algorithm("dp-d-sgd", sigma=1.0, sensitivity=[2.0, 2.0]).sensitivity == 2.0
    assert largest(3.0) == 3.0
    assert relative(3.0) is None


@pytest.mark.parametrize("seed", range(4))
def test_noise_that_cancels_between_nodes_protects_nobody_however_they_differ(seed):
    """The sum over nodes that share all their noise holds none of it, and is moved by every one of them."""
    net = fresh_erdos_renyi(12, 0.6, seed=seed)
    system = trace(algorithm("rss-nb", sigma=1.0, sensitivity=[10.0 ** (u % 6) for u in range(12)]), net, rounds=2)
    found = account(system, "everyone", kinds=("any-training",), covering=False)
    assert all(math.isinf(one.mu) for one in found.guarantees)
    own = trace(algorithm("decor", sigma=1e-6, sigma_pair=1.0), net, rounds=2)
    assert all(math.isfinite(one.mu) for one in account(own, "everyone", covering=False).guarantees)
