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
from sottovoce.matrix_factorization.result import error_of, sensitivity_squared
from sottovoce.matrix_factorization.workload import workload
from tests.matrix_factorization.test_factorization import best, prefix


def test_structures_are_ordered_and_have_their_shape():
    net = metropolis("ring:8")
    dense, wide, narrow = (
        factorize(net, participation="4x8", **more)
        for more in ({}, {"structure": "banded"}, {"structure": "banded", "bands": 3})
    )
    assert dense.objective <= wide.objective * (1 + 1e-3) <= narrow.objective
    assert narrow.gap <= 1e-3
    assert narrow.correlation.memory == 2


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
    H = [workload(net, 16, nodes=np.flatnonzero(np.array(labels) == c)) for c in (0, 1)]
    np.testing.assert_allclose(sum(H), workload(net, 16), atol=1e-12)
    assert found.objective == pytest.approx(sum(error_of(part.C, h) for part, h in zip(found.parts, H, strict=True)))
    assert found.lower_bound <= found.objective <= found.shared.objective * (1 + 1e-3)
    assert found.gain > 1.001
    alike = factorize_by_class(metropolis("ring:6"), [0, 1] * 3, participation="2x8")
    assert alike.gain == pytest.approx(1, abs=2e-3)
