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

import hashlib
import hmac
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from threading import Condition, RLock
from types import MappingProxyType
from typing import NamedTuple, Self

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
from sottovoce.federation.link_rules import AHEAD, LinkRules
from sottovoce.ledger.payloads import FIRST, NO_TAG, Payloads, Place, Receipt, hashed

FORGED = 3
"""After so many receipts of messages that this member has not made, a neighbour's link is closed for good."""

UNTOLD = 0.25
"""After this part of its patience a member that waits says so to those that wait for it."""

NOTHING_SEEN: Mapping[MemberNumber, Receipt] = MappingProxyType({})


class Clock:
    """The clock of the machine, which no change of its time of day moves; tests have another.

    Conditions are used with the lock that they bring along held; who holds it may take it again.
    """

    def condition(self) -> Condition:
        """A new condition, with its lock."""
        return Condition(RLock())

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wait(self, changed: Condition, seconds: float) -> None:
        """Wait for a change, no longer than this."""
        changed.wait(seconds)

    def notify(self, changed: Condition) -> None:
        """Wake whoever waits for this change."""
        changed.notify_all()


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
        self.rules, self._clock = rules, clock or Clock()
        self._changed = self._clock.condition()
        self._mailbox, self._outbox = Mailbox(rules, at, seen), Outbox(rules, receipt_key)
        self._greeted: set[MemberNumber] = set()
        self._versions: dict[MemberNumber, str] = {}
        self._claims: dict[MemberNumber, Place] = {}
        self._waiting: dict[MemberNumber, Place] = {}
        self._missed: Set[MemberNumber] = frozenset()
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
            return {one for one, (first, before) in self._absent.items() if first <= place < before}

    def meet(self, patience: float, enough: int | None = None) -> Set[MemberNumber]:
        """Wait until every neighbour has said hello once, or has another agreement; who has not said it.

        With `enough`, no longer than until so many have. Where this is an amendment, others may have it soon, too.
        """
        disagreeing = set() if self.rules.earlier else self._disagreeing
        self._wait(
            lambda: (
                self._claims.keys() | disagreeing | self.rules.leaving >= self.neighbours
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
            frames += [(one, self.hello(one)) for one in self._mailbox.wanted_again(senders)]
        self._transmit_all(frames)

        def missing() -> Set[MemberNumber]:
            left = self.unanswered(place, senders, believed_only=enough is not None)
            return left if enough is None or len(senders) - len(left) < enough else frozenset()

        self._wait_and_tell(place, missing, patience)
        with self._changed:
            return self._mailbox.at_hand(place, sorted(senders))

    def unanswered(self, place: Place, senders: Set[MemberNumber], *, believed_only: bool = False) -> Set[MemberNumber]:
        """Those of whom nothing is here for a place, and who may still send it, by what they say or is believed."""
        with self._changed:
            heard = self._mailbox.at_hand(place, senders).keys()
            claims = self.reached() if believed_only else self._claims
            gone_on = {one for one, at in claims.items() if place < self.rules.oldest_kept(at)}
            return senders - heard - self.absent(place) - gone_on

    def unacknowledged(self, before: Place, receivers: Set[MemberNumber], patience: float) -> Set[MemberNumber]:
        """Wait until everything before a place is acknowledged by these neighbours; who has not done so."""

        def owing() -> Set[MemberNumber]:
            return {one for one in receivers if self._outbox.owes(one, before)}

        return self._wait_and_tell(before, owing, patience)

    def unended(self, members: Set[MemberNumber], patience: float) -> Set[MemberNumber]:
        """Move on to the end of the run and say so, once; wait until these neighbours are there; who is not.

        Until then they may ask for messages again that they have acknowledged: a process that is killed loses those.
        """
        end = Place(self.rules.rounds, 0)
        with self._changed:
            frames = [(one, self._acknowledgement(receipt)) for one, receipt in self._mailbox.advance(end)]
            if not self._ended:
                frames += [(one, self.hello(one)) for one in sorted(self._greeted)]
            self._ended = True
        self._transmit_all(frames)

        def missing() -> Set[MemberNumber]:
            return {one for one in members - self._disagreeing if not self.has_ended(one)}

        return self._wait_and_tell(end, missing, patience)

    def forget(self, before: Place) -> None:
        """Send payloads of earlier places no more."""
        with self._changed:
            self._outbox.forget(before)

    def claims(self) -> dict[MemberNumber, Place]:
        """The place that each neighbour says it has reached; one may lie."""
        with self._changed:
            return dict(self._claims)

    def reached(self) -> dict[MemberNumber, Place]:
        """The place that each neighbour has reached, as far as it is believed: no further than two of them say.

        The only one is believed. Who is missed again and again has no say, unless all are.
        """
        with self._changed:
            voices = [at for one, at in self._claims.items() if one not in self._missed] or self._claims.values()
            furthest = sorted(voices, reverse=True)[:2]
            return {one: min(at, furthest[-1]) for one, at in self._claims.items()}

    def note_missed(self, members: Set[MemberNumber]) -> None:
        """These neighbours are missed again and again."""
        with self._changed:
            self._missed = members

    def connected_ones(self) -> Set[MemberNumber]:
        """The neighbours that are connected, and have said hello."""
        with self._changed:
            return frozenset(self._greeted)

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

    def equivocations(self) -> dict[MemberNumber, Equivocation]:
        """The first equivocation of each neighbour that sent two messages for a place."""
        with self._changed:
            return dict(self._mailbox.equivocations)

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

    def hello(self, neighbour: MemberNumber) -> Frame:
        """What this member says to a neighbour first: where it is, and the newest that it has received from there."""
        with self._changed:
            receipt = self._mailbox.newest_receipt(neighbour)
            tag = NO_TAG if receipt is None else receipt.tag
            return self._frame(Kind.HELLO, self._mailbox.at, Hello(receipt).encode(), tag)

    def connected(self, neighbour: MemberNumber) -> None:
        """A connection is up: say hello."""
        self.transmit(neighbour, self.hello(neighbour))

    def lost(self, neighbour: MemberNumber) -> None:
        """The connection is gone: whether the neighbour waits is not known any more."""
        with self._changed:
            self._greeted.discard(neighbour)
            self._waiting.pop(neighbour, None)

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
            return neighbour in self._claims and self._claims[neighbour] >= Place(self.rules.rounds, 0)

    def differs(self, neighbour: MemberNumber, keys: tuple[str, ...] = ()) -> None:
        """A neighbour has another agreement, and has said in which keys it differs, if there are any."""
        with self._changed:
            self._disagreeing.add(neighbour)
            if keys:
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
                answers = self._taken(neighbour, frame)
            except Refused as refusal:
                self._forged[neighbour] += refusal.reason is Reason.RECEIPT
                raise
            self._clock.notify(self._changed)
        self._transmit_all([(neighbour, answer) for answer in answers])

    def _taken(self, neighbour: MemberNumber, frame: Frame) -> list[Frame]:
        """Note what a frame says; the frames that answer it."""
        if frame.kind is Kind.ACKNOWLEDGEMENT:
            self._outbox.note(neighbour, receipt_in(frame))
            return []
        hello = hello_in(frame) if frame.kind is Kind.HELLO else None
        if hello is not None and hello.receipt is not None:
            self._outbox.note(neighbour, hello.receipt)
        self._claims[neighbour] = max(frame.place, self._claims.get(neighbour, frame.place))
        if frame.kind is Kind.WAITING:
            self._waiting[neighbour] = frame.place
            return []
        if frame.kind is Kind.ABSENT:
            self._absent[neighbour] = absence_in(frame), frame.place
            return []
        if hello is not None:
            self._greeted.add(neighbour)
            self._disagreeing.discard(neighbour)
            self._versions[neighbour] = hello.version
            wanted = self._outbox.wanted(neighbour, frame.place, hello.receipt)
            answers = [self._message(neighbour, place, sent.payload, sent.digest) for place, sent in wanted]
            if self._absence is not None and neighbour in self.rules.receivers:
                answers.append(self._told_absence(self._absence))
            return answers
        if self._waiting.get(neighbour, frame.place) < frame.place:
            del self._waiting[neighbour]
        receipt = self._mailbox.take(neighbour, frame.place, frame.payload, frame.tag)
        return [] if receipt is None else [self._acknowledgement(receipt)]

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

    def _wait_and_tell(
        self, place: Place, missing: Callable[[], Set[MemberNumber]], patience: float
    ) -> Set[MemberNumber]:
        """Wait until nobody is missing, and after some time tell neighbours that this member waits at a place."""
        if not self._wait(lambda: not missing(), UNTOLD * patience) and patience > 0:
            with self._changed:
                awaited = missing()
            self._transmit_all([(one, self._frame(Kind.WAITING, place)) for one in sorted(self.rules.receivers)])
            self.awaits(place, awaited)
            self._wait(lambda: not missing(), (1 - UNTOLD) * patience)
        with self._changed:
            return missing()

    def _message(self, receiver: MemberNumber, place: Place, payload: bytes, digest: bytes) -> Frame:
        return self._frame(self.rules.payload.kind, place, payload, self._outbox.tag(receiver, place, digest))

    def _acknowledgement(self, receipt: Receipt) -> Frame:
        return self._frame(Kind.ACKNOWLEDGEMENT, *receipt)

    def _told_absence(self, absence: tuple[Place, Place]) -> Frame:
        first, before = absence
        return self._frame(Kind.ABSENT, before, ABSENCE.pack(*first))

    def _frame(self, kind: Kind, place: Place, payload: bytes = b"", tag: bytes = NO_TAG) -> Frame:
        return Frame(self.rules.agreement, place, self.rules.member, kind, payload, tag)

    def _transmit_all(self, frames: list[tuple[MemberNumber, Frame]]) -> None:
        for neighbour, frame in frames:
            self.transmit(neighbour, frame)


# --- what arrived, and what was sent ---------------------------------------------------------------------------------

REMEMBERED = 64
"""For so many places that are over it is known what was received."""


class Equivocation(NamedTuple):
    """Two different messages of one sender for one place, by their SHA-256. Only the first may be used."""

    sender: MemberNumber
    place: Place
    first: bytes
    second: bytes


class Mailbox:
    """What arrived, by sender and place: of each sender one payload for each place at hand, that fits the rules.

    A payload is kept until its place is over, its SHA-256 for some places longer. So memory for each neighbour is
    bounded, whatever it sends: `AHEAD + 1` payloads and `REMEMBERED` digests. Not thread-safe by itself: whoever has
    it holds a lock. `seen` are receipts of an earlier process of the same member.
    """

    def __init__(self, rules: LinkRules, at: Place, seen: Mapping[MemberNumber, Receipt]) -> None:
        self._rules, self.at = rules, at
        self._payloads: dict[MemberNumber, dict[Place, bytes]] = {sender: {} for sender in rules.senders}
        self._receipts: dict[MemberNumber, dict[Place, Receipt]] = {sender: {} for sender in rules.senders}
        for sender, receipt in seen.items():
            self._receipts[sender][receipt.place] = receipt
        self._too_early: dict[MemberNumber, Place] = {}
        self.equivocations: dict[MemberNumber, Equivocation] = {}

    def take(self, sender: MemberNumber, place: Place, payload: bytes, tag: bytes = NO_TAG) -> Receipt | None:
        """Accept the payload of a place, once; the receipt is to be returned now, or when `advance` gives it.

        The same payload again gives its receipt again. Another one is refused, and never used.
        """
        if sender not in self._rules.senders:
            raise Refused(Reason.STRANGER)
        self._check_place(sender, place)
        digest, known = hashlib.sha256(payload).digest(), self._receipts[sender]
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
        self._rules, self._key = rules, key
        self._sent: dict[MemberNumber, dict[Place, SentPayload]] = {receiver: {} for receiver in rules.receivers}
        self.receipts: dict[MemberNumber, Receipt] = {}

    def put(self, place: Place, payloads: Payloads[MemberNumber]) -> None:
        """Keep what is sent. A place has one payload for each receiver."""
        for receiver, payload in payloads.items():
            sent = self._sent[receiver].setdefault(place, SentPayload(payload, payloads.digests[receiver]))
            assert sent.payload == payload, "another payload for the same place"

    def tag(self, receiver: MemberNumber, place: Place, digest: bytes) -> bytes:
        """What goes along with a message, and comes back with its receipts."""
        return hmac.digest(self._key, self._rules.proven(place, receiver) + digest, "sha256")

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
