"""The least noise for a graph: certified optima, closed forms, and what is refused."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy import optimize

from sottovoce import (
    InputError,
    algorithm,
    factorize,
    factorize_by_class,
    graph,
    metropolis,
    push,
    uniform,
)
from sottovoce.core.correlation import Differences, Triangular
from sottovoce.core.participation import parse_participation
from sottovoce.matrix_factorization import structures
from sottovoce.matrix_factorization.certificate import certify, nuclear
from sottovoce.matrix_factorization.optimizer import lower_factor, search
from sottovoce.matrix_factorization.result import error_of, normalised, sensitivity_squared
from sottovoce.matrix_factorization.workload import workload


def prefix(T):
    """Prefix sums: every node the same, as on a complete graph."""
    return np.minimum.outer(np.arange(T, 0, -1.0), np.arange(T, 0, -1.0))


def best(H, scheme, gap=1e-7):
    found, form = structures.dense(H, parse_participation(scheme), gap), structures.Structure()
    C = normalised(found.C, parse_participation(scheme))
    return error_of(C, H), form.bound_of(found.proof, H, parse_participation(scheme)), C


# --- optimum ---------------------------------------------------------------------------------------------------------


def test_stored_optima_of_prefix_sums(oracles):
    for row in oracles["mf_prefix"]:
        if row["T"] <= 256:
            value, bound, _ = best(prefix(row["T"]), f"{row['k']}x{row['b']}", 1e-6)
            assert value / row["T"] == pytest.approx(row["mean_sq_err"], rel=1.2e-6)
            assert bound / row["T"] == pytest.approx(row["dual_lower_bound_mean"], rel=1.2e-6)
            assert bound <= row["total_sq_err"] * (1 + 1e-9)


@pytest.mark.slow
def test_stored_optima_of_long_prefix_sums(oracles):
    for row in oracles["mf_prefix"]:
        if 256 < row["T"] <= 400:
            assert best(prefix(row["T"]), f"{row['k']}x{row['b']}", 1e-6)[0] / row["T"] == pytest.approx(
                row["mean_sq_err"], rel=1.2e-6
            )


def test_stored_closed_forms(oracles):
    for row in oracles["mf_closed_form"][:3]:
        assert best(prefix(row["T"]), "every")[0] / row["T"] == pytest.approx(row["mean_sq_err"], rel=1e-6)
    assert best(np.eye(12), "3x4")[0] / 12 == pytest.approx(3.0, rel=1e-7)


def test_stored_optima_of_gossip(oracles):
    for row in oracles["mf_gossip"]:
        found = factorize(metropolis("ring:8"), participation=f"{row['k']}x{row['b']}", gap=1e-6)
        assert found.objective / row["T"] == pytest.approx(row["mean_sq_err"], rel=1.2e-6)
        assert found.lower_bound / row["T"] == pytest.approx(row["dual_lower_bound_mean"], rel=1.2e-6)


def test_one_round():
    found = factorize(uniform("complete:5"), rounds=1)
    np.testing.assert_allclose(found.C, [[1.0]], rtol=1e-12)
    assert found.objective == pytest.approx(1.0)
    assert found.independent == found.antipgd == pytest.approx(1.0)


def test_complete_graph_with_one_participation_is_the_prefix_sum_optimum(oracles):
    for row in oracles["mf_prefix"][:2]:
        found = factorize(uniform("complete:5"), participation=f"1x{row['b']}", gap=1e-7)
        assert found.objective == pytest.approx(row["total_sq_err"], rel=1e-6)


def test_two_rounds_in_closed_form():
    """T = 2, one participation, prefix sums: minimise `(3 - 2x) / (1 - x^2)` over the one free entry x of X."""
    x = optimize.minimize_scalar(lambda x: (3 - 2 * x) / (1 - x**2), bounds=(0, 0.9), method="bounded").fun
    assert best(prefix(2), "1x2", 1e-9)[0] == pytest.approx(x, rel=1e-8)


def brute_force(H, k, b):
    """The best over all lower-triangular C that a general-purpose solver finds, with restarts from where it stopped.

    Shares no code with the package: its own patterns, no mask on C^T C, and for one or two participations the worst
    contributions in closed form, `M_11 + M_22 + 2 |M_12|`.
    """
    T = len(H)
    patterns = [list(range(c, T, b)) for c in range(b)]
    assert all(len(pattern) == k <= 2 for pattern in patterns)
    at = np.tril_indices(T)

    def value(entries):
        C = np.zeros((T, T))
        C[at] = entries
        if np.abs(np.diag(C)).min() < 1e-3:
            return 1e9
        X = C.T @ C
        worst = max(np.trace(X[np.ix_(p, p)]) + (2 * abs(X[p[0], p[1]]) if k == 2 else 0) for p in patterns)
        return worst * np.trace(np.linalg.solve(X, H))

    found, before = np.eye(T)[at], math.inf
    for _ in range(12):
        options = {"maxiter": 3000, "maxfev": 3000, "xatol": 1e-10, "fatol": 1e-12, "adaptive": True}
        found = optimize.minimize(value, found, method="Nelder-Mead", options=options).x
        if value(found) > before * (1 - 1e-7):
            break
        before = value(found)
    return value(found)


@pytest.mark.parametrize(
    ("T", "k", "b"), [(2, 1, 2), (2, 2, 1), (3, 1, 3), pytest.param(4, 2, 2, marks=pytest.mark.slow)]
)
def test_brute_force_finds_nothing_better(T, k, b):
    H = prefix(T)
    value, bound, _ = best(H, f"{k}x{b}")
    found = brute_force(H, k, b)
    assert found >= bound * (1 - 1e-9)
    assert found == pytest.approx(value, rel=1e-3)


def test_stored_brute_force_value():
    """T = 4, k = 2, prefix sums: 14.594774963674375, by another solver and by Nelder-Mead with 30 restarts."""
    assert best(prefix(4), "2x2", 1e-9)[0] == pytest.approx(14.594774963674375, rel=1e-8)


def test_constrained_solver_agrees_on_a_graph():
    """SLSQP on the entries of X that participation leaves free, with its constraints spelled out."""
    T, b = 6, 3
    H = workload(metropolis("path:4"), T)
    pairs = [(i, j) for i in range(T) for j in range(i) if (i - j) % b]

    def matrix(x):
        X = np.diag(x[:T])
        for value, (i, j) in zip(x[T:], pairs, strict=True):
            X[i, j] = X[j, i] = value
        return X

    def value(x):
        sizes = np.linalg.eigvalsh(matrix(x))
        return np.trace(np.linalg.solve(matrix(x), H)) if sizes[0] > 1e-6 else 1e6 * (1 - sizes[0])

    budgets = [{"type": "eq", "fun": lambda x, c=c: x[c] + x[c + b] - 1} for c in range(b)]
    start = np.concatenate([np.full(T, 0.5), np.zeros(len(pairs))])
    found = optimize.minimize(
        value, start, method="SLSQP", constraints=budgets, options={"ftol": 1e-13, "maxiter": 500}
    )
    assert best(H, "2x3")[0] == pytest.approx(found.fun, rel=1e-5)


def test_florentine_families():
    found = factorize(uniform("florentine"), participation="4x16")
    assert found.independent == pytest.approx(11634.930, abs=5e-4)
    assert found.antipgd == pytest.approx(178909.766, abs=5e-4)
    assert found.objective <= 3257.7
    assert found.lower_bound <= found.objective
    assert found.gap <= 1e-3


def test_ring_where_the_published_code_is_not_optimal():
    found = factorize(metropolis("ring:8"), participation="4x16", gap=1e-6)
    assert round(found.objective / 64, 3) == 33.154
    assert found.objective / 64 < 33.611


def test_erdos_renyi_against_independent_and_antipgd():
    net = metropolis("erdos-renyi:100,p=0.2,seed=1")
    short = factorize(net, participation="10x10")
    assert 1 / short.over_independent == pytest.approx(0.311, abs=0.01)
    assert short.antipgd / short.independent == pytest.approx(70, rel=0.03)


def test_erdos_renyi_for_380_rounds():
    long = factorize(metropolis("erdos-renyi:100,p=0.2,seed=1"), participation="20x19")
    assert 1 / long.over_independent == pytest.approx(0.131, abs=0.005)
    assert long.antipgd / long.independent == pytest.approx(145, rel=0.03)


def test_closed_forms_of_the_baselines():
    for net, scheme, T in (
        (uniform("star:5"), "3x4", 12),
        (metropolis("path:4"), "2x4", 10),
        (metropolis("ring:5"), "every", 6),
    ):
        found = factorize(net, rounds=T, participation=scheme)
        H, who = workload(net, T), parse_participation(scheme)
        for C, value in ((np.eye(T), found.independent), (Differences().matrix(T), found.antipgd)):
            assert value == pytest.approx(sensitivity_squared(C, who) * error_of(C, H), rel=1e-12)


# --- certificate -----------------------------------------------------------------------------------------------------


def test_bound_holds_for_any_semidefinite_weights_and_any_correlation():
    """The inequality itself, at random: Q zero across classes with one diagonal value a class, C arbitrary."""
    rng = np.random.default_rng(1)
    T, b = 6, 2
    H, scheme = prefix(T), parse_participation("3x2")
    for _ in range(200):
        F, v = np.zeros((T, T)), rng.random(b) + 0.1
        for c in range(b):
            block = rng.standard_normal((T // b, T // b))
            block *= (np.sqrt(v[c]) / np.linalg.norm(block, axis=1))[:, None]
            F[c::b, c::b] = block
        bound = nuclear(F, H) ** 2 / v.sum()
        C = np.tril(rng.standard_normal((T, T))) + 2 * np.eye(T)
        assert bound <= sensitivity_squared(C, scheme) * error_of(C, H)


def test_bound_is_below_and_the_gap_is_met():
    for scheme, gap in (("4x8", 1e-3), ("8x4", 1e-5), ("1x32", 1e-7)):
        value, bound, _ = best(prefix(32), scheme, gap)
        assert bound <= value <= (1 + 1.001 * gap) * bound


def test_factor_is_of_this_matrix_and_of_no_other():
    X = np.array([[4.0, 1.0], [1.0, 9.0]])
    C = lower_factor(X)
    np.testing.assert_allclose(C.T @ C, X)
    assert np.triu(C, 1).max() == 0
    assert not np.allclose(np.linalg.cholesky(X).T @ np.linalg.cholesky(X), X)


@pytest.mark.parametrize("settings", [
    {"participation": "4x8"}, {"rounds": 12}, {"participation": "1x9"}, {"participation": "3x8", "rounds": 20},
    {"participation": "2x8", "rounds": 40}, {"participation": "4x8", "structure": "banded", "bands": 3},
    {"participation": "4x8", "objective": "last"}, {"participation": "4x8", "objective": "average"},
], ids=str)  # fmt: skip
def test_every_result_keeps_its_word(settings):
    net = metropolis("path:5")
    found = factorize(net, **settings)
    H = workload(net, found.rounds, found.goal)
    scheme = parse_participation(found.participation)
    assert not np.triu(found.C, 1).any()
    assert 1 - 1e-6 < sensitivity_squared(found.C, scheme) <= 1
    assert found.objective == pytest.approx(error_of(found.C, H), rel=1e-12)
    assert found.lower_bound <= found.objective
    assert found.objective <= found.independent * (1 + 1e-9)


def test_optimised_x_is_c_transpose_c():
    H, space = prefix(24), structures.feasible(parse_participation("3x8"), 24)
    found = search(H, space, certify, gap=1e-6)
    C = lower_factor(found.X)
    np.testing.assert_allclose(C.T @ C, found.X, atol=1e-14)
    same = np.equal.outer(np.arange(24) % 8, np.arange(24) % 8) & ~np.eye(24, dtype=bool)
    assert not found.X[same].any()
    np.testing.assert_allclose([np.diag(found.X)[c::8].sum() for c in range(8)], 1.0, rtol=1e-12)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "participation every without rounds; their number is needed; give rounds"),
        ({"rounds": 0}, "rounds = 0; a whole number from 1"),
        ({"rounds": 2.5}, "rounds = 2.5; a whole number"),
        ({"participation": "4x"}, "participation '4x'"),
        ({"participation": "4x16", "rounds": 20}, "participation 4x16 in 20 rounds"),
        ({"rounds": 4, "objective": "worst"}, "objective 'worst'; known: all, last, average"),
        ({"rounds": 4, "structure": "sparse"}, "structure 'sparse'; known: dense, banded"),
        ({"rounds": 4, "bands": 2}, "2 bands of a dense C"),
        ({"rounds": 4, "structure": "banded", "bands": 0}, "bands = 0"),
        ({"rounds": 4, "gap": 0}, "gap 0; it must lie between"),
        ({"rounds": 4, "gap": float("nan")}, "gap nan"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_in_one_line(settings, line):
    with pytest.raises(InputError, match=re.escape(line)) as caught:
        factorize(metropolis("ring:4"), **settings)
    assert "\n" not in str(caught.value)


def test_wrong_weights_and_classes_are_refused():
    with pytest.raises(InputError, match=r"row \d+ of W sums to"):
        factorize(push("star:4"), rounds=4)
    with pytest.raises(InputError, match="labels of shape"):
        factorize_by_class(metropolis("ring:4"), [0, 1], rounds=4)
    with pytest.raises(InputError, match="numbered from 0 without gaps"):
        factorize_by_class(metropolis("ring:4"), [0, 2, 0, 2], rounds=4)


def test_neither_factorize_nor_noise_loads_torch():
    code = (
        "import sys; from sottovoce import *; factorize(metropolis('ring:5'), rounds=4, cache=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ego_graph(data):
    net = metropolis(graph(f"file:{data('facebook_ego/414.edges.gz')},component=giant"))
    found = factorize(net, participation="20x19", cache=False)
    assert found.gap <= 1e-3
    assert found.objective < 0.25 * found.independent


def test_files_of_a_factorization_are_read_as_correlation(tmp_path):
    found = factorize(metropolis("ring:4"), participation="2x4")
    with open(tmp_path / "c.npz", "wb") as file:
        found.write(file)
    np.testing.assert_array_equal(
        algorithm("mafalda", sigma=1.0, correlation=os.fspath(tmp_path / "c.npz")).noise.correlation.matrix(8), found.C
    )
    assert isinstance(found.correlation, Triangular)
