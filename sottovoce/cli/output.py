"""How commands print: one document or table on stdout; progress and messages on stderr, more or fewer of them."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import typer

Table = list[list[str]]

PATIENCE = 2.0
"""Seconds after which progress is shown."""


@dataclass
class Verbosity:
    """What is printed on stderr besides errors: `quiet` nothing, `verbose` also each step and how long it takes."""

    quiet: bool = False
    verbose: bool = False

    @property
    def shows_progress(self) -> bool:
        """Whether stderr is a terminal on which progress may be shown."""
        return not self.quiet and sys.stderr.isatty()


verbosity = Verbosity()
"""The verbosity of the command that runs; set by the options before its name."""


def answer(document: Mapping[str, object], as_json: bool, table: Table, *after: str) -> None:
    """All that a command prints on stdout: a JSON document, or a table, its first row the heading, and lines below."""
    if as_json:
        typer.echo(json.dumps(document))
        return
    show(table)
    for line in after:
        typer.echo(line)


def show_findings(findings: Sequence[str], as_json: bool) -> None:
    """What speaks against a run, on stdout and before everything else; a JSON document holds it by itself."""
    for line in () if as_json else findings:
        typer.echo(printable(f"Finding: {line}"))


def show(table: Table) -> None:
    """A table as wide as it has to be: a figure is never cut off."""
    heading, *rows = table
    widths = [max(len(row[column]) for row in table) for column in range(len(heading))]
    right = [
        number > 0 and all(row[number][:1].isdigit() or len(row[number]) < 12 for row in rows)
        for number in range(len(heading))
    ]
    for row in table if any(heading) else rows:
        cells = (
            cell.rjust(width) if figures else cell.ljust(width)
            for cell, width, figures in zip(row, widths, right, strict=True)
        )
        typer.echo("  ".join(cells).rstrip())


def facts(values: Mapping[str, object]) -> Table:
    """A table of names and values, without a heading."""
    return [["", ""], *([key.replace("_", " "), short(value)] for key, value in values.items())]


def short(value: object) -> str:
    """A value for reading."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def size(count: float) -> str:
    """Bytes in the unit that fits them.

    >>> size(512), size(20_800), size(13_392_864_000)
    ('512 B', '20.8 kB', '13.4 GB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    unit = min(int(math.log10(count)) // 3, 4)
    return f"{count / 1000**unit:,.1f} {' kMGT'[unit]}B"


def print_note(line: str) -> None:
    """A message beside the answer."""
    if not verbosity.quiet:
        typer.echo(printable(line), err=True)


def printable(line: str) -> str:
    """A line without what a terminal might obey: it may repeat what stands in somebody else's file.

    >>> printable("data set '\\x1b[31m'")
    "data set '?[31m'"
    """
    return "".join(letter if letter.isprintable() else "?" for letter in line)


@contextmanager
def show_elapsed(what: str) -> Iterator[None]:
    """During work of unknown length: shows on a terminal how long it has taken, once that is two seconds."""
    with _timed(what):
        if not verbosity.shows_progress:
            yield
            return
        done, begun = threading.Event(), time.monotonic()
        ticker = threading.Thread(target=_tick, args=(what, begun, done), daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()


def _tick(what: str, begun: float, done: threading.Event) -> None:
    wait = PATIENCE
    while not done.wait(wait):
        typer.echo(f"{what}, {time.monotonic() - begun:.0f} s\r", err=True, nl=False)
        wait = 1.0
    if wait != PATIENCE:
        typer.echo(" " * (len(what) + 10) + "\r", err=True, nl=False)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    """Prints with --verbose how long some work took."""
    begun = time.monotonic()
    yield
    if verbosity.verbose:
        typer.echo(f"sotto: {what}: {time.monotonic() - begun:.2f} s", err=True)


@contextmanager
def progress(what: str, *, rate: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr with remaining time, and rounds a second on request; nothing where stderr is no terminal."""
    with _timed(what):
        if not verbosity.shows_progress:
            yield lambda done, total: None
            return
        with _bar(what, rate) as tell:
            yield tell


@contextmanager
def _bar(what: str, rate: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    begun = time.monotonic()
    speed = (TextColumn("{task.fields[speed]}"),) if rate else ()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *speed, TimeRemainingColumn())
    first: list[int] = []

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, speed="")

        def tell(done: int, total: int) -> None:
            first.append(done) if not first else None
            per_second = (done - first[0]) / max(time.monotonic() - begun, 1e-9)
            bar.update(task, completed=done, total=total, speed=f"{per_second:.1f} rounds/s")

        yield tell


@contextmanager
def gap_shown(target: float) -> Iterator[Callable[[float], None]]:
    """The gap on stderr while a search takes longer than two seconds; nothing where stderr is no terminal."""
    begun, shown = time.monotonic(), verbosity.shows_progress

    def tell(gap: float) -> None:
        if shown and time.monotonic() - begun > PATIENCE:
            typer.echo(f"gap {gap:.2e}, until {target:g}   \r", err=True, nl=False)

    with _timed("search for the best correlation"):
        try:
            yield tell
        finally:
            if shown:
                typer.echo(" " * 40 + "\r", err=True, nl=False)
