"""One member's side of its links to its neighbours, without the wire: what every carrier of frames does alike.

The round loop runs in one thread and calls `send`, `receive` and their kin one after the other. A carrier derives from
`Links` and adds three things. It authenticates neighbours, so that it knows whose connection each frame came over. It
says when one is connected or lost, and hands over what arrives. It transmits frames:

- when a connection is up, call `connected`: it transmits a hello. The hello of the other side is answered with the
  messages that it says it needs;
- feed what arrives to a `FrameReader` of that connection, and each frame to `arrived`. Both may raise `Refused`. After
  the reader refused, the connection cannot be read further and must be closed; after `arrived` refused it may go on;
- when the connection is gone, call `lost`, before `connected` for the next one of the same neighbour. On a connection
  frames keep their order and none is left out: if one has to be, the connection is closed.

These three may be called from any thread. `transmit` is called from any thread too, never with the lock held. Payloads
are not copied: the frames that wait in a connection's queue share those of the outbox. A neighbour can ask for them
again and again, so a queue needs a bound, beyond which the connection is closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Set
from types import MappingProxyType
from typing import Self

from sottovoce.federation.clock import Clock, MonotonicClock
from sottovoce.federation.frames import (
    ABSENCE,
    Frame,
    FrameReader,
    Hello,
    Kind,
    MemberNumber,
    Reason,
    Refused,
    absence_in,
    hello_in,
    receipt_in,
)
from sottovoce.federation.link_rules import LinkRules
from sottovoce.federation.mailbox import Equivocation, Mailbox, Outbox
from sottovoce.ledger.payloads import FIRST, NO_TAG, Payloads, Place, Receipt, hashed

FORGED = 3
"""After so many receipts of messages that this member has not made, a neighbour's link is closed for good."""

UNTOLD = 0.25
"""After this part of its patience a member that waits says so to those that wait for it."""

NOTHING_SEEN: Mapping[MemberNumber, Receipt] = MappingProxyType({})


class Links(ABC):
    """One member's links: mailbox, outbox, and what neighbours say about themselves. A context: links are up inside it.

    `at` is the place at which this process of the member begins, and `seen` what an earlier one received last. Under
    `receipt_key`, which all processes of the member have in common, it recognises receipts of its messages.
    Thread-safe. It promises:

    - *Nothing waits without a deadline.* `meet`, `receive`, `unacknowledged` and `unended` return at the latest when
      their patience is over; every other call returns at once.
    - *A payload that was sent stays the same.* What was given to `send` for a place is sent, again to a neighbour that
      was lost and comes back without it, until it is forgotten. Nothing else is ever sent for that place.
    - *What is received was checked* by the mailbox, and there is one payload for a place.
    """

    wire_bytes = 0
    """Bytes of frames that were handed to the wire so far."""

    def __init__(
        self,
        rules: LinkRules,
        *,
        at: Place = FIRST,
        seen: Mapping[MemberNumber, Receipt] = NOTHING_SEEN,
        receipt_key: bytes,
        clock: Clock | None = None,
    ) -> None:
        self.rules, self._clock = rules, clock or MonotonicClock()
        self._changed = self._clock.condition()
        self._mailbox, self._outbox = Mailbox(rules, at, seen), Outbox(rules, receipt_key)
        self._greeted: set[MemberNumber] = set()
        self._versions: dict[MemberNumber, str] = {}
        self._claims: dict[MemberNumber, Place] = {}
        self._waiting: dict[MemberNumber, Place] = {}
        self._absent: dict[MemberNumber, tuple[Place, Place]] = {}
        self._absence: tuple[Place, Place] | None = None
        self._disagreeing: set[MemberNumber] = set()
        self._forged: Counter[MemberNumber] = Counter()
        self._differences: dict[MemberNumber, tuple[str, ...]] = {}
        self._stopped = self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027  # a carrier has to close what it opened
        pass

    @abstractmethod
    def transmit(self, neighbour: MemberNumber, frame: Frame) -> None:
        """Hand a frame to the connection of a neighbour, without waiting; drop it if there is none."""

    def awaits(self, place: Place, members: Set[MemberNumber]) -> None:  # noqa: B027  # not every carrier reports
        """This member has waited for some time for these neighbours; a carrier may report it."""

    @property
    def neighbours(self) -> Set[MemberNumber]:
        """All members that this one sends to or receives from."""
        return self.rules.neighbours

    # --- for the round loop ----------------------------------------------------------------------------------------

    def send(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """Keep the payloads, and transmit them to those that said hello; the others get them when they do."""
        messages = hashed(payloads)
        with self._changed:
            self._outbox.put(place, messages)
            greeted = sorted(self._greeted & payloads.keys())
        self._transmit_all([(one, self._message(one, place, messages[one], messages.digests[one])) for one in greeted])

    def abstain(self, first: Place, before: Place) -> None:
        """Tell neighbours, also those that come later, that nothing is sent from one place to before another."""
        with self._changed:
            self._absence = first, before
            told = [(one, self._told_absence(self._absence)) for one in sorted(self._greeted & self.rules.receivers)]
        self._transmit_all(told)

    def absent(self, place: Place) -> Set[MemberNumber]:
        """The neighbours that said that they send nothing at a place."""
        with self._changed:
            return self._absent_at(place)

    def meet(self, patience: float, enough: int | None = None) -> Set[MemberNumber]:
        """Wait until every neighbour has said hello once, or has another agreement; who has not said it.

        With `enough`, no longer than until so many have.
        """
        self._wait(
            lambda: (
                self._claims.keys() | self._disagreeing >= self.neighbours
                or (enough is not None and len(self._claims) >= enough)
            ),
            patience,
        )
        with self._changed:
            return self.neighbours - self._claims.keys()

    def receive(
        self, place: Place, senders: Set[MemberNumber], patience: float, enough: int | None = None
    ) -> Payloads[MemberNumber]:
        """Move on to a place, and wait for its payloads.

        They are returned as soon as all are there, but for those of neighbours that are absent by their own words or
        have gone on too far to have them, or when `patience` seconds are over. With `enough`, they are returned as soon
        as so many senders have answered in one of these ways. Whoever is left without an answer for
        some time is told that this member waits itself.
        """
        with self._changed:
            due = self._mailbox.advance(place)
            frames = [(one, self._acknowledgement(receipt)) for one, receipt in due]
            frames += [(one, self._hello(one)) for one in self._mailbox.wanted_again(senders)]
        self._transmit_all(frames)

        def missing() -> Set[MemberNumber]:
            left = self._unanswered(place, senders)
            return left if enough is None or len(senders) - len(left) < enough else frozenset()

        self._wait_and_tell(place, missing, patience)
        with self._changed:
            return self._mailbox.at_hand(place, sorted(senders))

    def unanswered(self, place: Place, senders: Set[MemberNumber]) -> Set[MemberNumber]:
        """Those of whom nothing is here for a place, and who may still send it."""
        with self._changed:
            return self._unanswered(place, senders)

    def unacknowledged(self, before: Place, receivers: Set[MemberNumber], patience: float) -> Set[MemberNumber]:
        """Wait until everything before a place is acknowledged by these neighbours; who has not done so."""

        def owing() -> Set[MemberNumber]:
            return {one for one in receivers if self._outbox.owes(one, before)}

        self._wait_and_tell(before, owing, patience)
        with self._changed:
            return owing()

    def unended(self, members: Set[MemberNumber], patience: float) -> Set[MemberNumber]:
        """Move on to the end of the run and say so, once; wait until these neighbours are there; who is not.

        Until then they may ask for messages again that they have acknowledged: a process that is killed loses those.
        """
        end = Place(self.rules.rounds, 0)
        with self._changed:
            frames = [(one, self._acknowledgement(receipt)) for one, receipt in self._mailbox.advance(end)]
            if not self._ended:
                frames += [(one, self._hello(one)) for one in sorted(self._greeted)]
            self._ended = True
        self._transmit_all(frames)
        self._wait_and_tell(end, lambda: self._before(end, members), patience)
        with self._changed:
            return self._before(end, members)

    def forget(self, before: Place) -> None:
        """Send payloads of earlier places no more."""
        with self._changed:
            self._outbox.forget(before)

    def claims(self) -> dict[MemberNumber, Place]:
        """The place that each neighbour says it has reached."""
        with self._changed:
            return dict(self._claims)

    def waiting(self) -> dict[MemberNumber, Place]:
        """Connected neighbours that wait for messages themselves, and where."""
        with self._changed:
            return dict(self._waiting)

    def receipts(self) -> dict[MemberNumber, Receipt]:
        """What each neighbour says that it has from this member, for its newest place.

        A ledger that knows nothing of that place, or other bytes, was rolled back.
        """
        with self._changed:
            return dict(self._outbox.receipts)

    def equivocations(self) -> tuple[Equivocation, ...]:
        """The first equivocation of each neighbour that sent two messages for a place."""
        with self._changed:
            return tuple(self._mailbox.equivocations.values())

    def stop(self) -> None:
        """Wait no more: whoever waits, or will, is interrupted. It may be called by a signal's handler."""
        with self._changed:
            self._stopped = True
            self._clock.notify(self._changed)

    def disagreeing(self) -> Set[MemberNumber]:
        """The neighbours that said hello under another agreement."""
        with self._changed:
            return frozenset(self._disagreeing)

    def differences(self, patience: float) -> dict[MemberNumber, tuple[str, ...]]:
        """Wait until each of those has said in which keys its agreement differs; the keys, as far as they are known."""
        self._wait(lambda: self._differences.keys() >= self._disagreeing, patience)
        with self._changed:
            return dict(self._differences)

    # --- for the carrier -------------------------------------------------------------------------------------------

    def reader(self) -> FrameReader:
        """What puts the frames of a new connection together."""
        return FrameReader(self.rules.agreement, self.rules.payload.length, self.rules.payload.kind)

    def connected(self, neighbour: MemberNumber) -> None:
        """A connection is up: say hello."""
        with self._changed:
            hello = self._hello(neighbour)
        self.transmit(neighbour, hello)

    def lost(self, neighbour: MemberNumber) -> None:
        """The connection is gone: whether the neighbour waits is not known any more."""
        with self._changed:
            self._greeted.discard(neighbour)
            self._waiting.pop(neighbour, None)

    def disagrees(self, neighbour: MemberNumber) -> None:
        """A neighbour has said hello under another agreement."""
        with self._changed:
            self._disagreeing.add(neighbour)
            self._clock.notify(self._changed)

    def is_distrusted(self, neighbour: MemberNumber) -> bool:
        """Whether a neighbour has sent so many forged receipts that nothing more is taken from it."""
        with self._changed:
            return self._forged[neighbour] >= FORGED

    def version(self, neighbour: MemberNumber) -> str:
        """The version of the package that a neighbour has said it has."""
        with self._changed:
            return self._versions.get(neighbour, "")

    def has_ended(self, neighbour: MemberNumber) -> bool:
        """Whether a neighbour has said that it is at the end of the run."""
        with self._changed:
            return not self._before(Place(self.rules.rounds, 0), {neighbour})

    def differs(self, neighbour: MemberNumber, keys: tuple[str, ...]) -> None:
        """A neighbour has said in which keys its agreement differs."""
        with self._changed:
            self._disagreeing.add(neighbour)
            self._differences[neighbour] = keys
            self._clock.notify(self._changed)

    def arrived(self, neighbour: MemberNumber, frame: Frame) -> None:
        """Take in a frame that came over the connection of a neighbour; `Refused` if it is not accepted."""
        with self._changed:
            if frame.agreement != self.rules.agreement:
                raise Refused(Reason.AGREEMENT)
            if frame.sender != neighbour:
                raise Refused(Reason.SENDER)
            if neighbour not in self.neighbours:
                raise Refused(Reason.STRANGER)
            self.rules.index(frame.place)
            try:
                frames = self._taken(neighbour, frame)
            except Refused as refusal:
                self._forged[neighbour] += refusal.reason is Reason.RECEIPT
                raise
            self._clock.notify(self._changed)
        self._transmit_all(frames)

    def _taken(self, neighbour: MemberNumber, frame: Frame) -> list[tuple[MemberNumber, Frame]]:
        """Note what a frame says; the frames that answer it."""
        if frame.kind is Kind.ACKNOWLEDGEMENT:
            self._outbox.note(neighbour, receipt_in(frame))
            return []
        has = hello_in(frame).receipt if frame.kind is Kind.HELLO else None
        if has is not None:
            self._outbox.note(neighbour, has)
        self._claims[neighbour] = max(frame.place, self._claims.get(neighbour, frame.place))
        if frame.kind is Kind.WAITING:
            self._waiting[neighbour] = frame.place
            return []
        if frame.kind is Kind.ABSENT:
            self._absent[neighbour] = absence_in(frame), frame.place
            return []
        if frame.kind is Kind.HELLO:
            self._greeted.add(neighbour)
            self._versions[neighbour] = hello_in(frame).version
            wanted = self._outbox.wanted(neighbour, frame.place, has)
            answers = [
                (neighbour, self._message(neighbour, place, sent.payload, sent.digest)) for place, sent in wanted
            ]
            if self._absence is not None and neighbour in self.rules.receivers:
                answers.append((neighbour, self._told_absence(self._absence)))
            return answers
        if self._waiting.get(neighbour, frame.place) < frame.place:
            del self._waiting[neighbour]
        receipt = self._mailbox.take(neighbour, frame.place, frame.payload, frame.digest, frame.tag)
        return [] if receipt is None else [(neighbour, self._acknowledgement(receipt))]

    # --- within ----------------------------------------------------------------------------------------------------

    def _wait(self, reached: Callable[[], bool], patience: float) -> bool:
        """Wait until something is so, no longer than this; whether it is."""
        with self._changed:
            deadline = self._clock.now() + patience
            while self._stopped or not reached():
                if self._stopped:
                    raise KeyboardInterrupt
                remaining = deadline - self._clock.now()
                if remaining <= 0:
                    return False
                self._clock.wait(self._changed, remaining)
            return True

    def _wait_and_tell(self, place: Place, missing: Callable[[], Set[MemberNumber]], patience: float) -> None:
        """Wait until nobody is missing, and after some time tell neighbours that this member waits at a place."""
        if not self._wait(lambda: not missing(), UNTOLD * patience) and patience > 0:
            with self._changed:
                awaited = missing()
            self._transmit_all([(one, self._frame(Kind.WAITING, place)) for one in sorted(self.rules.receivers)])
            self.awaits(place, awaited)
            self._wait(lambda: not missing(), (1 - UNTOLD) * patience)

    def _unanswered(self, place: Place, senders: Set[MemberNumber]) -> Set[MemberNumber]:
        heard = self._mailbox.at_hand(place, senders).keys()
        return senders - heard - self._absent_at(place) - self._far_beyond(place)

    def _before(self, place: Place, members: Set[MemberNumber]) -> Set[MemberNumber]:
        """Those of these neighbours that have not said that they have reached a place."""
        return {one for one in members if one not in self._claims or self._claims[one] < place}

    def _absent_at(self, place: Place) -> Set[MemberNumber]:
        return {one for one, (first, before) in self._absent.items() if first <= place < before}

    def _far_beyond(self, place: Place) -> Set[MemberNumber]:
        """The neighbours that have gone on so far that they keep nothing of a place any more."""
        return {one for one, claim in self._claims.items() if place < self.rules.oldest_kept(claim)}

    def _message(self, receiver: MemberNumber, place: Place, payload: bytes, digest: bytes) -> Frame:
        return self._frame(self.rules.payload.kind, place, payload, self._outbox.tag(receiver, place, digest))

    def _acknowledgement(self, receipt: Receipt) -> Frame:
        return self._frame(Kind.ACKNOWLEDGEMENT, *receipt)

    def _told_absence(self, absence: tuple[Place, Place]) -> Frame:
        first, before = absence
        return self._frame(Kind.ABSENT, before, ABSENCE.pack(*first))

    def _frame(self, kind: Kind, place: Place, payload: bytes = b"", tag: bytes = NO_TAG) -> Frame:
        return Frame(self.rules.agreement, place, self.rules.member, kind, payload, tag)

    def _hello(self, neighbour: MemberNumber) -> Frame:
        receipt = self._mailbox.newest_receipt(neighbour)
        tag = NO_TAG if receipt is None else receipt.tag
        return self._frame(Kind.HELLO, self._mailbox.at, Hello(receipt).encode(), tag)

    def _transmit_all(self, frames: list[tuple[MemberNumber, Frame]]) -> None:
        for neighbour, frame in frames:
            self.transmit(neighbour, frame)
