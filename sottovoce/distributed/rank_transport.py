"""The transport between ranks: each hosts a block of nodes, and sends what nodes of other ranks receive.

Shapes: N nodes, n nodes here, D parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from sottovoce.core import arrays
from sottovoce.core.fixed_point import encoded
from sottovoce.core.gossip_step import GossipStep
from sottovoce.core.sum_grid import ModelGrid, SumGrid
from sottovoce.distributed.communication import Communicator, PendingExchange
from sottovoce.distributed.exchange_plan import NodeShard
from sottovoce.distributed.shard_transport import ShardTransport
from sottovoce.distributed.sharded_rows import ShardedRows, as_tensor


@dataclass(frozen=True)
class RankTransport(ShardTransport):
    """The nodes of one rank. `PeerLost` is raised after the timeout of the group of ranks.

    Secure sums of floating-point numbers are added up in another order than in one process.
    """

    shard: NodeShard
    communicator: Communicator
    keep_received: bool = False

    @property
    def wire_bytes(self) -> int:
        return self.communicator.sent_bytes

    def exchange(
        self, gossip_step: GossipStep, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], absent: Tensor
    ) -> PendingExchange:
        """All ranks make the same exchanges in turn, and none may be missing."""
        return self.communicator.exchange(outgoing, incoming)

    def secure_sum(self, gossip_step: GossipStep, sent: ShardedRows) -> ShardedRows:
        """Only the sum over a rank's nodes leaves it; of integers it is the same in any number of processes."""
        if isinstance(gossip_step.grid, SumGrid):
            return self._integer_sum(gossip_step.grid, sent)
        weights = sparse.csr_array(gossip_step.mixing.weights[[0]][:, self.nodes])
        total: Tensor = arrays.operator(weights, sent.own) @ sent.own
        self.communicator.sum_(total)
        return ShardedRows(self.shard, total.expand(len(sent.own), -1).clone())

    def _integer_sum(self, grid: SumGrid, sent: ShardedRows) -> ShardedRows:
        total = torch.from_numpy(encoded(arrays.to_numpy(sent.own), grid.step)).sum(dim=0)
        self.communicator.sum_(total)
        average = torch.from_numpy(grid.average(arrays.to_numpy(total).view(np.uint64)))
        return ShardedRows(self.shard, average.expand(len(sent.own), -1).clone())

    def neighbour_sums(self, gossip_step: GossipStep, grid: ModelGrid, sent: ShardedRows) -> ShardedRows:
        """Of neighbours here, one sum of integers leaves for each receiver elsewhere: what it gets adds up exactly."""
        plan, integers = self.shard.plan(gossip_step.mixing), encoded(arrays.to_numpy(sent.own), grid.step)
        weights = grid.weights.numerators[:, self.nodes]
        with self.packing():
            outgoing = {
                peer: torch.from_numpy(weights[np.unique(edges.receiver)] @ integers)
                for peer, edges in plan.outgoing.items()
            }
            incoming = {
                peer: torch.empty((len(np.unique(edges.receiver)), integers.shape[1]), dtype=torch.int64)
                for peer, edges in plan.incoming.items()
            }
        totals = weights[self.nodes] @ integers
        self.exchange(gossip_step, outgoing, incoming, sent.own).wait()
        for peer, sums in incoming.items():
            totals[self.shard.position[np.unique(plan.incoming[peer].receiver)]] += sums.numpy()
        rows = [grid.average(int(v), total) for v, total in zip(self.nodes, totals.view(np.uint64), strict=True)]
        return ShardedRows(self.shard, as_tensor(arrays.convert(np.stack(rows), sent.own)))

    def packing(self) -> AbstractContextManager[None]:
        """Counted by the communicator."""
        return self.communicator.packing()
