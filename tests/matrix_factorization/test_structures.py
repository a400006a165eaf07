"""Structures of C: their shapes, their order, and classes of nodes that differ."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import (
    factorize,
    factorize_by_class,
    metropolis,
    uniform,
)
from sottovoce.core.participation import parse_participation
from sottovoce.matrix_factorization import structures
from sottovoce.matrix_factorization.result import error_of, normalised, sensitivity_squared
from sottovoce.matrix_factorization.workload import workload
from tests.matrix_factorization.test_factorization import best, prefix


def test_structures_are_ordered_and_have_their_shape():
    net = metropolis("ring:8")
    dense, wide, narrow, lags = (
        factorize(net, participation="4x8", **more)
        for more in ({}, {"structure": "banded"}, {"structure": "banded", "bands": 3}, {"structure": "toeplitz"})
    )
    assert dense.objective <= wide.objective * (1 + 1e-3) <= narrow.objective
    assert wide.objective <= lags.objective
    assert narrow.gap <= 1e-3
    assert narrow.correlation.memory == 2
    C = lags.C / lags.C[0, 0]
    assert all(np.ptp(np.diag(C, -lag)) < 1e-12 for lag in range(32))
    assert lags.correlation.memory == 7


def test_stored_structured_optimum(oracles):
    """Banded Toeplitz on prefix sums: within a thousandth of an independent optimiser's value."""
    (row,) = [row for row in oracles["mf_structured_T380"] if row["strategy"].startswith("banded Toeplitz")]
    H, scheme = prefix(row["T"]), parse_participation(f"{row['k']}x{row['b']}")
    C = normalised(structures.toeplitz_only(H, scheme, row["b"]), scheme)
    assert error_of(C, H) / row["T"] == pytest.approx(row["mean_sq_err"], rel=1e-3)


def test_restarts_draw_fresh_noise():
    found = factorize(metropolis("ring:8"), participation="4x8", restart=16)
    assert not found.C[16:, :16].any()
    V = np.linalg.inv(found.C) @ np.linalg.inv(found.C).T
    assert not V[16:, :16].any()
    assert found.gap <= 1e-3
    whole = factorize(metropolis("ring:8"), participation="4x8")
    assert whole.objective < found.objective < 1.3 * whole.objective


def test_restarts_need_not_fit_the_participation():
    found = factorize(metropolis("ring:8"), participation="4x8", restart=12)
    assert found.gap <= 1e-3
    assert not found.C[12:24, :12].any()
    assert not found.C[24:, :24].any()


def test_long_runs_have_an_honest_gap():
    """More rounds than K times B: patterns are windows, C is scaled by the worst, the bound need not be tight."""
    H, scheme = prefix(6), parse_participation("2x2")
    value, bound, C = best(H, "2x2")
    assert sensitivity_squared(C, scheme) <= 1
    rng = np.random.default_rng(0)
    for _ in range(300):
        other = C + 0.1 * rng.random() * np.tril(rng.standard_normal((6, 6)))
        assert sensitivity_squared(other, scheme) * error_of(other, H) >= bound
    assert bound < value < 1.01 * bound
    assert value < best(H, "3x2")[0]


def test_classes_of_nodes_add_up():
    net = uniform("star:6")
    labels = [0] + 5 * [1]
    found = factorize_by_class(net, labels, participation="2x8")
    H = [workload(net, 16, nodes=np.flatnonzero(np.array(labels) == c)).H for c in (0, 1)]
    np.testing.assert_allclose(sum(H), workload(net, 16).H, atol=1e-12)
    assert found.objective == pytest.approx(sum(error_of(part.C, h) for part, h in zip(found.parts, H, strict=True)))
    assert found.lower_bound <= found.objective <= found.shared.objective * (1 + 1e-3)
    assert found.gain > 1.001
    alike = factorize_by_class(metropolis("ring:6"), [0, 1] * 3, participation="2x8")
    assert alike.gain == pytest.approx(1, abs=2e-3)
