"""Links over a network: one stream of gRPC for each neighbour, over mutual TLS, in a thread of their own.

Whoever can opens the stream (`secure_grpc.dials`), and opens it again when it was lost. A process that uses this must
not fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Self, TypeVar

from sottovoce.errors import SottovoceError
from sottovoce.federation.connection import Connection, FrameStream, StreamEnded, stream_errors
from sottovoce.federation.events import (
    Awaited,
    Checked,
    Connected,
    Disagreed,
    FrameRefused,
    Left,
    LinkEvent,
    Lost,
    Report,
    StrangerRefused,
)
from sottovoce.federation.frames import (
    MESSAGES,
    Frame,
    FrameReader,
    KeyHashes,
    Kind,
    MemberNumber,
    Reason,
    Refused,
    differing_keys,
    encode_hashes,
    hello_in,
)
from sottovoce.federation.identity import Identity, receipt_key
from sottovoce.federation.link_rules import LinkRules
from sottovoce.federation.links import NOTHING_SEEN, Links
from sottovoce.federation.member import Member
from sottovoce.federation.member_folder import SETTINGS
from sottovoce.federation.relay import LOCAL, keep_registered
from sottovoce.federation.secure_grpc import (
    CHECK,
    COMPARE,
    EXCHANGE,
    SERVICE,
    LinkSettings,
    Pauses,
    acceptor_credentials,
    dialler_credentials,
    dials,
    grpc,
    method_path,
    name_option,
    recognise,
)
from sottovoce.ledger.payloads import FIRST, Place, Receipt

Value = TypeVar("Value")

ENDING = 10.0
"""Seconds that tasks have to end in, once they were cancelled."""


class EventLoop:
    """Coroutines for threads that have no event loop; it ends with the block that it is used in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="sottovoce-links", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, Value], timeout: float) -> Value:
        """What a coroutine returns; `TimeoutError` if that takes longer."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, timeout), self._loop).result()

    def _serve(self) -> None:
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=ENDING))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


CLOCK = struct.Struct("<d")
"""How a member tells its time: seconds since 1970."""


def version_in(greeting: bytes, rules: LinkRules) -> str:
    """The version of the package that a hello of the same agreement names."""
    frames = FrameReader(rules.agreement, rules.payload.length).feed(greeting)
    if len(frames) != 1 or frames[0].kind is not Kind.HELLO:
        raise Refused(Reason.FORMAT)
    return hello_in(frames[0]).version


LONGEST_START = 30.0
"""Seconds in which a member listens, on a busy machine too, and in which all has ended after the last frames."""

SELDOM = 1.0
"""Seconds between two reports of one kind about what a neighbour asks: it may ask as often as it likes."""

AGAIN = 60.0
"""Seconds after which it is reported again that this member waits for the same neighbours."""

NO_KEYS: KeyHashes = MappingProxyType({})


@dataclass
class Edge:
    """One neighbour: its connection, if there is one, and when it may begin another."""

    number: MemberNumber
    member: Member
    pauses: Pauses
    connection: Connection | None = None
    not_before: float = 0.0
    dialling: asyncio.Task[None] | None = None
    reported: dict[type[LinkEvent], float] = field(default_factory=dict)
    heard_at: float | None = None


class GrpcLinks(Links):
    """The links of one member over gRPC.

    `members` are the public parts of its neighbours, by number. It listens at `bind`, by default at the port of its own
    address on all interfaces, or at a loopback address itself, if it listens at all. `report` is told what happens.
    Without `exchanges` it only answers those that check: it takes no messages, which would be lost. By `key_hashes` it
    finds out in what an agreement differs that is not the same.
    """

    def __init__(
        self,
        rules: LinkRules,
        identity: Identity,
        members: Mapping[MemberNumber, Member],
        *,
        report: Report,
        bind: str | None = None,
        settings: LinkSettings | None = None,
        at: Place = FIRST,
        seen: Mapping[MemberNumber, Receipt] = NOTHING_SEEN,
        exchanges: bool = True,
        key_hashes: KeyHashes = NO_KEYS,
    ) -> None:
        super().__init__(rules, at=at, seen=seen, receipt_key=receipt_key(identity))
        self._exchanges, self._key_hashes = exchanges, key_hashes
        self._identity, self._report, self._settings = identity, report, settings or LinkSettings()
        self._bind = bind or _default_bind(str(identity.member.address))
        if self._settings.through_relay:
            self._bind = f"{LOCAL}:0"
        self._registering: asyncio.Task[None] | None = None
        self._edges = {one: Edge(one, members[one], Pauses(self._settings)) for one in sorted(rules.neighbours)}
        self._loop = EventLoop()
        self._server: grpc.aio.Server | None = None
        self._stopping = False
        self._awaited: tuple[Set[MemberNumber], float] = frozenset(), 0.0
        self.port: int | None = None

    def __enter__(self) -> Self:
        self._loop.__enter__()
        try:
            self._loop.run(self._start(), LONGEST_START)
        except BaseException:
            self._loop.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop.run(self._stop(), LONGEST_START + self._settings.farewell)
        finally:
            self._loop.__exit__()

    def transmit(self, neighbour: MemberNumber, frame: Frame) -> None:
        """Queue a frame on the connection of a neighbour."""
        connection = self._edges[neighbour].connection
        if connection is not None:
            connection.put(frame)

    def heard_at(self) -> dict[MemberNumber, float]:
        """When the last message of each neighbour arrived, in seconds since 1970."""
        return {one: edge.heard_at for one, edge in self._edges.items() if edge.heard_at is not None}

    def awaits(self, place: Place, members: Set[MemberNumber]) -> None:
        """Report for whom this member waits; if it is for the same ones in round after round, now and then."""
        now, (told, since) = time.monotonic(), self._awaited
        if members and (members != told or now >= since + AGAIN):
            self._awaited = members, now
            self._report(Awaited(tuple(sorted(members)), place.round))

    async def _start(self) -> None:
        if self._identity.member.listen:
            await self._listen()
        for edge in self._edges.values():
            if self._exchanges and dials(self._identity.member, edge.member):
                edge.dialling = asyncio.create_task(self._keep_dialling(edge))

    async def _stop(self) -> None:
        """Say what is left to say, and end every task."""
        self._stopping = True
        last: set[asyncio.Task[None]] = set()
        for edge in self._edges.values():
            if edge.connection is not None:
                edge.connection.close()
            elif edge.dialling is not None:
                edge.dialling.cancel()
            if edge.dialling is not None:
                last.add(edge.dialling)
        if self._server is not None:
            last.add(asyncio.create_task(self._server.stop(self._settings.farewell)))
        if last:
            await asyncio.wait(last)
        if self._registering is not None:
            self._registering.cancel()

    # --- whoever listens -------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        server = self._server = grpc.aio.server(options=self._settings.acceptor_options())
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(answer)
            for name, answer in (
                (EXCHANGE, self._accept), (CHECK, self._answer_check), (COMPARE, self._answer_comparison)
            )
            if self._exchanges or name != EXCHANGE
        }  # fmt: skip
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        neighbours = [edge.member for edge in self._edges.values()]
        try:
            self.port = server.add_secure_port(self._bind, acceptor_credentials(self._identity, neighbours))
        except RuntimeError:
            raise SottovoceError(
                f"cannot listen at {self._bind}: another process listens there, or it is not an address of this "
                "machine; "
                f"end that process, or give another bind in {self._identity.folder / SETTINGS}"
            ) from None
        await server.start()
        if self._settings.through_relay:
            self._registering = asyncio.create_task(keep_registered(self._identity, self.port, Pauses(self._settings)))

    async def _accept(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Carry on a stream that a neighbour has opened, unless it opens them too often."""
        edge = await self._recognised(context)
        now = time.monotonic()
        if self._stopping or now < edge.not_before or self.is_distrusted(edge.number):
            return
        edge.not_before = now + next(edge.pauses)
        # apart from the first chunk: gRPC cannot end a stream while it still sends the two together
        await context.send_initial_metadata(())
        await self._carry(edge, self._stream(context.read, context.write), None)

    async def _answer_check(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Tell a neighbour that only wants to know how things are: a hello, and the time here.

        Its own hello is read first: it leaves when it has its answer.
        """
        edge = await self._recognised(context)
        with contextlib.suppress(TimeoutError, Refused):
            async with asyncio.timeout(self._settings.handshake):
                greeting = await context.read()
            self._report_seldom(edge, Checked(edge.number, self._version_of(greeting)))
        await context.write(self.hello(edge.number).encode())
        await context.write(CLOCK.pack(time.time()))

    async def _answer_comparison(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """A neighbour with another agreement tells its hashes, and is told those from here.

        What it tells is noted first: it leaves when it has its answer, which ends this.
        """
        edge = await self._recognised(context)
        with contextlib.suppress(TimeoutError, Refused):
            async with asyncio.timeout(self._settings.handshake):
                told = await context.read()
            self._disagreement(edge, differing_keys(self._key_hashes, told))
            await context.write(encode_hashes(self._key_hashes))

    def _disagreement(self, edge: Edge, keys: tuple[str, ...]) -> None:
        if keys:
            self.differs(edge.number, keys)
            self._report_seldom(edge, Disagreed(edge.number, keys))

    def _report_seldom(self, edge: Edge, event: LinkEvent) -> None:
        """Report what a neighbour brings about, not so often that it could fill a disk with it."""
        now = time.monotonic()
        if now >= edge.reported.get(type(event), 0.0) + SELDOM:
            edge.reported[type(event)] = now
            self._report(event)

    def _version_of(self, greeting: bytes) -> str | None:
        """The version of a neighbour that checks; None under another agreement, `Refused` if it says nothing."""
        try:
            return version_in(bytes(greeting) if isinstance(greeting, bytes) else b"", self.rules)
        except Refused as refusal:
            if refusal.reason is Reason.AGREEMENT:
                return None
            raise

    async def _recognised(self, context: grpc.aio.ServicerContext) -> Edge:
        """The neighbour whose certificate a stream shows; the stream of anybody else ends here."""
        found = recognise(context.auth_context(), [edge.member for edge in self._edges.values()])
        for edge in self._edges.values():
            if edge.member is found:
                return edge
        self._report(StrangerRefused())
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a certificate of a neighbour")
        raise AssertionError("abort raises")

    # --- whoever dials ---------------------------------------------------------------------------------------------

    async def _keep_dialling(self, edge: Edge) -> None:
        while not self._stopping and not self.is_distrusted(edge.number):
            with contextlib.suppress(StreamEnded):
                await self._dial(edge)
            if not self._stopping:
                await asyncio.sleep(next(edge.pauses))

    async def _dial(self, edge: Edge) -> None:
        """Open a stream over a channel of its own, and carry it on until it ends."""
        options = [*self._settings.dialler_options(), name_option(edge.member)]
        credentials = dialler_credentials(self._identity, edge.member)
        async with grpc.aio.secure_channel(edge.member.address, credentials, options) as channel:
            call = channel.stream_stream(method_path(EXCHANGE))()
            with stream_errors():
                async with asyncio.timeout(self._settings.handshake):
                    await call.wait_for_connection()
            await self._carry(edge, self._stream(call.read, call.write), call.done_writing)
            if edge.number in self.disagreeing():
                await self._compare(edge, channel)

    async def _compare(self, edge: Edge, channel: grpc.aio.Channel) -> None:
        """Ask a neighbour with another agreement in what it differs, and tell it."""
        call = channel.stream_stream(method_path(COMPARE))()
        with stream_errors(), contextlib.suppress(Refused):
            async with asyncio.timeout(self._settings.handshake):
                await call.write(encode_hashes(self._key_hashes))
                told = await call.read()
            self._disagreement(edge, differing_keys(self._key_hashes, told))

    # --- both ------------------------------------------------------------------------------------------------------

    def _stream(self, read: Callable[[], Awaitable[Any]], write: Callable[[bytes], Awaitable[None]]) -> FrameStream:
        async def counted(chunk: bytes) -> None:
            await write(chunk)
            self.wire_bytes += len(chunk)

        return FrameStream(read, counted, self.reader(), self._settings.stall)

    async def _carry(self, edge: Edge, stream: FrameStream, finish: Callable[[], Awaitable[None]] | None) -> None:
        """Make a stream the connection of its neighbour, in place of an earlier one, until it ends."""
        connection = Connection(
            stream, self._settings, take=partial(self._take, edge),
            refused=partial(self._refused, edge), greeted=lambda: self._greeted_by(edge.number),
            talks=edge.number in self.rules.receivers, finish=finish,
        )  # fmt: skip
        if edge.connection is not None:
            edge.connection.drop("another connection took its place")
            self.lost(edge.number)
        edge.connection = connection
        self.connected(edge.number)
        began = time.monotonic()
        reason = "the connection is gone"  # gRPC cancels whoever serves a stream whose connection it has lost
        try:
            reason = await connection.converse()
        finally:
            if edge.connection is connection:
                edge.connection = None
                self.lost(edge.number)
            if connection.was_greeted and self.has_ended(edge.number):
                self._report(Left(edge.number))
            elif connection.was_greeted and not self._stopping:
                self._report(Lost(edge.number, reason))
            if time.monotonic() - began > self._settings.longest_pause:
                edge.pauses.reset()

    def _greeted_by(self, neighbour: MemberNumber) -> None:
        if version := self.version(neighbour):
            self._report(Connected(neighbour, version))

    def _take(self, edge: Edge, frame: Frame) -> None:
        """Take in a frame; whoever goes on sending forged receipts is not listened to any longer."""
        try:
            self.arrived(edge.number, frame)
            edge.heard_at = time.time() if frame.kind in MESSAGES else edge.heard_at
        except Refused:
            if edge.connection is not None and self.is_distrusted(edge.number):
                edge.connection.drop("it acknowledged messages that this member has never made")
            raise

    def _refused(self, edge: Edge, reason: Reason) -> None:
        self._report(FrameRefused(edge.number, reason))
        if reason is Reason.AGREEMENT:
            self.differs(edge.number)
        if reason is Reason.EQUIVOCATION:
            self._report(self.equivocations()[edge.number])


def _default_bind(address: str) -> str:
    """Where a member listens that does not say: on all interfaces, unless its address is the machine's own."""
    host, _, port = address.rpartition(":")
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    return address if is_loopback else f"[::]:{port}"
