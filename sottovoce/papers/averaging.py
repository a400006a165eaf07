"""Averaging as an experiment: how far nodes are from the true mean, exactly, beside what Muffliato's theory says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.participation import Participation
from sottovoce.core.topologies import Changing, Topology
from sottovoce.papers.catalogue import Averaging
from sottovoce.papers.cells import Cell, cell
from sottovoce.privacy import views
from sottovoce.privacy.exact import routes
from sottovoce.privacy.observation import observe
from sottovoce.privacy.published_formulas import muffliato_theorem_1
from sottovoce.run.protocol import build_algorithm, topology_of
from sottovoce.run.sweep import SweepRun
from sottovoce.support.config import Experiment
from sottovoce.tracing.linear_system import LinearSystem
from sottovoce.tracing.tracer import trace

Floats = NDArray[np.float64]


def averaging_cells(asked: Averaging, run: SweepRun, data: Path | None) -> list[Cell]:
    """The error of one run of a sweep, over its steps or at the stopping time of the theory."""
    experiment, every = run.experiment, Participation()
    net, algorithm = _all_there_at_first(experiment, data), build_algorithm(experiment, every)
    sigma = float(experiment.algorithm.settings.get("sigma", 1.0))
    stop = stopping_time(net, sigma, asked.values) if net.static else experiment.training.rounds
    if asked.over == "nodes":
        system = trace(algorithm, net, rounds=stop)
        shown = errors(system, np.zeros(net.n))[-1] * _mean_loss(asked, system, sigma)
        ends = {run.variant: shown, "local": 1 / (2 * net.n), "trusted server": 1 / (2 * net.n**2)}
        return [cell(line, net.n, [value]) for line, value in ends.items()]
    signs = np.random.default_rng(experiment.seed).permutation(np.resize([-1.0, 1.0], net.n))
    found = errors(trace(algorithm, net, rounds=experiment.training.rounds), math.sqrt(asked.values) * signs)
    lines = [cell(run.variant, step, [error]) for step, error in enumerate(found, 1)]
    if net.static and stop <= len(found):
        limit = 3 * sigma**2 / net.n
        lines += [cell(f"{run.variant}, Theorem 2", step, [limit]) for step in (stop, len(found))]
    return lines


def _all_there_at_first(experiment: Experiment, data: Path | None) -> Topology:
    """The topology; nodes that skip steps are there in the first one, when values and noise enter."""
    net, settings = topology_of(experiment, data), experiment.topology
    if not settings.dropout:
        return net
    whole = settings.model_copy(update={"dropout": 0.0, "dropout_correlation": 0.0, "announced": False})
    begin = topology_of(experiment.model_copy(update={"topology": whole}), data)
    return Changing(lambda round, step: (net if round else begin).at(round, step), n=net.n, name=net.name)


def stopping_time(net: Topology, sigma: float, variance: float) -> int:
    """`ln(n max(1, variance / sigma^2)) / sqrt(gap)`, after which Muffliato's Theorem 2 bounds the error."""
    return math.ceil(math.log(net.n * max(1.0, variance / sigma**2)) / math.sqrt(net.spectral_gap))


def errors(system: LinearSystem, values: Floats) -> list[float]:
    """`sum_v E |x_v - mean|^2 / 2n` after each step, by the exact mean and covariance of what nodes hold."""
    mean, found = values.mean(), []
    state, covariance = np.zeros(system.steps[0].state_size), np.zeros((system.steps[0].state_size,) * 2)
    for step in system.steps:
        a, b = step.state_size, step.state_size + step.gradients
        inputs = np.concatenate([state, values[: step.gradients], np.zeros(step.noise_size)])
        models, out = step.models, step.state_out
        by_state, by_noise = models[:, :a], models[:, b:]
        spread = (by_state @ (by_state @ covariance).T).trace() + by_noise.multiply(by_noise).sum()
        found.append(float(((models @ inputs - mean) ** 2).sum() + spread) / (2 * system.n))
        noise = out[:, b:]
        covariance = out[:, :a] @ (out[:, :a] @ covariance).T + (noise @ noise.T).toarray()
        state = out @ inputs
    return found


def _mean_loss(asked: Averaging, system: LinearSystem, sigma: float) -> float:
    """mu^2 of all others to the node that hears most, divided by the number of nodes."""
    if asked.privacy == "none":
        return 1.0
    heard = np.diff(system.topology.at(0).weights.indptr)
    attacker = int(heard.argmax())
    if asked.privacy == "exact":
        squares = routes.squared(observe(system, views.node(attacker)), Participation())
    else:
        squares = np.delete(muffliato_theorem_1(system.topology, attacker, system.rounds, sigma), attacker)
    return float(squares.sum()) / system.n
