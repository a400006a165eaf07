"""Plans computed beforehand on a grid, for the planner in the report page.

Noise of size sigma loses mu / sigma, where mu is what is lost at sigma one, and moves models by sigma times as much: so
one traced system answers for every target. Between the rounds of the grid the next larger count, with which more is
lost; between the epsilons of the conversion table a chord, which lies below mu as a function of epsilon, since that is
concave, and above epsilon as a function of mu. So no figure is ever below what the accountant computes.

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
from sottovoce.config import Document
from sottovoce.core.files import write_text
from sottovoce.core.topologies import metropolis
from sottovoce.planning.asked_plan import DELTA, leak_by_distance, participation_of
from sottovoce.planning.noise_accumulation import noise_in_models
from sottovoce.privacy.accountant import account
from sottovoce.privacy.gaussian_dp import mu_of
from sottovoce.privacy.guarantee import Kind
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.tracer import trace

GRAPHS = ("ring:8", "ring:16", "torus:4x4", "hypercube:4", "complete:16")
ALGORITHMS = ("dp-d-sgd", "mafalda")
BATCHES = (1, 5, 20)
ROUNDS = (20, 40, 60, 80, 100, 140, 200, 300)
EPSILONS = tuple(float(f"{value:.4g}") for value in np.geomspace(0.01, 100.0, 121))
DIGITS = 7


def plan_point(graph: str, algorithm: str, batches: int, rounds: int) -> Document:
    """What sigma one loses to everyone and to nodes at each distance, and how much noise it leaves in models.

    Losses are mu about one record, where training is convex and steps are small; errors are standard deviations in one
    coordinate, in units of step size and sensitivity.
    """
    spec, scheme = algorithm_spec(algorithm), participation_of(rounds, batches)
    built = spec.build_at(1.0, dict(spec.from_run({}, rounds=rounds, participation=scheme, colluders=None)))
    system = trace(built, metropolis(graph), rounds=rounds)
    everyone = account(
        system, "everyone", adjacency="record", participation=scheme, kinds=(Kind.ANY_TRAINING,)
    ).headline
    assert everyone is not None
    left = noise_in_models(system)
    return {
        "mu": _up(everyone.mu), "average": _up(math.sqrt(left.average)), "node": _up(math.sqrt(left.node)),
        "by_distance": [_up(min(mu, everyone.mu)) for mu in _by_distance(system, scheme)],
    }  # fmt: skip


def _by_distance(system: LinearSystem, scheme: str) -> list[float]:
    """The largest mu about nodes at one hop, two and so on, by the best proof for convex training that there is."""
    kind = Kind.CONVEX_TRAINING if system.correlation is None else Kind.ANY_TRAINING
    return [one.mu for one in leak_by_distance(system, "node:0", scheme, (kind,)).values()]


def plan_grid() -> Document:
    """All points, and the table from epsilon to mu."""
    return {
        "delta": DELTA,
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
            }
            for graph in GRAPHS
        },
    }


def _up(value: float) -> float:
    """Rounded up, to save space."""
    return math.ceil(value * 10**DIGITS) / 10**DIGITS


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), json.dumps(plan_grid(), separators=(",", ":")) + "\n")
