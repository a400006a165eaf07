"""The protocol of an algorithm: the small maps that the round loop calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression
from sottovoce.core.mixing import Requirement
from sottovoce.core.noise import Noise, PerNode
from sottovoce.core.topologies import Topology

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
