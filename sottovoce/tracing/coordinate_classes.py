"""Algorithms that scale single coordinates differently: what one traced system tells about all coordinates.

Coordinates with the same public factors are a class, with its own A and B; the tracer traces one of each.

1. *Units alone.* Let every coefficient of a class be that of another, times the unit of what it makes over that of its
   input, where slots, messages, points and models have units and gradients and noise have none. States begin in public,
   so in these units all of the class is as in the other: the run is that of one class, with the gradient as another
   function of the point. Figures for any gradient hold. Those for convex losses do not: a step may expand.
2. *Anything else*, where gradient and noise have one coefficient in every map of every class: then all that is sent is
   a function of the noisy gradients, whole vectors with independent noise of one size, and figures given these hold.

The worst class by itself is no bound. Let one class show the first of two rounds, another the second: a change that
puts all of its first gradient into the first class, and all of its second into the other, costs as much as both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.sparsity import columns_touched
from sottovoce.errors import Unaccountable
from sottovoce.tracing.linear_system import LinearSystem, StepMatrices
from sottovoce.tracing.round_maps import Combination, RoundMaps

ROUNDING = 1e-14
"""Share of a coefficient by which products of the same factors may differ."""

Quantity: TypeAlias = tuple[str, int, int]
"""A slot of the state, a message, a point or a model: which, in which different round, and its number."""

ENTERING: Quantity = ("entering", 0, 0)
"""Gradients and noise."""

DIFFERENT = "coordinates are scaled differently, and not by factors alone: only all noisy gradients cover them together"


def covering_all_coordinates(systems: Sequence[LinearSystem]) -> LinearSystem:
    """One system that tells about all coordinates, from those of each class; see the top of this file."""
    if len(systems) == 1:
        return systems[0]
    name = systems[0].algorithm.name
    if not all(step.maps.released for system in systems for step in system.steps):
        raise Unaccountable(
            f"{name} multiplies gradients and their noise by different numbers, and coordinates by factors of their "
            "own; scale the sum of both"
        )
    for one in systems:
        if all(_differs_by_units(other, one) for other in systems):
            return replace(one, classes=len(systems))
    for one in systems:
        if all(_shows_no_more(other, one) for other in systems):
            return replace(one, classes=len(systems), only_gradients=f"{name}: {DIFFERENT}")
    raise Unaccountable(f"{name} leaves out the gradients of other rounds in each class of coordinates; keep them all")


def _differs_by_units(system: LinearSystem, reference: LinearSystem) -> bool:
    """Whether all maps are those of the reference, with every slot, message, point and model in a unit of its own.

    A coefficient is then that of the reference times the unit of what it makes over that of its input. Gradients and
    noise, also that of single messages, have their own units.
    """
    ratios: list[tuple[Quantity, Quantity, float]] = []
    pairs = list(dict.fromkeys(zip(system.steps, reference.steps, strict=True)))
    for round, (step, known) in enumerate(pairs):
        mine, theirs = _made(step.maps, round), _made(known.maps, round)
        if mine.keys() != theirs.keys():
            return False
        ratios += [(("message", round, k), ENTERING, 1.0) for k, terms in enumerate(step.maps.edge_noise) if terms]
        for made, combination in mine.items():
            some, others = dict(combination), dict(theirs[made])
            if some.keys() != others.keys():
                return False
            for number, found in some.items():
                there = others[number] != 0
                if not np.array_equal(there, found != 0):
                    return False
                every = found[there] / others[number][there]
                if np.ptp(every) > ROUNDING * abs(every[0]):
                    return False
                ratios.append((made, _input(step.maps, number, round), float(every[0])))
    return _are_consistent(ratios)


def _are_consistent(ratios: Sequence[tuple[Quantity, Quantity, float]]) -> bool:
    """Whether there are units with these ratios; those of what nothing connects to the others are free."""
    units, left = {ENTERING: 1.0}, list(ratios)
    while left:
        known = [one for one in left if one[0] in units or one[1] in units]
        for made, given, ratio in known:
            if given not in units:
                units[given] = units[made] / ratio
            unit = units.setdefault(made, units[given] * ratio)
            if abs(unit - units[given] * ratio) > ROUNDING * abs(unit):
                return False
        left = [one for one in left if one not in known]
        if left and not known:
            units[left[0][0]] = 1.0
    return True


def _made(maps: RoundMaps, round: int) -> dict[Quantity, Combination]:
    """What the maps of a round make."""
    return {
        **{("slot", 0, k): combination for k, combination in enumerate(maps.state_out)},
        **{("message", round, k): combination for k, combination in enumerate(maps.sent)},
        ("models", round, 0): maps.models,
        **({} if maps.point is None else {("point", round, 0): maps.point}),
    }


def _input(maps: RoundMaps, number: int, round: int) -> Quantity:
    """Which quantity an input of the maps is; what a gossip step gives has the unit of its messages."""
    if number < maps.slots:
        return "slot", 0, number
    return ENTERING if number < maps.mixed(0) else ("message", round, number - maps.mixed(0))


def _shows_no_more(system: LinearSystem, reference: LinearSystem) -> bool:
    """Whether every gradient that a class keeps, sends or publishes, the reference does, too."""
    pairs = dict.fromkeys(zip(system.steps, reference.steps, strict=True))
    return all(bool((_shown(other) | ~_shown(step)).all()) for step, other in pairs)


def _shown(step: StepMatrices) -> NDArray[np.bool_]:
    """Which gradients come into the state, into messages and into models."""
    sent = [columns_touched(step.split(messages.rows)[1]) for messages in step.sent]
    kept, models = (columns_touched(step.split(rows)[1]) for rows in (step.state_out, step.models))
    return np.concatenate([kept, np.any(sent, axis=0), models])
