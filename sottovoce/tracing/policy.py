"""How much of a run is traced: every message where that is possible and affordable, else how noise meets gradients.

- `trace_possible`: every message, unless compression makes messages that cannot be traced; for questions that name what
  they want to know.
- `trace_affordable`: the same within limits of size; for runs, which are traced unasked.
- `trace_with_noise`: what was traced, with another size of noise.
- `trace_coordinates`: some coordinates of a run whose compression keeps a part of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.core.algorithm import is_linear, is_own, linear_part, radius_of, rule_of
from sottovoce.core.compression import Identity, RandomK
from sottovoce.core.noise import Noise
from sottovoce.core.release import CLIPPED
from sottovoce.core.topologies import Topology
from sottovoce.errors import Unaccountable
from sottovoce.support.limits import Cost, check_cost
from sottovoce.tracing.basis import Coordinate
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.tracer import trace

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm

CUBES, SQUARES = 5e9, 1e8
"""Largest sums of cubed, and of squared, numbers of nodes over all different rounds that are affordable."""

MASKS = 1e8
"""Most coordinates, over nodes and rounds, for which it is drawn what compression keeps."""

COORDINATES = 4
"""Where compression keeps some coordinates, so many are traced."""


REACHED_BYTES, NOISE_BYTES, CORRELATION_BYTES = 100.0, 220.0, 24.0
"""Memory for a pair of nodes that a gossip step joins, for a source of noise in a message, and for an entry of C."""

ROUND_SECONDS, BYTES_A_SECOND = 1e-4, 3e7
"""Seconds that a gossip step takes whatever its size, traced and accounted for; bytes of matrices made a second."""


class Extent(Enum):
    """What of a run is traced."""

    EVERY_MESSAGE = "every message"
    FIRST_GOSSIP_STEP = "the messages of the first gossip step of every round"
    NOISY_GRADIENTS = "how noise is added to gradients"


def affordable_extent(algorithm: Algorithm, topology: Topology, *, rounds: int) -> Extent:
    """Every message unless that is impossible or too much. Without noise, the first gossip step shows all there is."""
    if not is_linear(algorithm):
        return Extent.NOISY_GRADIENTS
    if not _is_large(algorithm, topology, rounds):
        return Extent.EVERY_MESSAGE
    first = topology.at(0)
    if algorithm.noise.local(first):
        return Extent.NOISY_GRADIENTS
    return Extent.EVERY_MESSAGE if algorithm.noise.edge(first) else Extent.FIRST_GOSSIP_STEP


def _is_large(algorithm: Algorithm, topology: Topology, rounds: int) -> bool:
    different = 1 if topology.static else rounds
    if different > 1 and different * topology.n**3 > CUBES:
        return True
    return different * algorithm.gossip_steps * topology.n**2 > SQUARES


def trace_affordable(algorithm: Algorithm, topology: Topology, *, rounds: int) -> LinearSystem:
    """The linear system of what runs, as much of it as is affordable."""
    extent = affordable_extent(algorithm, topology, rounds=rounds)
    if extent is Extent.EVERY_MESSAGE:
        check_trace_cost(algorithm, topology, rounds)
        return trace(algorithm, topology, rounds=rounds)
    if extent is Extent.FIRST_GOSSIP_STEP:
        return trace(_with_one_gossip_step(algorithm), topology, rounds=rounds)
    steps = f"{topology.name}, {rounds} rounds of {algorithm.gossip_steps} gossip steps"
    return trace_noisy_gradients(algorithm, topology, rounds=rounds, reason=f"{steps}: too many messages to trace")


def trace_possible(algorithm: Algorithm, topology: Topology, *, rounds: int) -> LinearSystem:
    """The linear system of what runs: every message, unless compression keeps them from being traced."""
    check_trace_cost(algorithm, topology, rounds)
    traced = trace if is_linear(algorithm) else trace_noisy_gradients
    return traced(algorithm, topology, rounds=rounds)


def check_trace_cost(algorithm: Algorithm, topology: Topology, rounds: int) -> None:
    """Refuse to trace what takes too much memory or time, before it begins."""
    what = f"tracing {algorithm.name} on {topology.name}, {rounds:,} rounds,"
    check_cost(what, trace_cost(algorithm, topology, rounds=rounds), "take fewer rounds or a smaller graph")


def trace_cost(algorithm: Algorithm, topology: Topology, *, rounds: int) -> Cost:
    """What the matrices of every message take, from the sizes of the first round's, and of C where there is one."""
    first, n = topology.at(0), topology.n
    degree = first.weights.nnz / n
    reached = sum(n * min(float(n), degree**step) for step in range(1, algorithm.gossip_steps + 1))
    noise = algorithm.gossip_steps * sum(term.matrix.entries for term in algorithm.noise.edge(first))
    different = 1 if topology.static else rounds
    memory = different * (REACHED_BYTES * reached + NOISE_BYTES * noise)
    if algorithm.noise.correlation is not None:
        memory += CORRELATION_BYTES * rounds**2
    return Cost(memory=memory, seconds=ROUND_SECONDS * rounds * algorithm.gossip_steps + memory / BYTES_A_SECOND)


def trace_noisy_gradients(algorithm: Algorithm, topology: Topology, *, rounds: int, reason: str = "") -> LinearSystem:
    """A system of which only noisy gradients are known, for messages that cannot be traced, or are too many.

    It is traced without compression and clipping, which change nothing about how noise is added, and with one gossip
    step.
    """
    operator = algorithm.compression
    if not isinstance(operator, Identity):
        reason = f"{operator.name}: what is sent differs by coordinate or is not linear"
    if radius_of(algorithm) < math.inf:
        reason = CLIPPED
    if not rule_of(algorithm).linear:
        reason = "adam is not linear in noisy gradients: what is proven is proven given all of them"
    plain = _with_one_gossip_step(linear_part(algorithm))
    return replace(trace(plain, topology, rounds=rounds), algorithm=algorithm, only_gradients=reason)


def _with_one_gossip_step(algorithm: Algorithm) -> Algorithm:
    """Of the package's algorithms every gossip step does the same; one's own may add noise in any of them."""
    return algorithm if is_own(algorithm) else replace(algorithm, gossip_steps=1)  # type: ignore[type-var]


def trace_with_noise(system: LinearSystem, noise: Noise) -> LinearSystem:
    """A system with another size of its noise, as much of it traced as before."""
    algorithm, topology = replace(system.algorithm, noise=noise), system.topology  # type: ignore[type-var]
    if system.only_gradients:
        return trace_noisy_gradients(algorithm, topology, rounds=system.rounds, reason=system.only_gradients)
    return trace(algorithm, topology, rounds=system.rounds)


def trace_coordinates(
    algorithm: Algorithm, topology: Topology, *, rounds: int, dimension: int
) -> Iterator[LinearSystem]:
    """Every message, of as many coordinates as differ or as are affordable; refused where messages are not linear."""
    operator = algorithm.compression
    if isinstance(operator, Identity):
        yield trace(algorithm, topology, rounds=rounds)
        return
    if not isinstance(operator, RandomK):
        raise Unaccountable(f"{operator.name} is not linear, so its error is not predicted")
    if rounds * topology.n * dimension > MASKS:
        raise Unaccountable(f"{operator.name}: too many coordinates to draw, so its error is not predicted")
    for index in np.linspace(0, dimension - 1, min(COORDINATES, dimension)).astype(int):
        yield trace(algorithm, topology, rounds=rounds, coordinate=Coordinate(int(index), dimension))
