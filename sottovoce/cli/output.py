"""How commands answer: one document or table on stdout, progress on stderr."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

Table = list[list[str]]


def answer(document: dict[str, Any], as_json: bool, table: Table, *after: str) -> None:
    """All that a command prints on stdout: a JSON document, or a table, its first row the heading, and lines below."""
    if as_json:
        typer.echo(json.dumps(document))
        return
    show(table)
    for line in after:
        typer.echo(line)


def show(table: Table) -> None:
    """A table as wide as it has to be: a figure is never cut off."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table as Columns

    shown = Columns(box=None, show_header=any(table[0]), pad_edge=False)
    for number, heading in enumerate(table[0]):
        figures = number > 0 and all(row[number][:1].isdigit() or len(row[number]) < 12 for row in table[1:])
        shown.add_column(heading, justify="right" if figures else "left", no_wrap=True)
    for row in table[1:]:
        shown.add_row(*row)
    console = Console(highlight=False)
    console.width = max(console.width, Measurement.get(console, console.options.update(max_width=9999), shown).maximum)
    console.print(shown)


def facts(values: dict[str, Any]) -> Table:
    """A table of names and values, without a heading."""
    return [["", ""], *([key.replace("_", " "), short(value)] for key, value in values.items())]


def short(value: Any) -> str:
    """A value for reading."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@contextmanager
def progress(what: str, *, rate: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr with remaining time, and rounds a second on request; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, begun = Console(stderr=True), time.monotonic()
    speed = (TextColumn("{task.fields[speed]}"),) if rate else ()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), *speed, TimeRemainingColumn())
    first: list[int] = []

    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None, speed="")

        def tell(done: int, total: int) -> None:
            first.append(done) if not first else None
            per_second = (done - first[0]) / max(time.monotonic() - begun, 1e-9)
            bar.update(task, completed=done, total=total, speed=f"{per_second:.1f} rounds/s")

        yield tell


@contextmanager
def gap_shown(target: float) -> Iterator[Callable[[float], None]]:
    """The gap on stderr while a search takes longer than two seconds; nothing where stderr is no terminal."""
    from rich.console import Console

    console, begun = Console(stderr=True), time.monotonic()

    def tell(gap: float) -> None:
        if console.is_terminal and time.monotonic() - begun > 2:
            console.print(f"gap {gap:.2e}, until {target:g}   ", end="\r", highlight=False)

    try:
        yield tell
    finally:
        if console.is_terminal:
            console.print(" " * 40, end="\r")
