"""The plain gossip pattern that most algorithms here are compositions of.

    x <- sum_v W[u,v] ( x_v - eta (g_v + noise_v) )

The fields of `Gossip` say which noise, which compression, how many gossip steps; its five maps are the pattern itself.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sottovoce.core import arrays
from sottovoce.core.algorithm import Message, State
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.mixing import Requirement
from sottovoce.core.noise import LARGEST, SMALLEST, Noise, NoNoise, PerNode
from sottovoce.core.sensitivity import checked
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError


class Model(NamedTuple):
    """State: every node's model."""

    x: Rows


def with_noise(grad: Rows, noise: Rows | float) -> Rows:
    """`grad + noise`, without a pass over the gradient where the noise is the number 0: none, or in it already."""
    return grad if isinstance(noise, float) and noise == 0 else grad + noise


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """Each node takes a step at its own model, then averages with its neighbours."""

    name: str
    noise: Noise = NoNoise()
    compression: Compression = Identity()
    step_size: float = 0.1
    sensitivity: PerNode = 1.0
    gossip_steps: int = 1
    requires: Requirement = "row-stochastic"
    averaging: bool = False
    secure_sum: bool = False
    colluders: int = 1
    exact_noise: bool = False

    def __post_init__(self) -> None:
        for name in ("step_size", "gossip_steps"):
            kind = int | np.integer if name == "gossip_steps" else int | float | np.integer | np.floating
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or abs(value) > sys.float_info.max:
                wanted = "a whole number" if name == "gossip_steps" else "a number"
                raise InputError(f"{name} = {value!r:.40}", f"it must be {wanted}", "correct it")
        if not isinstance(self.compression, Compression):
            raise InputError(
                f"compression {self.compression!r}", "it must be an operator or its spec", "write rand:0.5"
            )
        if math.isnan(self.step_size) or self.step_size == 0:
            raise InputError(f"step size {self.step_size}", "it must be finite and not zero", "give 0.1, for example")
        if not SMALLEST <= abs(self.step_size) <= LARGEST:
            raise InputError(
                f"step size {self.step_size:g}",
                f"it must lie between {SMALLEST:g} and {LARGEST:g}",
                "choose other units",
            )
        object.__setattr__(self, "sensitivity", checked(self.sensitivity))
        if self.gossip_steps < 1:
            raise InputError(f"{self.gossip_steps} gossip steps", "there must be at least one", "give 1 or more")

    def on(self, topology: Topology) -> Gossip:
        """Nothing is taken from the topology, but its first round must fit; the loop checks the others."""
        first = topology.at(0)
        first.require(self.requires)
        self.noise.local(first)
        self.noise.edge(first)
        return self

    def init(self, x0: Rows) -> State:
        return Model(x0)

    def point(self, state: State) -> Rows:
        return state.x

    def local(self, state: State, grad: Rows, noise: Rows | float) -> State:
        return Model(arrays.minus_scaled(state.x, self.step_size, with_noise(grad, noise)))

    def message(self, state: State) -> Message:
        return state.x

    def absorb(self, state: State, mixed: Any) -> State:
        return Model(mixed)
