"""What a member's round loop asks of whatever carries its messages to its neighbours, and theirs to it.

The loop runs in one thread and makes these calls one after the other. `sottovoce.federation.endpoint` answers them for
every carrier: what is accepted, acknowledged, kept and waited for is the same in memory and over a network. A carrier
adds the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Protocol, Self, TypeAlias

from sottovoce.ledger.payloads import Payloads
from sottovoce.ledger.places import Place, Receipt

MemberNumber: TypeAlias = int
"""A member, by the number of its node in the agreement."""

FIRST = Place(0, 0)
"""The place of the first messages of a run."""


class Links(Protocol):
    """One member's links to its neighbours. A context: links are up inside it.

    What an implementation promises:

    - *Nothing waits without a deadline.* `meet`, `receive`, `unacknowledged` and `unended` return at the latest when
      their patience is over; every other call returns at once.
    - *A payload that was sent stays the same.* What was given to `send` for a place is sent, again to a neighbour that
      was lost and comes back without it, until it is forgotten. Nothing else is ever sent for that place.
    - *What is received was checked* as `sottovoce.federation.mailbox` says, and there is one payload for a place.
    """

    @property
    def neighbours(self) -> Set[MemberNumber]:
        """All members that this one sends to or receives from."""

    @property
    def wire_bytes(self) -> int:
        """Bytes of frames that were handed to the wire so far."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def meet(self, patience: float) -> Set[MemberNumber]:
        """Wait until every neighbour has said where it stands, or patience is over; who has not."""

    def send(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """Start to send a payload to each of some neighbours."""

    def abstain(self, first: Place, before: Place) -> None:
        """Tell neighbours that nothing is sent from one place to before another: they need not wait for it."""

    def absent(self, place: Place) -> Set[MemberNumber]:
        """The neighbours that said so about a place."""

    def receive(self, place: Place, senders: Set[MemberNumber], patience: float) -> Payloads[MemberNumber]:
        """The payloads of these neighbours for a place, as soon as all are there, but for those that are absent by
        their own words or have gone on too far to have them, or `patience` seconds are over.

        This member is at that place from now on: neighbours may be a little ahead of it, and what is older arrives too
        late. Whoever is left without an answer for some time is told that this member waits itself.
        """

    def unacknowledged(self, before: Place, receivers: Set[MemberNumber], patience: float) -> Set[MemberNumber]:
        """Wait until everything before a place is acknowledged by these neighbours, or patience is over; who owes.

        Neighbours are told that this member waits, as in `receive`.
        """

    def unended(self, members: Set[MemberNumber], patience: float) -> Set[MemberNumber]:
        """Say that this member has all that it needs, and wait until these neighbours say so; who has not.

        Until then they may ask for messages again that they have acknowledged: a process that is killed loses those.
        """

    def forget(self, before: Place) -> None:
        """Send payloads of earlier places no more; nobody has use for them."""

    def claims(self) -> dict[MemberNumber, Place]:
        """The place that each neighbour says it has reached, as far as it has said anything."""

    def waiting(self) -> dict[MemberNumber, Place]:
        """Connected neighbours that wait for messages themselves, and the place they wait at."""

    def receipts(self) -> dict[MemberNumber, Receipt]:
        """Of the newest place for which each neighbour says that it has a payload of this member, what it has.

        A ledger that knows nothing of that place, or other bytes, was rolled back.
        """
