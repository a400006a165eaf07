"""What a member has sent and nobody has acknowledged yet, and what neighbours say that they have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sottovoce.federation.links import Member, Place, Receipt


class Kept(NamedTuple):
    """A payload and its SHA-256."""

    payload: bytes
    digest: bytes


class Outbox:
    """Payloads by receiver and place, until they are acknowledged or forgotten. Not thread-safe by itself."""

    def __init__(self, receivers: Iterable[Member]) -> None:
        self._payloads: dict[Member, dict[Place, Kept]] = {receiver: {} for receiver in receivers}
        self.receipts: dict[Member, Receipt] = {}

    def put(self, place: Place, payloads: Mapping[Member, bytes]) -> None:
        """Keep what is sent. A place has one payload for each receiver."""
        digests = {payload: hashlib.sha256(payload).digest() for payload in payloads.values()}
        for receiver, payload in payloads.items():
            kept = Kept(payload, digests[payload])
            assert self._payloads[receiver].setdefault(place, kept) == kept, "another payload for the same place"

    def note(self, receiver: Member, receipt: Receipt) -> None:
        """A neighbour says what it has: it needs no such payload again; a receipt of other bytes is only noted."""
        payloads = self._payloads.get(receiver, {})
        if receipt.place in payloads and payloads[receipt.place].digest == receipt.digest:
            del payloads[receipt.place]
        if receiver not in self.receipts or self.receipts[receiver].place <= receipt.place:
            self.receipts[receiver] = receipt

    def forget(self, before: Place) -> None:
        """Keep no payloads of earlier places."""
        for payloads in self._payloads.values():
            for old in [place for place in payloads if place < before]:
                del payloads[old]

    def kept(self, receiver: Member, since: Place) -> list[tuple[Place, bytes]]:
        """What a neighbour has not acknowledged, from a place on."""
        payloads = self._payloads.get(receiver, {})
        return [(place, payloads[place].payload) for place in sorted(payloads) if place >= since]

    def owes(self, receiver: Member, before: Place) -> bool:
        """Whether a neighbour has yet to acknowledge something before a place."""
        return any(place < before for place in self._payloads[receiver])
