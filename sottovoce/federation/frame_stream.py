"""Frames over a stream of gRPC, in chunks.

Whoever sends fills every chunk of a frame but the last. A receiver refuses others, so that nobody can keep it busy with
a byte at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sottovoce.federation.frames import Frame, FrameReader, Reason, Refused
from sottovoce.federation.secure_grpc import grpc

CHUNK = 1 << 20
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

    async def send(self, frame: Frame) -> None:
        """Send a frame."""
        header, payload = frame.header(), memoryview(frame.payload)
        first = CHUNK - len(header)
        await self._write_chunk(header + payload[:first])
        for start in range(first, len(payload), CHUNK):
            await self._write_chunk(bytes(payload[start : start + CHUNK]))

    async def receive(self, patience: float | None = None) -> Frame:
        """The next frame; with `patience`, in so many seconds."""
        while not self._received:
            chunk = await self._read_chunk(patience)
            self._received.extend(self._reader.feed(chunk))
            if not self._received and len(chunk) != CHUNK:
                raise Refused(Reason.FORMAT)
            patience = self._stall
        return self._received.popleft()

    async def drain(self, patience: float) -> None:
        """Leave unread what else arrives, until the other side ends the stream; no longer than `patience` seconds."""
        with contextlib.suppress(StreamEnded, TimeoutError):
            async with asyncio.timeout(patience):
                while True:
                    await self._read_chunk(patience)

    async def _write_chunk(self, chunk: bytes) -> None:
        with stream_errors():
            async with asyncio.timeout(self._stall):
                await self._write(chunk)

    async def _read_chunk(self, patience: float | None) -> bytes:
        with stream_errors():
            async with asyncio.timeout(patience):
                chunk = await self._read()
        if not isinstance(chunk, bytes):  # EOF
            raise StreamEnded("ended by the other side")
        return chunk


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
