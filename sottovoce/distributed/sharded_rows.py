"""The rows of one rank's nodes, as they go through the round loop in place of an N x D array.

A node's sum is added up in the order of node numbers, whoever hosts them: so the mix has the same bits in any number of
processes.

Shapes: N nodes, n nodes here, D parameters, E directed edges.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.arrays import Operand, Reals, Rows
from sottovoce.core.mixing import Mixing
from sottovoce.core.transport import Nodes
from sottovoce.distributed.exchange_plan import Crossing, NodeShard

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
