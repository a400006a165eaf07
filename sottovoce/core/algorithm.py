"""The protocol of an algorithm, the small maps that the round loop calls; and `Gossip`, the pattern of most of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.local_rules import PLAIN, LocalRule
from sottovoce.core.mixing import Requirement
from sottovoce.core.noise import Noise, NoNoise, PerNode, checked_sizes
from sottovoce.core.sensitivity import checked
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError, require_whole

State: TypeAlias = Any
"""The state of an algorithm: rows, a number, None, or a tuple of states, as the algorithm has chosen."""


def leaves(state: State) -> list[Any]:
    """What a state holds, whichever tuples it is in."""
    return [leaf for part in state for leaf in leaves(part)] if isinstance(state, tuple) else [state]


def map_leaves(function: Callable[[Any], Any], state: State) -> State:
    """The same tuples with every leaf mapped."""
    if not isinstance(state, tuple):
        return function(state)
    mapped = [map_leaves(function, part) for part in state]
    return type(state)(*mapped) if hasattr(state, "_fields") else tuple(mapped)


class Weighted(NamedTuple):
    """A message with a public weight beside it, mixed alike: push-sum's."""

    value: Rows
    weight: Rows


Message: TypeAlias = Rows | Weighted
"""What leaves a node: its row, or its row with a public weight."""


@runtime_checkable
class Algorithm(Protocol):
    """Small maps that the loop calls. All of them are linear in what they are given; states are values."""

    @property
    def name(self) -> str:
        """Its name on the command line."""

    @property
    def noise(self) -> Noise:
        """Which noise is added where."""

    @property
    def compression(self) -> Compression:
        """What messages lose."""

    @property
    def gossip_steps(self) -> int:
        """Gossip steps per gradient (K)."""

    @property
    def step_size(self) -> float:
        """The factor of gradients and noise (eta)."""

    @property
    def sensitivity(self) -> PerNode:
        """How far a node's data may move its gradient (Delta), one number or one for each node; the unit of noise."""

    @property
    def requires(self) -> Requirement:
        """Which mixing weights it works with."""

    @property
    def averaging(self) -> bool:
        """Whether values enter in the first round only, as in averaging."""

    @property
    def secure_sum(self) -> bool:
        """Whether single messages stay hidden: only a sum over all nodes, or over a node's neighbours, is seen."""

    @property
    def colluders(self) -> int:
        """How many nodes may collude against the others in a secure sum to which all add noise."""

    @property
    def exact_noise(self) -> bool:
        """Whether nodes release gradient plus noise on a grid, rounded as real numbers would be."""

    def on(self, topology: Topology) -> Algorithm:
        """The algorithm with what it takes from the topology; a topology that does not fit is refused."""

    def init(self, x0: Rows) -> State:
        """The state before the first round."""

    def point(self, state: State) -> Rows:
        """Where the gradient is taken."""

    def local(self, state: State, grad: Rows, noise: Rows | float) -> State:
        """The state after the local step."""

    def message(self, state: State) -> Message:
        """What leaves the node, the same to all; noise on single messages is added by the loop."""

    def absorb(self, state: State, mixed: Message) -> State:
        """The state after receiving `sum_v W[u,v] (message_v + noise on v -> u)`."""


def sums_over_all(algorithm: Algorithm) -> bool:
    """Whether all see one sum over all nodes; else secure sums, if there are any, are over neighbours."""
    return algorithm.secure_sum and algorithm.requires == "complete average"


def sums_over_neighbours(algorithm: Algorithm) -> bool:
    """Whether each node gets the weighted sum of what its neighbours send, and nothing else."""
    return algorithm.secure_sum and not sums_over_all(algorithm)


def radius_of(algorithm: Algorithm) -> float:
    """How far a message may move whoever receives it; algorithms of one's own need not say that it may as it likes."""
    return float(getattr(algorithm, "radius", math.inf))


def rule_of(algorithm: Algorithm) -> LocalRule:
    """What nodes make of noisy gradients; algorithms of one's own need not say that they take them as they are."""
    rule: LocalRule = getattr(algorithm, "rule", PLAIN)
    return rule


def ruled_by_sum(algorithm: Algorithm) -> bool:
    """Whether the rule takes the sum of all updates, which all see, and no node's own noisy gradient."""
    return bool(getattr(algorithm, "sums_updates", False)) and not is_own(algorithm)


def is_linear(algorithm: Algorithm) -> bool:
    """Whether all between noisy gradients and what nodes hold is linear: no compression, no clipping, no such rule."""
    plain = isinstance(algorithm.compression, Identity) and radius_of(algorithm) == math.inf
    return plain and (rule_of(algorithm).linear or ruled_by_sum(algorithm))


def is_own(algorithm: Algorithm) -> bool:
    """Whether its maps are somebody's own code, and not the package's."""
    return not type(algorithm).__module__.startswith("sottovoce.")


def linear_part(algorithm: Algorithm) -> Algorithm:
    """The same algorithm without what is not linear, and without a rule that takes a sum that all see."""
    changes: dict[str, object] = {}
    if not isinstance(algorithm.compression, Identity):
        changes["compression"] = Identity()
    if radius_of(algorithm) < math.inf:
        changes["radius"] = math.inf
    rule = rule_of(algorithm)
    if rule.applied and (ruled_by_sum(algorithm) or not rule.linear):
        changes["rule"] = rule.unapplied
    return replace(algorithm, **changes) if changes else algorithm  # type: ignore[type-var]


# --- the plain gossip pattern ----------------------------------------------------------------------------------------


class Model(NamedTuple):
    """State: every node's model."""

    x: Rows


def with_noise(grad: Rows, noise: Rows | float) -> Rows:
    """`grad + noise`, without a pass over the gradient where the noise is the number 0: none, or in it already."""
    return grad if isinstance(noise, float) and noise == 0 else grad + noise


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """Each node takes a step at its own model, then averages with its neighbours.

        x <- sum_v W[u,v] ( x_v - eta (g_v + noise_v) )

    Most algorithms here are compositions of it: its fields say which noise, which compression, how many gossip steps.
    The `rule` says what stands in the place of `g_v + noise_v`: momentum, for example.
    With a `radius` no message y_v moves a node further than that from its own y_u, whoever sent it:

        x <- sum_v W[u,v] ( y_u + clip(y_v - y_u, radius) )
    """

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
    radius: float = math.inf
    rule: LocalRule = PLAIN

    def __post_init__(self) -> None:
        if not isinstance(self.compression, Compression):
            raise InputError(
                f"compression {self.compression!r}", "it must be an operator or its spec", "write rand:0.5"
            )
        checked_sizes("step_size", self.step_size, signed=True, positive=True, single=True)
        require_whole(self.gossip_steps, f"{self.gossip_steps!r:.40} gossip steps", 1, "give 1 or more")
        object.__setattr__(self, "sensitivity", checked(self.sensitivity))
        if not self.radius > 0:
            raise InputError(f"a radius of {self.radius}", "it must be positive", "give 1.0, for example")

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
        return Model(state.x - self.step_size * with_noise(grad, noise))

    def message(self, state: State) -> Message:
        return state.x

    def absorb(self, state: State, mixed: Any) -> State:
        return Model(mixed)
