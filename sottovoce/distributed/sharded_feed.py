"""The feed of one rank: gradients, noise and compressed messages of the nodes that live there.

Draws are keyed by source and round, so ranks need not speak about them. A rank draws for its own nodes alone, and for
secrets that they share.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from sottovoce.core.arrays import Rows, convert, numpy_dtype
from sottovoce.core.compression import Compression
from sottovoce.core.correlation import Correlation
from sottovoce.core.loop_inputs import Gradient
from sottovoce.core.mixing import Mixing
from sottovoce.core.noise import FactoredMatrix, NoiseTerm
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.noise_sources import Sources, generator
from sottovoce.core.transport import GossipStep
from sottovoce.distributed.sharded_rows import Halo, ShardedRows


class ShardedFeed:
    """Draws for the nodes of one rank. `first` is the mixing along which compressed differences travel."""

    def __init__(self, seed: int, gradient: Gradient, like: ShardedRows, first: Mixing) -> None:
        self._draws, self._seed = NoiseFeed(seed, gradient, like.own), seed
        self._shard, self._first = like.shard, first
        self._some = lru_cache(maxsize=32)(_some)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._draws.__exit__()

    def expect(self, term: NoiseTerm, rounds: range) -> None:
        """Drawn ahead: what the nodes here will ask for."""
        sources, matrix = self._here(term.sources, term.matrix)
        self._draws.expect(NoiseTerm(sources, matrix), rounds)

    def gradient(self, round: int, point: Rows) -> Rows:
        """Asks the task, which holds the data of the nodes here."""
        return ShardedRows(self._shard, self._draws.gradient(round, point.own))

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> Rows:
        """The rows of `matrix @ Z` of the nodes here."""
        return ShardedRows(self._shard, self._draws.noise(*self._here(sources, matrix), round, step))

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> Rows:
        """Earlier rounds are remembered for the nodes here."""
        return ShardedRows(self._shard, self._draws.correlated(correlation, *self._here(sources, matrix), round))

    def noisy(
        self, sent: ShardedRows, gossip_step: GossipStep, sender: NDArray[np.intp], receiver: NDArray[np.intp]
    ) -> Tensor:
        """Single messages of nodes here, each with the noise of its edge."""
        rows = sent.taken(sender)
        for term in gossip_step.edge:
            matrix = gossip_step.on_edges(term, sender, receiver)
            rows += self._draws.noise(term.sources, matrix, gossip_step.round, gossip_step.step)
        return rows

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> Rows:
        """Rows that other ranks need travel as they are encoded; own ones are compressed meanwhile.

        What arrives is decoded with the senders' streams: the same bits as the senders' own.
        """
        shard, plan = self._shard, self._shard.plan(self._first)
        values, dtype, D = rows.own.cpu().numpy(), numpy_dtype(rows.own), rows.shape[1]

        def streams(nodes: NDArray[np.intp]) -> list[np.random.Generator]:
            return [generator(self._seed, "compression", [int(node)], round, step) for node in nodes]

        with shard.communicator.packed():
            leaving = np.unique(np.concatenate([np.empty(0, dtype=np.intp), *plan.sends.values()]))
            encoded = torch.from_numpy(operator.encode(values[shard.position[leaving]], streams(leaving)))
            outgoing = {peer: encoded[np.searchsorted(leaving, nodes)] for peer, nodes in plan.sends.items()}
            size = operator.payload(D, dtype)
            incoming = {
                peer: torch.empty((len(nodes), size), dtype=torch.uint8) for peer, nodes in plan.gets.items()
            }  # fmt: skip
        flight = shard.communicator.swap(outgoing, incoming)
        own = convert(operator.apply(values, streams(shard.nodes)), rows.own)
        flight.land()
        with shard.communicator.packed():
            heard = [
                operator.decode(sent.numpy(), streams(plan.gets[peer]), D, dtype) for peer, sent in incoming.items()
            ]
            strange = np.concatenate([np.empty((0, D), dtype=dtype), *heard])
        return ShardedRows(shard, own, Halo(plan.strangers, convert(strange, rows.own)))

    def _here(self, sources: Sources, matrix: FactoredMatrix) -> tuple[Sources, FactoredMatrix]:
        """The sources that reach nodes here, and how."""
        nodes = self._shard.nodes
        left = None if matrix.left is None else sparse.csr_array(matrix.left[nodes])
        rows = FactoredMatrix(sparse.csr_array(matrix.plain[nodes]), left, matrix.right)
        some, columns = self._some(sources, rows.used().tobytes())
        right = None if rows.right is None else sparse.csr_array(rows.right[:, columns])
        return some, FactoredMatrix(sparse.csr_array(rows.plain[:, columns]), rows.left, right)


def _some(sources: Sources, used: bytes) -> tuple[Sources, Any]:
    """The groups of sources of which one is used, and where their sources were among all."""
    starts = np.cumsum(sources.counts) - sources.counts
    mask = np.frombuffer(used, dtype=bool)
    kept = np.add.reduceat(mask, starts) > 0 if len(starts) else np.zeros(0, dtype=bool)
    columns = np.flatnonzero(np.repeat(kept, sources.counts))
    holders = sparse.csr_array(sources.holders[columns])
    return Sources(sources.kind, sources.groups[kept], sources.counts[kept], holders), columns
