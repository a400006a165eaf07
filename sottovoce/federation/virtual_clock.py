"""A clock for rehearsing faults: time stands still while anybody works, and moves on when all wait.

So a patience of an hour takes no time, and what happens does not depend on how busy the machine is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Condition, RLock
from typing import TypeVar

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
