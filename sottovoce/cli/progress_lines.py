"""Progress where stderr is no terminal: a plain line now and then, so that no command is silent for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

INTERVAL = 10.0
"""Seconds between two lines, and before the first."""


@dataclass
class Activity:
    """What a command does, since when, and how far it is, once it says so."""

    what: str
    reached: str = ""
    begun: float = field(default_factory=time.monotonic)

    def tell(self, done: int, total: int) -> None:
        """So much of it is done."""
        self.reached = f"{done:,} of {total:,}, "

    def line(self) -> str:
        """How far it is, in one line."""
        return f"sotto: {self.what}: {self.reached}{time.monotonic() - self.begun:.0f} s"


_activities: list[Activity] = []
"""What this process does: the last is a part of those before it."""


@contextmanager
def activity(what: str) -> Iterator[Activity]:
    """Work that lines tell of until it is done; without a name, work that another process tells of."""
    _activities.append(Activity(what))
    try:
        yield _activities[-1]
    finally:
        _activities.pop()


@contextmanager
def lines_written(write: Callable[[str], None]) -> Iterator[None]:
    """Every few seconds a line about what is being done, also where that does not tell how far it is."""
    ended = threading.Event()

    def write_lines() -> None:
        while not ended.wait(INTERVAL):
            now = _activities[-1] if _activities else Activity("")
            with contextlib.suppress(OSError, ValueError):  # nobody reads them
                if now.what:
                    write(now.line())

    writer = threading.Thread(target=write_lines, daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
