"""How far work is that takes long: those who do it report, whoever shows it listens.

>>> reached = []
>>> with progress_heard(lambda what, done, total: reached.append((what, done, total))):
...     with counted("victims", 3):
...         report_progress(2)
...         report_progress(1)
>>> reached
[('victims', 0, 3), ('victims', 2, 3), ('victims', 3, 3)]
>>> report_progress(5)  # nobody listens, and nothing is counted

Where things that are counted take counted steps themselves, only the things are told of:

>>> with progress_heard(lambda what, done, total: reached.append((what, done, total))), counted("accounts", 2):
...     with next_counted(), counted("victims", 3):
...         report_progress(2)
>>> reached[3:]
[('accounts', 0, 2), ('accounts', 1, 2), ('accounts', 2, 2)]

Of some work nobody knows how much there is; what it is can be told all the same:

>>> with progress_heard(lambda what, done, total: reached.append((what, done, total))):
...     report_stage("drawing the graph")
>>> reached[6:]
[('drawing the graph', 0, 0)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""`progress(done, total)`: how far it is."""

Note = Callable[[str], None]
"""`note(line)`: something that whoever started it should know."""

Listener = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and how much there is: 0 where nobody knows."""

_listener: ContextVar[Listener | None] = ContextVar("who hears of progress", default=None)


@dataclass
class _Count:
    what: str
    total: int
    done: int = 0


_count: ContextVar[_Count | None] = ContextVar("what is counted", default=None)


def _tell(what: str, done: int, total: int) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


@contextmanager
def progress_heard(listener: Listener) -> Iterator[None]:
    """A context whose progress this listener hears of."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


@contextmanager
def counted(what: str, total: int) -> Iterator[None]:
    """A context in which `report_progress` counts up to this total, which is reached when it ends."""
    before = _count.set(_Count(what, total))
    try:
        report_progress(0)
        yield
        report_progress(total)
    finally:
        _count.reset(before)


@contextmanager
def next_counted() -> Iterator[None]:
    """A context that does the next one of what is counted, and tells of nothing else."""
    if _count.get() is None:
        yield
        return
    listener, count = _listener.set(None), _count.set(None)
    try:
        yield
    finally:
        _listener.reset(listener)
        _count.reset(count)
    report_progress(1)


def report_progress(more: int) -> None:
    """So much more is done."""
    count = _count.get()
    if count is not None and more and count.done == count.total:
        return
    if count is not None:
        count.done = min(count.total, count.done + more)
        _tell(count.what, count.done, count.total)


def report_stage(what: str) -> None:
    """What is done from here on, where nobody knows how much there is of it."""
    listener = _listener.get()
    if listener is not None and _count.get() is None:
        listener(what, 0, 0)
