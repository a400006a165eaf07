"""The inputs of a member: what it computed from its rows and what it drew, once, for each place of the run.

Every answer goes into the journal with the messages of its step. After a restart the recorded answers of that round are
given again: no gradient is computed and no noise is drawn a second time for a place from which something may have left.

Of a gradient that is released with noise on a grid, only the sum is recorded. A gradient to which noise is added later,
on single messages, is recorded as it is; the journal never leaves the member.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sottovoce.core.arrays import Reals, Rows, convert, to_numpy
from sottovoce.core.correlation import Correlation
from sottovoce.core.gossip_step import GossipStep
from sottovoce.core.grid import NoiseOnGrid
from sottovoce.core.loop_inputs import Gradient
from sottovoce.core.noise import FactoredMatrix
from sottovoce.core.noise_sources import Sources
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.transport import Nodes
from sottovoce.distributed.sharded_feed import ShardedFeed
from sottovoce.distributed.sharded_rows import ShardedRows, as_tensor
from sottovoce.federation.journal import Journal
from sottovoce.ledger.places import Place

GRADIENT, RELEASED = "gradient", "released"


class RecordedInputs(ShardedFeed):
    """Asks the feed, or the journal where it knows the answer."""

    def __init__(
        self, seed: int, source: RandomSource, gradient: Gradient, start: ShardedRows, journal: Journal
    ) -> None:
        super().__init__(seed, source, gradient, start)
        self._like, self._journal = start.own, journal
        self._place, self._asked = Place(-1, 0), 0

    def gradient(self, round: int, point: Rows) -> ShardedRows:
        """Computed once. Where its noisy sum is recorded, nobody asks what it was."""
        place = Place(round, 0)
        recorded = self._journal.replayed(place)
        if recorded is None:
            found = super().gradient(round, point)
            self._journal.note(place, GRADIENT, to_numpy(found.own))
            return found
        values = recorded.answers.get(GRADIENT)
        return self._row(np.zeros(tuple(self._like.shape)) if values is None else values)

    def rounded_sum(self, gradient: Rows, noise: NoiseOnGrid, round: int) -> ShardedRows:
        """What is released: drawn once."""
        place = Place(round, 0)
        recorded = self._journal.replayed(place)
        if recorded is not None:
            return self._row(recorded.answers[RELEASED])
        found = super().rounded_sum(gradient, noise, round)
        self._journal.forget_note(place, GRADIENT)
        self._journal.note(place, RELEASED, to_numpy(found.own))
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
        return found

    def noisy_messages(self, gossip_step: GossipStep, sent: ShardedRows, sender: Nodes, receiver: Nodes) -> Tensor:
        """Messages with the noise of their edges. Recorded ones are in the journal as they were sent."""
        if self._journal.replayed(Place(gossip_step.round, gossip_step.step)) is not None:
            return sent.taken(sender)
        return super().noisy_messages(gossip_step, sent, sender, receiver)

    def _recorded(self, place: Place, kind: str) -> tuple[str, Reals | None]:
        """The name of the next answer of a kind for a place, and the answer if it is recorded."""
        self._asked = self._asked + 1 if place == self._place else 0
        self._place, name = place, f"{kind} {self._asked}"
        recorded = self._journal.replayed(place)
        return name, None if recorded is None else recorded.answers[name]

    def _row(self, values: Reals) -> ShardedRows:
        return self._sharded(as_tensor(convert(values, self._like)))
