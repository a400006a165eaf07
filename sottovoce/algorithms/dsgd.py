"""Decentralised gradient descent: D-PSGD, DP-D-SGD and DP2SGD.

`Gossip` is the plain pattern that most algorithms here are compositions of:

    x <- sum_v W[u,v] ( x_v - eta (g_v + noise_v) )

Its fields say which noise, which compression, how many gossip steps; its five maps are the pattern itself.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sottovoce.algorithms import Example
from sottovoce.arrays import Rows
from sottovoce.compression import Compression, Identity
from sottovoce.errors import InputError
from sottovoce.mixing import Requirement
from sottovoce.noise import Independent, Noise, PerNode, Silent
from sottovoce.topology import Topology


class Model(NamedTuple):
    """State: every node's model."""

    x: Rows


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """Step on what you have, then average with your neighbours."""

    name: str
    noise: Noise = Silent()
    compression: Compression = Identity()
    step_size: float = 0.1
    sensitivity: float = 1.0
    gossip_steps: int = 1
    requires: Requirement = "row-stochastic"
    once: bool = False
    secure_sum: bool = False

    def __post_init__(self) -> None:
        for name in ("step_size", "sensitivity", "gossip_steps"):
            kind = int | np.integer if name == "gossip_steps" else int | float | np.integer | np.floating
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or abs(value) > sys.float_info.max:
                wanted = "a whole number" if name == "gossip_steps" else "a number"
                raise InputError(f"{name} = {value!r:.40}", f"it is {wanted}", "correct it")
        if not isinstance(self.compression, Compression):
            raise InputError(f"compression {self.compression!r}", "it is an operator or its spec", "write rand:0.5")
        if math.isnan(self.step_size) or self.step_size == 0:
            raise InputError(f"step size {self.step_size}", "it is finite and not zero", "give 0.1, say")
        if not 0 < self.sensitivity < math.inf:
            raise InputError(f"sensitivity {self.sensitivity}", "it is positive and finite", "give the clipping bound")
        if self.gossip_steps < 1:
            raise InputError(f"{self.gossip_steps} gossip steps", "at least one is needed", "give 1 or more")

    def on(self, topology: Topology) -> Gossip:
        """Nothing is taken from the topology, but its first round must fit; the loop checks the others."""
        first = topology.at(0)
        first.require(self.requires)
        self.noise.local(first)
        self.noise.edge(first)
        return self

    def init(self, x0: Rows) -> Any:
        return Model(x0)

    def point(self, state: Any) -> Rows:
        return state.x

    def local(self, state: Any, grad: Rows, noise: Rows | float) -> Any:
        return Model(state.x - self.step_size * (grad + noise))

    def message(self, state: Any) -> Any:
        return state.x

    def absorb(self, state: Any, mixed: Any) -> Any:
        return Model(mixed)


class Delayed(NamedTuple):
    """State: the model, and the local step that waits for the mix (None between rounds)."""

    x: Rows
    step: Rows | None


class WhileSpeaking(Gossip):
    """Speak and step at the same time: `x <- W x - eta (g(x) + noise)`. A step is heard one round later."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gossip_steps != 1:
            raise InputError(f"{self.gossip_steps} gossip steps", "a step waits for one mix", "use one")

    def init(self, x0: Rows) -> Any:
        return Delayed(x0, None)

    def local(self, state: Any, grad: Rows, noise: Rows | float) -> Any:
        return Delayed(state.x, self.step_size * (grad + noise))

    def absorb(self, state: Any, mixed: Any) -> Any:
        return Delayed(mixed - state.step, None)


ORDERS = {"step-then-speak": Gossip, "while-speaking": WhileSpeaking}


def d_psgd(*, step_size: float = 0.1, order: str = "step-then-speak") -> Gossip:
    """D-PSGD: no noise, no guarantee. In either order of local step and averaging; Lian et al. give both."""
    if order not in ORDERS:
        raise InputError(f"order {order!r}", f"known: {', '.join(ORDERS)}", "choose one of them")
    return ORDERS[order](name="d-psgd", step_size=step_size)


def dp_d_sgd(*, sigma: PerNode, step_size: float = 0.1, sensitivity: float = 1.0) -> Gossip:
    """DP-D-SGD: D-PSGD with fresh independent noise on every gradient."""
    return Gossip(name="dp-d-sgd", noise=Independent(sigma), step_size=step_size, sensitivity=sensitivity)


def dp2sgd(*, sigma: PerNode, step_size: float = 0.1, sensitivity: float = 1.0) -> Gossip:
    """DP2SGD: noise on every gradient, the step taken while models travel."""
    return WhileSpeaking(name="dp2sgd", noise=Independent(sigma), step_size=step_size, sensitivity=sensitivity)


EXAMPLES = (
    Example("d-psgd", d_psgd),
    Example("d-psgd", d_psgd, {"order": "while-speaking"}),
    Example("dp-d-sgd", dp_d_sgd, {"sigma": 1.5}),
    Example("dp2sgd", dp2sgd, {"sigma": 1.5}),
)

CITE = (
    "Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017, Algorithm 1 (D-PSGD)",
    "Cheng et al., Towards decentralized deep learning with differential privacy, CLOUD 2019 (noise on D-PSGD)",
    "Yu et al., Decentralized parallel SGD with privacy preservation (DP2SGD), as cited by DP-CSGP [22]",
)
