"""What a member accepts from its neighbours, and what it has sent them lately.

Of each neighbour it takes one payload for each place at hand, of the right length and range. A payload is kept until
its place is over, its SHA-256 for some places longer. So memory for each neighbour is bounded, whatever it sends:
`AHEAD + 1` payloads and `REMEMBERED` digests.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from sottovoce.federation.frames import MemberNumber, Reason, Refused
from sottovoce.federation.link_rules import AHEAD, LinkRules
from sottovoce.ledger.payloads import NO_TAG, Payloads, Place, Receipt

REMEMBERED = 64
"""For so many places that are over it is known what was received."""


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
        self._receipts: dict[MemberNumber, dict[Place, Receipt]] = {sender: {} for sender in rules.senders}
        for sender, receipt in seen.items():
            self._receipts[sender][receipt.place] = receipt
        self._too_early: dict[MemberNumber, Place] = {}
        self.equivocations: dict[MemberNumber, Equivocation] = {}

    def take(
        self, sender: MemberNumber, place: Place, payload: bytes, digest: bytes | None = None, tag: bytes = NO_TAG
    ) -> Receipt | None:
        """Accept the payload of a place, once; the receipt is to be returned now, or when `advance` gives it.

        The same payload again gives its receipt again. Another one is refused, and never used. `digest` is its SHA-256,
        if that is known.
        """
        if sender not in self._rules.senders:
            raise Refused(Reason.STRANGER)
        self._check_place(sender, place)
        digest, known = digest or hashlib.sha256(payload).digest(), self._receipts[sender]
        if place in known and known[place].digest != digest:
            self.equivocations.setdefault(sender, Equivocation(sender, place, known[place].digest, digest))
            raise Refused(Reason.EQUIVOCATION)
        if place not in known:
            self._rules.payload.check(payload)
            known[place] = Receipt(place, digest, tag)
            if place >= self.at:
                self._payloads[sender][place] = payload
        return known[place] if place <= self._newest_acknowledged() else None

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
        for sender, receipts in self._receipts.items():
            due += [(sender, one) for at, one in receipts.items() if before < at <= self._newest_acknowledged()]
            newest = max(receipts, default=None)
            for old in [one for one in receipts if one < oldest and one != newest]:
                del receipts[old]
        return due

    def _newest_acknowledged(self) -> Place:
        return self._rules.later(self.at, AHEAD - 1)

    def at_hand(self, place: Place, senders: Iterable[MemberNumber]) -> Payloads[MemberNumber]:
        """The payloads of these senders for a place, as far as they are here."""
        here = [sender for sender in senders if place in self._payloads[sender]]
        return Payloads(
            {sender: self._payloads[sender][place] for sender in here},
            {sender: self._receipts[sender][place].digest for sender in here},
            {sender: self._receipts[sender][place].tag for sender in here},
        )

    def newest_receipt(self, sender: MemberNumber) -> Receipt | None:
        """What was received from a neighbour for its newest place."""
        receipts = self._receipts.get(sender)
        return receipts[max(receipts)] if receipts else None

    def wanted_again(self, senders: Set[MemberNumber]) -> Set[MemberNumber]:
        """Senders whose message came too early, and would be accepted now: each is named once."""
        newest = self._rules.later(self.at, AHEAD)
        found = {sender for sender in senders if sender in self._too_early and self._too_early[sender] <= newest}
        for sender in found:
            del self._too_early[sender]
        return found


PROVEN = struct.Struct("<III")
"""A place and a receiver, as they enter a tag."""


@dataclass
class SentPayload:
    """A payload with its SHA-256, and whether its receiver has acknowledged it."""

    payload: bytes
    digest: bytes
    acknowledged: bool = False


class Outbox:
    """Payloads by receiver and place, until they are forgotten. Not thread-safe by itself: whoever has it holds a lock.

    A payload is kept beyond its acknowledgement: its receiver may be killed before it has used it, and ask again.

    A receipt counts only with the tag of its message: HMAC of agreement, place, receiver and SHA-256 under a key that
    no other member has. So a receipt of what is not known here shows that this member has sent it, by another process
    and with a ledger that is lost; a receiver cannot make one up.
    """

    def __init__(self, rules: LinkRules, key: bytes) -> None:
        self._agreement, self._key = rules.agreement, key
        self._sent: dict[MemberNumber, dict[Place, SentPayload]] = {receiver: {} for receiver in rules.receivers}
        self.receipts: dict[MemberNumber, Receipt] = {}

    def put(self, place: Place, payloads: Payloads[MemberNumber]) -> None:
        """Keep what is sent. A place has one payload for each receiver."""
        for receiver, payload in payloads.items():
            sent = self._sent[receiver].setdefault(place, SentPayload(payload, payloads.digests[receiver]))
            assert sent.payload == payload, "another payload for the same place"

    def tag(self, receiver: MemberNumber, place: Place, digest: bytes) -> bytes:
        """What goes along with a message, and comes back with its receipts."""
        return hmac.digest(self._key, self._agreement + PROVEN.pack(*place, receiver) + digest, "sha256")

    def note(self, receiver: MemberNumber, receipt: Receipt) -> None:
        """A neighbour says what it has; that it has other bytes than were sent is only noted. Forged ones are refused.

        With it earlier payloads are acknowledged, too: their acknowledgements came before, to an earlier process maybe.
        """
        if not hmac.compare_digest(receipt.tag, self.tag(receiver, receipt.place, receipt.digest)):
            raise Refused(Reason.RECEIPT)
        sent = self._sent.get(receiver, {}).get(receipt.place)
        if sent is not None and sent.digest == receipt.digest:
            for place, earlier in self._sent[receiver].items():
                earlier.acknowledged = earlier.acknowledged or place <= receipt.place
        if receiver not in self.receipts or self.receipts[receiver].place <= receipt.place:
            self.receipts[receiver] = receipt

    def forget(self, before: Place) -> None:
        """Keep no payloads of earlier places."""
        for payloads in self._sent.values():
            for old in [place for place in payloads if place < before]:
                del payloads[old]

    def wanted(self, receiver: MemberNumber, since: Place, has: Receipt | None) -> list[tuple[Place, SentPayload]]:
        """What a neighbour needs that is at a place and has payloads up to its newest receipt."""
        payloads = self._sent.get(receiver, {})
        return [
            (place, payloads[place])
            for place in sorted(payloads)
            if place >= since and (has is None or place > has.place)
        ]

    def owes(self, receiver: MemberNumber, before: Place) -> bool:
        """Whether a neighbour has yet to acknowledge something before a place."""
        return any(place < before and not sent.acknowledged for place, sent in self._sent[receiver].items())
