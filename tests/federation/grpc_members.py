"""Members on loopback for tests of links, and strangers that speak gRPC by hand."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sottovoce.federation.frames import Frame, Hello, Kind
from sottovoce.federation.grpc_links import GrpcLinks
from sottovoce.federation.identity import Identity
from sottovoce.federation.link_rules import LinkRules, PayloadRule
from sottovoce.federation.member import Member
from sottovoce.federation.secure_grpc import EXCHANGE, LinkSettings, dialler_credentials, grpc, method_path, name_option
from sottovoce.ledger.payloads import Place
from tests.federation.certificates import at_port, new_member

AGREEMENT = bytes(range(32))
ROUNDS, LARGEST = 1000, 100.0
PATIENCE = 20.0
"""Seconds that a test waits for what must happen, on a busy machine too."""

QUICK = LinkSettings(handshake=3.0, stall=2.0, farewell=1.0, first_pause=0.05, longest_pause=0.2)


def payload(value: float, length: int = 64) -> bytes:
    return np.full(length // 8, value, dtype=np.float64).tobytes()


def link_rules(member: int, neighbours: set[int], length: int = 64) -> LinkRules:
    rule = PayloadRule(length, np.dtype(np.float64), least=-LARGEST, largest=LARGEST)
    both = frozenset(neighbours)
    return LinkRules(AGREEMENT, member, both, both, ROUNDS, 1, rule)


class Federation:
    """Members by number, the later the smaller its fingerprint: each dials those before it, if these listen."""

    def __init__(self, folder: Path, *, listen: tuple[bool, ...], length: int = 64, settings: LinkSettings = QUICK):
        made = [new_member(folder, f"M{number}") for number in range(len(listen))]
        made.sort(key=lambda identity: identity.member.fingerprint, reverse=True)
        self.identities: list[Identity] = [
            replaced(identity, identity.member.model_copy(update={"listen": listens}))
            for identity, listens in zip(made, listen, strict=True)
        ]
        self.known: list[Member] = [identity.member for identity in self.identities]
        self.events: list[list[object]] = [[] for _ in listen]
        self.length, self.settings = length, settings

    def links(
        self, member: int, neighbours: set[int], *, settings: LinkSettings | None = None, **more: object
    ) -> GrpcLinks:
        return GrpcLinks(
            link_rules(member, neighbours, self.length), self.identities[member],
            {one: self.known[one] for one in neighbours}, report=self.events[member].append, bind="127.0.0.1:0",
            settings=settings or self.settings, **more,
        )  # fmt: skip

    def found_at(self, member: int, port: int | None) -> None:
        """From now on others know the port of a member."""
        assert port is not None
        self.known[member] = at_port(self.known[member], port)

    @contextmanager
    def pair(self) -> Iterator[tuple[GrpcLinks, GrpcLinks]]:
        """Members 0 and 1, linked; member 2 is a neighbour of 0, and is not there."""
        with self.links(0, {1, 2} if len(self.known) > 2 else {1}) as first:
            self.found_at(0, first.port)
            with self.links(1, {0}) as second:
                assert second.meet(PATIENCE) == set()
                yield first, second


def replaced(identity: Identity, member: Member) -> Identity:
    return Identity(identity.folder, member, identity.tls_key, identity.exchange_key, identity.secret)


def play(first: GrpcLinks, second: GrpcLinks, rounds: range) -> int:
    """Let members 0 and 1 exchange something in each round; in how many both heard the other."""
    whole = 0
    for round in rounds:
        place, (here, there) = Place(round, 0), (payload(round / 100), payload(-round / 100))
        first.send(place, {1: here})
        second.send(place, {0: there})
        heard = first.receive(place, {1}, PATIENCE), second.receive(place, {0}, PATIENCE)
        whole += heard == ({1: there}, {0: here})
    return whole


def until(reached: Callable[[], bool]) -> None:
    """Wait for what must happen."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def frame(kind: Kind, round: int = 0, content: bytes = b"", *, sender: int = 2, agreement: bytes = AGREEMENT) -> bytes:
    return Frame(agreement, Place(round, 0), sender, kind, content).encode()


HELLO = frame(Kind.HELLO, 0, Hello(None).encode())


class RawNeighbour:
    """Somebody who dials a member and sends whatever a test wants."""

    def __init__(self, identity: Identity, target: Member) -> None:
        options = [name_option(target), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self._channel = grpc.secure_channel(target.address, dialler_credentials(identity, target), options)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._channel.stream_stream(method_path(EXCHANGE))(iter(self._queue.get, None), timeout=PATIENCE)

    def __enter__(self) -> RawNeighbour:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._channel.close()

    def send(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self._queue.put(chunk)

    def answer(self) -> bytes | None:
        """The next chunk that is sent back; None when the member has ended the stream."""
        try:
            return next(self._call)
        except (StopIteration, grpc.RpcError):
            return None

    def ended(self) -> bool:
        """Wait until the member ends the stream."""
        while self.answer() is not None:
            pass
        return self._call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
