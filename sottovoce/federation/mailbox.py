"""What a member accepts from its neighbours: one payload for each place at hand, of the right length and range.

A payload is kept until its place is over, its SHA-256 for some places longer. So memory for each neighbour is bounded,
whatever it sends: `AHEAD + 1` payloads and `REMEMBERED` digests.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.core.arrays import Precision, Reals
from sottovoce.federation.frames import Kind, Reason, Refused
from sottovoce.federation.links import MemberNumber
from sottovoce.ledger.payloads import Payloads
from sottovoce.ledger.places import Place, Receipt

AHEAD = 2
"""So many places a neighbour may be ahead. Who sends the next message once the one before it is acknowledged stays
within: a message is acknowledged when at most one place is left before its own."""

KEPT = AHEAD + 2
"""For so many places, and for the whole of a round, what was sent is kept for those that have not acknowledged it."""

REMEMBERED = 64
"""For so many places that are over it is known what was received."""


@dataclass(frozen=True)
class PayloadRule:
    """What the payload of every message must be: little-endian numbers of the run's precision, or a compressed row.

    With `masked` they are integers modulo 2^64 under masks, of which nothing but their number can be checked.
    With `largest_weight` the last number is push-sum's weight, which lies above 0. `decompress` gives the numbers of a
    compressed row, and may raise anything that indexing does.
    """

    length: int
    precision: Precision
    least: float = -math.inf
    largest: float = math.inf
    largest_weight: float | None = None
    decompress: Callable[[bytes], Reals] | None = None
    masked: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of frame that carries it."""
        return Kind.MASKED if self.masked else Kind.MESSAGE

    def check(self, payload: bytes) -> None:
        """Refuse what is too short or long, not finite, or beyond the agreed range."""
        if len(payload) != self.length:
            raise Refused(Reason.LENGTH)
        if self.masked:
            return
        numbers = self._numbers(payload)
        row = numbers if self.largest_weight is None else numbers[:-1]
        finite = np.finfo(self.precision)
        least, largest = max(self.least, float(finite.min)), min(self.largest, float(finite.max))
        if row.size and not (least <= row.min() and row.max() <= largest):
            raise Refused(Reason.RANGE)
        if self.largest_weight is not None and not 0 < numbers[-1] <= self.largest_weight:
            raise Refused(Reason.RANGE)

    def _numbers(self, payload: bytes) -> Reals:
        if self.decompress is None:
            return np.frombuffer(payload, dtype=self.precision.newbyteorder("<"))
        try:
            with np.errstate(all="ignore"):
                return self.decompress(payload)
        except (IndexError, ValueError):
            raise Refused(Reason.RANGE) from None


@dataclass(frozen=True)
class LinkRules:
    """What the agreement says about one member's links: who speaks to whom, and what messages must be."""

    agreement: bytes
    member: MemberNumber
    senders: frozenset[MemberNumber]
    receivers: frozenset[MemberNumber]
    rounds: int
    steps: int
    payload: PayloadRule

    @property
    def neighbours(self) -> frozenset[MemberNumber]:
        """All members that this one sends to or receives from."""
        return self.senders | self.receivers

    def index(self, place: Place) -> int:
        """How many places come before this one; the end of the run is a place too, at which nothing is sent."""
        if not 0 <= place.step < self.steps or place > Place(self.rounds, 0):
            raise Refused(Reason.PLACE)
        return place.round * self.steps + place.step

    def later(self, place: Place, places: int) -> Place:
        """The place that comes so many places after another, or before it, not before the first."""
        return Place(*divmod(max(0, self.index(place) + places), self.steps))

    def oldest_kept(self, place: Place) -> Place:
        """The first place whose messages whoever is at a place still has for others."""
        return min(Place(place.round, 0), self.later(place, -KEPT))


class Equivocation(NamedTuple):
    """Two different messages of one sender for one place, by their SHA-256. Only the first may be used."""

    sender: MemberNumber
    place: Place
    first: bytes
    second: bytes


class Mailbox:
    """What arrived, by sender and place. Not thread-safe by itself: whoever has it holds a lock.

    `seen` are receipts of an earlier process of the same member.
    """

    def __init__(self, rules: LinkRules, at: Place, seen: Mapping[MemberNumber, Receipt]) -> None:
        self._rules, self.at = rules, at
        self._payloads: dict[MemberNumber, dict[Place, bytes]] = {sender: {} for sender in rules.senders}
        self._digests: dict[MemberNumber, dict[Place, bytes]] = {sender: {} for sender in rules.senders}
        for sender, receipt in seen.items():
            self._digests[sender][receipt.place] = receipt.digest
        self._too_early: dict[MemberNumber, Place] = {}
        self.equivocations: dict[MemberNumber, Equivocation] = {}

    def take(self, sender: MemberNumber, place: Place, payload: bytes, digest: bytes | None = None) -> Receipt | None:
        """Accept the payload of a place, once; the receipt is to be returned now, or when `advance` gives it.

        The same payload again gives its receipt again. Another one is refused, and never used. `digest` is its SHA-256,
        if that is known.
        """
        if sender not in self._rules.senders:
            raise Refused(Reason.STRANGER)
        self._check_place(sender, place)
        digest, known = digest or hashlib.sha256(payload).digest(), self._digests[sender]
        if place in known and known[place] != digest:
            self.equivocations.setdefault(sender, Equivocation(sender, place, known[place], digest))
            raise Refused(Reason.EQUIVOCATION)
        if place not in known:
            self._rules.payload.check(payload)
            known[place] = digest
            if place >= self.at:
                self._payloads[sender][place] = payload
        return Receipt(place, digest) if place <= self._newest_acknowledged() else None

    def _check_place(self, sender: MemberNumber, place: Place) -> None:
        distance = self._rules.index(place) - self._rules.index(self.at)
        if place.round == self._rules.rounds:
            raise Refused(Reason.PLACE)
        if distance > AHEAD:
            self._too_early[sender] = min(place, self._too_early.get(sender, place))
            raise Refused(Reason.TOO_EARLY)
        if distance < -REMEMBERED:
            raise Refused(Reason.TOO_OLD)

    def advance(self, place: Place) -> list[tuple[MemberNumber, Receipt]]:
        """Move on to a place. What is older is no longer used; receipts that are due now are returned."""
        if place <= self.at:
            return []
        before, self.at = self._newest_acknowledged(), place
        oldest = self._rules.later(place, -REMEMBERED)
        for payloads in self._payloads.values():
            for old in [one for one in payloads if one < place]:
                del payloads[old]
        due = []
        for sender, digests in self._digests.items():
            due += [
                (sender, Receipt(*one)) for one in digests.items() if before < one[0] <= self._newest_acknowledged()
            ]
            newest = max(digests, default=None)
            for old in [one for one in digests if one < oldest and one != newest]:
                del digests[old]
        return due

    def _newest_acknowledged(self) -> Place:
        return self._rules.later(self.at, AHEAD - 1)

    def at_hand(self, place: Place, senders: Iterable[MemberNumber]) -> Payloads[MemberNumber]:
        """The payloads of these senders for a place, as far as they are here."""
        here = [sender for sender in senders if place in self._payloads[sender]]
        return Payloads(
            {sender: self._payloads[sender][place] for sender in here},
            {sender: self._digests[sender][place] for sender in here},
        )

    def newest_receipt(self, sender: MemberNumber) -> Receipt | None:
        """What was received from a neighbour for its newest place."""
        digests = self._digests.get(sender)
        return Receipt(*max(digests.items())) if digests else None

    def wanted_again(self, senders: Set[MemberNumber]) -> Set[MemberNumber]:
        """Senders whose message came too early, and would be accepted now: each is named once."""
        newest = self._rules.later(self.at, AHEAD)
        found = {sender for sender in senders if sender in self._too_early and self._too_early[sender] <= newest}
        for sender in found:
            del self._too_early[sender]
        return found
