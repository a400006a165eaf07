"""The absorption bound for any clipped training, where models that are apart may drift by a clipped gradient a round.

It is not convex in what is absorbed, and helps where a heard node has more noise than the victim, or takes no step: a
victim's last differences may then be absorbed there for less. With noise alike everywhere, rounds alike and every node
stepping, each difference that arrives has drifted by more than what its victim could have absorbed, so that nothing is
below the figure of the gradients that reach the view.

Shapes: V victims, T rounds, N nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import Participation
from sottovoce.privacy.absorption import Coupling
from sottovoce.tracing.linear_system import map_equal_steps

Array = NDArray[np.float64]

LATE = 24
"""How many last rounds are tried without absorbing; all of them are tried too, for those whom nobody ever hears."""


AT_ONCE = 4e6
"""Differences, of nodes and victims, up to which this bound is tried: it takes hundreds of passes over them."""


def may_gain(rounds: tuple[Coupling, ...], victims: int, growth: float) -> bool:
    """Whether the bound can be below that of the gradients that reach the view, and is affordable."""
    first = rounds[0]
    everyone = first.takes | (np.diff(first.transfer.indptr) == 0)  # members of the view have no row
    alike = len(set(rounds)) == 1 and bool(np.all(first.fresh == first.fresh[0])) and bool(everyone.all())
    return not (alike and growth >= 1) and len(first.fresh) * victims <= AT_ONCE


def late_cost(rounds: tuple[Coupling, ...], victims: NDArray[np.intp], scheme: Participation, growth: float) -> Array:
    """mu^2 for any clipped training: a victim absorbs at once, except in last rounds whose traces come too late.

    Models that are apart may then drift by `growth` a round each (p[k] += growth wherever p[k] > 0): the largest
    difference of two clipped gradients, 2 Clip, in units of the largest sensitivity. Whatever reaches a heard node is
    absorbed there. Sound for neural networks too.
    """
    costs = []
    for pattern in scheme.patterns(len(rounds)):
        part = np.zeros(len(rounds), dtype=bool)
        part[pattern] = True
        at_once = _absorbed_at_once(rounds, victims, part)
        ends = {*range(min(LATE, len(rounds))), len(rounds)}
        options = [at_once[len(rounds) - late] + _late(rounds, victims, part, late, growth) for late in ends]
        costs.append(np.min(options, axis=0))
    return np.max(costs, axis=0)


def _absorbed_at_once(rounds: tuple[Coupling, ...], victims: NDArray[np.intp], part: NDArray[np.bool_]) -> Array:
    """What it costs victims to absorb at once, in no round, in the first, in the first two, and so on; T + 1 x V."""

    def share(coupling: Coupling) -> Array:
        jump = coupling.jump[victims]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(jump > 0, jump / coupling.fresh[victims], 0.0) ** 2

    each_TV = np.where(part[:, None], np.array(map_equal_steps(share, rounds)), 0.0)
    return np.concatenate([np.zeros((1, len(victims))), np.cumsum(each_TV, axis=0)])


def _late(
    rounds: tuple[Coupling, ...], victims: NDArray[np.intp], part: NDArray[np.bool_], late: int, growth: float
) -> Array:
    """What the last rounds cost, in which nobody absorbs but those who are heard; nothing has travelled before."""
    cost = np.zeros(len(victims))
    first = len(rounds) - late
    p = np.zeros((len(rounds[0].fresh), len(victims)))
    for t, coupling in enumerate(rounds[first:], start=first):
        drift = (p > 0) & coupling.takes[:, None]
        impulse = _impulse(coupling, victims, bool(part[t]))
        p = p + np.maximum(impulse, growth * drift)
        absorbed = np.where(coupling.must_absorb[:, None], p, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(absorbed > 0, absorbed / coupling.fresh[:, None], 0.0)
        cost = cost + (share**2).sum(axis=0)
        p = coupling.transfer @ (p - absorbed)
    return cost


def _impulse(coupling: Coupling, victims: NDArray[np.intp], takes_part: bool) -> Array:
    out = np.zeros((len(coupling.fresh), len(victims)))
    if takes_part:
        out[victims, np.arange(len(victims))] = coupling.jump[victims]
    return out
