"""Participation patterns and the worst-case direction: dual against primal, and against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sottovoce import InputError, algorithm, metropolis, trace, views
from sottovoce.core.participation import parse_participation
from sottovoce.privacy import worst_case as worst_case_module
from sottovoce.privacy.exact import routes
from sottovoce.privacy.interior_point import are_definite_
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import GAP, absolute_sum, bound, largest_bound, worst_case


def random_psd(rng, V, T, rank):
    X = rng.standard_normal((V, T, rank))
    return X @ X.transpose(0, 2, 1)


def signs(M):
    """The best +1 / -1 direction, by trying all: the exact value in one dimension, a lower bound in more."""
    best = 0.0
    for pattern in itertools.product((-1.0, 1.0), repeat=len(M)):
        s = np.array(pattern)
        best = max(best, float(s @ M @ s))
    return best


def primal(M, rng, dimension=8, starts=10):
    """Random restarts of coordinate ascent over unit vectors: never above the semidefinite value."""
    v = rng.standard_normal((len(M), starts, dimension))
    v /= np.linalg.norm(v, axis=2, keepdims=True)
    for _ in range(300):
        for t in range(len(M)):
            pull = np.tensordot(M[t], v, axes=1) - M[t, t] * v[t]
            size = np.linalg.norm(pull, axis=1, keepdims=True)
            v[t] = np.where(size > 0, pull / np.where(size > 0, size, 1.0), v[t])
    return float(np.einsum("st,sak,tak->a", M, v, v).max())


@pytest.mark.parametrize("T", [1, 2, 3, 5, 8])
def test_dual_meets_primal(T, monkeypatch):
    monkeypatch.setattr(worst_case_module, "GAP", 1e-6)
    rng = np.random.default_rng(T)
    M = random_psd(rng, 4, T, max(1, T - 1))
    values = bound(M)
    for matrix, value in zip(M, values, strict=True):
        reached = primal(matrix, rng)
        assert signs(matrix) <= value * (1 + 1e-9)
        assert reached <= value * (1 + 1e-9)
        assert value <= reached * (1 + 1e-4)
    assert (values <= absolute_sum(M) * (1 + 1e-6)).all()


def test_positive_matrices_need_no_solver():
    M = np.abs(random_psd(np.random.default_rng(0), 3, 6, 6))
    np.testing.assert_array_equal(bound(M), absolute_sum(M))


def test_all_ones_would_be_too_small():
    M = np.array([[[1.0, -0.9], [-0.9, 1.0]]])
    assert M.sum() == pytest.approx(0.2)
    assert bound(M)[0] == pytest.approx(3.8)


def test_patterns():
    assert [p.tolist() for p in parse_participation("4x3").patterns(12)] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert [p.tolist() for p in parse_participation("every").patterns(3)] == [[0, 1, 2]]
    with pytest.raises(InputError, match="participation 4x16 in 20 rounds"):
        parse_participation("4x16").check(20)
    for bad in ("4", "x", "0x3", "4x0", "-1x2", "always"):
        with pytest.raises(InputError, match="it must be 'every', KxB"):
            parse_participation(bad)


@pytest.mark.parametrize("spec", ["1x1", "2x3", "3x2", "2x1"])
def test_patterns_are_all_that_a_record_can_follow(spec):
    """Every set of at most k rounds, b apart, that fits into the run lies in one of the patterns, and none is more."""
    k, b = (int(part) for part in spec.split("x"))
    for rounds in range((k - 1) * b + 1, 12):
        found = [set(p.tolist()) for p in parse_participation(spec).patterns(rounds)]
        possible = [{s + i * b for i in range(m)} for s in range(rounds) for m in range(1, k + 1)]
        possible = [p for p in possible if max(p) < rounds]
        assert all(any(p <= q for q in found) for p in possible)
        assert all(q in possible for q in found)


def test_the_worst_pattern_counts():
    view = observe(trace(algorithm("anti-pgd", sigma=1.0), metropolis("ring:5"), rounds=6), views.node(0))
    M = routes.losses(view)
    found = worst_case(M, parse_participation("2x3"), 6)
    by_hand = np.max([bound(M[:, [s, s + 3]][:, :, [s, s + 3]]) for s in range(3)], axis=0)
    np.testing.assert_allclose(found, by_hand)
    assert (found <= worst_case(M, parse_participation("every"), 6)).all()


@pytest.mark.parametrize("growing", [False, True])
def test_the_largest_over_patterns_is_that_of_every_pattern_searched_by_itself(growing):
    """Patterns that one certificate bounds are not searched: where they are far below, a little, or not at all."""
    rng = np.random.default_rng(3)
    alike = random_psd(rng, 6, 12, 4)
    shares = [1.0, 1 - 1e-3, 1 - 1e-5, 1 - 1e-6, 1.0 + 1e-6]
    M_PVTT = np.array([share * alike + 1e-7 * random_psd(rng, 6, 12, 2) for share in shares])
    M_PVTT = np.concatenate([M_PVTT, random_psd(rng, 6, 12, 4)[None]])[:: -1 if growing else 1]
    found = largest_bound(M_PVTT.reshape(-1, 12, 12), len(M_PVTT))
    alone = np.max([bound(M_VTT) for M_VTT in M_PVTT], axis=0)
    assert (found > absolute_sum(alike) / 1.5).all()
    assert (found >= alone * (1 - 2 * GAP)).all()
    assert (found <= alone * (1 + 2 * GAP)).all()
    for v in range(6):
        for M_VTT in M_PVTT:
            assert primal(M_VTT[v], rng, starts=3) <= found[v] * (1 + 1e-9)


ODD_CYCLE = np.array([[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]])
TWO_ROUNDS = np.pad(np.ones((2, 2)), (0, 1))


@pytest.mark.parametrize(
    ("known", "other"),
    [(0 * ODD_CYCLE, ODD_CYCLE), (1e6 * TWO_ROUNDS, 1e8 * ODD_CYCLE), (1e-250 * TWO_ROUNDS, 1e80 * ODD_CYCLE)],
)
def test_a_certificate_that_has_nothing_to_share_out_bounds_nothing(known, other):
    """Patterns of late rounds, of which nothing is heard, and of rounds that others do not have."""
    found = largest_bound(np.stack([known, other]), 2)
    assert 4.5 * other[0, 0] <= found[0] <= 4.5 * other[0, 0] * (1 + 2 * GAP)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_what_is_no_number_has_no_cholesky_factor(size):
    some = np.stack([np.eye(size)] * 3)
    some[1, -1, 0] = some[1, 0, -1] = np.nan
    some[2] = np.inf
    with np.errstate(invalid="ignore"):
        assert are_definite_(some).tolist() == [True, False, False]
