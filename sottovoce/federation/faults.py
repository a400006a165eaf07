"""Scripted faults of links in memory: what is lost, late or repeated, and who is killed when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from sottovoce.errors import SottovoceError
from sottovoce.federation.frames import MESSAGES, Frame
from sottovoce.federation.links import MemberNumber
from sottovoce.ledger.places import Place

Message: TypeAlias = tuple[MemberNumber, MemberNumber, Place]
"""Sender, receiver and place."""


class Killed(SottovoceError):
    """The process of this member ended here, as the script of its faults says."""


@dataclass(frozen=True)
class Partition:
    """Nothing crosses between some members and the others, in the rounds from `first` to before `last`."""

    group: frozenset[MemberNumber]
    first: int
    last: int


@dataclass(frozen=True)
class Faults:
    """What goes wrong. Every method gives the same script with one fault more.

    >>> Faults().drop(2, 3, Place(5, 0)).loses(2, 3, Place(5, 0))
    True
    """

    dropped: frozenset[Message] = frozenset()
    duplicated: frozenset[Message] = frozenset()
    delayed: tuple[tuple[Message, float], ...] = ()
    killed: frozenset[tuple[MemberNumber, Place, bool]] = frozenset()
    partitions: tuple[Partition, ...] = ()

    def drop(self, sender: MemberNumber, receiver: MemberNumber, place: Place) -> Faults:
        """This message never arrives, however often it is sent."""
        return replace(self, dropped=self.dropped | {(sender, receiver, place)})

    def duplicate(self, sender: MemberNumber, receiver: MemberNumber, place: Place) -> Faults:
        """This message arrives twice."""
        return replace(self, duplicated=self.duplicated | {(sender, receiver, place)})

    def delay(self, sender: MemberNumber, receiver: MemberNumber, place: Place, seconds: float) -> Faults:
        """This message arrives so much later."""
        return replace(self, delayed=(*self.delayed, ((sender, receiver, place), seconds)))

    def kill(self, member: MemberNumber, place: Place, *, after_sending: bool = False) -> Faults:
        """The process of this member ends, once, when it is about to send at this place or has just done so."""
        return replace(self, killed=self.killed | {(member, place, after_sending)})

    def partition(self, group: frozenset[MemberNumber], first: int, last: int) -> Faults:
        """Nothing of the rounds from `first` to before `last` crosses between this group and the others."""
        return replace(self, partitions=(*self.partitions, Partition(group, first, last)))

    def loses(self, sender: MemberNumber, receiver: MemberNumber, place: Place) -> bool:
        """Whether a message never arrives."""
        return (sender, receiver, place) in self.dropped or any(
            (sender in one.group) != (receiver in one.group) and one.first <= place.round < one.last
            for one in self.partitions
        )

    def seconds_late(self, frame: Frame, receiver: MemberNumber) -> float:
        """How much later a frame arrives."""
        delays = dict(self.delayed)
        return delays.get((frame.sender, receiver, frame.place), 0.0) if frame.kind in MESSAGES else 0.0
