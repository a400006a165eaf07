"""A whole run on basis rows: A and B without step matrices. The oracle for `LinearSystem.dense`, with no unrolling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.algorithm import Algorithm
from sottovoce.core.correlation import Correlation, groups_of
from sottovoce.core.loop import play_round, start_run
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_sources import Sources
from sottovoce.core.topologies import Topology
from sottovoce.tracing.basis import FIRST, Basis, Coordinate, Coordinates
from sottovoce.tracing.linear_forms import LinearRows
from sottovoce.tracing.linear_system import Labels, TracedMessages, labelled
from sottovoce.tracing.tracer import _traced_messages


def trace_dense(
    algorithm: Algorithm,
    topology: Topology,
    *,
    rounds: int,
    seed: int = 0,
    coordinate: Coordinate = FIRST,
) -> tuple[NDArray[np.float64], NDArray[np.float64], Labels]:
    """A, B and labels from one whole run on basis rows: the oracle for `LinearSystem.dense`."""
    algorithm, loop_state = start_run(algorithm, topology, LinearRows((topology.n, 0)), rounds)
    feed = _WholeRun(topology.n, seed, Coordinates(coordinate))
    sent: list[tuple[int, int, TracedMessages]] = []
    for round in range(rounds):
        played = play_round(algorithm, topology, loop_state, feed, round)
        loop_state = played.loop_state
        sent += list(_traced_messages(played, feed.width))
    O = np.concatenate([LinearRows(messages.rows).wide(feed.width).toarray() for _, _, messages in sent])
    labels = labelled(sent)
    return O[:, feed.columns("gradient")], O[:, feed.columns("noise")], labels


class _WholeRun(Basis):
    """The same over all rounds, where correlated noise reaches back to the columns of earlier ones."""

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> LinearRows:
        weights_TS = np.zeros((round + 1, sources.size))
        for part, places in groups_of(correlation, sources.groups[:, 0]):
            weights_TS[:, places] = part.inverse(round + 1)[round][:, None]
        total = LinearRows((matrix.shape[0], 0))
        for t, weights in enumerate(weights_TS):
            total = total + self._place(matrix.by_source(weights).whole(), self._start(sources, t, 0))
        return total
