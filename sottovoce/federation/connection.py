"""One connection to a neighbour: frames are written from a queue while others are read, over a stream of gRPC.

They travel in chunks. Whoever sends fills every chunk of a frame but the last. A receiver refuses others, so that
nobody can keep it busy with a byte at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from sottovoce.federation.frames import MESSAGES, Frame, FrameReader, Kind, Reason, Refused
from sottovoce.federation.secure_grpc import CHUNK, LinkSettings, grpc
from sottovoce.ledger.payloads import Place


class StreamEnded(Exception):
    """The other side has ended the stream, or the connection is gone."""


class FrameStream:
    """One stream of gRPC, at either end. `stall` is how many seconds a chunk may take, once its frame has begun."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Any]],
        write: Callable[[bytes], Awaitable[None]],
        reader: FrameReader,
        stall: float,
    ) -> None:
        self._read, self._write, self._reader, self._stall = read, write, reader, stall
        self._received: deque[Frame] = deque()

    async def send(self, frame: Frame, *, after: Sequence[Frame] = ()) -> None:
        """Send a frame, after short ones that share its first chunk."""
        start, payload = b"".join([*(short.encode() for short in after), frame.header()]), memoryview(frame.payload)
        first = CHUNK - len(start)
        with stream_errors():
            async with asyncio.timeout(self._stall) as deadline:
                await self._write(start + payload[:first])
                for position in range(first, len(payload), CHUNK):
                    self._put_off(deadline)
                    await self._write(bytes(payload[position : position + CHUNK]))

    async def receive(self, patience: float | None = None) -> Frame:
        """The next frame; with `patience`, in so many seconds."""
        if not self._received:
            with stream_errors():
                async with asyncio.timeout(patience) as deadline:
                    while not self._complete(await self._read()):
                        self._put_off(deadline)
        return self._received.popleft()

    def _complete(self, chunk: object) -> bool:
        """Take in a chunk; whether a frame is whole with it."""
        if not isinstance(chunk, bytes):  # EOF
            raise StreamEnded("ended by the other side")
        self._received.extend(self._reader.feed(chunk))
        if not self._received and len(chunk) != CHUNK:
            raise Refused(Reason.FORMAT)
        return bool(self._received)

    def _put_off(self, deadline: asyncio.Timeout) -> None:
        """Give the next chunk its time."""
        deadline.reschedule(asyncio.get_running_loop().time() + self._stall)

    async def drain(self, patience: float) -> None:
        """Leave unread what else arrives, until the other side ends the stream; no longer than `patience` seconds."""
        with contextlib.suppress(StreamEnded), stream_errors():
            async with asyncio.timeout(patience):
                while isinstance(await self._read(), bytes):
                    pass


@contextmanager
def stream_errors() -> Iterator[None]:
    """Whatever gRPC raises for a stream that is over, as one error.

    It raises `CancelledError` also where the other side has cancelled: that must not end the task that reads here.
    """
    try:
        yield
    except TimeoutError:
        raise StreamEnded("no progress in time") from None
    except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
        raise StreamEnded("the connection is gone") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise StreamEnded("cancelled by the other side") from None


LONGEST_QUEUE = 256
"""Frames. A neighbour that asks for messages again and again and reads none of them loses its connection."""

REPEATED_SECONDS, REPEATED_BYTES = 0.005, 10_000_000
"""After a frame that brings nothing new nothing is read for so long, and a second longer for so many bytes."""


TOGETHER = 0.02
"""Seconds for which an acknowledgement that nobody waits for lets the next message catch up with it."""


class Connection:
    """An open stream to a neighbour whose certificate was recognised.

    `take` is given every frame and refuses what is not accepted; `refused` is told why, once for each reason; `greeted`
    is called after the neighbour's hello; `finish` ends the side of the stream that is written. With `talks` the
    neighbour is sent messages, too, and acknowledgements go along with them: a short chunk costs gRPC nearly as much
    work as a long one.
    """

    def __init__(
        self,
        stream: FrameStream,
        settings: LinkSettings,
        *,
        take: Callable[[Frame], None],
        refused: Callable[[Reason], None],
        greeted: Callable[[], None],
        talks: bool,
        finish: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._stream, self._settings, self._talks = stream, settings, talks
        self._take, self._refused, self._greeted, self._finish = take, refused, greeted, finish
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._queue: deque[Frame] = deque()
        self._news, self._closing = asyncio.Event(), False
        self._greeting = self.was_greeted = False
        self._newest: dict[Kind, Place] = {}
        self._reasons: set[Reason] = set()
        self._dropped: asyncio.Future[str] = self._loop.create_future()

    def put(self, frame: Frame) -> None:
        """Have a frame written soon, from any thread. The first is a hello: what comes before it is left out."""
        self._greeting = self._greeting or frame.kind is Kind.HELLO
        if not self._greeting:
            return
        self._queue.append(frame)
        if len(self._queue) > LONGEST_QUEUE:
            self._in_loop(lambda: self.drop("too many frames wait to be read there"))
        if self._talks and frame.kind is Kind.ACKNOWLEDGEMENT:
            self._in_loop(lambda: self._loop.call_later(TOGETHER, self._news.set))
        else:
            self._in_loop(self._news.set)

    def _in_loop(self, act: Callable[[], object]) -> None:
        if get_ident() == self._thread:
            act()
        else:
            self._loop.call_soon_threadsafe(act)

    async def converse(self) -> str:
        """Read and write until one of them ends, or the connection is dropped; why it did."""
        reading, writing = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        ends: list[asyncio.Future[Any]] = [reading, self._dropped]
        try:
            await asyncio.wait([*ends, writing], return_when=asyncio.FIRST_COMPLETED)
            if self._finish is not None and writing.done() and not writing.exception():
                await asyncio.wait(ends, timeout=self._settings.farewell, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and _is_disagreement(reading.exception()):
                await self._part(writing)
        finally:
            reading.cancel()
            writing.cancel()
            outcomes = await asyncio.gather(reading, writing, return_exceptions=True)
        if self._dropped.done():
            return self._dropped.result()
        failure = next((one for one in outcomes if isinstance(one, Exception)), None)
        if isinstance(failure, StreamEnded | Refused):
            return str(failure)
        return "closed" if failure is None else f"it failed with {type(failure).__name__}"

    async def _part(self, writing: asyncio.Task[None]) -> None:
        """Let a neighbour with another agreement read the hello from here, so that it knows it, too."""
        self.close()
        ends: list[asyncio.Future[Any]] = [writing, self._dropped]
        await asyncio.wait(ends, timeout=self._settings.farewell, return_when=asyncio.FIRST_COMPLETED)
        if self._finish is not None:
            await self._stream.drain(self._settings.farewell)

    def drop(self, reason: str) -> None:
        """End at once."""
        if not self._dropped.done():
            self._dropped.set_result(reason)

    def close(self) -> None:
        """End when what is in the queue was written."""
        self._closing = True
        self._news.set()

    async def _read(self) -> None:
        patience: float | None = self._settings.handshake
        while True:
            try:
                frame = await self._stream.receive(patience)
                if patience is not None and frame.kind is not Kind.HELLO:
                    raise Refused(Reason.FORMAT)
            except Refused as refusal:
                self._note(refusal.reason)
                raise
            fresh = self._accept(frame)
            if patience is not None:
                patience, self.was_greeted = None, True
                self._greeted()
            if not fresh:
                await asyncio.sleep(REPEATED_SECONDS + len(frame.payload) / REPEATED_BYTES)

    def _accept(self, frame: Frame) -> bool:
        """Hand a frame on; whether it was accepted and goes beyond the last one of its kind."""
        try:
            self._take(frame)
        except Refused as refusal:
            self._note(refusal.reason)
            return False
        newest = self._newest.get(frame.kind)
        if newest is not None and frame.place <= newest:
            return False
        self._newest[frame.kind] = frame.place
        return True

    def _note(self, reason: Reason) -> None:
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._refused(reason)

    async def _write(self) -> None:
        while True:
            while self._queue:
                short = []
                while (frame := self._queue.popleft()).kind not in MESSAGES and self._queue:
                    short.append(frame)
                await self._stream.send(frame, after=short)
            if self._closing:
                break
            self._news.clear()
            if not self._queue:
                await self._news.wait()
        if self._finish is not None:
            await self._finish()


def _is_disagreement(failure: BaseException | None) -> bool:
    return isinstance(failure, Refused) and failure.reason is Reason.AGREEMENT
