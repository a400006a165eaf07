"""What a member has sent lately, and what neighbours say that they have of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sottovoce.federation.links import MemberNumber
from sottovoce.ledger.payloads import Payloads
from sottovoce.ledger.places import Place, Receipt


@dataclass
class SentPayload:
    """A payload with its SHA-256, and whether its receiver has acknowledged it."""

    payload: bytes
    digest: bytes
    acknowledged: bool = False


class Outbox:
    """Payloads by receiver and place, until they are forgotten. Not thread-safe by itself: whoever has it holds a lock.

    A payload is kept beyond its acknowledgement: its receiver may be killed before it has used it, and ask again.
    """

    def __init__(self, receivers: Iterable[MemberNumber]) -> None:
        self._sent: dict[MemberNumber, dict[Place, SentPayload]] = {receiver: {} for receiver in receivers}
        self.receipts: dict[MemberNumber, Receipt] = {}

    def put(self, place: Place, payloads: Payloads[MemberNumber]) -> None:
        """Keep what is sent. A place has one payload for each receiver."""
        for receiver, payload in payloads.items():
            sent = self._sent[receiver].setdefault(place, SentPayload(payload, payloads.digests[receiver]))
            assert sent.payload == payload, "another payload for the same place"

    def note(self, receiver: MemberNumber, receipt: Receipt) -> None:
        """A neighbour says what it has; that it has other bytes than were sent is only noted.

        With it earlier payloads are acknowledged, too: their acknowledgements came before, to an earlier process maybe.
        """
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

    def wanted(self, receiver: MemberNumber, since: Place, has: Receipt | None) -> list[tuple[Place, bytes]]:
        """What a neighbour needs that is at a place and has payloads up to its newest receipt."""
        payloads = self._sent.get(receiver, {})
        return [
            (place, payloads[place].payload)
            for place in sorted(payloads)
            if place >= since and (has is None or place > has.place)
        ]

    def owes(self, receiver: MemberNumber, before: Place) -> bool:
        """Whether a neighbour has yet to acknowledge something before a place."""
        return any(place < before and not sent.acknowledged for place, sent in self._sent[receiver].items())
