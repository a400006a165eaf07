"""The workload H: by its definition."""

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
    np.testing.assert_allclose(workload(net, 6, objective), definition(net, 6, objective), atol=1e-12)
    some = np.array([0, 2])
    np.testing.assert_allclose(
        workload(net, 6, objective, nodes=some), definition(net, 6, objective, [0, 2]), atol=1e-12
    )
