"""The absorption bound for any clipped training, where models that are apart may drift by a clipped gradient a round.

It is not convex in what is absorbed, and helps where a heard node has more noise than the victim, or takes no step: a
victim's last differences may then be absorbed there for less. With noise alike everywhere, rounds alike and every node
stepping, each difference that arrives has drifted by more than what its victim could have absorbed, so that nothing is
below the figure of the gradients that reach the view.

Of single records it is not known how far models may drift, in units of their sensitivity, so that it is taken to be
any distance. A difference then costs what its victim could have absorbed at once, where it is heard in its own round;
without bound, where it is heard later, from nodes that step; and nothing, where it is never heard, as in the figure of
the gradients that reach the view. So nothing is below that figure here, too, if all who are heard step.

Shapes: V victims, T rounds, N nodes, P patterns of participation, C cases: a pattern and a number of last rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import Participation
from sottovoce.privacy.absorption import Coupling
from sottovoce.support.progress import expect_work, report_work
from sottovoce.tracing.linear_system import map_equal_steps

Array = NDArray[np.float64]

LATE = 24
"""How many last rounds are tried without absorbing; all of them are tried too, for those whom nobody ever hears."""


AT_ONCE = 4e6
"""Differences, of nodes and victims, up to which this bound is tried: it takes hundreds of passes over them."""

UNBOUNDED = 1e100
"""Clipped growth in units of a record's sensitivity, which is smaller than Clip by the unknown size of a batch."""

COLUMNS = 2e5
"""About so many differences are followed at once."""


def may_gain(rounds: tuple[Coupling, ...], victims: int, growth: float) -> bool:
    """Whether the bound can be below that of the gradients that reach the view, and is affordable."""
    first, different = rounds[0], set(rounds)
    if len(first.fresh) * victims > AT_ONCE:
        return False
    if growth >= UNBOUNDED:
        return not all(bool((one.takes | ~one.must_absorb).all() and one.fresh.all()) for one in different)
    alike = len(different) == 1 and bool(np.all(first.fresh == first.fresh[0]))
    if not alike or growth < 1:
        return True
    idle = first.honest & ~first.takes
    return bool(idle.any() and np.diff(first.transfer.indptr)[idle].any())


def late_cost(rounds: tuple[Coupling, ...], victims: NDArray[np.intp], scheme: Participation, growth: float) -> Array:
    """mu^2 for any clipped training: a victim absorbs at once, except in last rounds whose traces come too late.

    Models that are apart may then drift by `growth` a round each (p[k] += growth wherever p[k] > 0): the largest
    difference of two clipped gradients, 2 Clip, in units of the largest sensitivity. Whatever reaches a heard node is
    absorbed there. Sound for neural networks too.
    """
    T, patterns = len(rounds), scheme.patterns(len(rounds))
    parts_PT = np.zeros((len(patterns), T), dtype=bool)
    for part, pattern in zip(parts_PT, patterns, strict=True):
        part[pattern] = True
    saved_PTV = np.array([_absorbed_at_once(rounds, victims, part) for part in parts_PT])
    best_PV = np.full((len(patterns), len(victims)), np.inf)
    tried = [(late, number) for late in (*range(min(LATE, T)), T) for number in range(len(patterns))]
    groups = list(_groups(tried, max(1, int(COLUMNS / (len(rounds[0].fresh) * len(victims)))), T))
    expect_work(sum(len(some) * max(late for late, _ in some) for some in groups))
    for some in groups:
        late, number = (np.array(values) for values in zip(*some, strict=True))
        cost_CV = saved_PTV[number, T - late] + _late(rounds, victims, parts_PT[number], T - late, growth)
        np.minimum.at(best_PV, number, cost_CV)
    return np.asarray(best_PV.max(axis=0))


def _groups(tried: list[tuple[int, int]], size: int, T: int) -> Iterator[list[tuple[int, int]]]:
    """Cases that are computed together: so many, and those of all rounds apart from those of the last ones."""
    for cases in ([case for case in tried if case[0] < T], [case for case in tried if case[0] == T]):
        yield from (cases[first : first + size] for first in range(0, len(cases), size))


def _absorbed_at_once(rounds: tuple[Coupling, ...], victims: NDArray[np.intp], part: NDArray[np.bool_]) -> Array:
    """What it costs victims to absorb at once, in no round, in the first, in the first two, and so on; T + 1 x V."""

    def share(coupling: Coupling) -> Array:
        jump = coupling.jump[victims]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(jump > 0, jump / coupling.fresh[victims], 0.0) ** 2

    each_TV = np.where(part[:, None], np.array(map_equal_steps(share, rounds)), 0.0)
    return np.concatenate([np.zeros((1, len(victims))), np.cumsum(each_TV, axis=0)])


def _late(
    rounds: tuple[Coupling, ...], victims: NDArray[np.intp], part_CT: NDArray[np.bool_], first_C: Array, growth: float
) -> Array:
    """What the rounds from `first` on cost, in which nobody absorbs but those who are heard, C x V.

    Nothing has travelled before. Cases are columns beside each other, and do not meet.
    """
    N, V, C = len(rounds[0].fresh), len(victims), len(first_C)
    cost, p = np.zeros(C * V), np.zeros((N, C * V))
    for t, coupling in enumerate(rounds[first_C.min() :], start=first_C.min()):
        drift = (p > 0) & coupling.takes[:, None]
        p = p + np.maximum(_impulse(coupling, victims, part_CT[:, t] & (first_C <= t)), growth * drift)
        absorbed = np.where(coupling.must_absorb[:, None], p, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(absorbed > 0, absorbed / coupling.fresh[:, None], 0.0)
        cost = cost + (share**2).sum(axis=0)
        p = coupling.transfer @ (p - absorbed)
        report_work(C)
    return cost.reshape(C, V)


def _impulse(coupling: Coupling, victims: NDArray[np.intp], takes_part_C: NDArray[np.bool_]) -> Array:
    """The victims' own changes, N x CV, in the cases in which they take part."""
    out = np.zeros((len(coupling.fresh), len(takes_part_C), len(victims)))
    out[victims, :, np.arange(len(victims))] = np.where(takes_part_C, coupling.jump[victims][:, None], 0.0)
    return out.reshape(len(out), -1)
