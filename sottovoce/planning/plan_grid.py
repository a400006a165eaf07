"""Plans computed beforehand on a grid, for the planner in the report page.

Noise of size sigma loses mu / sigma, where mu is what is lost at sigma one, and moves models by sigma times as much: so
one traced system answers for every target. Between the rounds of the grid the next larger count, with which more is
lost; between the epsilons of the conversion table a chord, which lies below mu as a function of epsilon, since that is
concave, and above epsilon as a function of mu. So no figure is ever below what the accountant computes.

Secure sums have integer noise, which loses a factor more than Gaussian noise: for rounding, and for a little variance.
Whatever the sensitivity, it has at least 2^32 steps for every sigma that the table can answer with (`sum_grid`). Points
are computed at sigma one and sensitivity one, with exactly so many, where the factor for rounding is largest; that for
variance, which grows with 1 / sigma, differs by less than `VARIANCE`.

Graphs look the same from each of their nodes, so that node 0 stands for every adversary.

`python -m sottovoce.planning.plan_grid sottovoce/report/assets/plans.json` computes what the page carries.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np

from sottovoce.algorithms.registry import algorithm_spec
from sottovoce.core.algorithm import sums_over_all
from sottovoce.core.grid import with_exact_noise
from sottovoce.core.topologies import weigh, weights_for
from sottovoce.planning.asked_plan import DELTA, leak_by_distance, participation_of
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.privacy.accountant import Account, account
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.guarantee import Kind
from sottovoce.support.config import Document
from sottovoce.support.files import write_text
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.tracer import trace

GRAPHS = ("ring:8", "ring:16", "torus:4x4", "hypercube:4", "complete:8", "complete:16")
ALGORITHMS = ("dp-d-sgd", "mafalda", "secure-average")
BATCHES = (1, 5, 20)
ROUNDS = (20, 40, 60, 80, 100, 140, 200, 300)
EPSILONS = tuple(float(f"{value:.4g}") for value in np.geomspace(0.01, 100.0, 121))
COLLUDERS = 1
DIGITS = 7

VARIANCE = 1e-9
"""From a sigma of 1e-4 on, the factor for variance differs from that at sigma one by less than this."""


def plan_point(graph: str, algorithm: str, batches: int, rounds: int) -> Document:
    """What sigma one loses to everyone and to nodes at each distance, and how much noise it leaves in models.

    Losses are mu about one record, where training is convex and steps are small; errors are standard deviations in one
    coordinate, in units of step size and sensitivity.
    """
    scheme = participation_of(rounds, batches)
    system = _at_sigma_one(graph, algorithm, rounds, scheme)
    everyone = _everyone(system, scheme).headline
    assert everyone is not None
    left, more = noise_in_models(system), 1 + VARIANCE if sums_over_all(system.algorithm) else 1.0
    leaks = leak_by_distance(system, "node:0", scheme, (_kind_by_distance(system),)).values()
    return {
        "mu": _up(everyone.mu * more), "average": _up(math.sqrt(left.average)), "node": _up(math.sqrt(left.node)),
        "by_distance": [_up(min(one.mu, everyone.mu) * more) for one in leaks],
    }  # fmt: skip


def _everyone(system: LinearSystem, scheme: str) -> Account:
    return account(system, "everyone", adjacency="record", participation=scheme, kinds=(Kind.ANY_TRAINING,))


def _at_sigma_one(graph: str, algorithm: str, rounds: int, scheme: str) -> LinearSystem:
    """The algorithm with its own settings, traced; of secure sums with the integer noise that they are run with."""
    spec = algorithm_spec(algorithm)
    colluders = None if spec.setting("colluders") is None else COLLUDERS
    built = spec.build_at(1.0, dict(spec.from_run({}, rounds=rounds, participation=scheme, colluders=colluders)))
    net = weigh(graph, weights_for(built.requires))
    return trace(with_exact_noise(built, net) if sums_over_all(built) else built, net, rounds=rounds)


def _kind_by_distance(system: LinearSystem) -> Kind:
    """The best proof for convex training that there is."""
    plain = system.correlation is None and not sums_over_all(system.algorithm)
    return Kind.CONVEX_TRAINING if plain else Kind.ANY_TRAINING


def _facts(algorithm: str) -> Document:
    """Whether its figures by distance are for convex training, and whom its noise protects against."""
    system = _at_sigma_one("complete:8", algorithm, 2, "every")
    return {
        "convex": _kind_by_distance(system) is Kind.CONVEX_TRAINING, "covers": str(_everyone(system, "every").coverage),
    }  # fmt: skip


def planned_graphs(algorithm: str) -> list[str]:
    """Secure sums over everybody need a graph in which everybody is a neighbour."""
    return [one for one in GRAPHS if algorithm != "secure-average" or one.startswith("complete:")]


def plan_grid() -> Document:
    """All points, and the table from epsilon to mu."""
    return {
        "delta": DELTA,
        "algorithms": {algorithm: _facts(algorithm) for algorithm in ALGORITHMS},
        "epsilons": list(EPSILONS),
        "mus": [mu_of(epsilon, DELTA) for epsilon in EPSILONS],
        "rounds": list(ROUNDS),
        "points": {
            graph: {
                algorithm: {
                    str(batches): [plan_point(graph, algorithm, batches, rounds) for rounds in ROUNDS]
                    for batches in BATCHES
                }
                for algorithm in ALGORITHMS
                if graph in planned_graphs(algorithm)
            }
            for graph in GRAPHS
        },
    }


def _up(value: float) -> float:
    """Rounded up, to save space."""
    return math.ceil(value * 10**DIGITS) / 10**DIGITS


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), json.dumps(plan_grid(), separators=(",", ":")) + "\n")
