"""When a run saves and when it stops: rank 0 decides by its clock, and all ranks do it after the same round."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from sottovoce.distributed.coordinator import Coordinator
from sottovoce.support.processes import STOPPING_SIGNALS

WRITING_TIMES = 20
"""Checkpoints are at least so many times further apart than one takes to write."""

DECISION_SECONDS = 0.1
"""Ranks decide together about so many seconds apart whether to go on: after each round it would cost much where rounds
are short."""

DECISION_ROUNDS = 1000
"""They decide at least every so many rounds."""


class Action(IntEnum):
    """What to do after a round. Where ranks differ the largest counts."""

    CONTINUE = 0
    SAVE = 1
    STOP = 2
    TERMINATE = 3


class CheckpointSchedule:
    """Asked after each round. An interrupt that reaches one rank stops all, after their next common decision."""

    def __init__(self, coordinator: Coordinator, seconds: float, rounds: int, first_round: int) -> None:
        self._coordinator, self._seconds, self._rounds = coordinator, seconds, rounds
        self._first_round, self._next_decision = first_round, 0
        self._begun = self._saved = time.monotonic()
        self._writing_seconds = 0.0
        self._wanted = Action.CONTINUE

    def after(self, rounds: int) -> Action:
        """What to do after so many rounds."""
        if rounds == self._rounds:
            return Action.SAVE
        if rounds < self._next_decision:
            return Action.CONTINUE
        interval = max(self._seconds, WRITING_TIMES * self._writing_seconds)
        own = Action.SAVE if time.monotonic() - self._saved >= interval else Action.CONTINUE
        return own if self._coordinator.size == 1 else self._decide(own, rounds, interval)

    def _decide(self, own: Action, rounds: int, interval: float) -> Action:
        """Rank 0 decides by its clock when to save and when to decide again; any rank may stop all."""
        skipped = 1
        if self._coordinator.rank == 0:
            skipped = self._rounds_until_decision(rounds, interval)
        else:
            own = Action.CONTINUE
        action, skipped = self._coordinator.maximum(max(self._wanted, own), skipped)
        self._next_decision = rounds + skipped
        return Action(action)

    def _rounds_until_decision(self, rounds: int, interval: float) -> int:
        seconds_a_round = (time.monotonic() - self._begun) / max(1, rounds - self._first_round)
        wanted = min(DECISION_SECONDS, interval / 10) / max(seconds_a_round, 1e-6)
        return int(min(DECISION_ROUNDS, max(1.0, wanted)))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A checkpoint is being written."""
        started = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._writing_seconds = self._saved - started

    @contextmanager
    def interrupts_deferred(self) -> Iterator[None]:
        """One of several ranks does not stop by itself when it is interrupted or terminated: all stop together."""
        if self._coordinator.size == 1 or threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {kind: signal.signal(kind, self._note_interrupt) for kind in STOPPING_SIGNALS}
        try:
            yield
        finally:
            for kind, handler in handlers.items():
                signal.signal(kind, handler)

    def _note_interrupt(self, kind: int, _: object) -> None:
        self._wanted = max(self._wanted, Action.TERMINATE if kind == signal.SIGTERM else Action.STOP)
