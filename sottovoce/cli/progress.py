"""What a command does and how far it is: on a terminal one line that is written anew, elsewhere a line now and then."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sottovoce.cli.output import print_message, show_status, verbosity
from sottovoce.support.progress import progress_heard

INTERVAL = 10.0
"""Seconds between two lines where stderr is no terminal, and before the first."""

PATIENCE, BLINK = 2.0, 1.0
"""Seconds after which a terminal shows what is done, and after which it looks again."""


@dataclass
class Activity:
    """What a command does, since when, and how far it is, once it says so; parts of it are counted one by one.

    `note` is what to say beside a number of things that are done.
    """

    what: str
    part: str = ""
    note: Callable[[int], str] | None = None
    begun: float = field(default_factory=time.monotonic)
    done: int = 0
    total: int = 0
    """How much of the part there is; 0 where nobody knows."""
    counts: bool = False
    """Whether the whole is counted, and its parts are not told of any more."""

    def tell(self, done: int, total: int) -> None:
        """So much of the whole is done."""
        self.counts, self.part, self.done, self.total = True, "", done, total

    def hear(self, part: str, done: int, total: int) -> None:
        """So much of a part is done."""
        if not self.counts:
            self.part, self.done, self.total = part, done, total

    def line(self) -> str:
        """How far it is, in one line."""
        how_far = f"{self.done:,} of {self.total:,}" if self.total else ""
        reached = " ".join(filter(None, (self.part, how_far)))
        beside = self.note(self.done) if self.note is not None and self.counts else ""
        elapsed = f"{time.monotonic() - self.begun:.0f} s"
        return f"sotto: {self.what}: {', '.join(filter(None, (reached, beside, elapsed)))}"


_activities: list[Activity] = []
"""What this process does: the last is a part of those before it."""


@contextmanager
def activity(what: str, *, first: str = "", note: Callable[[int], str] | None = None) -> Iterator[Activity]:
    """Work that is told of until it is done; without a name, work that another process tells of.

    `first` is the part that is done before anything is counted. With --verbose, it is printed how long all took.
    """
    work = Activity(what, first, note)
    _activities.append(work)
    try:
        with progress_heard(work.hear):
            yield work
    finally:
        _activities.pop()
        show_status("")
    if verbosity.verbose and what:
        print_message(f"sotto: {what}: {time.monotonic() - work.begun:.2f} s")


@contextmanager
def narrated(command: str) -> Iterator[None]:
    """A command that tells what it does while it takes long, also where that does not tell how far it is."""
    if verbosity.quiet or sys.stderr is None or os.environ.get("RANK", "0") != "0":
        yield
        return
    ended, on_terminal = threading.Event(), sys.stderr.isatty()

    def tell() -> None:
        while not ended.wait(BLINK if on_terminal else INTERVAL):
            now = _activities[-1]
            if now.what and not on_terminal:
                print_message(now.line())
            elif now.what and time.monotonic() - now.begun > PATIENCE:
                show_status(now.line().removeprefix("sotto: "))

    teller = threading.Thread(target=tell, daemon=True)
    _activities.append(Activity(command))
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        _activities.pop()
        show_status("")
