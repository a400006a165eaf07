"""One round as it happened: what was sent, what reached whom, and the state that the next round starts from.

Shapes: N nodes, D parameters, E directed edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import arrays
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Identity
from sottovoce.core.loop_inputs import LoopInputs
from sottovoce.core.mixing import Mixing
from sottovoce.core.transport import GossipStep

if TYPE_CHECKING:
    from sottovoce.core.algorithm import Algorithm


class Weighted(NamedTuple):
    """A message with a public weight beside it, mixed alike: push-sum's."""

    value: Rows
    weight: Rows


class Traffic(NamedTuple):
    """What left the nodes."""

    messages: int
    bits: int


class LoopState(NamedTuple):
    """All that passes from round to round: the algorithm's state, and the copies that receivers hold of each node."""

    state: Any
    copies: Rows | None


class SentMessages(NamedTuple):
    """Messages as they travel: row i goes from `sender[i]` to `receiver[i]`.

    A receiver of -1 stands for all whom the sender speaks to in this step; a sender of -1 for a sum over all nodes.
    What is sent to a node that dropped out unannounced is among them: it left its sender.
    """

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    rows: Rows


class ReceivedModels(NamedTuple):
    """What nodes hold of others after a step: `receiver[i]` holds row `row[i]` of `rows`, which is of `sender[i]`."""

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    row: NDArray[np.intp]
    rows: Rows


@dataclass(frozen=True)
class PlayedStep:
    """One gossip step as it happened: what was said, and what an observer can take from it."""

    gossip_step: GossipStep
    sent: Rows
    mixed: Rows
    feed: LoopInputs
    copies: Rows | None = None
    weight: Rows | None = None

    @property
    def mixing(self) -> Mixing:
        """The weights of this step."""
        return self.gossip_step.mixing

    @property
    def messages(self) -> int:
        """How many messages are sent; a secure sum takes one to the sum and one back for every node."""
        return 2 * self.mixing.n if self.gossip_step.secure_sum else len(self._spoken()[0])

    def _spoken(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        sender, receiver, _ = self.mixing.planned_edges
        speaks = sender != receiver
        if self.mixing.active is not None:
            speaks &= self.mixing.active[sender]
        return sender[speaks], receiver[speaks]

    def sent_messages(self) -> SentMessages:
        """Every message that leaves a node in this step; messages to oneself do not."""
        if self.gossip_step.secure_sum:
            return SentMessages(np.array([-1]), np.array([-1]), arrays.take(self.mixed, np.array([0])))
        sender, receiver = self._spoken()
        if not self.gossip_step.edge:
            sender = np.unique(sender)
            return SentMessages(sender, np.full(len(sender), -1), arrays.take(self.sent, sender))
        return SentMessages(sender, receiver, self._with_noise(arrays.take(self.sent, sender), sender, receiver))

    def received_models(self, by: NDArray[np.intp]) -> ReceivedModels:
        """What some nodes can make of what reaches them in this step, as models.

        Messages as received, or what differences add up to, over the public weight if there is one; of a secure sum the
        average, from sender -1. Noise on single messages is drawn for these messages alone.
        """
        if self.gossip_step.secure_sum:
            nobody = np.full(len(by), -1)
            return ReceivedModels(
                nobody, np.asarray(by), np.zeros_like(nobody), arrays.take(self.mixed, np.asarray(by)[:1])
            )
        sender, receiver, _ = self.mixing.edges
        theirs = np.isin(receiver, by) & (sender != receiver)
        sender, receiver = sender[theirs], receiver[theirs]
        one, row = (sender, np.arange(len(sender))) if self.gossip_step.edge else np.unique(sender, return_inverse=True)
        if self.gossip_step.edge and not arrays.is_real(self.sent):
            rows = self.sent.noisy(self.gossip_step, self.feed, sender, receiver)
        else:
            rows = arrays.take(self.sent if self.copies is None else self.copies, one)
            rows = self._with_noise(rows, sender, receiver) if self.gossip_step.edge and len(one) else rows
        return ReceivedModels(
            sender, receiver, row, rows if self.weight is None else rows / arrays.take(self.weight, one)
        )

    def _with_noise(self, rows: Rows, sender: NDArray[np.intp], receiver: NDArray[np.intp]) -> Rows:
        for term in self.gossip_step.edge:
            matrix = self.gossip_step.on_edges(term, sender, receiver)
            rows = rows + self.feed.noise(term.sources, matrix, self.gossip_step.round, self.gossip_step.step)
        return rows


@dataclass(frozen=True)
class PlayedRound:
    """One round as it happened: where gradients were taken, the gossip steps, and the state after them."""

    round: int
    point: Rows | None
    steps: tuple[PlayedStep, ...]
    loop_state: LoopState
    algorithm: Algorithm

    @property
    def models(self) -> Rows:
        """Where every node stands after the round."""
        return self.algorithm.point(self.loop_state.state)

    @property
    def traffic(self) -> Traffic:
        """Messages and bits that left nodes."""
        return self.traffic_of(value_of(self.algorithm.message(self.loop_state.state)).shape[1])

    def traffic_of(self, dimension: int) -> Traffic:
        """The same for models of so many parameters; a public weight beside a message counts as one more number."""
        messages = sum(step.messages for step in self.steps)
        weighted = isinstance(self.algorithm.message(self.loop_state.state), Weighted)
        beside = Identity().bits(1) if weighted else 0
        return Traffic(messages, messages * (self.algorithm.compression.bits(dimension) + beside))


def value_of(message: Any) -> Rows:
    return message.value if isinstance(message, Weighted) else message
