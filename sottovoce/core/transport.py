"""How messages travel between nodes: the interface that the round loop uses, whichever process has the nodes.

The loop asks a `Transport` to deliver what nodes send; it does not know where they live. `InProcess` has all of them
here. `sottovoce.distributed.ranks` spreads them over ranks, each of which hosts a block. In a federation,
`sottovoce.federation.peer_transport`, a member has one node, and others may be missing.

Shapes: N nodes of the run, n nodes here, D parameters, E directed edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import arrays
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Compression
from sottovoce.core.grid import MessageGrid, sums_of_shares
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.release import GossipStep, Gradient, LoopInputs, RunInputs
from sottovoce.errors import InputError

Nodes: TypeAlias = NDArray[np.intp]
"""Numbers of nodes."""

StartingRows: TypeAlias = Callable[[Nodes], Rows]
"""The public starting models of the nodes that it is asked for, a plain array with one row for each."""


class Delivered(NamedTuple):
    """What came of a gossip step.

    `mixed` has for every node here `sum_v W[u,v] (sent_v + noise on v -> u)`. `sent` are the messages as far as they
    are known here: those of nodes here, and those that arrived from elsewhere if they are kept for a recording.
    `weight` is the mix of the public weights beside the messages, if there are any.
    """

    mixed: Rows
    sent: Rows
    weight: Rows | None


def mixed_weight(gossip_step: GossipStep, weight: Rows | None) -> Rows | None:
    """The mix of the public weights beside messages that all arrive, if there are any."""
    return None if weight is None else gossip_step.mixing @ weight


StoredRows: TypeAlias = Callable[[Nodes | None], Rows]
"""One N x D array of a checkpoint, as a plain array: the rows of the nodes that it is asked for, or all of it."""


class Transport(Protocol):
    """Which nodes live here, and how messages reach the nodes that they are for.

    Loop rows are what flows through the round loop: an object that stands for an N x D array and need not hold more
    than the rows of the nodes here. A transport is given back only the loop rows and the inputs that it made itself.

    What an implementation promises:

    - *The same run.* The rows of a node do not depend on the transport: sums are added up in the order of node numbers,
      and draws are keyed by noise key, source, round and step. Only noise on single messages and secure sums may be
      added up in another order, so that they differ by rounding. A transport draws nothing at random itself.
    - *All or nothing, in time.* `deliver` and `deliver_compressed` return when everything that the nodes here need has
      arrived. What does not arrive before the deadline of the transport raises `PeerLost`, or, in a federation and with
      an algorithm whose proof does not depend on who is heard, is left out of the step; nothing waits for ever. A
      secure sum of which something is missing raises `SumFailed`, and the node stays where it was before the round.
    - *Nobody sees more than the algorithm sends.* A row leaves this process only for a process that hosts a receiver of
      it in that step. Noise on single messages is added before they leave. Under `secure_sum` only a sum leaves.
    - *Nobody draws more than it needs.* Gradients, noise and compression are those of the nodes here; of noise that
      nodes share, that of the nodes here and of those they share it with.
    """

    @property
    def n(self) -> int:
        """Nodes of the whole run."""

    @property
    def nodes(self) -> Nodes:
        """The nodes that live here, in ascending order."""

    @property
    def networked(self) -> bool:
        """Whether messages leave this process."""

    @property
    def wire_bytes(self) -> int:
        """Bytes of messages that this process has handed to the wire so far."""

    def rounds(self, first: int, last: int) -> Iterator[int]:
        """The rounds that are played here, from `first` to before `last`, each when the one before it is over.

        A member of a federation that was away leaves out those that its neighbours played without it.
        """

    def start(self, starting_rows: StartingRows, copies_along: Mixing | None) -> Rows:
        """The loop rows before the first round.

        `copies_along` is the mixing along which compressed differences will travel, if they are compressed: receivers
        then start with copies of the models of those they listen to.
        """

    def open_inputs(self, seed: int, source: RandomSource, gradient: Gradient, start: Rows) -> RunInputs:
        """What feeds a run of the nodes here. `gradient` is asked for these nodes alone, with a plain array."""

    def deliver(self, gossip_step: GossipStep, rows: Rows, weight: Rows | None, inputs: LoopInputs) -> Delivered:
        """Send the row of every node here along its edges, each message with the noise of its edge.

        `weight` is the public weight beside each node's message, N x 1, if there is one.
        """

    def deliver_compressed(
        self, operator: Compression, gossip_step: GossipStep, differences: Rows, inputs: LoopInputs
    ) -> Rows:
        """Compress the differences of the nodes here and send them to all who hold copies of these nodes.

        Returns the compressed differences of the nodes here and of all nodes whose copies are held here.
        """

    def messages(self, gossip_step: GossipStep, sent: Rows, inputs: LoopInputs, sender: Nodes, receiver: Nodes) -> Rows:
        """Single messages with the noise of their edges, as receivers here got them: a plain array, E x D.

        `sent` comes from `deliver`.
        """

    def local(self, rows: Rows) -> Rows:
        """The rows of the nodes here, in the order of `nodes`, as a plain array."""

    def is_partial(self, rows: Rows) -> bool:
        """Whether other processes hold the rest of these rows; public rows are complete in every process."""

    def restore(self, stored: StoredRows, like: Rows | None) -> Rows:
        """Loop rows from a checkpoint. `like` are the rows that were in their place before the first round, if any."""


@dataclass(frozen=True)
class InProcess:
    """All nodes live in this process, and loop rows are plain arrays, or linear forms while tracing."""

    n: int
    networked = False
    wire_bytes = 0

    @property
    def nodes(self) -> Nodes:
        """All nodes of the run."""
        return np.arange(self.n)

    def rounds(self, first: int, last: int) -> Iterator[int]:
        """All of them."""
        return iter(range(first, last))

    def start(self, starting_rows: StartingRows, copies_along: Mixing | None) -> Rows:
        """One plain array; copies are equal to the models themselves."""
        return starting_rows(self.nodes)

    def open_inputs(self, seed: int, source: RandomSource, gradient: Gradient, start: Rows) -> RunInputs:
        """Noise for all nodes."""
        return NoiseFeed(seed, source, gradient, start)

    def deliver(self, gossip_step: GossipStep, rows: Rows, weight: Rows | None, inputs: LoopInputs) -> Delivered:
        """Mix; the noise of all messages to a receiver is drawn as one sum. Secure sums are sums of integers."""
        if gossip_step.grid is not None and arrays.is_plain(rows):
            mixed = arrays.convert(gossip_step.grid.mixed(arrays.to_numpy(rows)), rows)
            return Delivered(mixed, rows, mixed_weight(gossip_step, weight))
        if gossip_step.message_grid is not None and arrays.is_plain(rows):
            return self._deliver_on_grid(gossip_step.message_grid, gossip_step.round, rows, inputs)
        mixed = gossip_step.mixed(rows)
        for term in gossip_step.edge_noise:
            matrix = gossip_step.noise_in_sums(term)
            mixed = mixed + inputs.noise(term.sources, matrix, gossip_step.round, gossip_step.step)
        return Delivered(mixed, rows, mixed_weight(gossip_step, weight))

    def _deliver_on_grid(self, grid: MessageGrid, round: int, rows: Rows, inputs: LoopInputs) -> Delivered:
        """Every message is rounded by itself, so that all are made, those of some senders at a time."""
        models = grid.rounded(arrays.to_numpy(rows))
        gained = np.zeros_like(models)
        for sender, receiver in grid.blocks(models.shape[1]):
            messages = inputs.released(models[sender], grid.noise(sender, receiver), round)
            shares = grid.shares(arrays.to_numpy(messages), sender, receiver)
            gained += sums_of_shares(shares, receiver, sender, self.n)
        mixed, sent = (arrays.convert(values, rows) for values in (grid.next_models(models, gained), models))
        return Delivered(mixed, sent, None)

    def deliver_compressed(
        self, operator: Compression, gossip_step: GossipStep, differences: Rows, inputs: LoopInputs
    ) -> Rows:
        """Compress every node's difference."""
        return inputs.compress(operator, differences, gossip_step.round, gossip_step.step)

    def messages(self, gossip_step: GossipStep, sent: Rows, inputs: LoopInputs, sender: Nodes, receiver: Nodes) -> Rows:
        """Every message is known here; its noise is drawn again, for these messages alone."""
        rows = arrays.take(sent, sender)
        if gossip_step.message_grid is not None and arrays.is_plain(rows) and len(sender):
            return inputs.released(rows, gossip_step.message_grid.noise(sender, receiver), gossip_step.round)
        for term in gossip_step.edge_noise if len(sender) else ():
            matrix = gossip_step.noise_on_edges(term, sender, receiver)
            rows = rows + inputs.noise(term.sources, matrix, gossip_step.round, gossip_step.step)
        return rows

    def local(self, rows: Rows) -> Rows:
        """All rows."""
        return rows

    def is_partial(self, rows: Rows) -> bool:
        """Never: this process holds all rows."""
        return False

    def restore(self, stored: StoredRows, like: Rows | None) -> Rows:
        """The whole array."""
        return stored(None)


MOST_TAKEN = 1e6
"""Members of a federation refuse larger values, if they agree on no other range."""


@dataclass(frozen=True)
class WithLiars(InProcess):
    """Some nodes send something else than they hold: a multiple of it, or one number in every coordinate."""

    liars: tuple[int, ...] = ()
    factor: float | None = None
    constant: float = 0.0

    def deliver(self, gossip_step: GossipStep, rows: Rows, weight: Rows | None, inputs: LoopInputs) -> Delivered:
        """Whoever lies goes on from what was true."""
        held = arrays.to_numpy(rows)
        lies, own = held.copy(), np.isin(self.nodes, self.liars)
        told = self.constant if self.factor is None else self.factor * held[own].astype(np.float64)
        lies[own] = np.clip(told, -MOST_TAKEN, MOST_TAKEN)
        true = super().deliver(gossip_step, rows, weight, inputs)
        false = super().deliver(gossip_step, arrays.convert(lies, rows), weight, inputs)
        return false._replace(mixed=arrays.where(own, true.mixed, false.mixed))

    def deliver_compressed(
        self, operator: Compression, gossip_step: GossipStep, differences: Rows, inputs: LoopInputs
    ) -> Rows:
        raise InputError("liars who compress", "lies are whole messages", "use identity compression")
