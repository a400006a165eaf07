"""Which rank hosts which nodes, what a gossip step asks of it, and its rows, which go through the loop as N x D arrays.

A node's sum is added up in the order of node numbers, whoever hosts them: so the mix has the same bits in any number of
processes.

Shapes: N nodes, n nodes here, D parameters, E directed edges.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.arrays import Operand, Reals, Rows
from sottovoce.core.mixing import Edges, Mixing, clipped_average
from sottovoce.core.transport import Nodes
from sottovoce.errors import InputError

# --- placement -------------------------------------------------------------------------------------------------------

Placement: TypeAlias = tuple[Nodes, ...]
"""The nodes of each rank, in ascending order."""


def place_nodes(n: int, ranks: int) -> Placement:
    """Each rank's nodes, in the order of their numbers; sizes differ by one at most.

    >>> [block.tolist() for block in place_nodes(6, 2)]
    [[0, 1, 2], [3, 4, 5]]
    """
    if not 1 <= ranks <= n:
        raise InputError(f"{ranks} processes for {n} nodes", "each hosts at least one node", f"use at most {n}")
    return tuple(np.array_split(np.arange(n), ranks))


# --- plans and rows --------------------------------------------------------------------------------------------------

NOWHERE: Nodes = np.empty(0, dtype=np.intp)
"""No nodes."""


class ExchangePlan:
    """What one mixing step asks of this rank.

    `outgoing` and `incoming` are the edges between this rank and each other, `sends` and `receives` whose rows cross
    along them, once each. `held` are the nodes here, then those elsewhere that a node here listens to; `within` are the
    edges between nodes here.
    """

    def __init__(self, shard: NodeShard, mixing: Mixing) -> None:
        self.shard, self.mixing = shard, mixing
        sender, receiver, weight = mixing.edges
        source, target, rank = shard.owner[sender], shard.owner[receiver], shard.rank

        def edges(chosen: NDArray[np.bool_]) -> Edges:
            return Edges(sender[chosen], receiver[chosen], weight[chosen])

        def crossing(at: Nodes, here: Nodes) -> dict[int, Edges]:
            chosen = {peer: (at == peer) & (here == rank) for peer in range(len(shard.blocks)) if peer != rank}
            return {peer: edges(some) for peer, some in chosen.items() if some.any()}

        self.outgoing, self.incoming = crossing(target, source), crossing(source, target)
        self.within = edges((source == rank) & (target == rank) & (sender != receiver))
        self.sends = {peer: np.unique(edges.sender) for peer, edges in self.outgoing.items()}
        self.receives = {peer: np.unique(edges.sender) for peer, edges in self.incoming.items()}
        self.held = np.concatenate([shard.nodes, *self.receives.values()])
        self._order = np.argsort(self.held)
        self._operators: dict[torch.dtype, Tensor] = {}

    @property
    def away(self) -> Nodes:
        """All nodes elsewhere that a node here listens to, rank by rank."""
        return self.held[len(self.shard.nodes) :]

    @property
    def arriving(self) -> Edges:
        """All edges from elsewhere, rank by rank."""
        each = self.incoming.values()
        return Edges(
            np.concatenate([NOWHERE, *(edges.sender for edges in each)]),
            np.concatenate([NOWHERE, *(edges.receiver for edges in each)]),
            np.concatenate([np.empty(0), *(edges.weight for edges in each)]),
        )

    def mixed(self, rows: Tensor) -> Tensor:
        """`W @ rows` for the nodes here, from the rows of `held`; nothing is sent."""
        if rows.dtype not in self._operators:
            weights = sparse.csr_array(self.mixing.weights[self.shard.nodes][:, self.held[self._order]])
            self._operators[rows.dtype] = arrays.operator(weights, rows)
        return as_tensor(self._operators[rows.dtype] @ (rows[self._order] if len(self.away) else rows))

    def clipped(self, rows: Tensor, radius: float) -> Tensor:
        """The same where no row moves a node here further than `radius` from its own."""
        weights = sparse.csr_array(self.mixing.weights[self.shard.nodes][:, self.held[self._order]])
        own, held = arrays.to_numpy(rows[: len(self.shard.nodes)]), arrays.to_numpy(rows)[self._order]
        return as_tensor(arrays.convert(clipped_average(weights, own, held, radius), rows))

    def mixed_messages(self, own: Tensor, noise: Tensor | float, messages: Tensor) -> Tensor:
        """The same from rows of nodes here, the noise in their sums, and single messages that came along `arriving`."""
        sender, receiver, weight = self.arriving
        where = (self.shard.position[receiver], np.arange(len(sender)))
        arrived = sparse.csr_array((weight, where), shape=(len(own), len(sender)))
        among = sparse.csr_array(self.mixing.weights[self.shard.nodes][:, self.shard.nodes])
        return arrays.operator(among, own) @ own + noise + arrays.operator(arrived, own) @ messages


def parts_of(rows: Tensor, counts: Mapping[int, Nodes]) -> dict[int, Tensor]:
    """The last rows of a tensor, divided among ranks: each has as many as nodes or edges are listed for it."""
    sizes = [len(one) for one in counts.values()]
    stops = np.cumsum([len(rows) - sum(sizes), *sizes]).tolist()
    return {peer: rows[start:stop] for peer, (start, stop) in zip(counts, pairwise(stops), strict=True)}


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
        self.here = self.owner == rank
        self.plan: Callable[[Mixing], ExchangePlan] = lru_cache(maxsize=64)(lambda mixing: ExchangePlan(self, mixing))

    def rows_here(self, values: Tensor) -> Tensor:
        """The rows of this rank's nodes of a tensor with a row for every node."""
        return values[torch.from_numpy(self.nodes)]


Arithmetic: TypeAlias = Callable[[Tensor, Operand], Tensor]
"""An operation on tensors, number by number."""


class Arrived(NamedTuple):
    """Single messages that arrived from elsewhere, E x D, and the edges that they came along."""

    edges: Edges
    rows: Tensor


class ShardedRows:
    """The rows of this rank's nodes of an N x D array, followed by those of nodes `away` that are known here.

    `arrived` are single messages that nodes here received from elsewhere, kept for a recording.
    """

    __slots__ = ("arrived", "away", "rows", "shard")
    __array_ufunc__ = None

    def __init__(self, shard: NodeShard, rows: Tensor, away: Nodes = NOWHERE, arrived: Arrived | None = None) -> None:
        assert len(rows) == len(shard.nodes) + len(away)
        self.shard, self.rows, self.away, self.arrived = shard, rows, away, arrived

    @property
    def shape(self) -> tuple[int, int]:
        """Of the whole array."""
        return self.shard.n, int(self.rows.shape[1])

    @property
    def own(self) -> Tensor:
        """The rows of the nodes here."""
        return self.rows[: len(self.shard.nodes)]

    @property
    def held(self) -> Nodes:
        """The node of each row."""
        return np.concatenate([self.shard.nodes, self.away])

    def converted(self, values: Reals) -> Tensor:
        """Public numbers of all nodes, in the precision of the rows."""
        return as_tensor(arrays.convert(values, self.rows))

    def taken(self, index: Nodes) -> Tensor:
        """The rows of some nodes, which live here or are known here."""
        held = self.held
        order = np.argsort(held)
        at = order[np.searchsorted(held, index, sorter=order)]
        assert np.array_equal(held[at], index), "rows of nodes elsewhere that never arrived"
        return self.rows[at]

    def in_precision_of(self, like: Rows) -> ShardedRows:
        """The same rows, in the precision of others here."""
        wanted = as_sharded(like).rows.dtype
        return self if self.rows.dtype == wanted else ShardedRows(self.shard, self.rows.to(wanted), self.away)

    def doubled(self) -> ShardedRows:
        """The same rows in float64."""
        return ShardedRows(self.shard, self.rows.double(), self.away)

    def where(self, chosen_N: NDArray[np.bool_], others: Rows) -> ShardedRows:
        """The rows here; those of nodes elsewhere, where both are known."""
        theirs = as_sharded(others)
        away = self.away if np.array_equal(self.away, theirs.away) else NOWHERE
        held = np.concatenate([self.shard.nodes, away])
        chosen = arrays.where(chosen_N[held], self.rows[: len(held)], theirs.rows[: len(held)])
        return ShardedRows(self.shard, as_tensor(chosen), away)

    def mixed_by(self, mixing: Mixing) -> ShardedRows:
        """`W @ rows`, where all rows that it takes are known here: nothing is sent."""
        plan = self.shard.plan(mixing)
        assert np.array_equal(self.away, plan.away)
        return ShardedRows(self.shard, plan.mixed(self.rows))

    # --- arithmetic ------------------------------------------------------------------------------------------------

    def _with(self, other: Operand, act: Arithmetic) -> ShardedRows:
        """`act` with other rows of this shard, a number, or public numbers, one for each node or parameter."""
        if isinstance(other, ShardedRows):
            if np.array_equal(self.away, other.away):
                return ShardedRows(self.shard, act(self.rows, other.rows), self.away)
            return ShardedRows(self.shard, act(self.own, other.own))
        if isinstance(other, np.ndarray) or arrays.is_torch(other):
            public = self.converted(other) if isinstance(other, np.ndarray) else other
            each_node = public.ndim == 2 and public.shape[0] == self.shard.n
            other = public[torch.from_numpy(self.held)] if each_node else public
        elif not isinstance(other, int | float | np.integer | np.floating):
            return NotImplemented
        return ShardedRows(self.shard, act(self.rows, other), self.away)

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

    def __pow__(self, power: float) -> ShardedRows:
        return self._with(power, operator.pow)

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
