"""Journals for tests: one in memory, and none."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from sottovoce.core.arrays import Reals
from sottovoce.errors import SottovoceError
from sottovoce.federation.frames import MemberNumber
from sottovoce.federation.journal import KeptNoise, RecordedStep
from sottovoce.ledger.payloads import Place, Receipt


@dataclass
class MemoryJournal:
    """A journal that lasts as long as the object does."""

    steps: dict[Place, RecordedStep] = field(default_factory=dict)
    ended: bool = False
    _noted: dict[str, Reals] = field(default_factory=dict)
    _kept: dict[int, Mapping[str, Reals]] = field(default_factory=dict)
    _to_keep: KeptNoise | None = None

    def note(self, place: Place, name: str, values: Reals) -> None:
        """Keep it until the payloads of the step are there."""
        self._noted[name] = values

    def forget_note(self, place: Place, name: str) -> None:
        """Keep it no longer."""
        del self._noted[name]

    def keep_noise(self, kept: KeptNoise) -> None:
        """Keep it when the payloads of the step are there."""
        self._to_keep = kept

    def kept_noise(self) -> Mapping[int, Mapping[str, Reals]]:
        """What was kept."""
        return self._kept

    def before_send(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """Keep the payloads."""
        if place in self.steps:
            raise SottovoceError(f"a second message for round {place.round}, step {place.step}; it was not sent")
        self.steps[place] = RecordedStep(dict(payloads), None, self._noted)
        self._noted = {}
        if self._to_keep is not None:
            joined = {**self._kept, **self._to_keep.by_round}
            self._kept = {round: arrays for round, arrays in joined.items() if round >= self._to_keep.since}
            self._to_keep = None

    def received(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """Keep what was received beside what was sent."""
        self.steps[place] = self.steps[place]._replace(received=dict(payloads))

    def end(self, unended: Set[MemberNumber]) -> None:
        """Keep that it is over."""
        self.ended = True

    def has_ended(self) -> bool:
        """Whether it is."""
        return self.ended

    def replayed(self, place: Place) -> RecordedStep | None:
        """What was kept."""
        return self.steps.get(place)

    def newest(self) -> Place | None:
        """Of those that were kept."""
        return max(self.steps, default=None)

    def check_receipts(self, receipts: Mapping[MemberNumber, Receipt]) -> None:
        """Memory is never put back."""


class NoJournal:
    """Nothing is recorded: for runs whose noise can be drawn again, as in tests and benchmarks."""

    def note(self, place: Place, name: str, values: Reals) -> None:
        """Nothing is kept."""

    def forget_note(self, place: Place, name: str) -> None:
        """Nothing was."""

    def keep_noise(self, kept: KeptNoise) -> None:
        """Nothing is kept."""

    def kept_noise(self) -> Mapping[int, Mapping[str, Reals]]:
        """Nothing was."""
        return {}

    def before_send(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """Nothing is kept."""

    def received(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """Nothing is kept."""

    def end(self, unended: Set[MemberNumber]) -> None:
        """Nothing is kept."""

    def has_ended(self) -> bool:
        """Nothing says so."""
        return False

    def replayed(self, place: Place) -> RecordedStep | None:
        """Nothing was."""
        return None

    def newest(self) -> Place | None:
        """There is none."""
        return None

    def check_receipts(self, receipts: Mapping[MemberNumber, Receipt]) -> None:
        """Nothing is recorded that could be behind."""
