"""Privacy of pairs of nodes over rounds, hops, distance in the plane or noise: exact, and as papers print it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import Participation
from sottovoce.errors import InputError
from sottovoce.papers.catalogue import Accounts
from sottovoce.papers.cells import Cell, cell
from sottovoce.privacy import views
from sottovoce.privacy.exact import routes
from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.privacy.guarantee import Figure
from sottovoce.privacy.observation import Observation, observe
from sottovoce.privacy.published_formulas import formulas
from sottovoce.run.protocol import build_algorithm, topology_of
from sottovoce.run.sweep import SweepRun, last_word
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.policy import trace_possible

Floats = NDArray[np.float64]

BIN = 0.05
"""Distances in the plane are gathered in steps of so much."""


def account_cells(asked: Accounts, run: SweepRun, data: Path | None) -> list[Cell]:
    """What pairs of nodes lose in one run of a sweep of accounts."""
    every, experiment = Participation(), run.experiment
    net = topology_of(experiment, data)
    system = trace_possible(build_algorithm(experiment, every), net, rounds=experiment.training.rounds)
    values: dict[tuple[str, float], list[float]] = {}
    for attacker in _attackers(asked, system.n, experiment.seed):
        view = views.node(attacker, secure_sum=asked.secure_sum)
        observation = observe(system, view, victims=_victims(asked, system, attacker, experiment.seed))
        hops = np.array([math.nan if hop is None else hop for hop in observation.distances()])
        x = _x(asked, run, observation, hops)
        groups = {"all": np.full(len(hops), True), "neighbours": hops == 1, "others": ~(hops <= 1)}
        for figure in asked.figures:
            squares, word = _squares(figure, observation, asked.lipschitz)
            shown = _as_shown(squares, asked, system.rounds, experiment.privacy.delta)
            for group in asked.victims:
                line = ", ".join(filter(None, (_name(run, asked), word, "" if group == "all" else group)))
                some = groups[group] & ~np.isnan(x)
                for at, value in zip(x[some], shown[some], strict=True):
                    values.setdefault((line, float(at)), []).append(float(value))
    return [cell(line, at, found) for (line, at), found in values.items()]


def _name(run: SweepRun, asked: Accounts) -> str:
    """The variant, and what else varies but for the x axis."""
    others = (f"{last_word(key)} {value}" for key, value in run.values if last_word(key) != asked.over)
    return ", ".join(word for word in (run.variant, *others) if word)


def _attackers(asked: Accounts, n: int, seed: int) -> list[int]:
    if isinstance(asked.attackers, list):
        return asked.attackers
    drawn = np.random.default_rng(seed).permutation(n)[: asked.attackers]
    return [int(node) for node in drawn]


def _victims(asked: Accounts, system: LinearSystem, attacker: int, seed: int) -> list[int] | None:
    """So many neighbours and so many others, where only some are drawn; all else."""
    if asked.victims_drawn is None:
        return None
    order = np.random.default_rng([seed, attacker]).permutation(system.n)
    graph = system.topology.graph
    near = set() if graph is None else set(graph.reaching([attacker], 1))
    groups = ([int(u) for u in order if u != attacker and (u in near) == is_near] for is_near in (True, False))
    return sorted(node for group in groups for node in group[: asked.victims_drawn])


def _squares(figure: str, observation: Observation, lipschitz: float | None) -> tuple[Floats, str]:
    """mu^2 of every victim by a figure's name; and what it is called, a bound where it is not exact."""
    system, every = observation.system, Participation()
    if figure == "exact":
        found = routes.exact_loss(observation, every)
        return found.squares, figure if found.figure is Figure.EXACT else "upper bound"
    if figure == "equal changes":
        return routes.losses(observation).sum(axis=(1, 2)), figure
    if figure == "everyone":
        return routes.squared(observe(system, views.everyone(), victims=observation.victims.tolist()), every), figure
    printed = {one.name: one for one in formulas(system, observation.view, lipschitz=lipschitz)}
    if figure not in printed:
        known = ", ".join(("exact", "equal changes", "everyone", *printed))
        raise InputError(f"figure {figure!r}", f"here there are: {known}", "choose one of them")
    return printed[figure].squares()[observation.victims], figure


def _as_shown(squares: Floats, asked: Accounts, rounds: int, delta: float) -> Floats:
    if asked.y == "epsilon":
        return np.array([epsilon_of(math.sqrt(square), delta) for square in squares])
    return squares / {"mu^2": 1, "mu^2 / 2": 2, "mu^2 / rounds": rounds}[asked.y]


def _x(asked: Accounts, run: SweepRun, observation: Observation, hops: Floats) -> Floats:
    if asked.over == "hops":
        return hops
    if asked.over == "plane":
        topology, (attacker,) = observation.system.topology, observation.view.members
        places = None if topology.graph is None else topology.graph.positions
        if places is None:
            raise InputError(f"{topology.name} in the plane", "its nodes have no positions", "take geometric:200,r=0.2")
        apart = np.linalg.norm(places[observation.victims] - places[attacker], axis=1)
        return BIN * (np.floor(apart / BIN) + 0.5)
    values = (value for key, value in run.values if last_word(key) == asked.over)
    return np.full(len(hops), float(next(values, run.experiment.training.rounds)))
