"""The inputs of a member: what it computed from its rows and what it drew, once, for each place of the run.

Every answer goes into the journal with the messages of its step. After a restart the recorded answers of that round are
given again: no gradient is computed and no noise is drawn a second time for a place from which something may have left.

Of a gradient that is released with noise on a grid, only the sum is recorded. A gradient to which noise is added later,
on single messages, is recorded as it is; the journal never leaves the member.

Noise that is correlated over rounds goes on from that of earlier rounds. What it needs of them is recorded too, and
kept as long as it is needed: as many rows as C looks back. On a grid, any digit of any round may decide, so the keys of
all rounds are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from sottovoce.core.arrays import Reals, Rows, convert, to_numpy
from sottovoce.core.correlation import Correlation
from sottovoce.core.gossip_step import GossipStep
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.loop_inputs import Gradient
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import RandomSource, StreamName
from sottovoce.core.sum_grid import SumGrid
from sottovoce.core.transport import Nodes
from sottovoce.distributed.shard_transport import ShardedFeed
from sottovoce.distributed.sharded_rows import ShardedRows, as_sharded
from sottovoce.federation.journal import Journal, KeptNoise
from sottovoce.ledger.payloads import Place
from sottovoce.support.text import parse_json

GRADIENT, RELEASED, ROW = "gradient", "released", "row"


class RecordedInputs(ShardedFeed):
    """Asks the feed, or the journal where it knows the answer."""

    def __init__(
        self, seed: int, source: RandomSource, gradient: Gradient, start: ShardedRows, journal: Journal
    ) -> None:
        super().__init__(seed, source, gradient, start)
        self._like, self._journal = start.own, journal
        self._source, self._place, self._asked = source, Place(-1, 0), 0
        self._kept_to = -1
        self._restore(journal.kept_noise())

    def gradient(self, round: int, point: Rows) -> ShardedRows:
        """Computed once. Where its noisy sum is recorded, that stands in its place: nobody asks what it was."""
        place = Place(round, 0)
        recorded = self._journal.replayed(place)
        if recorded is not None:
            return self._row(recorded.answers.get(RELEASED, recorded.answers.get(GRADIENT)))
        self._bind(as_sharded(point))
        found = super().gradient(round, point)
        self._bind(found)
        self._journal.note(place, GRADIENT, to_numpy(found.own))
        return found

    def rounded_sum(self, gradient: Rows, noise: NoiseOnGrid, round: int) -> ShardedRows:
        """What is released: drawn once."""
        if self._journal.replayed(Place(round, 0)) is not None:
            return as_sharded(gradient)
        found = self._release(super().rounded_sum(gradient, noise, round), round)
        if noise.correlation is not None:
            self._keep_keys()
        return found

    def discrete_sum(self, gradient: Rows, grid: SumGrid, round: int) -> ShardedRows:
        """What is released into a secure sum: drawn once."""
        if self._journal.replayed(Place(round, 0)) is not None:
            return as_sharded(gradient)
        return self._release(super().discrete_sum(gradient, grid, round), round)

    def _release(self, found: ShardedRows, round: int) -> ShardedRows:
        """Record a sum in place of the gradient that is in it."""
        self._journal.forget_note(Place(round, 0), GRADIENT)
        self._journal.note(Place(round, 0), RELEASED, to_numpy(found.own))
        return found

    def noise(self, sources: Sources, matrix: FactoredMatrix, round: int, step: int) -> ShardedRows:
        """Noise of this member's own sum, drawn once."""
        name, recorded = self._recorded(Place(round, step), sources.kind)
        if recorded is not None:
            return self._row(recorded)
        found = super().noise(sources, matrix, round, step)
        self._journal.note(Place(round, step), name, to_numpy(found.own))
        return found

    def correlated(self, correlation: Correlation, sources: Sources, matrix: FactoredMatrix, round: int) -> ShardedRows:
        """Noise that later rounds build on, drawn once."""
        name, recorded = self._recorded(Place(round, 0), sources.kind)
        if recorded is not None:
            return self._row(recorded)
        found = super().correlated(correlation, sources, matrix, round)
        self._journal.note(Place(round, 0), name, to_numpy(found.own))
        self._keep_rows(round)
        return found

    def noisy_messages(self, gossip_step: GossipStep, sent: ShardedRows, sender: Nodes, receiver: Nodes) -> Tensor:
        """Messages with the noise of their edges. Recorded ones are as they were sent."""
        recorded = self._journal.replayed(Place(gossip_step.round, gossip_step.step))
        if recorded is not None:
            rows = sent.taken(sender)
            for row, to in zip(rows, receiver.tolist(), strict=True):
                row.copy_(decoded_row(recorded.sent[to], row))
            return rows
        self._bind(sent)
        return super().noisy_messages(gossip_step, sent, sender, receiver)

    # --- what later rounds need ------------------------------------------------------------------------------------

    def _bind(self, rows: ShardedRows) -> None:
        """Coins depend on where the gradient is taken, noise on what it is added to."""
        self._source.bind(hashlib.sha256(to_numpy(rows.own).tobytes()).digest())

    def _keep_rows(self, round: int) -> None:
        past = self._feed.past()
        new = {t: {ROW: to_numpy(row)} for t, row in past.items() if t > self._kept_to}
        self._journal.keep_noise(KeptNoise(min(past, default=round), new or {round: {}}))
        self._kept_to = round

    def _keep_keys(self) -> None:
        new: dict[int, dict[str, Reals]] = {}
        for name, key in self._source.noise_keys().items():
            if name.round > self._kept_to:
                new.setdefault(name.round, {})[json.dumps(name)] = np.frombuffer(key, np.uint8)
        self._journal.keep_noise(KeptNoise(0, new))
        self._kept_to = max(new, default=self._kept_to)

    def _restore(self, kept: Mapping[int, Mapping[str, Reals]]) -> None:
        """Go on where an earlier process of this member stopped."""
        self._kept_to = max(kept, default=-1)
        rows = {t: convert(named[ROW], self._like) for t, named in kept.items() if ROW in named}
        keys = {name: key for named in kept.values() for name, key in named.items() if name != ROW}
        if keys:
            self._feed.restore_streams({_stream_name(name): key.tobytes() for name, key in keys.items()})
        elif kept:
            self._feed.restore_past(rows, self._kept_to + 1)

    def _recorded(self, place: Place, kind: str) -> tuple[str, Reals | None]:
        """The name of the next answer of a kind for a place, and the answer if it is recorded."""
        self._asked = self._asked + 1 if place == self._place else 0
        self._place, name = place, f"{kind} {self._asked}"
        recorded = self._journal.replayed(place)
        return name, None if recorded is None else recorded.answers[name]

    def _row(self, values: Reals | None) -> ShardedRows:
        assert values is not None
        return self._sharded(torch.from_numpy(values))


def decoded_row(payload: bytes, like: Tensor) -> Tensor:
    """The numbers of a payload, which are little-endian."""
    values = like.numpy()
    numbers = np.frombuffer(payload, dtype=values.dtype.newbyteorder("<")).astype(values.dtype)
    return torch.from_numpy(numbers.reshape(values.shape))


def _stream_name(text: str) -> StreamName:
    kind, ids, round, step = parse_json(text)
    return StreamName(kind, tuple(ids), round, step)
