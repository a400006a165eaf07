"""A wire between two members that a test can cut: connections stay open, and nothing passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from sottovoce.federation.grpc_links import EventLoop


class Proxy:
    """Forwards connections from a port of its own to another, until it is cut."""

    def __init__(self, loop: EventLoop, target: int) -> None:
        self._loop, self.target = loop, target
        self._passing: asyncio.Event
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.port = loop.run(self._start(), 5)

    def cut(self) -> None:
        """From now on nothing passes; new connections get no answer."""
        self._loop.run(self._set(self._passing.clear), 5)

    def mend(self) -> None:
        self._loop.run(self._set(self._passing.set), 5)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._close(), 5)

    @staticmethod
    async def _set(change: Callable[[], None]) -> None:
        change()

    async def _start(self) -> int:
        self._passing = asyncio.Event()
        self._passing.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += [writer, back]
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:  # one that is left open complains when it is collected, in some later test
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
