"""The inputs of one rank: gradients, noise and compressed rows of the nodes that live there.

Draws are keyed by source and round, so ranks need not exchange them. A rank draws for its own nodes alone, and for
secrets that they share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Self

import numpy as np
from scipy import sparse
from torch import Tensor

from sottovoce.core.arrays import Rows, convert, to_numpy
from sottovoce.core.compression import Compression
from sottovoce.core.correlation import Correlation
from sottovoce.core.gossip_step import GossipStep
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.loop_inputs import Gradient
from sottovoce.core.noise import FactoredMatrix, NoiseTerm
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.sum_grid import SumGrid
from sottovoce.core.transport import Nodes
from sottovoce.distributed.sharded_rows import NodeShard, ShardedRows, as_sharded, as_tensor


class ShardedFeed:
    """Draws for the nodes of one rank."""

    def __init__(self, seed: int, source: RandomSource, gradient: Gradient, start: ShardedRows) -> None:
        self._feed = NoiseFeed(seed, source, gradient, start.own)
        self._shard: NodeShard = start.shard
        self._sources_here = lru_cache(maxsize=32)(_used_sources)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.__exit__()

    def expect(self, term: NoiseTerm, rounds: range, *, exact: bool = False) -> None:
        """Drawn ahead: what the nodes here will ask for."""
        sources, matrix = self._here(term.sources, term.matrix)
        self._feed.expect(NoiseTerm(sources, matrix), rounds, exact=exact)

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

    def rounded_sum(self, gradient: Rows, noise: NoiseOnGrid, round: int) -> ShardedRows:
        """The rows of the nodes here."""
        here = tuple(NoiseTerm(*self._here(term.sources, term.matrix)) for term in noise.terms)
        return self._sharded(self._feed.rounded_sum(as_sharded(gradient).own, replace(noise, terms=here), round))

    def discrete_sum(self, gradient: Rows, grid: SumGrid, round: int) -> ShardedRows:
        """The rows of the nodes here."""
        own = as_sharded(gradient).own
        return self._sharded(self._feed.discrete_sum(own, grid.of(self._shard.nodes), round))

    def compress(self, operator: Compression, rows: Rows, round: int, step: int) -> ShardedRows:
        """The rows of the nodes here."""
        own, streams = as_sharded(rows).own, self.compression_streams(self._shard.nodes, round, step)
        return self._sharded(convert(operator.apply(to_numpy(own), streams), own))

    def compression_streams(self, nodes: Iterable[int], round: int, step: int) -> list[np.random.Generator]:
        """The random stream of each of these nodes, for compressing its row, or for decoding it elsewhere."""
        return self._feed.compression_streams(nodes, round, step)

    def noisy_messages(self, gossip_step: GossipStep, sent: ShardedRows, sender: Nodes, receiver: Nodes) -> Tensor:
        """Single messages of nodes here, each with the noise of its edge."""
        rows = sent.taken(sender)
        if gossip_step.message_grid is not None and len(sender):
            noise = gossip_step.message_grid.noise(sender, receiver)
            return as_tensor(self._feed.rounded_sum(rows, noise, gossip_step.round))
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
    starts = np.cumsum(sources.counts) - sources.counts
    mask = np.frombuffer(used, dtype=bool)
    chosen = np.add.reduceat(mask, starts) > 0 if len(starts) else np.zeros(0, dtype=bool)
    columns = np.flatnonzero(np.repeat(chosen, sources.counts))
    holders = sparse.csr_array(sources.holders[columns])
    return Sources(sources.kind, sources.groups[chosen], sources.counts[chosen], holders), columns
