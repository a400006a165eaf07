"""An event loop in a thread of its own, for what has to go on while the round loop computes or waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

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
