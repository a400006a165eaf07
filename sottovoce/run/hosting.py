"""One rank's share of the nodes: its rows, what crosses to other ranks, and the mix of both.

A `HostedRows` goes through the round loop like an N x D array, and holds the rows of this rank's nodes alone. Only rows
that some node elsewhere listens to are sent, once for each rank that needs them, all rows for a rank in one message.

A node's sum is added up in the order of node numbers, whoever hosts them: so the mix has the same bits in any number of
processes. Only noise on single messages, which is added before they leave, and secure sums come in another order.

Shapes: N nodes, n nodes here, D parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from sottovoce import arrays
from sottovoce.mixing import Mixing
from sottovoce.run.wire import Wire
from sottovoce.ways import Way

Nodes = NDArray[np.intp]


class Host:
    """Which nodes live here, and how the others are reached. `blocks` has every rank's nodes, in ascending order.

    While `recording`, what is received stays with what was said.
    """

    def __init__(self, blocks: tuple[Nodes, ...], wire: Wire) -> None:
        self.blocks, self.wire = blocks, wire
        self.nodes = blocks[wire.rank]
        self.n = sum(len(block) for block in blocks)
        self.recording = False
        self.owner = np.empty(self.n, dtype=np.intp)
        self.position = np.empty(self.n, dtype=np.intp)
        for rank, block in enumerate(blocks):
            self.owner[block] = rank
            self.position[block] = np.arange(len(block))
        self.plan: Callable[[Mixing], Plan] = lru_cache(maxsize=64)(lambda mixing: Plan(self, mixing))

    @cached_property
    def here(self) -> NDArray[np.bool_]:
        """Which nodes live here."""
        return self.owner == self.wire.rank

    def share(self, values: Any) -> Any:
        """The rows of this rank's nodes of an array with a row for every node."""
        return values[torch.from_numpy(self.nodes)] if arrays.is_torch(values) else values[self.nodes]


class Crossing(NamedTuple):
    """Edges between this rank and another, sorted by sender, then receiver."""

    sender: Nodes
    receiver: Nodes


class Plan:
    """What one mixing step asks of this rank."""

    def __init__(self, host: Host, mixing: Mixing) -> None:
        self.host, self.mixing = host, mixing
        sender, receiver, _ = mixing.edges
        rank, speaks, hears = host.wire.rank, host.owner[sender], host.owner[receiver]
        others = [peer for peer in range(len(host.blocks)) if peer != rank]
        chosen = {peer: (speaks == rank) & (hears == peer) for peer in others}
        self.out = {peer: Crossing(sender[some], receiver[some]) for peer, some in chosen.items() if some.any()}
        chosen = {peer: (speaks == peer) & (hears == rank) for peer in others}
        self.into = {peer: Crossing(sender[some], receiver[some]) for peer, some in chosen.items() if some.any()}

    @cached_property
    def sends(self) -> dict[int, Nodes]:
        """Whose rows each rank needs of this one."""
        return {peer: np.unique(edges.sender) for peer, edges in self.out.items()}

    @cached_property
    def gets(self) -> dict[int, Nodes]:
        """Whose rows come from each rank."""
        return {peer: np.unique(edges.sender) for peer, edges in self.into.items()}

    @cached_property
    def strangers(self) -> Nodes:
        """All nodes elsewhere whom a node here listens to, rank by rank."""
        return np.concatenate([np.empty(0, dtype=np.intp), *self.gets.values()])

    @cached_property
    def parts(self) -> dict[int, slice]:
        """Where the rows from each rank lie among those of strangers."""
        stops = np.cumsum([len(nodes) for nodes in self.gets.values()]).tolist()
        starts = [0, *stops]
        return {peer: slice(start, stop) for peer, start, stop in zip(self.gets, starts, stops, strict=False)}

    @cached_property
    def _rows(self) -> sparse.csr_array:
        return sparse.csr_array(self.mixing.weights[self.host.nodes])

    @cached_property
    def inner(self) -> Product:
        """Nodes that listen to nodes here alone."""
        listens = self._rows.astype(bool).astype(np.int64) @ (~self.host.here).astype(np.int64)
        return self._product(np.flatnonzero(listens == 0))

    @cached_property
    def outer(self) -> Product:
        """The others."""
        at = np.ones(len(self.host.nodes), dtype=bool)
        at[self.inner.targets] = False
        return self._product(np.flatnonzero(at))

    def _product(self, targets: Nodes) -> Product:
        weights = sparse.csr_array(self._rows[targets])
        used = np.unique(weights.indices)
        if self.host.here[used].all():
            used = self.host.nodes  # nothing has to be put together
        among = np.flatnonzero(self.host.here[used])
        away = np.flatnonzero(~self.host.here[used])
        order = np.argsort(self.strangers)
        from_away = order[np.searchsorted(self.strangers[order], used[away])] if len(away) else away
        return Product(
            targets, sparse.csr_array(weights[:, used]), among, self.host.position[used[among]], away, from_away
        )

    @cached_property
    def within(self) -> sparse.csr_array:
        """Weights between nodes here, n x n."""
        return sparse.csr_array(self._rows[:, self.host.nodes])

    @cached_property
    def arriving(self) -> dict[int, sparse.csr_array]:
        """Weights of single messages from each rank, n x their number."""
        found = {}
        for peer, (sender, receiver) in self.into.items():
            weight = np.asarray(self.mixing.weights[receiver, sender]).ravel()
            where = (self.host.position[receiver], np.arange(len(sender)))
            found[peer] = sparse.csr_array((weight, where), shape=(len(self.host.nodes), len(sender)))
        return found


@dataclass(eq=False)
class Product:
    """The sums of some nodes here: over rows from here and from elsewhere, in the order of node numbers."""

    targets: Nodes
    weights: sparse.csr_array
    among: Nodes
    own: Nodes
    away: Nodes
    strange: Nodes
    _operator: Any = None

    def into_(self, mixed: Tensor, own: Tensor, strange: Tensor | None) -> None:
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
                assert strange is not None
                rows[self.away] = strange[self.strange]
        found = self._operator @ rows
        if len(self.targets) == len(mixed):
            mixed.copy_(found)
        else:
            mixed[self.targets] = found


class Halo(NamedTuple):
    """Rows of nodes that live elsewhere, as far as they are known here."""

    nodes: Nodes
    rows: Tensor


class HostedRows:
    """The rows of this rank's nodes of an N x D array, and, where they are known, rows of nodes elsewhere."""

    __slots__ = ("halo", "host", "own", "received")
    __array_ufunc__ = None

    def __init__(self, host: Host, own: Tensor, halo: Halo | None = None) -> None:
        self.host, self.own, self.halo = host, own, halo
        self.received: list[tuple[Crossing, Tensor]] = []

    @property
    def shape(self) -> tuple[int, int]:
        """Of the whole array."""
        return self.host.n, int(self.own.shape[1])

    def converted(self, values: NDArray[Any]) -> Tensor:
        """Public numbers of all nodes, in the precision of the rows."""
        found: Tensor = arrays.convert(values, self.own)
        return found

    def taken(self, index: Nodes) -> Tensor:
        """The rows of some nodes, which live here or are known here."""
        here = self.host.here[index]
        rows = self.own.new_empty(len(index), self.own.shape[1])
        rows[np.flatnonzero(here)] = self.own[self.host.position[index[here]]]
        if not here.all():
            assert self.halo is not None, "rows of nodes elsewhere that were never heard"
            order = np.argsort(self.halo.nodes)
            at = order[np.searchsorted(self.halo.nodes[order], index[~here])]
            rows[np.flatnonzero(~here)] = self.halo.rows[at]
        return rows

    def noisy(self, way: Way, feed: Any, sender: Nodes, receiver: Nodes) -> Tensor:
        """Single messages as nodes here received them: from nodes here, or from elsewhere as they came."""
        here = self.host.here[sender]
        rows = self.own.new_empty(len(sender), self.own.shape[1])
        rows[np.flatnonzero(here)] = feed.noisy(self, way, sender[here], receiver[here])
        wanted = sender * self.host.n + receiver
        for edges, came in self.received:
            codes = edges.sender * self.host.n + edges.receiver
            at = np.flatnonzero(np.isin(wanted, codes))
            rows[at] = came[np.searchsorted(codes, wanted[at])]
        return rows

    # --- numbers ---------------------------------------------------------------------------------------------------

    def _with(self, other: Any, act: Callable[[Any, Any], Any]) -> HostedRows:
        """`act` with other hosted rows, a number, or one public number per node."""
        if isinstance(other, HostedRows):
            both = self.halo is not None and other.halo is not None
            halo = Halo(self.halo.nodes, act(self.halo.rows, other.halo.rows)) if both else None  # type: ignore[union-attr]
            return HostedRows(self.host, act(self.own, other.own), halo)
        if isinstance(other, np.ndarray) or arrays.is_torch(other):
            public = arrays.convert(other, self.own) if isinstance(other, np.ndarray) else other
            assert tuple(public.shape) == (self.host.n, 1), "one public number per node"
            halo = None
            if self.halo is not None:
                halo = Halo(self.halo.nodes, act(self.halo.rows, public[self.halo.nodes]))
            return HostedRows(self.host, act(self.own, self.host.share(public)), halo)
        if not isinstance(other, int | float | np.integer | np.floating):
            return NotImplemented
        halo = None if self.halo is None else Halo(self.halo.nodes, act(self.halo.rows, other))
        return HostedRows(self.host, act(self.own, other), halo)

    def __add__(self, other: Any) -> HostedRows:
        return self._with(other, operator.add)

    def __sub__(self, other: Any) -> HostedRows:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> HostedRows:
        return self._with(other, lambda mine, theirs: theirs - mine)

    def __mul__(self, other: Any) -> HostedRows:
        return self._with(other, operator.mul)

    def __truediv__(self, other: Any) -> HostedRows:
        return self._with(other, operator.truediv)

    def __neg__(self) -> HostedRows:
        return self * -1.0

    __radd__, __rmul__ = __add__, __mul__

    # --- mixing ----------------------------------------------------------------------------------------------------

    def mixed_by(self, mixing: Mixing) -> HostedRows:
        """`W @ rows`, where all rows that it takes are known here: nothing is sent."""
        plan = self.host.plan(mixing)
        mixed = torch.empty_like(self.own)
        strange = None
        if len(plan.strangers):
            assert self.halo is not None
            assert np.array_equal(self.halo.nodes, plan.strangers)
            strange = self.halo.rows
        plan.inner.into_(mixed, self.own, strange)
        plan.outer.into_(mixed, self.own, strange)
        return HostedRows(self.host, mixed)

    def delivered(self, way: Way, feed: Any) -> HostedRows:
        """What reaches the nodes here; what other ranks need is sent, and local sums are made while it travels."""
        if way.secure_sum:
            return self._summed(way)
        if way.edge:
            return self._with_noise(way, feed)
        plan, wire, own = self.host.plan(way.mixing), self.host.wire, self.own
        with wire.packed():
            outgoing = {peer: own[self.host.position[nodes]] for peer, nodes in plan.sends.items()}
            strange = own.new_empty(len(plan.strangers), own.shape[1])
            incoming = {peer: strange[some] for peer, some in plan.parts.items()}
        flight = wire.swap(outgoing, incoming)
        mixed = torch.empty_like(own)
        plan.inner.into_(mixed, own, None)
        flight.land()
        plan.outer.into_(mixed, own, strange)
        if self.host.recording:
            self.halo = Halo(plan.strangers, strange)
        return HostedRows(self.host, mixed)

    def _summed(self, way: Way) -> HostedRows:
        """Only the sum over a rank's nodes leaves it."""
        first = sparse.csr_array(way.mixing.weights[[0]][:, self.host.nodes])
        total = arrays.operator(first, self.own) @ self.own
        self.host.wire.sum_(total)
        return HostedRows(self.host, total.expand(len(self.own), -1).clone())

    def _with_noise(self, way: Way, feed: Any) -> HostedRows:
        """Every message that leaves the rank carries its own noise, drawn here by its sender."""
        plan, wire, own = self.host.plan(way.mixing), self.host.wire, self.own
        with wire.packed():
            outgoing = {peer: feed.noisy(self, way, *edges) for peer, edges in plan.out.items()}
            incoming = {peer: own.new_empty(len(edges.sender), own.shape[1]) for peer, edges in plan.into.items()}
        flight = wire.swap(outgoing, incoming)
        mixed = arrays.operator(plan.within, own) @ own
        for injection in way.edge:
            among = way.received(injection, self.host.here)
            mixed = mixed + feed.noise(injection.sources, among, way.round, way.step).own
        flight.land()
        for peer, rows in incoming.items():
            mixed += arrays.operator(plan.arriving[peer], own) @ rows
            if self.host.recording:
                self.received.append((plan.into[peer], rows))
        return HostedRows(self.host, mixed)
