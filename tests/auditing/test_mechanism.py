"""Audits of the loop: never above the account, at it where that is exact, above it where noise is broken."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from sottovoce import InputError, Unaccountable, account, algorithm, audit, metropolis, trace, uniform, views
from sottovoce.auditing.mechanism import _canary, _likelihood_ratio
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.participation import parse_participation
from sottovoce.privacy.exact import routes
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import worst_case
from tests.cases import Case, cases
from tests.selection import rest_slow

ROUNDS, VICTIM = 3, 3
SURE = 1 - 1e-6
"""Confidence of a single audit, where hundreds of them must all hold."""

LAW = [
    case
    for case in cases()
    if case.place in ("ring:5", "exponential:6", "fresh", "dropout") and case.algorithm.compression.name == "identity"
]


def adversaries(case: Case):
    if case.example.name == "secure-gossip":  # nodes get sums, and nobody else anything
        yield from (views.node(1), views.coalition(0, 2))
        return
    yield from (views.everyone(), views.node(1))
    if case.place == "ring:5":
        yield from (views.coalition(0, 2), views.node(1, secure_sum=True), views.eavesdropper((4, 0), (2, 1)))


@pytest.mark.parametrize("case", rest_slow(LAW))
def test_audit_is_never_above_account_for_fixed_streams(case: Case):
    """And the likelihood ratio reaches the exact loss: it lies in the interval of what the attack achieves."""
    system = trace(case.algorithm, case.topology, rounds=ROUNDS)
    for view in adversaries(case):
        found = audit(system, view, victim=VICTIM, repetitions=1000, confidence=SURE)
        claims = {g.kind: g for g in account(system, view).guarantees if g.victim == VICTIM}
        assert claims
        for claim in claims.values():
            assert found.consistent_with(claim), (view, claim.kind, found.mu, claim.mu)
        assert found.highest >= min(claims["fixed-streams"].mu * (1 - 1e-4), 6), view


def reacting(step_size, slope):
    """Everybody but the victim takes a step along what it heard, clipped; column by column."""

    def gradient(round, x):
        grad = slope / step_size * np.clip(x, -2.0, 2.0)
        grad[VICTIM] = 0.0
        return grad

    return gradient


REACTIONS = {"any-training": -2.0, "convex-training": 1.0}
"""What claims any training meets reactions that amplify, the convex kind steps that do not drive models apart."""


@pytest.mark.parametrize(
    "case", rest_slow(case for case in LAW if not case.algorithm.averaging and case.place != "fresh")
)
def test_audit_is_never_above_account_for_reacting_streams(case: Case):
    system = trace(case.algorithm, case.topology, rounds=ROUNDS)
    for view in list(adversaries(case))[:2]:
        claims = account(system, view, kinds=list(REACTIONS)).guarantees
        for claim in (g for g in claims if g.victim == VICTIM and math.isfinite(g.mu)):
            gradient = reacting(case.algorithm.step_size, REACTIONS[claim.kind])
            found = audit(
                system, view, victim=VICTIM, gradient=gradient, distinguisher="trained",
                repetitions=1000, confidence=SURE,
            )  # fmt: skip
            assert found.consistent_with(claim), (view, claim.kind, found.mu, claim.mu)


def test_enough_is_claimed_for_the_laws_to_say_something():
    found = [
        guarantee.kind
        for case in LAW
        if case.place == "ring:5" and not case.algorithm.averaging
        for guarantee in account(
            trace(case.algorithm, case.topology, rounds=2), views.node(1), kinds=list(REACTIONS)
        ).guarantees
        if guarantee.victim == VICTIM and math.isfinite(guarantee.mu)
    ]
    assert found.count("any-training") >= 8
    assert found.count("convex-training") >= 4


@pytest.mark.parametrize(("spec", "attacker", "victim"), [("path:5", 4, 2), ("florentine", 4, 9), ("grid:3x3", 0, 4)])
def test_likelihood_ratio_on_averaging_is_tight(spec, attacker, victim):
    """Muffliato: the exact mu lies in the confidence interval, which is narrow."""
    system = trace(algorithm("muffliato", sigma=0.7), metropolis(spec), rounds=3)
    claim = account(system, views.node(attacker)).of(victim)
    found = audit(system, views.node(attacker), victim=victim, repetitions=60_000, confidence=0.99)
    assert found.mu <= claim.mu <= found.highest
    assert 0.1 < claim.mu < 3
    assert found.highest - found.mu < 0.08


def test_worst_canary_reaches_what_equal_signs_do_not():
    system = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("florentine"), rounds=6)
    view, victim = views.node(9, secure_sum=True), 1
    seen = observe(system, view, victims=[victim])
    M = routes.losses(seen)
    worst, equal = (_canary(routes.whitened(seen), name, "every") for name in ("worst", "equal"))
    assert np.sum((M[0] @ worst) * worst) == pytest.approx(worst_case(M, parse_participation("every"), 6)[0], rel=1e-3)
    assert np.sum(M[0]) < 0.5 * worst_case(M, parse_participation("every"), 6)[0]
    claim = account(system, view).of(victim, "fixed-streams").mu
    by_worst, by_equal = (
        audit(system, view, victim=victim, canary=canary, repetitions=40_000, confidence=0.99)
        for canary in (worst, equal)
    )
    assert by_worst.mu <= claim <= by_worst.highest
    assert by_equal.highest < claim


def test_scores_are_white():
    """Correlated noise: the score has the spread that whitening by C promises, tested two-sided."""
    system = trace(algorithm("anti-pgd", sigma=1.0), metropolis("ring:5"), rounds=4)
    found = audit(system, views.node(1), victim=3, repetitions=40_000, confidence=0.99)
    claim = account(system, views.node(1)).of(3, "fixed-streams").mu
    assert found.mu <= claim <= found.highest
    assert found.threshold == pytest.approx(claim**2 / 2, rel=1e-3)


def test_participation_and_other_sizes():
    """A canary in one round only; figures depend neither on the sensitivity nor on the step size."""
    once = audit(
        trace(algorithm("dp-d-sgd", sigma=1.0, sensitivity=50.0, step_size=1e-3), metropolis("ring:5"), rounds=4),
        participation="1x1", victim=2, repetitions=20_000, confidence=0.99,
    )  # fmt: skip
    assert once.mu <= 1.0 <= once.highest


def test_the_relay_that_breaks_fixed_streams_is_audited():
    """Path of three, T = 4: the middle node amplifies what it hears, and fixed streams are exceeded."""
    system = trace(algorithm("dp-d-sgd", sigma=1.0, step_size=1.0), uniform("path:3"), rounds=4)

    def relay(round, x):
        grad = np.zeros_like(x)
        grad[1] = -np.clip(2.0 * x[1], -2.0, 2.0)
        return grad

    view = views.eavesdropper((2, 1))
    found = audit(
        system, view, victim=0, gradient=relay, canary="equal", distinguisher="trained",
        repetitions=200_000, confidence=0.999,
    )  # fmt: skip
    result = account(system, view)
    assert not found.consistent_with(result.of(0, "fixed-streams"))
    assert found.mu > 0.517
    assert found.consistent_with(result.of(0, "any-training"))


def test_no_noise_is_seen_through():
    system = trace(algorithm("d-psgd"), metropolis("ring:5"), rounds=2)
    found = audit(system, views.node(1), victim=2, repetitions=2000)
    assert math.isinf(account(system, views.node(1)).of(2, "fixed-streams").mu)
    assert (found.counts.false_alarms, found.counts.misses) == (0, 0)
    assert found.mu > 5
    deaf = audit(trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:9"), rounds=2), views.node(0), victim=4)
    assert deaf.mu == 0.0


# --- broken on purpose ----------------------------------------------------------------------------------------------


class DrawnOnce(NoiseFeed):
    """Noise is drawn before the loop and used in every round."""

    def noise(self, sources, matrix, round, step):
        return super().noise(sources, matrix, 0, step)


class SeedReset(NoiseFeed):
    """The generator is seeded anew every two rounds."""

    def noise(self, sources, matrix, round, step):
        return super().noise(sources, matrix, round % 2, step)


class ScaledByWeight(NoiseFeed):
    """What a pair shares is multiplied by the weight of its edge, one third on a ring."""

    def noise(self, sources, matrix, round, step):
        if sources.kind == "pair":
            matrix = FactoredMatrix(sparse.csr_array(matrix.plain / 3), matrix.left, matrix.right)
        return super().noise(sources, matrix, round, step)


BROKEN = {
    "drawn once": (DrawnOnce, "dp-d-sgd", {"sigma": 2.0}, [1, -1, 1, -1, 1, -1], "trained"),
    "seed reset": (SeedReset, "dp-d-sgd", {"sigma": 2.0}, [1, 1, -1, -1, 1, 1], "trained"),
    "scaled by W": (ScaledByWeight, "decor", {"sigma": 1.0, "sigma_pair": 4.0}, [1] * 6, "likelihood-ratio"),
}


@pytest.mark.parametrize("view", [views.everyone(), views.node(1)], ids=str)
@pytest.mark.parametrize("broken", BROKEN)
def test_broken_noise_is_caught(broken, view):
    """The audit of the broken run exceeds the claim; the same audit of the right run does not."""
    feed, name, settings, canary, distinguisher = BROKEN[broken]
    system = trace(algorithm(name, **settings), metropolis("ring:6"), rounds=6)
    claim = account(system, view).of(2, "any-training")
    ask = {"victim": 2, "canary": np.array(canary, dtype=float), "distinguisher": distinguisher}
    ask |= {"repetitions": 20_000, "confidence": 0.999}
    caught = audit(system, view, feed=feed, **ask)
    assert not caught.consistent_with(claim), (caught.mu, claim.mu)
    right = audit(system, view, **ask)
    assert right.consistent_with(claim)


# --- what is refused ------------------------------------------------------------------------------------------------


SYSTEM = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:5"), rounds=4)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"adversary": "node:9"}, "node 9 in view node:9; nodes are 0..4"),
        ({"victim": 9}, "victim 9; nodes are 0..4"),
        ({"adversary": "node:2"}, "victim 2 belongs to node:2; an adversary knows its own data"),
        ({"canary": "loud"}, "canary 'loud'; known: worst, equal"),
        ({"canary": np.ones(3)}, r"a canary of shape \(3,\); there are gradients in 4 rounds"),
        ({"canary": np.full(4, 2.0)}, "a canary of norm 2; the guarantee is about a change of norm at most one"),
        ({"participation": "9x9"}, "participation 9x9 in 4 rounds"),
        ({"distinguisher": "oracle"}, "distinguisher 'oracle'; known: likelihood-ratio, trained"),
        ({"repetitions": 0}, "0 repetitions"),
        ({"repetitions": 4}, "4 scores; at this confidence fewer than 6"),
        ({"confidence": 2.0}, "confidence 2.0"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"distinguisher": "trained", "repetitions": 10**8}, "20 messages in each of 100000000 repetitions"),
    ],
)
def test_one_clear_line_for_bad_input(settings, line):
    with pytest.raises(InputError, match=line) as caught:
        audit(SYSTEM, **({"victim": 2} | settings))
    assert "\n" not in str(caught.value)


def test_compression_and_size_are_refused():
    from sottovoce import Coordinate, push

    squeezed = trace(
        algorithm("dp-csgp", sigma=1.0, compression="rand:0.5"), push("ring:5"), rounds=2, coordinate=Coordinate(0, 4)
    )
    with pytest.raises(Unaccountable, match=r"rand:0\.5: coordinates are not all sent"):
        audit(squeezed, victim=2)
    large = trace(algorithm("dp-d-sgd", sigma=1.0), metropolis("ring:100"), rounds=50)
    with pytest.raises(InputError, match="5000 messages with 5050 inputs"):
        audit(large, victim=2)


def test_likelihood_ratio_weights_are_those_of_the_pseudo_inverse():
    seen = observe(SYSTEM, views.node(0), victims=[2])
    A, B = seen.dense()
    canary = np.array([[1.0], [-1.0], [1.0], [1.0]])
    expected = np.linalg.pinv(B @ B.T) @ A[:, :, 0] @ canary
    np.testing.assert_allclose(_likelihood_ratio(routes.whitened(seen), canary).weights, expected, atol=1e-9)
