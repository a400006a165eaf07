"""A relay for members that cannot be reached: it forwards bytes between connections that both sides have opened.

Its address is that of such a member in the agreement. The member registers there and keeps that connection. Whoever
dials it shakes hands in TLS as ever, and the name in the first message says who is meant. The relay tells the member,
which opens one more connection; from then on bytes pass between the two, as they are.

TLS reaches from member to member. So a relay learns who speaks to whom, when and how much, and can do no more than
keep silent. It knows the members of its agreements: whoever registers signs a challenge with the key of its
certificate, so that nobody stands in for another. Strangers cost it a connection for a few seconds.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from sottovoce.errors import SottovoceError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.identity import Identity, has_signed, signature, tls_name
from sottovoce.federation.member import Member, check_address, split_address
from sottovoce.federation.secure_grpc import Pauses

REGISTER, ACCEPT = "sottovoce register", "sottovoce accept"
"""How lines begin that a member sends; a handshake of TLS begins otherwise."""

PATIENCE = 5.0
"""Seconds for all that is said before bytes are forwarded."""

ALIVE = 10.0
"""Seconds between two signs of life to a member that is registered; three times as long without one, it comes again."""

LOCAL = "127.0.0.1"

BUFFER = 1 << 16
"""Bytes that wait in each direction of a connection."""

MOST_CONNECTIONS, MOST_WAITING = 2000, 16
"""Of all together, and of those that wait for one member to come for them."""

HANDSHAKE, RECORD = 0x16, struct.Struct(">BHH")
ENDS = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError)
"""Whatever ends a connection of somebody who may send anything."""


@dataclass
class Relay:
    """The members of some agreements, by the names in their certificates, and what was forwarded."""

    members: dict[str, Member]
    connections: int = 0
    carried: int = 0
    _registered: dict[str, asyncio.StreamWriter] = field(default_factory=dict)
    _dialled: dict[str, tuple[str, asyncio.Future[Stream]]] = field(default_factory=dict)
    _open: int = 0

    @classmethod
    def of(cls, agreements: Iterable[Agreement]) -> Relay:
        """A relay for all members of these agreements."""
        return cls({tls_name(member): member for agreement in agreements for member in agreement.members})

    async def serve(self, address: str, began: Callable[[int], None]) -> None:
        """Forward until this process is asked to end; `began` is told the port."""
        check_address(address, "--listen")
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, over.set)
        try:
            server = await asyncio.start_server(self._met, *split_address(address), limit=BUFFER)
        except OSError as error:
            raise SottovoceError(f"cannot listen at {address}: {error.strerror}; give another --listen") from None
        began(server.sockets[0].getsockname()[1])
        try:
            await over.wait()
        finally:
            server.close()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody has connected: a member that registers or comes for a connection, or whoever dials one."""
        self._open += 1
        try:
            if self._open <= MOST_CONNECTIONS:
                with suppress(*ENDS, asyncio.CancelledError):  # a relay that ends cancels all of them
                    await self._served(Stream(reader, writer))
        finally:
            self._open -= 1
            writer.close()

    async def _served(self, stream: Stream) -> None:
        async with asyncio.timeout(PATIENCE):
            first = await stream.reader.readexactly(1)
            if first[0] == HANDSHAKE:
                header = first + await stream.reader.readexactly(RECORD.size - 1)
                hello = header + await stream.reader.readexactly(RECORD.unpack(header)[2])
                name = name_in(hello)
            else:
                words, _, name = (first.decode() + await stream.line()).rpartition(" ")
        if first[0] == HANDSHAKE:
            await self._dial(name, stream, hello)
        elif words == REGISTER:
            await self._register(name, stream)
        elif words == ACCEPT and name in self._dialled:
            _, found = self._dialled.pop(name)
            found.set_result(stream)
            await stream.over.wait()

    async def _register(self, name: str, stream: Stream) -> None:
        """Keep the connection of a member that shows its key, in place of an earlier one; another closes at once."""
        challenge, member = secrets.token_hex(32), self.members.get(name)
        stream.writer.write(f"{challenge}\n".encode())
        async with asyncio.timeout(PATIENCE):
            signed = await stream.line()
        if member is None or not has_signed(member, signed, _challenged(challenge)):
            return
        before, self._registered[name] = self._registered.get(name), stream.writer
        if before is not None:
            before.close()
        gone = asyncio.create_task(stream.reader.read(1))
        try:
            while not gone.done():
                stream.writer.write(b"\n")
                await asyncio.wait([gone], timeout=ALIVE)
        finally:
            gone.cancel()
            if self._registered.get(name) is stream.writer:
                del self._registered[name]

    async def _dial(self, name: str, stream: Stream, hello: bytes) -> None:
        """Ask a member to come for a connection, and forward between the two."""
        member, waiting = self._registered.get(name), [one for one, _ in self._dialled.values()]
        if member is None or waiting.count(name) >= MOST_WAITING:
            return
        token, found = secrets.token_hex(16), asyncio.get_running_loop().create_future()
        self._dialled[token] = name, found
        try:
            member.write(f"{token}\n".encode())
            async with asyncio.timeout(PATIENCE):
                other = await found
        finally:
            self._dialled.pop(token, None)
        self.connections += 1
        other.writer.write(hello)
        try:
            self.carried += len(hello) + await forwarded(stream, other)
        finally:
            other.over.set()


@dataclass
class Stream:
    """One connection, and whether it is over."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def line(self) -> str:
        """The next line, without its end."""
        return (await self.reader.readuntil(b"\n")).decode().rstrip("\n")


async def forwarded(one: Stream, other: Stream) -> int:
    """Forward bytes both ways until one side ends; how many there were."""
    counts = [0, 0]

    async def one_way(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*ENDS):
            while chunk := await reader.read(BUFFER):
                counts[number] += len(chunk)
                writer.write(chunk)
                await writer.drain()

    ways = [
        asyncio.create_task(one_way(0, one.reader, other.writer)),
        asyncio.create_task(one_way(1, other.reader, one.writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        for stream in (one, other):
            stream.writer.close()
    return sum(counts)


def name_in(hello: bytes) -> str:
    """The name in the first message of a TLS handshake: that of the member that is dialled.

    Whatever is no such message raises `ValueError` or `IndexError`, or names nobody.
    """
    at = RECORD.size + 4 + 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at : at + 2])
    at += 1 + hello[at] + 2
    while at + 4 <= len(hello):
        kind, length = struct.unpack_from(">HH", hello, at)
        if kind == 0:
            return hello[at + 9 : at + 4 + length].decode()
        at += 4 + length
    return ""


def _challenged(challenge: str) -> bytes:
    return f"sottovoce relay {challenge}".encode()


# --- at the member ----------------------------------------------------------------------------------------------------


async def keep_registered(identity: Identity, port: int, pauses: Pauses) -> None:
    """Stay registered at the relay whose address is this member's, and take what it forwards to a port of this machine.

    It comes again when the connection was lost.
    """
    host, there = split_address(str(identity.member.address))
    while True:
        with suppress(*ENDS):
            stream = Stream(*await asyncio.open_connection(host, there, limit=BUFFER))
            try:
                await _answer(identity, stream, port, pauses)
            finally:
                stream.writer.close()
        await asyncio.sleep(next(pauses))


async def _answer(identity: Identity, stream: Stream, port: int, pauses: Pauses) -> None:
    """Register, and come for each connection that the relay tells of."""
    member, taken = identity.member, set[asyncio.Task[None]]()
    stream.writer.write(f"{REGISTER} {tls_name(member)}\n".encode())
    async with asyncio.timeout(PATIENCE):
        challenge = await stream.line()
    stream.writer.write(f"{signature(identity, _challenged(challenge))}\n".encode())
    try:
        while True:
            async with asyncio.timeout(3 * ALIVE):
                token = await stream.line()
            pauses.reset()
            if token and len(taken) < MOST_CONNECTIONS:
                task = asyncio.create_task(_come(str(member.address), token, port))
                taken.add(task)
                task.add_done_callback(taken.discard)
    finally:
        for task in taken:
            task.cancel()


async def _come(relay: str, token: str, port: int) -> None:
    """Take one connection from the relay to this member's own port."""
    with suppress(*ENDS):
        away = Stream(*await asyncio.open_connection(*split_address(relay), limit=BUFFER))
        away.writer.write(f"{ACCEPT} {token}\n".encode())
        here = Stream(*await asyncio.open_connection(LOCAL, port, limit=BUFFER))
        await forwarded(away, here)
