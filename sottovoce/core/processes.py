"""Processes that this one starts: they end with it, whatever ends it, and signals wait while they start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a process to save what it has and to end."""


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Signals that stop wait until all processes are started; in these, which inherit that, until `unblock_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals() -> None:
    """In a process that was started: from here on signals arrive, with those that came before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)


def end_with_parent(pipe: int) -> None:
    """End this process when a pipe closes whose other end only its parent holds: also a parent that was killed."""

    def wait_for_parent() -> None:
        wait([pipe])
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
