"""One rank's share of the nodes: its rows, what crosses to other ranks, and the mix of both.

A `ShardedRows` goes through the round loop like an N x D array, and holds the rows of this rank's nodes alone. Only rows
that some node elsewhere listens to are sent, once for each rank that needs them, all rows for a rank in one message.

A node's sum is added up in the order of node numbers, whoever hosts them: so the mix has the same bits in any number of
processes. Only noise on single messages, which is added before they leave, and secure sums come in another order.

Shapes: N nodes, n nodes here, D parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.mixing import Mixing
from sottovoce.core.transport import GossipStep
from sottovoce.distributed.exchange_plan import Crossing, Nodes, NodeShard


class Halo(NamedTuple):
    """Rows of nodes that live elsewhere, as far as they are known here."""

    nodes: Nodes
    rows: Tensor


class ShardedRows:
    """The rows of this rank's nodes of an N x D array, and, where they are known, rows of nodes elsewhere."""

    __slots__ = ("halo", "own", "received", "shard")
    __array_ufunc__ = None

    def __init__(self, shard: NodeShard, own: Tensor, halo: Halo | None = None) -> None:
        self.shard, self.own, self.halo = shard, own, halo
        self.received: list[tuple[Crossing, Tensor]] = []

    @property
    def shape(self) -> tuple[int, int]:
        """Of the whole array."""
        return self.shard.n, int(self.own.shape[1])

    def converted(self, values: NDArray[Any]) -> Tensor:
        """Public numbers of all nodes, in the precision of the rows."""
        found: Tensor = arrays.convert(values, self.own)
        return found

    def taken(self, index: Nodes) -> Tensor:
        """The rows of some nodes, which live here or are known here."""
        here = self.shard.here[index]
        rows = self.own.new_empty(len(index), self.own.shape[1])
        rows[np.flatnonzero(here)] = self.own[self.shard.position[index[here]]]
        if not here.all():
            assert self.halo is not None, "rows of nodes elsewhere that were never heard"
            order = np.argsort(self.halo.nodes)
            at = order[np.searchsorted(self.halo.nodes[order], index[~here])]
            rows[np.flatnonzero(~here)] = self.halo.rows[at]
        return rows

    def noisy(self, gossip_step: GossipStep, feed: Any, sender: Nodes, receiver: Nodes) -> Tensor:
        """Single messages as nodes here received them: from nodes here, or from elsewhere as they came."""
        here = self.shard.here[sender]
        rows = self.own.new_empty(len(sender), self.own.shape[1])
        rows[np.flatnonzero(here)] = feed.noisy(self, gossip_step, sender[here], receiver[here])
        wanted = sender * self.shard.n + receiver
        for edges, came in self.received:
            codes = edges.sender * self.shard.n + edges.receiver
            at = np.flatnonzero(np.isin(wanted, codes))
            rows[at] = came[np.searchsorted(codes, wanted[at])]
        return rows

    # --- numbers ---------------------------------------------------------------------------------------------------

    def _with(self, other: Any, act: Callable[[Any, Any], Any]) -> ShardedRows:
        """`act` with other hosted rows, a number, or one public number per node."""
        if isinstance(other, ShardedRows):
            both = self.halo is not None and other.halo is not None
            halo = Halo(self.halo.nodes, act(self.halo.rows, other.halo.rows)) if both else None  # type: ignore[union-attr]
            return ShardedRows(self.shard, act(self.own, other.own), halo)
        if isinstance(other, np.ndarray) or arrays.is_torch(other):
            public = arrays.convert(other, self.own) if isinstance(other, np.ndarray) else other
            assert tuple(public.shape) == (self.shard.n, 1), "one public number per node"
            halo = None
            if self.halo is not None:
                halo = Halo(self.halo.nodes, act(self.halo.rows, public[self.halo.nodes]))
            return ShardedRows(self.shard, act(self.own, self.shard.share(public)), halo)
        if not isinstance(other, int | float | np.integer | np.floating):
            return NotImplemented
        halo = None if self.halo is None else Halo(self.halo.nodes, act(self.halo.rows, other))
        return ShardedRows(self.shard, act(self.own, other), halo)

    def __add__(self, other: Any) -> ShardedRows:
        return self._with(other, operator.add)

    def __sub__(self, other: Any) -> ShardedRows:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> ShardedRows:
        return self._with(other, lambda mine, theirs: theirs - mine)

    def __mul__(self, other: Any) -> ShardedRows:
        return self._with(other, operator.mul)

    def __truediv__(self, other: Any) -> ShardedRows:
        return self._with(other, operator.truediv)

    def __neg__(self) -> ShardedRows:
        return self * -1.0

    __radd__, __rmul__ = __add__, __mul__

    # --- mixing ----------------------------------------------------------------------------------------------------

    def mixed_by(self, mixing: Mixing) -> ShardedRows:
        """`W @ rows`, where all rows that it takes are known here: nothing is sent."""
        plan = self.shard.plan(mixing)
        mixed = torch.empty_like(self.own)
        strange = None
        if len(plan.strangers):
            assert self.halo is not None
            assert np.array_equal(self.halo.nodes, plan.strangers)
            strange = self.halo.rows
        plan.inner.into_(mixed, self.own, strange)
        plan.outer.into_(mixed, self.own, strange)
        return ShardedRows(self.shard, mixed)

    def delivered(self, gossip_step: GossipStep, feed: Any) -> ShardedRows:
        """What reaches the nodes here; what other ranks need is sent, and local sums are made while it travels."""
        if gossip_step.secure_sum:
            return self._summed(gossip_step)
        if gossip_step.edge:
            return self._with_noise(gossip_step, feed)
        plan, communicator, own = self.shard.plan(gossip_step.mixing), self.shard.communicator, self.own
        with communicator.packed():
            outgoing = {peer: own[self.shard.position[nodes]] for peer, nodes in plan.sends.items()}
            strange = own.new_empty(len(plan.strangers), own.shape[1])
            incoming = {peer: strange[some] for peer, some in plan.parts.items()}
        flight = communicator.swap(outgoing, incoming)
        mixed = torch.empty_like(own)
        plan.inner.into_(mixed, own, None)
        flight.land()
        plan.outer.into_(mixed, own, strange)
        if self.shard.recording:
            self.halo = Halo(plan.strangers, strange)
        return ShardedRows(self.shard, mixed)

    def _summed(self, gossip_step: GossipStep) -> ShardedRows:
        """Only the sum over a rank's nodes leaves it."""
        first = sparse.csr_array(gossip_step.mixing.weights[[0]][:, self.shard.nodes])
        total = arrays.operator(first, self.own) @ self.own
        self.shard.communicator.sum_(total)
        return ShardedRows(self.shard, total.expand(len(self.own), -1).clone())

    def _with_noise(self, gossip_step: GossipStep, feed: Any) -> ShardedRows:
        """Every message that leaves the rank carries its own noise, drawn here by its sender."""
        plan, communicator, own = self.shard.plan(gossip_step.mixing), self.shard.communicator, self.own
        with communicator.packed():
            outgoing = {peer: feed.noisy(self, gossip_step, *edges) for peer, edges in plan.out.items()}
            incoming = {peer: own.new_empty(len(edges.sender), own.shape[1]) for peer, edges in plan.into.items()}
        flight = communicator.swap(outgoing, incoming)
        mixed = arrays.operator(plan.within, own) @ own
        for term in gossip_step.edge:
            among = gossip_step.received(term, self.shard.here)
            mixed = mixed + feed.noise(term.sources, among, gossip_step.round, gossip_step.step).own
        flight.land()
        for peer, rows in incoming.items():
            mixed += arrays.operator(plan.arriving[peer], own) @ rows
            if self.shard.recording:
                self.received.append((plan.into[peer], rows))
        return ShardedRows(self.shard, mixed)
