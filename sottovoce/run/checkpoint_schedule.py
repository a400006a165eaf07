"""When a run saves and when it stops: rank 0 decides by its clock, and all ranks do it after the same round."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sottovoce.distributed.coordinator import Coordinator

PATIENCE = 20
"""Checkpoints are at least so many times further apart than one takes to write."""

ASK = 0.1
"""Ranks ask each other about so many seconds apart whether to go on: each time would cost where rounds are short."""

MOST = 1000
"""They ask at least every so many rounds."""

GO, SAVE, STOP = range(3)


class CheckpointSchedule:
    """Asked after each round. An interrupt that reaches one rank stops all, after the round they ask next."""

    def __init__(self, coordinator: Coordinator, seconds: float, rounds: int, first: int) -> None:
        self._team, self._seconds, self._rounds = coordinator, seconds, rounds
        self._first, self._next = first, 0
        self._begun = self._saved = time.monotonic()
        self._took = 0.0
        self._interrupted = False

    def after(self, rounds: int) -> int:
        """What to do after so many rounds."""
        if rounds == self._rounds:
            return SAVE
        if rounds < self._next:
            return GO
        wait = max(self._seconds, PATIENCE * self._took)
        act = SAVE if time.monotonic() - self._saved >= wait else GO
        if self._team.size > 1:
            own = (act, self._ahead(rounds, wait)) if self._team.rank == 0 else (GO, 1)
            act, ahead = self._team.most(STOP if self._interrupted else own[0], own[1])
            self._next = rounds + ahead
        return act

    def _ahead(self, rounds: int, wait: float) -> int:
        """After how many rounds to ask again."""
        each = (time.monotonic() - self._begun) / max(1, rounds - self._first)
        return int(min(MOST, max(1.0, min(ASK, wait / 10) / max(each, 1e-6))))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A checkpoint is being written."""
        started = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._took = self._saved - started

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """One of several ranks does not stop by itself when it is interrupted, or told to end: it asks the others."""
        if self._team.size == 1 or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {kind: signal.signal(kind, self._note) for kind in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for kind, old in before.items():
                signal.signal(kind, old)

    def _note(self, *_: Any) -> None:
        self._interrupted = True
