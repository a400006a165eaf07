"""Muffliato: noise once, then many gossip steps; plain, with Chebyshev acceleration, or on random edges.

Averaging is the special case of training with a single step of size -1 from zero, so that "gradients" are the values to
average. Randomised Muffliato is plain averaging on `topology.random_edges`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from sottovoce.algorithms.spec import (
    AlgorithmSpec,
    AveragingSettings,
    Example,
    GossipSteps,
    Meaning,
    Role,
    SensitivitySettings,
)
from sottovoce.core.algorithm import Gossip, with_noise
from sottovoce.core.arrays import Rows
from sottovoce.core.noise import Independent, PerNode
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError


class ChebyshevState(NamedTuple):
    """State: the model, the one before it (Chebyshev looks back one step), and which W it runs on.

    `round` stays 0 on a fixed topology. `previous` is None right after noise was added.
    """

    x: Rows
    previous: Rows | None
    round: int


@dataclass(frozen=True, kw_only=True)
class Muffliato(Gossip):
    """Gossip with rescaled Chebyshev polynomials: `x_1 = W x_0`, `x_{k+1} = gamma W x_k + (1 - gamma) x_{k-1}`."""

    chebyshev: bool = False
    topology: Topology | None = None

    def on(self, topology: Topology) -> Gossip:
        """Takes gamma from the spectral gap of each round's W."""
        super().on(topology)
        if self.chebyshev and self.averaging and not topology.static:
            self._refuse(topology)
        if self.chebyshev and topology.static:
            topology.require_connected()
        bound = replace(self, topology=topology)
        if self.chebyshev:
            bound.gamma(0)
        return bound

    def gamma(self, round: int) -> float:
        """The scale of Algorithm 1, from the spectral gap of the round's W."""
        assert self.topology is not None
        first = self.topology.at(round)
        if any(self.topology.at(round, step) is not first for step in range(self.gossip_steps)):
            self._refuse(self.topology)
        if first.spectral_gap < 1e-12:
            raise InputError(
                f"spectral gap 0 in round {round} of {self.topology.name}",
                "Chebyshev gossip needs a graph on which all nodes reach each other",
                "use plain gossip",
            )
        return chebyshev_gamma(first.spectral_gap)

    def _refuse(self, topology: Topology) -> None:
        raise InputError(
            f"Chebyshev gossip on {topology.name}", "its polynomials need the same W in all steps", "use plain gossip"
        )

    def init(self, x0: Rows) -> ChebyshevState:
        return ChebyshevState(x0, None, -1)

    def local(self, state: ChebyshevState, grad: Rows, noise: Rows | float) -> ChebyshevState:
        x = state.x - self.step_size * with_noise(grad, noise)
        assert self.topology is not None
        return ChebyshevState(x, None, 0 if self.topology.static else state.round + 1)

    def absorb(self, state: ChebyshevState, mixed: Rows) -> ChebyshevState:
        if not self.chebyshev:
            return state._replace(x=mixed)
        if state.previous is not None:
            gamma = self.gamma(state.round)
            mixed = gamma * mixed + (1 - gamma) * state.previous
        return state._replace(x=mixed, previous=state.x)


def chebyshev_gamma(gap: float) -> float:
    """`2 (1 - sqrt(l (1 - l/4))) / (1 - l/2)^2` for spectral gap l (muffliato, Algorithm 1).

    >>> round(chebyshev_gamma(0.01), 4)
    1.8184
    """
    return 2 * (1 - math.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2


CHEBYSHEV = Meaning("accelerate gossip by Chebyshev polynomials")


@dataclass(frozen=True, kw_only=True)
class MuffliatoSettings(SensitivitySettings):
    """Noise on a value, and how it is averaged."""

    sigma: Annotated[PerNode, Meaning("standard deviation of a node's own noise", Role.NOISE)]
    chebyshev: Annotated[bool, CHEBYSHEV] = False


def muffliato(settings: MuffliatoSettings) -> Gossip:
    """Muffliato averaging: each node adds noise to its value once; every round is one gossip step."""
    return Muffliato(
        name="muffliato",
        noise=Independent(settings.sigma),
        chebyshev=settings.chebyshev,
        sensitivity=settings.sensitivity,
        step_size=-1.0,
        averaging=True,
        requires="undirected",
    )


@dataclass(frozen=True, kw_only=True)
class MuffliatoSgdSettings(AveragingSettings):
    """Noise on a gradient, and how often models are averaged after it."""

    gossip_steps: GossipSteps = 1
    chebyshev: Annotated[bool, CHEBYSHEV] = False


def muffliato_sgd(settings: MuffliatoSgdSettings) -> Gossip:
    """Muffliato-SGD, and -GD with full gradients: a noisy local step, then `gossip_steps` gossip steps."""
    return Muffliato(
        name="muffliato-sgd",
        noise=Independent(settings.sigma),
        gossip_steps=settings.gossip_steps,
        radius=settings.radius,
        chebyshev=settings.chebyshev,
        step_size=settings.step_size,
        sensitivity=settings.sensitivity,
        requires="undirected",
    )


REFERENCES = (
    "Cyffers, Even, Bellet, Massoulié, Muffliato: peer-to-peer privacy amplification for decentralized optimization "
    "and averaging, NeurIPS 2022, Algorithms 1 to 3; P_1 = X of Definition 3 is used for the first step",
)

ALGORITHMS = (
    AlgorithmSpec(
        "muffliato",
        MuffliatoSettings,
        muffliato,
        written="Muffliato",
        examples=(Example({"sigma": 1.5}), Example({"sigma": 1.5, "chebyshev": True})),
        references=REFERENCES,
    ),
    AlgorithmSpec(
        "muffliato-sgd",
        MuffliatoSgdSettings,
        muffliato_sgd,
        written="Muffliato-SGD",
        examples=(
            Example({"sigma": 1.5}),
            Example({"sigma": 1.5, "gossip_steps": 3}),
            Example({"sigma": 1.5, "gossip_steps": 3, "chebyshev": True}),
        ),
        references=REFERENCES,
    ),
)
