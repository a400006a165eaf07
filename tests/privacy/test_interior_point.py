"""The interior-point method: both sides feasible, close together, and at values that are known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce.privacy.interior_point import semidefinite_values


def random_psd(rng, V, T, rank):
    X = rng.standard_normal((V, T, rank))
    return X @ X.transpose(0, 2, 1)


def odd_cycle(n):
    """2 I - A of a cycle: the best vectors turn by (n - 1) / n of half a circle, and no signs are as good."""
    M = 2 * np.eye(n)
    for node in range(n):
        M[node, (node + 1) % n] = M[(node + 1) % n, node] = -1
    return M


def least_eigenvalues(S_VTT):
    return np.linalg.eigvalsh(S_VTT)[:, 0]


@pytest.mark.parametrize("T", [1, 2, 5, 20, 60])
@pytest.mark.parametrize("rank", [1, 3, 40])
def test_both_sides_are_feasible_and_meet(T, rank):
    M = random_psd(np.random.default_rng(T + rank), 6, T, rank)
    y, R = semidefinite_values(M, 1e-6)
    size = np.abs(M).max(axis=(1, 2))
    assert (least_eigenvalues(np.einsum("vt,st->vst", y, np.eye(T)) - M) >= -1e-12 * T * size).all()
    assert (least_eigenvalues(R) >= -1e-12 * T).all()
    np.testing.assert_allclose(np.einsum("vtt->vt", R), 1.0, rtol=1e-9)
    reached = np.einsum("vst,vst->v", M, R)
    assert (reached <= y.sum(axis=1) * (1 + 1e-12)).all()
    assert (y.sum(axis=1) <= reached * (1 + 1.1e-6)).all()


@pytest.mark.parametrize("n", [3, 5, 7, 21])
def test_odd_cycles_have_the_value_of_vectors_that_turn(n):
    y, _ = semidefinite_values(odd_cycle(n)[None], 1e-8)
    value = 2 * n + 2 * n * math.cos(math.pi / n)
    assert value * (1 - 1e-12) <= y.sum() <= value * (1 + 1.1e-8)


def test_matrices_of_rank_one_have_the_value_of_their_signs():
    a = np.random.default_rng(1).standard_normal((4, 30))
    y, _ = semidefinite_values(a[:, :, None] * a[:, None, :], 1e-7)
    value = np.abs(a).sum(axis=1) ** 2
    assert (y.sum(axis=1) >= value * (1 - 1e-12)).all()
    np.testing.assert_allclose(y.sum(axis=1), value, rtol=1.1e-7)


@pytest.mark.parametrize("size", [1e-280, 1e-30, 1.0, 1e30, 1e280])
def test_sizes_do_not_matter_nor_do_rounds_that_tell_nothing(size):
    quiet = np.zeros((9, 9))
    quiet[2:7, 2:7] = odd_cycle(5)
    y, _ = semidefinite_values(size * np.array([quiet, np.diag([1.0] + [1e-13] * 8)]), 1e-6)
    value = np.array([10 + 10 * math.cos(math.pi / 5), 1 + 8e-13])
    np.testing.assert_allclose(y.sum(axis=1) / size, value, rtol=1.1e-6)
    assert (y.sum(axis=1) >= size * value * (1 - 1e-12)).all()


def test_what_is_enough_ends_the_search_above_the_optimum():
    M = np.array([odd_cycle(21)] * 2)
    value = 42 + 42 * math.cos(math.pi / 21)
    y, _ = semidefinite_values(M, 1e-9, np.array([1.05 * value, 0.0]))
    assert value < y[0].sum() <= 1.05 * value
    assert y[0].sum() > y[1].sum() * (1 + 1e-6)


def test_a_matrix_has_the_same_value_alone_and_among_others():
    M = random_psd(np.random.default_rng(5), 7, 12, 4)
    together, _ = semidefinite_values(M, 1e-7)
    for one, y in zip(M, together, strict=True):
        np.testing.assert_allclose(semidefinite_values(one[None], 1e-7).y_VT[0], y, rtol=1e-9)
