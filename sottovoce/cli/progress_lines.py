"""Progress where stderr is no terminal: a plain line now and then, so that no command is silent for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sottovoce.core.limits import duration_text

INTERVAL = 10.0
"""Seconds between two lines, and before the first."""


@dataclass
class Activity:
    """What a command does, since when, and how far it is, once it says so; parts of it are counted one by one."""

    what: str
    reached: str = ""
    begun: float = field(default_factory=time.monotonic)
    part: str = ""
    finished: list[str] = field(default_factory=list)
    _counted: tuple[float, float, float, int] | None = None

    def tell(self, done: int, total: int) -> None:
        """So much of it is done."""
        self.hear("", done, total)

    def hear(self, part: str, done: float, total: int) -> None:
        """So much of a part is done, or of work on all of it."""
        if self._counted is None or part != self.part:
            self.part, self._counted = part, (time.monotonic(), done, done, total)
        since, first, _, _ = self._counted
        self._counted = since, first, done, total
        if not total:
            self.reached = f"{part}, "
            return
        if done == total and part:
            self.finished.append(part)
        how_far = f"{int(done):,} of {total:,}" if done == int(done) else f"{int(100 * done / total)} %"
        self.reached = f"{part}{' ' * bool(part)}{how_far}, "

    @property
    def unfinished(self) -> tuple[str, float, int] | None:
        """The part at hand, and how many are done of how many, or what work on all is worth; None between two parts."""
        if self._counted is None or not self.part or self.part in self.finished:
            return None
        _, _, done, total = self._counted
        return (self.part, done, total) if total else None

    @property
    def left(self) -> float | None:
        """Seconds that the rest of what is counted takes at this pace; None before it has one."""
        if self._counted is None:
            return None
        since, first, done, total = self._counted
        return (time.monotonic() - since) * (total - done) / (done - first) if first < done < total else None

    def line(self) -> str:
        """How far it is, in one line."""
        left = "" if self.left is None else f", about {duration_text(self.left)} left"
        return f"sotto: {self.what}: {self.reached}{time.monotonic() - self.begun:.0f} s{left}"


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
