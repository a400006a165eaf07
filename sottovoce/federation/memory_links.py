"""Links between members in one process: the same frames and the same checks as over a network, with scripted faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from sottovoce.federation.endpoint import NOTHING_SEEN, Endpoint
from sottovoce.federation.faults import Faults, Killed
from sottovoce.federation.frames import MESSAGES, Frame, Reason, Refused
from sottovoce.federation.links import FIRST, MemberNumber
from sottovoce.federation.mailbox import LinkRules
from sottovoce.federation.virtual_clock import VirtualClock
from sottovoce.ledger.places import Place, Receipt


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


class MemoryLinks(Endpoint):
    """The links of one member, over a network in memory."""

    def __init__(
        self,
        rules: LinkRules,
        network: MemoryNetwork,
        *,
        at: Place = FIRST,
        seen: Mapping[MemberNumber, Receipt] = NOTHING_SEEN,
    ) -> None:
        super().__init__(rules, at=at, seen=seen, clock=network.clock)
        self._network = network
        self.wire_bytes = 0

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
