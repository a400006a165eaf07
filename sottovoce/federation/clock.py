"""The clock that deadlines are kept by, which tests replace."""

from __future__ import annotations

import time
from threading import Condition
from typing import Protocol


class Clock(Protocol):
    """Time, and waiting for a change until some time. Conditions are used with the lock that they bring along held."""

    def condition(self) -> Condition:
        """A new condition, with its lock."""

    def now(self) -> float:
        """Seconds since some moment."""

    def wait(self, changed: Condition, seconds: float) -> None:
        """Wait for a change, no longer than this."""

    def notify(self, changed: Condition) -> None:
        """Wake whoever waits for this change."""


class MonotonicClock:
    """The clock of the machine, which no change of its time of day moves."""

    def condition(self) -> Condition:
        return Condition()

    def now(self) -> float:
        return time.monotonic()

    def wait(self, changed: Condition, seconds: float) -> None:
        changed.wait(seconds)

    def notify(self, changed: Condition) -> None:
        changed.notify_all()
