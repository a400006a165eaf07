"""Transports between processes that host some of the nodes each: rows, sums and recordings, whatever carries them.

Only rows that some node elsewhere listens to are sent, once for each process that needs them, all rows for a process in
one message.

Shapes: N nodes, n nodes here, D parameters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.arrays import Reals, Rows
from sottovoce.core.compression import Compression
from sottovoce.core.correlation import Correlation
from sottovoce.core.grid import MessageGrid, NoiseOnGrid, sums_of_shares
from sottovoce.core.integer_sums import ModelGrid
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.release import GossipStep, Gradient, LoopInputs
from sottovoce.core.transport import Delivered, Nodes, StartingRows, StoredRows, mixed_weight
from sottovoce.distributed.sharded_rows import (
    NOWHERE,
    Arrived,
    NodeShard,
    ShardedRows,
    as_sharded,
    as_tensor,
    parts_of,
)


class ShardedFeed:
    """The inputs of one rank: gradients, noise and compressed rows of the nodes that live there.

    Draws are keyed by source and round, so ranks need not exchange them. A rank draws for its own nodes alone, and for
    secrets that they share.
    """

    def __init__(self, seed: int, source: RandomSource, gradient: Gradient, start: ShardedRows) -> None:
        self._feed = NoiseFeed(seed, source, gradient, start.own)
        self._shard: NodeShard = start.shard
        self._sources_here = lru_cache(maxsize=32)(_used_sources)

    def knows_noise_before(self, round: int) -> bool:
        """For the nodes here."""
        return self._feed.knows_noise_before(round)

    def finish(self, round: int) -> None:
        """The noise of the nodes here will not be asked for again."""
        self._feed.finish(round)

    def gradient(self, round: int, point: Rows) -> ShardedRows:
        """Asks the task, which holds the data of the nodes here."""
        return self._sharded(self._feed.gradient(round, as_sharded(point).own))

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> ShardedRows:
        """The rows of `matrix @ Z` of the nodes here."""
        return self._sharded(self._feed.noise(*self._here(sources, matrix), round, step))

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> ShardedRows:
        """Earlier rounds are remembered for the nodes here."""
        return self._sharded(self._feed.correlated(correlation, *self._here(sources, matrix), round))

    def released(self, values: Rows, noise: NoiseOnGrid, round: int) -> ShardedRows:
        """The rows of the nodes here."""
        return self._sharded(self._feed.released(as_sharded(values).own, noise.among(self._here), round))

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> ShardedRows:
        """The rows of the nodes here."""
        own, streams = as_sharded(rows).own, self.compression_streams(self._shard.nodes, round, step)
        return self._sharded(arrays.convert(operator.apply(arrays.to_numpy(own), streams), own))

    def compression_streams(self, nodes: Iterable[int], round: int, step: int) -> list[np.random.Generator]:
        """The random stream of each of these nodes, for compressing its row, or for decoding it elsewhere."""
        return self._feed.compression_streams(nodes, round, step)

    def noisy_messages(self, gossip_step: GossipStep, sent: ShardedRows, sender: Nodes, receiver: Nodes) -> Tensor:
        """Single messages of nodes here, each with the noise of its edge."""
        rows = sent.taken(sender)
        if gossip_step.message_grid is not None and len(sender):
            noise = gossip_step.message_grid.noise(sender, receiver)
            return as_tensor(self._feed.released(rows, noise, gossip_step.round))
        for term in gossip_step.edge_noise:
            matrix = gossip_step.noise_on_edges(term, sender, receiver)
            rows += as_tensor(self._feed.noise(term.sources, matrix, gossip_step.round, gossip_step.step))
        return rows

    def _sharded(self, own: Rows) -> ShardedRows:
        return ShardedRows(self._shard, as_tensor(own))

    def _here(self, sources: Sources, matrix: FactoredMatrix) -> tuple[Sources, FactoredMatrix]:
        """The sources that reach nodes here, and how."""
        nodes = self._shard.nodes
        left = None if matrix.left is None else sparse.csr_array(matrix.left[nodes])
        rows = FactoredMatrix(sparse.csr_array(matrix.plain[nodes]), left, matrix.right)
        chosen, columns = self._sources_here(sources, rows.used().tobytes())
        right = None if rows.right is None else sparse.csr_array(rows.right[:, columns])
        return chosen, FactoredMatrix(sparse.csr_array(rows.plain[:, columns]), rows.left, right)


def _used_sources(sources: Sources, used: bytes) -> tuple[Sources, Nodes]:
    """The groups of sources of which one is used, and where their sources were among all."""
    group = np.repeat(np.arange(len(sources.counts)), sources.counts)
    chosen = np.unique(group[np.frombuffer(used, dtype=bool)])
    columns = np.flatnonzero(np.isin(group, chosen))
    holders = sparse.csr_array(sources.holders[columns])
    return Sources(sources.kind, sources.groups[chosen], sources.counts[chosen], holders), columns


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
        away = NOWHERE if copies_along is None else self.shard.plan(copies_along).away
        rows = [as_tensor(starting_rows(nodes)) for nodes in (self.nodes, away) if len(nodes)]
        return ShardedRows(self.shard, torch.cat(rows), away)

    def open_inputs(self, seed: int, source: RandomSource, gradient: Gradient, start: Rows) -> ShardedFeed:
        """Noise for the nodes here."""
        return ShardedFeed(seed, source, gradient, as_sharded(start))

    # --- sending ---------------------------------------------------------------------------------------------------

    def deliver(self, gossip_step: GossipStep, rows: Rows, weight: Rows | None, inputs: LoopInputs) -> Delivered:
        """Send what other ranks need, and mix what arrives."""
        sent = as_sharded(rows)
        if gossip_step.secure_sum:
            mixed = self.secure_sum(gossip_step, sent)
        elif isinstance(gossip_step.grid, ModelGrid):
            mixed = self.neighbour_sums(gossip_step, gossip_step.grid, sent)
        elif gossip_step.message_grid is not None or gossip_step.edge_noise:
            mixed, sent = self._deliver_messages(gossip_step, sent, _sharded_feed(inputs))
        else:
            mixed, sent = self.deliver_rows(gossip_step, sent, absent=sent.own)
        return Delivered(mixed, sent, mixed_weight(gossip_step, weight))

    def deliver_rows(
        self, gossip_step: GossipStep, sent: ShardedRows, absent: Tensor
    ) -> tuple[ShardedRows, ShardedRows]:
        """The mix of rows that travel as they are, and what was sent; `absent` stands in for rows that are missing."""
        plan, own = self.shard.plan(gossip_step.mixing), sent.own
        rows = torch.cat([own, own.new_empty(len(plan.away), own.shape[1])]) if len(plan.away) else own
        outgoing = {peer: own[self.shard.position[nodes]] for peer, nodes in plan.sends.items()}
        self.exchange(gossip_step, outgoing, parts_of(rows, plan.receives), absent).wait()
        if self.keep_received:
            sent = ShardedRows(self.shard, rows, plan.away)
        plain = gossip_step.radius == math.inf
        return ShardedRows(self.shard, plan.mixed(rows) if plain else plan.clipped(rows, gossip_step.radius)), sent

    def _deliver_messages(
        self, gossip_step: GossipStep, sent: ShardedRows, inputs: ShardedFeed
    ) -> tuple[ShardedRows, ShardedRows]:
        """Every message that leaves the rank carries its own noise, drawn here before anything is sent."""
        plan, grid = self.shard.plan(gossip_step.mixing), gossip_step.message_grid
        if grid is not None:
            models = grid.rounded(arrays.to_numpy(sent.own))
            sent = ShardedRows(self.shard, as_tensor(arrays.convert(models, sent.own)))
        outgoing = {peer: inputs.noisy_messages(gossip_step, sent, *edges[:2]) for peer, edges in plan.outgoing.items()}
        noise: Tensor | float = 0.0
        for term in gossip_step.edge_noise if grid is None else ():  # drawn before anything is sent, too
            matrix = gossip_step.noise_in_sums(term, among=self.shard.here)
            noise = noise + inputs.noise(term.sources, matrix, gossip_step.round, gossip_step.step).own
        edges = plan.arriving
        arrived = Arrived(edges, sent.own.new_empty(len(edges.sender), sent.own.shape[1]))
        incoming = parts_of(arrived.rows, {peer: edges.sender for peer, edges in plan.incoming.items()})
        self.exchange(gossip_step, outgoing, incoming, sent.own).wait()
        if grid is None:
            mixed = plan.mixed_messages(sent.own, noise, arrived.rows)
        else:
            within = Arrived(plan.within, inputs.noisy_messages(gossip_step, sent, *plan.within[:2]))
            leaving = [Arrived(plan.outgoing[peer], rows) for peer, rows in outgoing.items()]
            crossed = [each for each in (within, arrived, *leaving) if len(each.rows)]
            gained = sum((self._gained(grid, each) for each in crossed), np.zeros_like(models))
            mixed = as_tensor(arrays.convert(grid.next_models(models, gained), sent.own))
        if self.keep_received:
            sent = ShardedRows(self.shard, sent.own, arrived=arrived)
        return ShardedRows(self.shard, mixed), sent

    def _gained(self, grid: MessageGrid, messages: Arrived) -> Reals:
        """What the nodes here gain by some messages, less what they give; such sums are exact in any order."""
        sender, receiver, _ = messages.edges
        to, of = (np.where(self.shard.here[ends], self.shard.position[ends], -1) for ends in (receiver, sender))
        return sums_of_shares(grid.shares(arrays.to_numpy(messages.rows), sender, receiver), to, of, len(self.nodes))

    def deliver_compressed(
        self, operator: Compression, gossip_step: GossipStep, differences: Rows, inputs: LoopInputs
    ) -> ShardedRows:
        """Differences that other ranks need travel as they are encoded; own ones are compressed meanwhile.

        What arrives is decoded with the senders' streams: the same bits as the senders' own.
        """
        round, step, feed, rows = gossip_step.round, gossip_step.step, _sharded_feed(inputs), as_sharded(differences)
        plan, dtype, D = self.shard.plan(gossip_step.mixing), arrays.numpy_dtype(rows.own), rows.shape[1]
        leaving = np.unique(np.concatenate([NOWHERE, *plan.sends.values()]))
        values = arrays.to_numpy(rows.own)[self.shard.position[leaving]]
        encoded = torch.from_numpy(operator.encode(values, feed.compression_streams(leaving, round, step)))
        outgoing = {peer: encoded[np.searchsorted(leaving, nodes)] for peer, nodes in plan.sends.items()}
        arrived = torch.empty((len(plan.away), operator.payload(D, dtype)), dtype=torch.uint8)
        pending = self.exchange(gossip_step, outgoing, parts_of(arrived, plan.receives), encoded)
        own = feed.compress(operator, rows, round, step).own
        pending.wait()
        if not len(plan.away):
            return ShardedRows(self.shard, own)
        decoded = operator.decode(arrived.numpy(), feed.compression_streams(plan.away, round, step), D, dtype)
        return ShardedRows(self.shard, torch.cat([own, as_tensor(arrays.convert(decoded, own))]), plan.away)

    # --- recording, metrics, checkpoints ---------------------------------------------------------------------------

    def messages(
        self, gossip_step: GossipStep, sent: Rows, inputs: LoopInputs, sender: Nodes, receiver: Nodes
    ) -> Tensor:
        """From nodes here with their noise drawn again; from elsewhere as they arrived."""
        rows, here = as_sharded(sent), self.shard.here[sender]
        found = rows.own.new_empty(len(sender), rows.shape[1])
        drawn = _sharded_feed(inputs).noisy_messages(gossip_step, rows, sender[here], receiver[here])
        found[np.flatnonzero(here)] = drawn
        if rows.arrived is not None:
            came = rows.arrived.edges
            codes, wanted = came.sender * self.n + came.receiver, sender * self.n + receiver
            order, at = np.argsort(codes), np.flatnonzero(np.isin(wanted, codes))
            found[at] = rows.arrived.rows[order[np.searchsorted(codes, wanted[at], sorter=order)]]
        return found

    def local(self, rows: Rows) -> Tensor:
        return as_sharded(rows).own

    def is_partial(self, rows: Rows) -> bool:
        return isinstance(rows, ShardedRows)

    def restore(self, stored: StoredRows, like: Rows | None) -> Rows:
        """The rows of the nodes here, and of the nodes elsewhere that are known here; what is public, whole."""
        if like is not None and not isinstance(like, ShardedRows):
            return stored(None)
        away = NOWHERE if like is None else like.away
        held = np.concatenate([self.nodes, away])
        return ShardedRows(self.shard, as_tensor(stored(held)), away)


def _sharded_feed(inputs: LoopInputs) -> ShardedFeed:
    """The inputs of this rank, which `open_inputs` made."""
    assert isinstance(inputs, ShardedFeed)
    return inputs
