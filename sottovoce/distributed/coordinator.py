"""Who carries out a run: one process alone, or one of several ranks.

The coordinator keeps the processes of one run in step: they agree on what they run, rank 0 acts for all, errors of one
reach all, and measurements are gathered. How messages of nodes travel is the business of the transport that it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from sottovoce.core.topologies import Topology
from sottovoce.core.transport import InProcess, Transport

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")


class Coordinator:
    """What a run asks of the processes that carry it out, where there is one alone; `Ranks` answers for several.

    All of them make the same calls in the same order.
    """

    @property
    def rank(self) -> int:
        """The number of this process; rank 0 writes what is written once."""
        return 0

    @property
    def size(self) -> int:
        """How many processes there are."""
        return 1

    def require_equal(self, facts: Mapping[str, object]) -> None:
        """Refuse to go on where processes differ in any of these facts, saying in which."""

    def on_rank_zero(self, act: Callable[[], Value]) -> Value:
        """What `act` returns at rank 0, at all ranks: something that JSON has. What it raises there, all raise."""
        return act()

    def on_every_rank(self, act: Callable[[], Value]) -> Value:
        """What `act` returns at this rank; if it raises at any rank, all raise."""
        return act()

    def transport(self, topology: Topology, *, keep_received: bool = False) -> Transport:
        """Place the nodes, and connect this process with the others; refuses more processes than nodes.

        With `keep_received` messages that arrive from other processes stay at hand for a recording.
        """
        return InProcess(topology.n)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes of a measurement."""
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """The numbers of every process, by rank: tensors of one dimension and of one type."""
        return [values]

    def maximum(self, *numbers: int) -> list[int]:
        """The largest over all processes of each number."""
        return list(numbers)

    def propagate_errors(self) -> AbstractContextManager[None]:
        """While rounds are played: what one process raises, all raise."""
        return nullcontext()


ALONE = Coordinator()
"""One process carries out the run."""
