"""How commands print: one document or table on stdout; progress and messages on stderr, more or fewer of them."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from sottovoce.cli.progress_lines import Activity, activity, lines_written
from sottovoce.cli.terminal import print_line, print_message
from sottovoce.support.processes import ends_when_stopped
from sottovoce.support.progress import progress_heard
from sottovoce.support.text import table_text, visible

Table = list[list[str]]

PATIENCE = 2.0
"""Seconds after which progress is shown."""

CLEAR_LINE = "\r\x1b[2K\x1b[?25h"
"""What a terminal needs when progress is shown no more: an empty line, and the cursor that a bar hides."""


SHORTEST_BAR, LONGEST_BAR = 4, 40
"""Characters of a bar: the longest unless the words beside it leave less room."""


@dataclass
class Verbosity:
    """What is printed on stderr besides errors: `quiet` nothing, `verbose` also each step and how long it takes."""

    quiet: bool = False
    verbose: bool = False
    csv: bool = False
    """Tables go to stdout as CSV, and sentences beside them to stderr."""

    @property
    def shows_progress(self) -> bool:
        """Whether stderr is a terminal on which progress may be shown."""
        return not self.quiet and sys.stderr.isatty()


verbosity = Verbosity()
"""The verbosity of the command that runs; set by the options before its name."""


def answer(document: Mapping[str, object], as_json: bool, table: Table, *after: str) -> None:
    """All that a command prints on stdout: a JSON document, or a table, its first row the heading, and lines below."""
    if as_json:
        print_line(json.dumps(document))
        return
    show(table)
    for line in after:
        print_sentence(line)


def print_sentence(line: str = "") -> None:
    """A line below a table."""
    if not verbosity.csv:
        print_line(line)
    elif line:
        print_note(line)


def show_findings(findings: Sequence[str], as_json: bool) -> None:
    """What speaks against a run, on stdout and before everything else; a JSON document holds it by itself."""
    for line in () if as_json else findings:
        print_sentence(f"Finding: {line}")


def show(table: Table) -> None:
    """A table as wide as it has to be: a figure is never cut off. Or as CSV."""
    if verbosity.csv:
        rows = table if any(table[0]) else table[1:]
        print_line(table_text([[visible(cell) for cell in row] for row in rows]).rstrip("\n"))
        return
    for line in aligned(table):
        print_line(line)


def aligned(table: Table) -> list[str]:
    """The lines of a table, numbers and short words to the right."""
    heading, *rows = table = [[visible(cell) for cell in row] for row in table]
    widths = [max(len(row[column]) for row in table) for column in range(len(heading))]
    right = [
        number > 0 and all(row[number][:1].isdigit() or len(row[number]) < 12 for row in rows)
        for number in range(len(heading))
    ]
    lines = []
    for row in table if any(heading) else rows:
        cells = (
            cell.rjust(width) if figures else cell.ljust(width)
            for cell, width, figures in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def facts(values: Mapping[str, object]) -> Table:
    """A table of names and values, without a heading."""
    return [["", ""], *([key.replace("_", " "), short(value)] for key, value in values.items())]


def short(value: object) -> str:
    """A value for reading."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_note(line: str) -> None:
    """A message beside the answer."""
    if not verbosity.quiet:
        print_message(line)


@contextmanager
def telling_when_stopped(words: Callable[[], str], *, at_once: bool = True) -> Iterator[None]:
    """On Ctrl-C says what was done until then, and what is kept of it.

    What is in the middle of a long computation then is left there, and the process ends; not where something has to
    be saved first, which is not done `at_once`.
    """

    def last_words() -> str:
        cleared = CLEAR_LINE if verbosity.shows_progress else ""
        return cleared + ("" if verbosity.quiet else f"sotto: {visible(words())}\n")

    try:
        with ends_when_stopped(last_words=last_words) if at_once else nullcontext():
            yield
    except KeyboardInterrupt:
        print_note(f"sotto: {words()}")
        raise


@contextmanager
def show_elapsed(what: str) -> Iterator[Activity]:
    """During work of unknown length: shows on a terminal how long it has taken, once that is two seconds.

    Also how far it is, where those who do it count. Yields what was heard of that.
    """
    with _timed(what) as work, progress_heard(work.hear):
        if not verbosity.shows_progress:
            yield work
            return
        done = threading.Event()
        ticker = threading.Thread(target=_tick, args=(work, done), daemon=True)
        ticker.start()
        try:
            yield work
        finally:
            done.set()
            ticker.join()


def _tick(work: Activity, done: threading.Event) -> None:
    wait, shown = PATIENCE, ""
    while not done.wait(wait):
        line = work.line().removeprefix("sotto: ")
        print_message(line.ljust(len(shown)), end="\r")
        wait, shown = 1.0, line
    if shown:
        print_message(" " * len(shown), end="\r")


@contextmanager
def _timed(what: str) -> Iterator[Activity]:
    """Some work that lines on stderr tell of; prints with --verbose how long it took."""
    with activity(what) as work:
        yield work
    if verbosity.verbose:
        print_message(f"sotto: {what}: {time.monotonic() - work.begun:.2f} s")


@contextmanager
def narrated(command: str) -> Iterator[None]:
    """Where stderr is no terminal: a line now and then while a command takes long."""
    if verbosity.quiet or sys.stderr is None or sys.stderr.isatty() or os.environ.get("RANK", "0") != "0":
        yield
        return
    with activity(command), lines_written(print_message):
        yield


@contextmanager
def progress(
    what: str, *, rate: bool = False, first: str = "", note: Callable[[int], str] | None = None
) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, on request with rounds a second and a note; where it is no terminal, lines.

    `first` is what is done before anything is counted, unless those who do it say what it is.
    """
    with _timed(what) as work, progress_heard(_until_counted(work)), _bar(work, partial(_pace, work, rate, note)):
        work.part = first
        yield work.tell


def _until_counted(work: Activity) -> Callable[[str, float, int], None]:
    """Hears of what comes before anything of the whole is counted; what is a part of that is not told of."""

    def hear(part: str, done: float, total: int) -> None:
        if work.part or not work.total:
            work.hear(part, done, total)

    return hear


def _pace(work: Activity, rate: bool, note: Callable[[int], str] | None) -> str:
    """How fast the whole is, where that is asked for, and a note about how far it is."""
    if work.part or not work.total:
        return ""
    pace = "" if not rate or work.rate is None else f"{work.rate:.1f} rounds/s"
    return ", ".join(filter(None, (pace, "" if note is None else note(int(work.done)))))


@contextmanager
def progress_kept(what: str, kept: Callable[[int], str]) -> Iterator[Callable[[int, int], None]]:
    """`progress`; on Ctrl-C says how far it was, and what is kept of so many."""
    reached, count = f"before the first of the {what}", 0

    def both(done: int, total: int) -> None:
        nonlocal reached, count
        reached, count = f"after {done:,} of {total:,} {what}", done
        tell(done, total)

    with telling_when_stopped(lambda: f"stopped {reached}. {kept(count)}"), progress(what) as tell:
        yield both


@contextmanager
def _bar(work: Activity, note: Callable[[], str]) -> Iterator[None]:
    """On a terminal: what is done, a bar, how much of it, and a note, as the activity tells them."""
    if not verbosity.shows_progress:
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task
    from rich.progress_bar import ProgressBar
    from rich.table import Column
    from rich.text import Text

    console = Console(stderr=True)

    class Words(ProgressColumn):
        def __init__(self, words: Callable[[], str]) -> None:
            self._words = words
            super().__init__(Column(no_wrap=True))

        def render(self, task: Task) -> Text:
            return Text(self.text)

        @property
        def text(self) -> str:
            return visible(self._words())

    class Bar(ProgressColumn):
        def render(self, task: Task) -> ProgressBar:
            room = console.width - sum(len(column.text) + 1 for column in (before, after))
            total = work.total or None
            width = max(SHORTEST_BAR, min(LONGEST_BAR, room))
            return ProgressBar(total, work.done, width=width, pulse=total is None, animation_time=task.get_time())

    before = Words(lambda: ": ".join(filter(None, (work.what, work.part))))
    after = Words(lambda: ", ".join(filter(None, (work.how_far, note()))))
    with Progress(before, Bar(), after, console=console, transient=True) as bar:
        bar.add_task(work.what, total=None)
        yield


@contextmanager
def gap_shown(target: float) -> Iterator[Callable[[float], None]]:
    """The gap on stderr while a search takes longer than two seconds; where it is no terminal, for its lines."""
    shown = verbosity.shows_progress

    reached = math.inf

    def tell(gap: float) -> None:
        nonlocal reached
        reached = gap
        work.part = f"gap {gap:.2e}, until {target:g}"
        if shown and time.monotonic() - work.begun > PATIENCE:
            print_message(f"gap {gap:.2e}, until {target:g}   ", end="\r")

    with _timed("search for the best correlation") as work, telling_when_stopped(lambda: _stopped_at(reached)):
        try:
            yield tell
        finally:
            if shown:
                print_message(" " * 40, end="\r")


def _stopped_at(gap: float) -> str:
    if not math.isfinite(gap):
        return "stopped before a first solution. Nothing is kept."
    return f"stopped at a gap of {gap:.1e}. Nothing is kept; --gap {_rounded_up(gap)} ends there."


def _rounded_up(gap: float) -> str:
    """A gap with two digits, not below it."""
    text = f"{gap:.1e}"
    return text if float(text) >= gap else f"{gap * 1.05:.1e}"
