"""What is sent and received: one round as it happened, and the state that the next round starts from.

Shapes: N nodes, D parameters, E directed edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.core import arrays
from sottovoce.core.algorithm import Algorithm, Message, State, Weighted, rule_of
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression, Identity
from sottovoce.core.integer_sums import BITS
from sottovoce.core.mixing import Mixing
from sottovoce.core.release import GossipStep, LoopInputs
from sottovoce.core.transport import Nodes, Transport


class Traffic(NamedTuple):
    """What left the nodes."""

    messages: int
    bits: int


class LoopState(NamedTuple):
    """All that passes from round to round: the algorithm's state, and the copies that receivers hold of each node.

    `memory` is what the local rule keeps.
    """

    state: State
    copies: Rows | None
    memory: State = ()

    def models(self, algorithm: Algorithm) -> Rows:
        """Where every node stands; where iterates are averaged, their averages."""
        return arrays.checked_kind(rule_of(algorithm).model(self.memory, algorithm.point(self.state)))


class SentMessages(NamedTuple):
    """Messages as they travel: row i goes from `sender[i]` to `receiver[i]`.

    A receiver of -1 stands for all to whom the sender sends in this step; a sender of -1 for a sum over all nodes.
    Messages to nodes that dropped out unannounced are included, since they were sent.
    """

    sender: Nodes
    receiver: Nodes
    rows: Rows


class ReceivedModels(NamedTuple):
    """What nodes hold of others after a step: `receiver[i]` holds row `row[i]` of `rows`, which is of `sender[i]`."""

    sender: Nodes
    receiver: Nodes
    row: Nodes
    rows: Rows


@dataclass(frozen=True)
class PlayedStep:
    """One gossip step as it happened: what was sent, and what an observer can take from it.

    `sent` are messages without the noise of their edges, or compressed differences; then `copies` are the models that
    receivers hold of each node after them. `weight` is the public weight beside a message, if there is one, and
    `mixed_weight` the mix of those that arrived.
    """

    gossip_step: GossipStep
    sent: Rows
    mixed: Rows
    inputs: LoopInputs
    transport: Transport
    copies: Rows | None = None
    weight: Rows | None = None
    mixed_weight: Rows | None = None

    @property
    def mixing(self) -> Mixing:
        """The weights of this step."""
        return self.gossip_step.mixing

    @property
    def absorbed(self) -> Message:
        """What reaches nodes: the mix of messages, and that of their public weights."""
        return self.mixed if self.mixed_weight is None else Weighted(self.mixed, self.mixed_weight)

    @property
    def message_count(self) -> int:
        """How many messages are sent: masked ones for each receiver; a trusted sum takes one and gives one back."""
        trusted = self.gossip_step.secure_sum and self.gossip_step.grid is None
        return 2 * self.mixing.n if trusted else len(self._sending_edges()[0])

    def bits_of(self, dimension: int, compression: Compression) -> int:
        """Of one message with so many parameters."""
        return compression.bits(dimension) if self.gossip_step.grid is None else BITS * dimension

    def _sending_edges(self) -> tuple[Nodes, Nodes]:
        """Senders and receivers of all messages that leave a node; messages to oneself do not."""
        sender, receiver, _ = self.mixing.planned_edges
        sends = sender != receiver
        if self.mixing.active is not None:
            sends &= self.mixing.active[sender]
        return sender[sends], receiver[sends]

    def sent_messages(self) -> SentMessages:
        """Every message that leaves a node in this step."""
        if self.gossip_step.secure_sum:
            return SentMessages(np.array([-1]), np.array([-1]), arrays.take(self.mixed, np.array([0])))
        sender, receiver = self._sending_edges()
        if not self.gossip_step.edge_noise:
            sender = np.unique(sender)
            return SentMessages(sender, np.full(len(sender), -1), arrays.take(self.sent, sender))
        return SentMessages(sender, receiver, self._noisy_messages(sender, receiver))

    def received_models(self, by: Nodes) -> ReceivedModels:
        """What some nodes here can make of what reaches them in this step, as models.

        Messages as received, or what differences add up to, over the public weight if there is one; of a secure sum the
        average, from sender -1, and of sums over neighbours theirs. Noise on single messages is drawn for these alone.
        """
        if self.gossip_step.secure_sum:
            nobody = np.full(len(by), -1)
            average = arrays.take(self.mixed, np.asarray(by)[:1])
            return ReceivedModels(nobody, np.asarray(by), np.zeros_like(nobody), average)
        if self.gossip_step.grid is not None:
            return self._neighbourhood_averages(np.asarray(by))
        sender, receiver, _ = self.mixing.edges
        reaches = np.isin(receiver, by) & (sender != receiver)
        sender, receiver = sender[reaches], receiver[reaches]
        if self.gossip_step.edge_noise:
            row_sender, row = sender, np.arange(len(sender))
            rows = self._noisy_messages(sender, receiver)
        else:
            row_sender, row = np.unique(sender, return_inverse=True)
            rows = arrays.take(self.sent if self.copies is None else self.copies, row_sender)
        if self.weight is not None:
            rows = rows / arrays.take(self.weight, row_sender)
        return ReceivedModels(sender, receiver, row, rows)

    def _neighbourhood_averages(self, by: Nodes) -> ReceivedModels:
        """What sums over neighbours give their receivers: the average of these neighbours, by their weights."""
        own = self.mixing.weights.diagonal()[by]
        mixed, sent = arrays.take(self.mixed, by), arrays.take(self.sent, by)
        average = (mixed - sent * arrays.column(own, mixed)) / arrays.column(1 - own, mixed)
        return ReceivedModels(np.full(len(by), -1), by, np.arange(len(by)), average)

    def _noisy_messages(self, sender: Nodes, receiver: Nodes) -> Rows:
        return self.transport.messages(self.gossip_step, self.sent, self.inputs, sender, receiver)


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
        return self.loop_state.models(self.algorithm)

    @property
    def traffic(self) -> Traffic:
        """Messages and bits that left nodes."""
        return self.traffic_of(value_of(self.algorithm.message(self.loop_state.state)).shape[1])

    def traffic_of(self, dimension: int) -> Traffic:
        """The same for models of so many parameters; a public weight beside a message counts as one more number."""
        weighted = isinstance(self.algorithm.message(self.loop_state.state), Weighted)
        weight_bits, compression = Identity().bits(1) if weighted else 0, self.algorithm.compression
        counts = [(step.message_count, step.bits_of(dimension, compression) + weight_bits) for step in self.steps]
        return Traffic(sum(count for count, _ in counts), sum(count * bits for count, bits in counts))


def value_of(message: Message) -> Rows:
    """The row that is sent, without the weight beside it."""
    return message.value if isinstance(message, Weighted) else message


class RoundWatch:
    """Watches the rounds of a run: is told what enters a round and what leaves it, before it leaves.

    This one does nothing. It is told in this order; `takes` and `steps` only of rounds with gradients, the next two for
    every gossip step. What is told is the loop's own, and is not changed. A watcher that finds a round dishonest
    raises, and nothing is sent.
    """

    def begins(self, algorithm: Algorithm, round: int, state: State) -> None:
        """The algorithm as it is played, and the state that a round begins from."""

    def takes(self, mixing: Mixing, point: Rows, gradient: Rows, entering: Rows, noise: Rows | float) -> None:
        """Where a gradient was taken, the gradient, and what the local step is given: with exact noise one sum."""

    def steps(self, direction: Rows) -> None:
        """What the local step is given in place of gradient and noise, where a rule makes that of their sum."""

    def sends(self, gossip_step: GossipStep, message: Message) -> Message:
        """What is about to be sent, before compression, masks and the noise of single edges; and what shall be sent."""
        return message

    def receives(self, gossip_step: GossipStep, mixed: Rows) -> None:
        """What the step gave its nodes."""

    def ends(self, state: State) -> None:
        """The state after the round."""


UNWATCHED = RoundWatch()
