"""Progress where stderr is no terminal: a plain line now and then, so that no command is silent for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sottovoce.support.limits import duration_text

INTERVAL = 10.0
"""Seconds between two lines, and before the first."""


MEASURED = 5.0
"""Seconds of work that a remaining time is told from at least: from less it is often far off."""

RECENT = 120.0
"""Seconds back to which work tells how fast the rest is, or half of its time so far if that is less."""

SAMPLED = 0.2
"""Seconds between two moments of which it is remembered how much was done."""


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
    _is_share: bool = False
    _moments: deque[tuple[float, float]] = field(default_factory=deque)
    _last: tuple[float, float] = (0.0, 0.0)

    def tell(self, done: int, total: int) -> None:
        """So much of it is done."""
        self.hear("", done, total)

    def hear(self, part: str, done: float, total: int) -> None:
        """So much of a part is done, or of work on all of it. What is begun anew is measured anew."""
        anew = part != self.part or total != self.total or done < self.done
        self.part, self._is_share = part, False
        self._reach(done, total, anew=anew)
        if total and done == total and part:
            self.finished.append(part)

    def hear_share(self, words: str, share: float) -> None:
        """So great a share of all of it is done; words say what is at hand."""
        self.part, self._is_share = words, True
        self._reach(share, 1, anew=not self.total)

    def _reach(self, done: float, total: int, *, anew: bool) -> None:
        now = time.monotonic()
        if anew or not self._moments:
            self._moments = deque([(now, done)])
        elif done > self.done and now - self._moments[-1][0] > SAMPLED:
            self._moments.append((now, done))
        if anew or done != self.done:
            self._last = now, done
        self.done, self.total = done, total
        window = min(RECENT, max(MEASURED, (now - self.begun) / 2))
        while len(self._moments) > 1 and self._moments[1][0] < now - window:
            self._moments.popleft()

    @property
    def unfinished(self) -> tuple[str, str] | None:
        """The part at hand and how far it is; None between two parts."""
        return (self.part, self.how_far) if self.total and self.part and self.part not in self.finished else None

    @property
    def how_far(self) -> str:
        """How many are done of how many, or the share that work on all of them is worth; empty if nobody knows."""
        if not self.total:
            return ""
        if self._is_share or self.done != int(self.done):
            return f"{int(100 * self.done / self.total)} %"
        return f"{int(self.done):,} of {self.total:,}"

    @property
    def rate(self) -> float | None:
        """How much was done in a second lately; None before anything was."""
        if not self._moments:
            return None
        (since, first), (at, done) = self._moments[0], self._last
        return (done - first) / (at - since) if done > first and at > since else None

    @property
    def left(self) -> float | None:
        """Seconds that the rest of what is counted takes at this pace; None if too little was measured to tell.

        The pace is that of what was done: while nothing more is, the seconds that are left become fewer, not more.
        """
        if self.rate is None or self._last[0] - self._moments[0][0] < MEASURED:
            return None
        left = (self.total - self.done) / self.rate - (time.monotonic() - self._last[0])
        return left if left >= 1 else None

    @property
    def left_text(self) -> str:
        """The remaining time in words; empty where it is not known."""
        return "" if self.left is None else f"about {duration_text(self.left)} left"

    def line(self) -> str:
        """How far it is, in one line."""
        reached = " ".join(filter(None, (self.part, self.how_far)))
        elapsed = f"{time.monotonic() - self.begun:.0f} s"
        return f"sotto: {self.what}: {', '.join(filter(None, (reached, elapsed, self.left_text)))}"


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
