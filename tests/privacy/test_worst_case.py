"""Participation patterns and the worst-case direction: dual against primal, and against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sottovoce import InputError, algorithm, metropolis, trace, views
from sottovoce.core.participation import parse_participation
from sottovoce.privacy import worst_case as worst_case_module
from sottovoce.privacy.exact import routes
from sottovoce.privacy.observation import observe
from sottovoce.privacy.worst_case import _is_definite, bound, semidefinite_value, worst_case


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
    assert (values <= np.abs(M).sum(axis=(1, 2)) * (1 + 1e-6)).all()


def test_positive_matrices_need_no_solver():
    M = np.abs(random_psd(np.random.default_rng(0), 3, 6, 6))
    np.testing.assert_allclose(bound(M), np.abs(M).sum(axis=(1, 2)), rtol=1e-15)


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


def test_the_largest_over_patterns_is_that_of_every_pattern_searched_by_itself():
    M = random_psd(np.random.default_rng(3), 6, 12, 4)
    scheme = parse_participation("3x4")
    alone = [bound(M[:, p][:, :, p]) for p in scheme.patterns(12)]
    np.testing.assert_array_equal(worst_case(M, scheme, 12), np.max(alone, axis=0))


@pytest.mark.parametrize("size", [1, 3, 40])
def test_what_is_no_number_has_no_cholesky_factor(size):
    some = np.stack([np.eye(size)] * 3)
    some[1, -1, 0] = some[1, 0, -1] = np.nan
    some[2] = np.inf
    with np.errstate(invalid="ignore"):
        assert [_is_definite(one) for one in some] == [True, False, False]


def odd_cycle(n):
    """2 I - A of a cycle: the best vectors turn by (n - 1) / n of half a circle, and no signs are as good."""
    M = 2 * np.eye(n)
    for node in range(n):
        M[node, (node + 1) % n] = M[(node + 1) % n, node] = -1
    return M


@pytest.mark.parametrize("T", [1, 2, 5, 20, 60])
@pytest.mark.parametrize("rank", [1, 3, 40])
def test_both_sides_of_the_programme_are_feasible_and_meet(T, rank):
    for M in random_psd(np.random.default_rng(T + rank), 6, T, rank):
        y, R = semidefinite_value(M, 1e-6)
        assert np.linalg.eigvalsh(np.diag(y) - M)[0] >= -1e-12 * T * np.abs(M).max()
        assert np.linalg.eigvalsh(R)[0] >= -1e-12 * T
        np.testing.assert_allclose(np.diag(R), 1.0, rtol=1e-9)
        reached = np.vdot(M, R)
        assert reached <= y.sum() * (1 + 1e-12)
        assert y.sum() <= reached * (1 + 1.1e-6)


@pytest.mark.parametrize("n", [3, 5, 7, 21])
def test_odd_cycles_have_the_value_of_vectors_that_turn(n):
    y, _ = semidefinite_value(odd_cycle(n), 1e-8)
    value = 2 * n + 2 * n * math.cos(math.pi / n)
    assert value * (1 - 1e-12) <= y.sum() <= value * (1 + 1.1e-8)


def test_matrices_of_rank_one_have_the_value_of_their_signs():
    for a in np.random.default_rng(1).standard_normal((4, 30)):
        y, _ = semidefinite_value(np.outer(a, a), 1e-7)
        assert y.sum() >= np.abs(a).sum() ** 2 * (1 - 1e-12)
        assert y.sum() == pytest.approx(np.abs(a).sum() ** 2, rel=1.1e-7)


@pytest.mark.parametrize("size", [1e-280, 1e-30, 1.0, 1e30, 1e280])
def test_sizes_do_not_matter_nor_do_rounds_that_tell_nothing(size):
    quiet = np.zeros((9, 9))
    quiet[2:7, 2:7] = odd_cycle(5)
    for M, value in ((quiet, 10 + 10 * math.cos(math.pi / 5)), (np.diag([1.0] + [1e-13] * 8), 1 + 8e-13)):
        y, _ = semidefinite_value(size * M, 1e-6)
        assert y.sum() / size == pytest.approx(value, rel=1.1e-6)
        assert y.sum() >= size * value * (1 - 1e-12)
