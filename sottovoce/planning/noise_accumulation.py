"""How noise adds up in models over a run, read from the traced system.

    >>> from sottovoce import algorithm, metropolis, trace
    >>> noise_in_models(trace(algorithm("dp-d-sgd", sigma=2.0), metropolis("complete:4"), rounds=3))
    Accumulated(average=3.0, node=3.0)

All four nodes hold the average after each round; every round adds noise of variance 4 / 4 to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.correlation import groups_of
from sottovoce.tracing.linear_system import LinearSystem, map_equal_steps

ENTRIES = 3e7
"""About how many responses of models to noise are held at once; of larger graphs some nodes stand for all."""


class Accumulated(NamedTuple):
    """Variance of noise in models after the last round, in one coordinate and units of step size and sensitivity.

    Of the average over all models, and of a node's model, on average over nodes.
    """

    average: float
    node: float


def noise_in_models(system: LinearSystem) -> Accumulated:
    """How much noise a traced system leaves in its models if gradients do not react to it.

    From the last round backwards: what a source of round t adds to the models at the end is `reach_t N_t`, where
    `reach` is how they depend on the state after round t. Correlated noise is `C^-1 Z`, so responses meet its columns.
    """
    nodes = np.unique(np.linspace(0, system.n - 1, picked_nodes(system)).astype(int))
    pick = np.concatenate([np.full((1, system.n), 1 / system.n), np.eye(system.n)[nodes]])
    responses = _responses(system, pick)
    if system.correlation is None:
        variance = sum(((block**2).sum(axis=1) for block in responses), np.zeros(len(pick)))
    else:
        blocks_TRS = np.array(list(responses))[::-1]
        variance = np.zeros(len(pick))
        for part, places in groups_of(system.correlation, np.arange(blocks_TRS.shape[2])):
            mixed = np.tensordot(part.inverse(system.rounds).T, blocks_TRS[:, :, places], axes=1)
            variance += (mixed**2).sum(axis=(0, 2))
    return Accumulated(float(variance[0]), float(variance[1:].mean()))


def picked_nodes(system: LinearSystem) -> int:
    """How many nodes stand for all."""
    sources = max(1, *(step.noise_size for step in dict.fromkeys(system.steps)))
    correlated = system.correlation is not None
    most = ENTRIES / (sources * (system.rounds if correlated else 1))
    return min(system.n, max(1, int(most)))


def _responses(system: LinearSystem, pick: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """For each round, the last first, how the picked combinations of final models answer to its sources."""
    last = system.steps[-1]
    state, _, noise = last.split(last.models)
    yield pick @ noise
    reach = pick @ state
    for before, _, enters in reversed(map_equal_steps(lambda step: step.split(step.state_out), system.steps[:-1])):
        yield reach @ enters
        reach = reach @ before
