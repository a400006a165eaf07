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
    """What a command does, since when, and how far it is, once it says so; parts of it are counted one by one."""

    what: str
    part: str = ""
    begun: float = field(default_factory=time.monotonic)
    finished: list[str] = field(default_factory=list)
    done: float = 0.0
    total: int = 0
    """How much of the part there is; 0 where nobody knows."""
    _counted_since: tuple[float, float] = (0.0, 0.0)

    def tell(self, done: int, total: int) -> None:
        """So much of it is done."""
        self.hear("", done, total)

    def hear(self, part: str, done: float, total: int) -> None:
        """So much of a part is done, or of work on all of it."""
        if (part, total) != (self.part, self.total):
            self._counted_since = time.monotonic(), done
        self.part, self.done, self.total = part, done, total
        if total and done == total and part:
            self.finished.append(part)

    @property
    def unfinished(self) -> tuple[str, str] | None:
        """The part at hand and how far it is; None between two parts."""
        return (self.part, self.how_far) if self.total and self.part and self.part not in self.finished else None

    @property
    def how_far(self) -> str:
        """How many are done of how many, or the share that work on all of them is worth; empty if nobody knows."""
        if not self.total:
            return ""
        if self.done != int(self.done):
            return f"{int(100 * self.done / self.total)} %"
        return f"{int(self.done):,} of {self.total:,}"

    @property
    def rate(self) -> float | None:
        """How much was done in a second; None before anything was."""
        since, first = self._counted_since
        passed = time.monotonic() - since
        return (self.done - first) / passed if self.done > first and passed > 0 else None

    def line(self) -> str:
        """How far it is, in one line."""
        reached = " ".join(filter(None, (self.part, self.how_far)))
        elapsed = f"{time.monotonic() - self.begun:.0f} s"
        return f"sotto: {self.what}: {', '.join(filter(None, (reached, elapsed)))}"


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
