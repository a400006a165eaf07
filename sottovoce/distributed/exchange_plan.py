"""What one gossip step asks of a rank: which rows it sends, which it receives, and the sums it forms.

Shapes: N nodes, n nodes on this rank, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from sottovoce.core import arrays
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
