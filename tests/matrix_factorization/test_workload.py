"""The workload H: by its definition, and estimated by probes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sottovoce import (
    dropout,
    fresh_erdos_renyi,
    metropolis,
    uniform,
)
from sottovoce.matrix_factorization.workload import workload


def definition(topology, T, objective="all", nodes=None):
    """H as the squared norm of an explicit matrix: rows (round, node) of models, columns (round, node) of noise."""
    n = topology.n
    columns = range(n) if nodes is None else nodes
    H = np.zeros((T, T))
    for t in range(T):
        effects = []
        for s in range(t + 1):
            effect = np.eye(n)
            active = topology.at(s).active
            if active is not None:
                effect = effect @ np.diag(active.astype(float))
            for r in range(s, t + 1):
                effect = topology.at(r).weights.toarray() @ effect
            effects.append(effect[:, columns] if objective != "average" else effect.mean(axis=0)[list(columns)])
        if objective != "last" or t == T - 1:
            for s, u in itertools.product(range(t + 1), repeat=2):
                H[s, u] += np.vdot(effects[s], effects[u])
    return H


TOPOLOGIES = {
    "symmetric": lambda: metropolis("path:4"),
    "row-stochastic": lambda: uniform("star:5"),
    "reversible": lambda: uniform("florentine"),
    "directed": lambda: uniform("exponential:6"),
    "changing": lambda: fresh_erdos_renyi(5, 0.5, seed=3),
    "dropout": lambda: dropout("ring:5", rate=0.4, seed=1),
}


@pytest.mark.parametrize("objective", ["all", "last", "average"])
@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_workload_is_its_definition(kind, objective):
    net = TOPOLOGIES[kind]()
    np.testing.assert_allclose(workload(net, 6, objective).H, definition(net, 6, objective), atol=1e-12)
    some = np.array([0, 2])
    np.testing.assert_allclose(
        workload(net, 6, objective, nodes=some).H, definition(net, 6, objective, [0, 2]), atol=1e-12
    )


@pytest.mark.parametrize("kind", ["symmetric", "changing"])
def test_errors_of_single_rounds_add_up(kind):
    net = TOPOLOGIES[kind]()
    work = workload(net, 5)
    V = np.cov(np.random.default_rng(0).standard_normal((5, 40)))
    first = definition(net, 1)[0, 0] * V[0, 0]
    errors = work.errors(V)
    assert errors[0] == pytest.approx(first)
    assert errors.sum() == pytest.approx(np.vdot(V, work.H))


@pytest.mark.parametrize("kind", ["symmetric", "directed", "changing"])
def test_probes_come_with_an_honest_error_bar(kind):
    net = TOPOLOGIES[kind]()
    truth = np.trace(workload(net, 6).H)
    off = []
    for seed in range(60):
        guess = workload(net, 6, probes=40, seed=seed)
        assert 0 < guess.error < 0.4
        off.append((np.trace(guess.H) / truth - 1) / guess.error)
    assert abs(np.mean(off)) < 0.6
    assert 0.6 < np.std(off) < 1.6
