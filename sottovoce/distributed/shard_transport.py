"""Transports between processes that host some of the nodes each: rows, sums and recordings, whatever carries them.

Only rows that some node elsewhere listens to are sent, once for each process that needs them, all rows for a process in
one message. While messages travel, sums over nodes here are formed.

Shapes: N nodes, n nodes here, D parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.arrays import Reals, Rows
from sottovoce.core.compression import Compression
from sottovoce.core.gossip_step import GossipStep
from sottovoce.core.loop_inputs import Gradient, LoopInputs
from sottovoce.core.message_grid import MessageGrid, sums_of_shares
from sottovoce.core.mixing import Mixing
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.sum_grid import ModelGrid
from sottovoce.core.transport import Delivered, Nodes, StartingRows, StoredRows, mixed_weight
from sottovoce.distributed.sharded_feed import ShardedFeed
from sottovoce.distributed.sharded_rows import Arrivals, Crossing, Halo, NodeShard, ShardedRows, as_sharded, as_tensor


class Pending(Protocol):
    """Messages under way; their tensors must not change before `wait` returns."""

    def wait(self) -> None:
        """Wait until all messages have arrived, and need their tensors no longer."""


class ShardTransport(ABC):
    """The nodes of one process. What arrives stays with the messages only if `keep_received`, for a recording.

    Noise on single messages is added before they leave, and so added up in another order than in one process;
    everything else has the same bits.
    """

    shard: NodeShard
    keep_received: bool
    networked = True

    @abstractmethod
    def exchange(
        self, gossip_step: GossipStep, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], absent: Tensor
    ) -> Pending:
        """Start to send tensors to some ranks, and to receive into one from each of others.

        `absent` has the rows that stand in for those of a rank that is missing, where one may be.
        """

    @abstractmethod
    def secure_sum(self, gossip_step: GossipStep, sent: ShardedRows) -> ShardedRows:
        """The weighted sum over all nodes, at each of them, of which single rows leave no process."""

    @abstractmethod
    def neighbour_sums(self, gossip_step: GossipStep, grid: ModelGrid, sent: ShardedRows) -> ShardedRows:
        """The weighted sum over each node's neighbours, in integers, at each node here."""

    def packing(self) -> AbstractContextManager[None]:
        """Around what makes messages and takes them apart."""
        return nullcontext()

    @property
    def n(self) -> int:
        return self.shard.n

    @property
    def nodes(self) -> Nodes:
        return self.shard.nodes

    def rounds(self, first: int, last: int) -> Iterator[int]:
        """All of them."""
        return iter(range(first, last))

    def start(self, starting_rows: StartingRows, copies_along: Mixing | None) -> ShardedRows:
        """The rows of the nodes here, and of those elsewhere whose compressed differences arrive here."""
        own = as_tensor(starting_rows(self.nodes))
        if copies_along is None:
            return ShardedRows(self.shard, own)
        remote = self.shard.plan(copies_along).remote_senders
        return ShardedRows(self.shard, own, Halo(remote, as_tensor(starting_rows(remote))))

    def open_inputs(self, seed: int, source: RandomSource, gradient: Gradient, start: Rows) -> ShardedFeed:
        """Noise for the nodes here."""
        return ShardedFeed(seed, source, gradient, as_sharded(start))

    # --- sending ---------------------------------------------------------------------------------------------------

    def deliver(self, gossip_step: GossipStep, rows: Rows, weight: Rows | None, inputs: LoopInputs) -> Delivered:
        """Send what other ranks need, and form the sums of nodes that need nothing while it travels."""
        sent = as_sharded(rows)
        if gossip_step.secure_sum:
            mixed = self.secure_sum(gossip_step, sent)
        elif isinstance(gossip_step.grid, ModelGrid):
            mixed = self.neighbour_sums(gossip_step, gossip_step.grid, sent)
        elif gossip_step.message_grid is not None:
            mixed, sent = self._deliver_on_grid(gossip_step, gossip_step.message_grid, sent, _sharded_feed(inputs))
        elif gossip_step.edge_noise:
            mixed, sent = self._deliver_noisy(gossip_step, sent, _sharded_feed(inputs))
        else:
            mixed, sent = self.deliver_rows(gossip_step, sent, absent=sent.own)
        return Delivered(mixed, sent, mixed_weight(gossip_step, weight))

    def deliver_rows(
        self, gossip_step: GossipStep, sent: ShardedRows, absent: Tensor
    ) -> tuple[ShardedRows, ShardedRows]:
        """The mix of rows that travel as they are, and what was sent; `absent` stands in for rows that are missing."""
        plan, own = self.shard.plan(gossip_step.mixing), sent.own
        with self.packing():
            outgoing = {peer: own[self.shard.position[nodes]] for peer, nodes in plan.sends.items()}
            remote = own.new_empty(len(plan.remote_senders), own.shape[1])
            incoming = {peer: remote[block] for peer, block in plan.remote_blocks.items()}
        pending = self.exchange(gossip_step, outgoing, incoming, absent)
        mixed = arrays.new_rows(own)
        plan.local_sums.into_(mixed, own, None)
        pending.wait()
        plan.remote_sums.into_(mixed, own, remote)
        if self.keep_received:
            sent = ShardedRows(self.shard, own, Halo(plan.remote_senders, remote))
        return ShardedRows(self.shard, mixed), sent

    def _deliver_noisy(
        self, gossip_step: GossipStep, sent: ShardedRows, inputs: ShardedFeed
    ) -> tuple[ShardedRows, ShardedRows]:
        """Every message that leaves the rank carries its own noise, drawn here before anything is sent."""
        plan, own = self.shard.plan(gossip_step.mixing), sent.own
        with self.packing():
            outgoing = {peer: inputs.noisy_messages(gossip_step, sent, *edges) for peer, edges in plan.outgoing.items()}
            incoming = {peer: own.new_empty(len(edges.sender), own.shape[1]) for peer, edges in plan.incoming.items()}
        mixed = arrays.operator(plan.weights_here, own) @ own
        for term in gossip_step.edge_noise:
            matrix = gossip_step.noise_in_sums(term, among=self.shard.here)
            mixed = mixed + inputs.noise(term.sources, matrix, gossip_step.round, gossip_step.step).own
        self.exchange(gossip_step, outgoing, incoming, own).wait()
        for peer, rows in incoming.items():
            mixed += arrays.operator(plan.incoming_weights[peer], own) @ rows
        if self.keep_received:
            arrivals = tuple(Arrivals(plan.incoming[peer], rows) for peer, rows in incoming.items())
            sent = ShardedRows(self.shard, own, arrivals=arrivals)
        return ShardedRows(self.shard, mixed), sent

    def _deliver_on_grid(
        self, gossip_step: GossipStep, grid: MessageGrid, rows: ShardedRows, inputs: ShardedFeed
    ) -> tuple[ShardedRows, ShardedRows]:
        """As in one process, with the same bits: sums of shares are exact in any order."""
        plan, models = self.shard.plan(gossip_step.mixing), grid.rounded(arrays.to_numpy(rows.own))
        sent = ShardedRows(self.shard, as_tensor(arrays.convert(models, rows.own)))
        with self.packing():
            outgoing = {peer: inputs.noisy_messages(gossip_step, sent, *edges) for peer, edges in plan.outgoing.items()}
            incoming = {
                peer: rows.own.new_empty(len(edges.sender), models.shape[1]) for peer, edges in plan.incoming.items()
            }
        pending = self.exchange(gossip_step, outgoing, incoming, sent.own)
        every = [(plan.outgoing[peer], messages) for peer, messages in outgoing.items()]
        if len(plan.within.sender):
            every.append((plan.within, inputs.noisy_messages(gossip_step, sent, *plan.within)))
        pending.wait()
        arrivals = tuple(Arrivals(plan.incoming[peer], arrived) for peer, arrived in incoming.items())
        gained = np.zeros_like(models)
        for edges, messages in (*every, *arrivals):
            gained += self._gained(grid, edges, messages)
        mixed = as_tensor(arrays.convert(grid.next_models(models, gained), rows.own))
        if self.keep_received:
            sent = ShardedRows(self.shard, sent.own, arrivals=arrivals)
        return ShardedRows(self.shard, mixed), sent

    def _gained(self, grid: MessageGrid, edges: Crossing, messages: Tensor) -> Reals:
        """What the nodes here gain by some messages, less what they give."""
        receiver, sender = (np.where(self.shard.here[ends], self.shard.position[ends], -1) for ends in edges[::-1])
        return sums_of_shares(grid.shares(arrays.to_numpy(messages), *edges), receiver, sender, len(self.nodes))

    def deliver_compressed(
        self, operator: Compression, gossip_step: GossipStep, differences: Rows, inputs: LoopInputs
    ) -> ShardedRows:
        """Differences that other ranks need travel as they are encoded; own ones are compressed meanwhile.

        What arrives is decoded with the senders' streams: the same bits as the senders' own.
        """
        round, step, feed, rows = gossip_step.round, gossip_step.step, _sharded_feed(inputs), as_sharded(differences)
        plan = self.shard.plan(gossip_step.mixing)
        values, dtype, D = arrays.to_numpy(rows.own), arrays.numpy_dtype(rows.own), rows.shape[1]
        with self.packing():
            leaving = np.unique(np.concatenate([np.empty(0, dtype=np.intp), *plan.sends.values()]))
            streams = feed.compression_streams(leaving, round, step)
            encoded = torch.from_numpy(operator.encode(values[self.shard.position[leaving]], streams))
            outgoing = {peer: encoded[np.searchsorted(leaving, nodes)] for peer, nodes in plan.sends.items()}
            size = operator.payload(D, dtype)
            incoming = {
                peer: torch.empty((len(nodes), size), dtype=torch.uint8) for peer, nodes in plan.receives.items()
            }
        pending = self.exchange(gossip_step, outgoing, incoming, encoded)
        own = feed.compress(operator, rows, round, step).own
        pending.wait()
        with self.packing():
            decoded = [
                operator.decode(sent.numpy(), feed.compression_streams(plan.receives[peer], round, step), D, dtype)
                for peer, sent in incoming.items()
            ]
            remote = np.concatenate([np.empty((0, D), dtype=dtype), *decoded])
        return ShardedRows(self.shard, own, Halo(plan.remote_senders, as_tensor(arrays.convert(remote, rows.own))))

    # --- recording, metrics, checkpoints ---------------------------------------------------------------------------

    def messages(
        self, gossip_step: GossipStep, sent: Rows, inputs: LoopInputs, sender: Nodes, receiver: Nodes
    ) -> Tensor:
        """From nodes here with their noise drawn again; from elsewhere as they arrived."""
        rows = as_sharded(sent)
        here = self.shard.here[sender]
        found = rows.own.new_empty(len(sender), rows.own.shape[1])
        found[np.flatnonzero(here)] = _sharded_feed(inputs).noisy_messages(
            gossip_step, rows, sender[here], receiver[here]
        )
        wanted = sender * self.n + receiver
        for edges, arrived in rows.arrivals:
            codes = edges.sender * self.n + edges.receiver
            at = np.flatnonzero(np.isin(wanted, codes))
            found[at] = arrived[np.searchsorted(codes, wanted[at])]
        return found

    def local(self, rows: Rows) -> Tensor:
        return as_sharded(rows).own

    def is_partial(self, rows: Rows) -> bool:
        return isinstance(rows, ShardedRows)

    def restore(self, stored: StoredRows, like: Rows | None) -> Rows:
        """The rows of the nodes here, and of the nodes elsewhere that are known here; what is public, whole."""
        if like is not None and not isinstance(like, ShardedRows):
            return stored.whole()
        own = as_tensor(stored.of(self.nodes))
        halo = None if like is None else like.halo
        if halo is None or not len(halo.nodes):
            return ShardedRows(self.shard, own, halo)
        order = np.argsort(halo.nodes)
        rows = own.new_empty(len(order), own.shape[1])
        rows[order] = as_tensor(stored.of(halo.nodes[order]))
        return ShardedRows(self.shard, own, Halo(halo.nodes, rows))


def _sharded_feed(inputs: LoopInputs) -> ShardedFeed:
    """The inputs of this rank, which `open_inputs` made."""
    assert isinstance(inputs, ShardedFeed)
    return inputs
