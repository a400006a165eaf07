"""The nodes of one rank, what a gossip step asks of it, and its rows, which go through the round loop as an N x D array
would.

A node's sum is added up in the order of node numbers, whoever hosts them: so the mix has the same bits in any number of
processes.

Shapes: N nodes, n nodes here, D parameters, E directed edges.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.arrays import Operand, Reals, Rows
from sottovoce.core.mixing import Mixing
from sottovoce.core.transport import Nodes


class Crossing(NamedTuple):
    """Edges between this rank and another, or between its own nodes, sorted by sender, then receiver."""

    sender: Nodes
    receiver: Nodes


class ExchangePlan:
    """What one mixing step asks of this rank."""

    def __init__(self, shard: NodeShard, mixing: Mixing) -> None:
        self.shard, self.mixing = shard, mixing
        sender, receiver, _ = mixing.edges
        rank, from_rank, to_rank = shard.rank, shard.owner[sender], shard.owner[receiver]
        others = [peer for peer in range(len(shard.blocks)) if peer != rank]
        chosen = {peer: (from_rank == rank) & (to_rank == peer) for peer in others}
        self.outgoing = {peer: Crossing(sender[some], receiver[some]) for peer, some in chosen.items() if some.any()}
        chosen = {peer: (from_rank == peer) & (to_rank == rank) for peer in others}
        self.incoming = {peer: Crossing(sender[some], receiver[some]) for peer, some in chosen.items() if some.any()}
        within = (from_rank == rank) & (to_rank == rank) & (sender != receiver)
        self.within = Crossing(sender[within], receiver[within])

    @cached_property
    def sends(self) -> dict[int, Nodes]:
        """Whose rows each rank needs from this one."""
        return {peer: np.unique(edges.sender) for peer, edges in self.outgoing.items()}

    @cached_property
    def receives(self) -> dict[int, Nodes]:
        """Whose rows come from each rank."""
        return {peer: np.unique(edges.sender) for peer, edges in self.incoming.items()}

    @cached_property
    def remote_senders(self) -> Nodes:
        """All nodes elsewhere that a node here receives from, rank by rank."""
        return np.concatenate([np.empty(0, dtype=np.intp), *self.receives.values()])

    @cached_property
    def remote_blocks(self) -> dict[int, slice]:
        """Where the rows from each rank lie among those of `remote_senders`."""
        stops = np.cumsum([len(nodes) for nodes in self.receives.values()]).tolist()
        starts = [0, *stops]
        return {peer: slice(start, stop) for peer, start, stop in zip(self.receives, starts, stops, strict=False)}

    @cached_property
    def _rows(self) -> sparse.csr_array:
        return sparse.csr_array(self.mixing.weights[self.shard.nodes])

    @cached_property
    def local_sums(self) -> ShardSums:
        """The sums of nodes that receive from nodes here alone."""
        remote = self._rows.astype(bool).astype(np.int64) @ (~self.shard.here).astype(np.int64)
        return self._sums(np.flatnonzero(remote == 0))

    @cached_property
    def remote_sums(self) -> ShardSums:
        """The sums of the others."""
        at = np.ones(len(self.shard.nodes), dtype=bool)
        at[self.local_sums.targets] = False
        return self._sums(np.flatnonzero(at))

    def _sums(self, targets: Nodes) -> ShardSums:
        weights = sparse.csr_array(self._rows[targets])
        used = np.unique(weights.indices)
        if self.shard.here[used].all():
            used = self.shard.nodes  # nothing has to be put together
        among = np.flatnonzero(self.shard.here[used])
        away = np.flatnonzero(~self.shard.here[used])
        order = np.argsort(self.remote_senders)
        from_remote = order[np.searchsorted(self.remote_senders[order], used[away])] if len(away) else away
        return ShardSums(
            targets, sparse.csr_array(weights[:, used]), among, self.shard.position[used[among]], away, from_remote
        )

    @cached_property
    def weights_here(self) -> sparse.csr_array:
        """Weights between nodes here, n x n."""
        return sparse.csr_array(self._rows[:, self.shard.nodes])

    @cached_property
    def incoming_weights(self) -> dict[int, sparse.csr_array]:
        """Weights of single messages from each rank, n x their number."""
        found = {}
        for peer, (sender, receiver) in self.incoming.items():
            weight = np.asarray(self.mixing.weights[receiver, sender]).ravel()
            where = (self.shard.position[receiver], np.arange(len(sender)))
            found[peer] = sparse.csr_array((weight, where), shape=(len(self.shard.nodes), len(sender)))
        return found


@dataclass(eq=False)
class ShardSums:
    """The sums of some nodes here: over rows from here and from elsewhere, in the order of node numbers."""

    targets: Nodes
    weights: sparse.csr_array
    among: Nodes
    own: Nodes
    away: Nodes
    from_remote: Nodes
    _operator: Tensor | None = None

    def into_(self, mixed: Tensor, own: Tensor, remote: Tensor | None) -> None:
        """Fill the targets' rows of `mixed`."""
        if not len(self.targets):
            return
        if self._operator is None or self._operator.dtype != own.dtype:
            self._operator = arrays.operator(self.weights, own)
        if not len(self.away) and len(self.own) == len(own):
            rows = own
        else:
            rows = own.new_empty(len(self.among) + len(self.away), own.shape[1])
            rows[self.among] = own[self.own]
            if len(self.away):
                assert remote is not None
                rows[self.away] = remote[self.from_remote]
        found = self._operator @ rows
        if len(self.targets) == len(mixed):
            mixed.copy_(found)
        else:
            mixed[self.targets] = found


class NodeShard:
    """Which nodes live here, at one rank of several. `blocks` has every rank's nodes, in ascending order."""

    def __init__(self, blocks: tuple[Nodes, ...], rank: int) -> None:
        self.blocks, self.rank = blocks, rank
        self.nodes = blocks[rank]
        self.n = sum(len(block) for block in blocks)
        self.owner = np.empty(self.n, dtype=np.intp)
        self.position = np.empty(self.n, dtype=np.intp)
        for number, block in enumerate(blocks):
            self.owner[block] = number
            self.position[block] = np.arange(len(block))
        self.plan: Callable[[Mixing], ExchangePlan] = lru_cache(maxsize=64)(lambda mixing: ExchangePlan(self, mixing))

    @cached_property
    def here(self) -> NDArray[np.bool_]:
        """Which nodes live here."""
        return self.owner == self.rank

    def rows_here(self, values: Tensor) -> Tensor:
        """The rows of this rank's nodes of a tensor with a row for every node."""
        return values[torch.from_numpy(self.nodes)]


Arithmetic: TypeAlias = Callable[[Tensor, Operand], Tensor]
"""An operation on tensors, number by number."""


class Halo(NamedTuple):
    """Rows of nodes that live elsewhere, as far as they are known here."""

    nodes: Nodes
    rows: Tensor


class Arrivals(NamedTuple):
    """Single messages that arrived from another rank, E x D, and the edges that they came along."""

    edges: Crossing
    rows: Tensor


class ShardedRows:
    """The rows of this rank's nodes of an N x D array, and, where they are known, rows of nodes elsewhere.

    `arrivals` are single messages that nodes here received from elsewhere, kept for a recording.
    """

    __slots__ = ("arrivals", "halo", "own", "shard")
    __array_ufunc__ = None

    def __init__(
        self, shard: NodeShard, own: Tensor, halo: Halo | None = None, arrivals: tuple[Arrivals, ...] = ()
    ) -> None:
        self.shard, self.own, self.halo, self.arrivals = shard, own, halo, arrivals

    @property
    def shape(self) -> tuple[int, int]:
        """Of the whole array."""
        return self.shard.n, int(self.own.shape[1])

    def converted(self, values: Reals) -> Tensor:
        """Public numbers of all nodes, in the precision of the rows."""
        return as_tensor(arrays.convert(values, self.own))

    def taken(self, index: Nodes) -> Tensor:
        """The rows of some nodes, which live here or are known here."""
        here = self.shard.here[index]
        rows = self.own.new_empty(len(index), self.own.shape[1])
        rows[np.flatnonzero(here)] = self.own[self.shard.position[index[here]]]
        if not here.all():
            assert self.halo is not None, "rows of nodes elsewhere that never arrived"
            order = np.argsort(self.halo.nodes)
            at = order[np.searchsorted(self.halo.nodes[order], index[~here])]
            rows[np.flatnonzero(~here)] = self.halo.rows[at]
        return rows

    def in_precision_of(self, like: Rows) -> ShardedRows:
        """The same rows, in the precision of others here."""
        wanted = as_sharded(like).own.dtype
        return self if self.own.dtype == wanted else ShardedRows(self.shard, self.own.to(wanted))

    def minus_scaled(self, factor: float, others: Rows) -> ShardedRows:
        """`self - factor * others`; rows of nodes elsewhere are known if those of both are."""

        def act(mine: Tensor, theirs: Operand) -> Tensor:
            return as_tensor(arrays.minus_scaled(mine, factor, theirs))

        return self._with(as_sharded(others), act)

    def mapped(self, function: Callable[[Reals], Reals]) -> ShardedRows:
        """The rows here after a function of their numbers."""
        return ShardedRows(self.shard, as_tensor(arrays.mapped(self.own, function)))

    def where(self, chosen_N: NDArray[np.bool_], others: Rows) -> ShardedRows:
        """The rows here; those of nodes elsewhere, where both are known."""
        theirs, halo = as_sharded(others), None
        if self.halo is not None and theirs.halo is not None:
            nodes = self.halo.nodes
            halo = Halo(nodes, as_tensor(arrays.where(chosen_N[nodes], self.halo.rows, theirs.halo.rows)))
        own = arrays.where(chosen_N[self.shard.nodes], self.own, theirs.own)
        return ShardedRows(self.shard, as_tensor(own), halo)

    def mixed_by(self, mixing: Mixing) -> ShardedRows:
        """`W @ rows`, where all rows that it takes are known here: nothing is sent."""
        plan = self.shard.plan(mixing)
        mixed = arrays.new_rows(self.own)
        remote = None
        if len(plan.remote_senders):
            assert self.halo is not None
            assert np.array_equal(self.halo.nodes, plan.remote_senders)
            remote = self.halo.rows
        plan.local_sums.into_(mixed, self.own, remote)
        plan.remote_sums.into_(mixed, self.own, remote)
        return ShardedRows(self.shard, mixed)

    # --- arithmetic ------------------------------------------------------------------------------------------------

    def _with(self, other: Operand, act: Arithmetic) -> ShardedRows:
        """`act` with other rows of this shard, a number, or one public number per node."""
        if isinstance(other, ShardedRows):
            return ShardedRows(self.shard, act(self.own, other.own), self._halo_with(other, act))
        if isinstance(other, np.ndarray) or arrays.is_torch(other):
            public = self.converted(other) if isinstance(other, np.ndarray) else other
            assert tuple(public.shape) == (self.shard.n, 1), "one public number per node"
            halo = None
            if self.halo is not None:
                halo = Halo(self.halo.nodes, act(self.halo.rows, public[self.halo.nodes]))
            return ShardedRows(self.shard, act(self.own, self.shard.rows_here(public)), halo)
        if not isinstance(other, int | float | np.integer | np.floating):
            return NotImplemented
        halo = None if self.halo is None else Halo(self.halo.nodes, act(self.halo.rows, other))
        return ShardedRows(self.shard, act(self.own, other), halo)

    def _halo_with(self, other: ShardedRows, act: Arithmetic) -> Halo | None:
        if self.halo is None or other.halo is None:
            return None
        return Halo(self.halo.nodes, act(self.halo.rows, other.halo.rows))

    def __add__(self, other: Operand) -> ShardedRows:
        return self._with(other, operator.add)

    def __sub__(self, other: Operand) -> ShardedRows:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Operand) -> ShardedRows:
        return self._with(other, lambda mine, theirs: theirs - mine)

    def __mul__(self, other: Operand) -> ShardedRows:
        return self._with(other, operator.mul)

    def __truediv__(self, other: Operand) -> ShardedRows:
        return self._with(other, operator.truediv)

    def __neg__(self) -> ShardedRows:
        return self * -1.0

    __radd__, __rmul__ = __add__, __mul__


def as_sharded(rows: arrays.Rows) -> ShardedRows:
    """Loop rows, of which it is known that a shard made them."""
    assert isinstance(rows, ShardedRows)
    return rows


def as_tensor(rows: arrays.Rows) -> Tensor:
    """A plain array, of which it is known that it is torch's."""
    assert isinstance(rows, Tensor)
    return rows
