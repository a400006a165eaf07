"""Limits on memory and time: work is estimated from sizes before it begins, and not begun unasked beyond them.

>>> check_cost("it", Cost(memory=1e6), "take a smaller one")
>>> check_cost("it", Cost(memory=1e15), "take a smaller one")
Traceback (most recent call last):
...
sottovoce.errors.InputError: it takes about 1,000 TB of memory; without --yes ... take a smaller one, or add --yes
>>> with limits_lifted():
...     check_cost("it", Cost(memory=1e15), "take a smaller one")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from sottovoce.errors import InputError
from sottovoce.support.threads import physical_memory

MEMORY_SHARE = 0.6
"""The share of free memory that is taken unasked."""

LITTLE_SHARE = 1e-3
"""Work that takes less than this share of the machine's memory is not held to how much of it is free."""

SECONDS = 600.0
"""Seconds that are taken unasked."""

_lifted = ContextVar("limits are lifted", default=False)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What some work takes: bytes of memory, and seconds of one core."""

    memory: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """One after the other."""
        return Cost(memory=max(self.memory, other.memory), seconds=self.seconds + other.seconds)


@contextmanager
def limits_lifted(lifted: bool = True) -> Iterator[None]:
    """A context in which nothing is refused for its size."""
    before = _lifted.set(lifted or _lifted.get())
    try:
        yield
    finally:
        _lifted.reset(before)


def limits_are_lifted() -> bool:
    """Whether nothing is refused for its size."""
    return _lifted.get()


def check_cost(what: str, cost: Cost, smaller: str | Callable[[], str]) -> None:
    """Refuse work that takes more memory than is free, or longer than minutes; `smaller` says what takes less.

    Where that takes time to say, it is a function, which is called for a refusal only.
    """
    if limits_are_lifted():
        return
    most = _most_memory(cost)
    if cost.memory > most:
        found, rule = f"{size_text(cost.memory)} of memory", f"{size_text(most)}, {MEMORY_SHARE:.0%} of what is free,"
    elif cost.seconds > SECONDS:
        found, rule = f"{duration_text(cost.seconds)} of one core", duration_text(SECONDS)
    else:
        return
    less = smaller() if callable(smaller) else smaller
    raise InputError(f"{what} takes about {found}", f"without --yes at most {rule} are used", f"{less}, or add --yes")


def _most_memory(cost: Cost) -> float:
    return math.inf if cost.memory <= LITTLE_SHARE * physical_memory() else MEMORY_SHARE * free_memory()


def free_memory() -> float:
    """Bytes that processes can still take, as the system says, or a container whose limit is lower."""
    try:
        _, _, rest = Path("/proc/meminfo").read_bytes().partition(b"MemAvailable:")
        free = 1024.0 * int(rest.split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):
        free = physical_memory()
    try:
        group = Path("/sys/fs/cgroup")
        most, taken = (int((group / name).read_bytes()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or one without a limit
        return free
    return min(free, float(most - taken))


def size_text(count: float) -> str:
    """Bytes in the unit that fits them.

    >>> size_text(512), size_text(20_800), size_text(13_392_864_000)
    ('512 B', '20.8 kB', '13.4 GB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    unit = next((unit for unit in range(1, 4) if count < 1000 ** (unit + 1)), 4)
    figure = count / 1000**unit
    return f"{figure:,.{0 if figure >= 1000 else 1}f} {' kMGT'[unit]}B"


def duration_text(seconds: float) -> str:
    """A time in the unit that fits it.

    >>> duration_text(0.2), duration_text(42), duration_text(600), duration_text(36_000), duration_text(1e9)
    ('1 second', '42 seconds', '10 minutes', '10 hours', '11,574 days')
    """
    if seconds < 1.5:
        return "1 second"
    for unit, length, most in (("seconds", 1, 120), ("minutes", 60, 7200), ("hours", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} days"
