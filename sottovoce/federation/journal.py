"""What a member writes down of each step before anything leaves it, so that a restart sends the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sottovoce.errors import SottovoceError
from sottovoce.federation.links import Member, Place


class RecordedStep(NamedTuple):
    """What was recorded of a step: what is sent to whom, and what was received, once that is known."""

    sent: Mapping[Member, bytes]
    received: Mapping[Member, bytes] | None


class Journal(Protocol):
    """The record of one member's steps. It returns from a call when what it was given is safe."""

    def before_send(self, place: Place, payloads: Mapping[Member, bytes]) -> None:
        """Record all payloads of a step; nothing of it has left yet. Another record for the same place is refused."""

    def received(self, place: Place, payloads: Mapping[Member, bytes]) -> None:
        """Record what was received in a step; who is not among them was missing."""

    def replayed(self, place: Place) -> RecordedStep | None:
        """What an earlier process of this member, or this one, recorded of a step."""

    def newest(self) -> Place | None:
        """The newest place of which anything is recorded."""


@dataclass
class MemoryJournal:
    """A journal that lasts as long as the object does."""

    steps: dict[Place, RecordedStep] = field(default_factory=dict)

    def before_send(self, place: Place, payloads: Mapping[Member, bytes]) -> None:
        """Keep the payloads."""
        if place in self.steps:
            raise SottovoceError(f"a second message for round {place.round}, step {place.step}; it was not sent")
        self.steps[place] = RecordedStep(dict(payloads), None)

    def received(self, place: Place, payloads: Mapping[Member, bytes]) -> None:
        """Keep what was received beside what was sent."""
        self.steps[place] = self.steps[place]._replace(received=dict(payloads))

    def replayed(self, place: Place) -> RecordedStep | None:
        """What was kept."""
        return self.steps.get(place)

    def newest(self) -> Place | None:
        """Of those that were kept."""
        return max(self.steps, default=None)


class NoJournal:
    """Nothing is recorded: for runs whose noise can be drawn again, as in tests and benchmarks."""

    def before_send(self, place: Place, payloads: Mapping[Member, bytes]) -> None:
        """Nothing is kept."""

    def received(self, place: Place, payloads: Mapping[Member, bytes]) -> None:
        """Nothing is kept."""

    def replayed(self, place: Place) -> RecordedStep | None:
        """Nothing was."""
        return None

    def newest(self) -> Place | None:
        """There is none."""
        return None
