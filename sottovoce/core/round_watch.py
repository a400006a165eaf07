"""Who watches the rounds of a run: the loop tells what enters a round and what leaves it, before it leaves.

What is told is the loop's own, and is not changed. A watcher that finds a round dishonest raises, and nothing is sent.
"""

from __future__ import annotations

from typing import Protocol

from sottovoce.core.algorithm import State
from sottovoce.core.arrays import Rows
from sottovoce.core.gossip_step import GossipStep
from sottovoce.core.mixing import Mixing


class RoundWatch(Protocol):
    """Is told of a round in this order; `takes` only of rounds with gradients, the next two for every gossip step."""

    def begins(self, round: int, state: State) -> None:
        """The state that a round begins from."""

    def takes(self, mixing: Mixing, point: Rows, gradient: Rows, entering: Rows, noise: Rows | float) -> None:
        """Where a gradient was taken, the gradient, and what the local step is given: with exact noise one sum."""

    def sends(self, gossip_step: GossipStep, value: Rows) -> None:
        """What is about to be sent, before compression, masks and the noise of single edges."""

    def receives(self, gossip_step: GossipStep, mixed: Rows) -> None:
        """What the step gave its nodes."""

    def ends(self, state: State) -> None:
        """The state after the round."""


class Unwatched:
    """Nobody watches."""

    def begins(self, round: int, state: State) -> None: ...

    def takes(self, mixing: Mixing, point: Rows, gradient: Rows, entering: Rows, noise: Rows | float) -> None: ...

    def sends(self, gossip_step: GossipStep, value: Rows) -> None: ...

    def receives(self, gossip_step: GossipStep, mixed: Rows) -> None: ...

    def ends(self, state: State) -> None: ...


UNWATCHED = Unwatched()
