"""Links between members in one process, for tests: the same frames and the same checks as over a network.

Faults are scripted: what is lost, late or repeated, and who is killed when. Time stands still while anybody works, and
moves on when all wait: a patience of an hour takes no time, and nothing depends on how busy the machine is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from threading import Condition, RLock
from typing import Self, TypeAlias, TypeVar

from sottovoce.errors import SottovoceError
from sottovoce.federation.frames import MESSAGES, Frame, MemberNumber, Reason, Refused
from sottovoce.federation.link_rules import LinkRules
from sottovoce.federation.links import NOTHING_SEEN, Links
from sottovoce.ledger.payloads import FIRST, Place, Receipt

Value = TypeVar("Value")

STUCK = 60.0
"""Nobody waits for so many real seconds, unless the script of a test is wrong."""


class VirtualClock:
    """The time of some threads that work together. All its conditions have one lock."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._now, self._running = 0.0, 0
        self._asleep: dict[Condition, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def condition(self) -> Condition:
        return Condition(self._lock)

    def now(self) -> float:
        return self._now

    def wait(self, changed: Condition, seconds: float) -> None:
        self._asleep[changed] = self._now + seconds
        self._advance()
        while changed in self._asleep:
            if not changed.wait(STUCK):
                raise RuntimeError("all time has passed and nobody goes on")

    def notify(self, changed: Condition) -> None:
        self._asleep.pop(changed, None)
        changed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Let time pass, in one of the threads of `play`."""
        with self._lock:
            self.wait(self.condition(), seconds)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something when so much time has passed."""
        with self._lock:
            heapq.heappush(self._events, (self._now + seconds, next(self._numbers), act))

    def play(self, acts: Mapping[int, Callable[[], Value]]) -> dict[int, Value]:
        """What each of these gives; all run at once, in threads of this clock."""
        self._running = len(acts)
        with ThreadPoolExecutor(len(acts)) as pool:
            futures = {one: pool.submit(self._until_done, act) for one, act in acts.items()}
            return {one: future.result() for one, future in futures.items()}

    def _until_done(self, act: Callable[[], Value]) -> Value:
        try:
            return act()
        finally:
            with self._lock:
                self._running -= 1
                self._advance()

    def _advance(self) -> None:
        """Move on to the next thing that happens, if all who run are asleep."""
        while self._asleep and len(self._asleep) == self._running:
            first = min(self._asleep, key=lambda changed: self._asleep[changed])
            if self._events and self._events[0][0] <= self._asleep[first]:
                self._now, _, act = heapq.heappop(self._events)
                act()
            else:
                self._now = self._asleep[first]
                self.notify(first)


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


class MemoryNetwork:
    """What connects the links of all members, as a network would. `refused` counts frames by receiver and reason."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.clock, self.faults = VirtualClock(), faults or Faults()
        self.refused: dict[tuple[MemberNumber, Reason], int] = {}
        self._up: dict[MemberNumber, MemoryLinks] = {}
        self._lock = self.clock.condition()
        self._fired: set[tuple[MemberNumber, Place, bool]] = set()

    def connect(self, links: MemoryLinks) -> None:
        """Connect a member with those of its neighbours that are there."""
        with self._lock:
            self._up[links.rules.member] = links
            for neighbour in sorted(links.neighbours & self._up.keys()):
                links.connected(neighbour)
                self._up[neighbour].connected(links.rules.member)

    def disconnect(self, links: MemoryLinks) -> None:
        """Its neighbours notice that a member is gone."""
        with self._lock:
            if self._up.get(links.rules.member) is links:
                del self._up[links.rules.member]
                for neighbour in sorted(links.neighbours & self._up.keys()):
                    self._up[neighbour].lost(links.rules.member)

    def carry(self, frame: Frame, receiver: MemberNumber) -> None:
        """Deliver a frame, or not, as the faults say."""
        if receiver not in self._up or self.faults.loses(frame.sender, receiver, frame.place):
            return
        late = self.faults.seconds_late(frame, receiver)
        if late:
            self.clock.later(late, lambda: self.hand_over(frame.sender, receiver, frame))
            return
        self.hand_over(frame.sender, receiver, frame)
        if frame.kind in MESSAGES and (frame.sender, receiver, frame.place) in self.faults.duplicated:
            self.hand_over(frame.sender, receiver, frame)

    def hand_over(self, stream: MemberNumber, receiver: MemberNumber, frame: Frame) -> None:
        """Give a member what came over the connection of another."""
        with self._lock:
            links = self._up.get(receiver)
            if links is None:
                return
            try:
                for one in links.reader().feed(frame.encode()):
                    links.arrived(stream, one)
            except Refused as refusal:
                key = (receiver, refusal.reason)
                self.refused[key] = self.refused.get(key, 0) + 1

    def kill_if_scripted(self, links: MemoryLinks, place: Place, *, after_sending: bool) -> None:
        """End the process of a member here if the faults say so, once."""
        fault = (links.rules.member, place, after_sending)
        if fault in self.faults.killed - self._fired:
            self._fired.add(fault)
            self.disconnect(links)
            raise Killed(f"member {links.rules.member} was killed at {place}")


class MemoryLinks(Links):
    """The links of one member, over a network in memory."""

    def __init__(
        self,
        rules: LinkRules,
        network: MemoryNetwork,
        *,
        at: Place = FIRST,
        seen: Mapping[MemberNumber, Receipt] = NOTHING_SEEN,
    ) -> None:
        super().__init__(rules, at=at, seen=seen, receipt_key=bytes([rules.member]), clock=network.clock)
        self._network = network

    def __enter__(self) -> Self:
        self._network.connect(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._network.disconnect(self)

    def send(self, place: Place, payloads: Mapping[MemberNumber, bytes]) -> None:
        """As every endpoint does, unless this member is killed before or after it."""
        self._network.kill_if_scripted(self, place, after_sending=False)
        super().send(place, payloads)
        self._network.kill_if_scripted(self, place, after_sending=True)

    def transmit(self, neighbour: MemberNumber, frame: Frame) -> None:
        """Count the bytes, and let the network carry the frame."""
        self.wire_bytes += len(frame.header()) + len(frame.payload)
        self._network.carry(frame, neighbour)
