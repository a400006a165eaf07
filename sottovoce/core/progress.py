"""How far work is that takes long: those who do it report, whoever shows it listens.

>>> reached = []
>>> with progress_heard(lambda what, done, total: reached.append((what, done, total))):
...     with counted("victims", 3):
...         report_progress(2)
...         report_progress(1)
>>> reached
[('victims', 0, 3), ('victims', 2, 3), ('victims', 3, 3)]
>>> report_progress(5)  # nobody listens, and nothing is counted
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Listener = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and how much there is."""

_listener: ContextVar[Listener | None] = ContextVar("who hears of progress", default=None)


@dataclass
class _Count:
    what: str
    total: int
    done: int = 0


_count: ContextVar[_Count | None] = ContextVar("what is counted", default=None)


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


def report_progress(more: int) -> None:
    """So much more is done."""
    count, listener = _count.get(), _listener.get()
    if count is not None and more and count.done == count.total:
        return
    if count is not None:
        count.done = min(count.total, count.done + more)
        if listener is not None:
            listener(count.what, count.done, count.total)
