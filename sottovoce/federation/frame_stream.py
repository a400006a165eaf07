"""Frames over a stream of gRPC, in chunks.

Whoever sends fills every chunk of a frame but the last. A receiver refuses others, so that nobody can keep it busy with
a byte at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sottovoce.federation.frames import Frame, FrameReader, Reason, Refused
from sottovoce.federation.secure_grpc import grpc

CHUNK = 1 << 21
"""Bytes of a full chunk."""


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
