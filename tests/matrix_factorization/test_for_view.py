"""Noise for one view: what it gains, and a bound that holds for any correlation."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import (
    factorize,
    metropolis,
    uniform,
    views,
)
from sottovoce.core.participation import parse_participation
from sottovoce.matrix_factorization import for_view
from sottovoce.matrix_factorization.result import error_of
from sottovoce.matrix_factorization.workload import workload


def test_noise_against_one_node():
    net = metropolis("ring:8")
    found = factorize(net, participation="2x4", view="node:0")
    told = found.for_view
    H, scheme = workload(net, 8).H, parse_participation("2x4")
    loss = for_view.exact_loss(found.C, net, [views.node(0)], scheme)
    assert told.loss == loss < 1
    assert found.objective == pytest.approx(loss * error_of(found.C, H))
    assert found.lower_bound <= found.objective <= 1.02 * found.lower_bound
    usual = factorize(net, participation="2x4").C
    there = for_view.exact_loss(usual, net, [views.node(0)], scheme) * error_of(usual, H)
    assert told.gain == pytest.approx(there / found.objective, rel=2e-3)
    assert told.gain > 1.05
    assert (told.kind, told.proven_for_training) == ("fixed-streams", False)
    assert "not a proof" in told.assumption


def test_bound_for_a_view_holds_for_any_correlation():
    net, scheme = metropolis("ring:6"), parse_participation("2x3")
    H = workload(net, 6).H
    found = factorize(net, participation="2x3", view=views.coalition(0, 2))
    rng = np.random.default_rng(0)
    for _ in range(20):
        C = found.C + 0.1 * np.tril(rng.standard_normal((6, 6)))
        assert for_view.exact_loss(C, net, [views.coalition(0, 2)], scheme) * error_of(C, H) >= found.lower_bound


def test_who_hears_all_cannot_be_fooled():
    found = factorize(uniform("complete:4"), participation="2x4", view="node:0")
    assert found.for_view.proven_for_training is True
    assert found.for_view.gain == pytest.approx(1, abs=5e-3)


def test_gradient_of_the_loss_of_a_view():
    H = workload(metropolis("path:4"), 4).H
    observed = for_view.observed_views(metropolis("path:4"), [views.node(3)], 4)
    problem = for_view._Problem(observed, H, parse_participation("2x2"))
    C = np.tril(np.random.default_rng(0).random((4, 4))) + np.eye(4)
    _, slope = problem.value(C, 16.0, 0.1)
    for i, j in zip(*np.tril_indices(4), strict=True):
        step = np.zeros((4, 4))
        step[i, j] = 1e-6
        numeric = (problem.value(C + step, 16.0, 0.1)[0] - problem.value(C - step, 16.0, 0.1)[0]) / 2e-6
        assert slope[i, j] == pytest.approx(numeric, rel=1e-5, abs=1e-8)
