"""Processes that this one starts: they end with it, whatever ends it, and signals wait while they start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a process to save what it has and to end."""

STOPPED = "stopped"
"""What a process says that was asked to end."""


class Terminated(KeyboardInterrupt):
    """A process was asked to end by SIGTERM: it saves and stops as after Ctrl-C, and ends with a code of its own."""


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Signals that stop wait until all processes are started; in these, which inherit that, until `unblock_signals`.

    Another thread may take a signal that this one blocks, and Python then calls its handler in this one all the same.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
    try:
        with signals_wait(lambda: None):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals() -> None:
    """In a process that was started: from here on signals arrive, with those that came before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)


@contextmanager
def signals_wait(stop: Callable[[], None]) -> Iterator[None]:
    """A signal that stops calls `stop`, which ends the block in its own time; then the signal does what it would have.

    Only the main thread of a process hears signals; in another one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def note(kind: int, _: object) -> None:
        received.append(kind)
        stop()

    handlers = {kind: signal.signal(kind, note) for kind in STOPPING_SIGNALS}
    try:
        yield
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
        if received:
            signal.raise_signal(received[0])


@contextmanager
def ends_when_stopped(seconds: float = 1.0, last_words: Callable[[], str] | None = None) -> Iterator[None]:
    """Around long work that leaves nothing half done: a signal that stops ends the process within about `seconds`.

    Otherwise a signal is heard when the main thread comes back from a long computation, or from waiting for threads
    that are at one. Until the time is over the signal does what it would have. `last_words` are
    lines to write before the last. Calls of LAPACK that hold Python's lock are waited for all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    heard, written = os.pipe()
    os.set_blocking(written, False)

    def watch() -> None:
        while kinds := os.read(heard, 64):
            stopping = next((kind for kind in kinds if kind in STOPPING_SIGNALS), None)
            if stopping is not None and not over.wait(seconds):
                before_that = "" if last_words is None else last_words()
                with suppress(OSError):
                    os.write(2, f"{before_that}sotto: {STOPPED}\n".encode(errors="backslashreplace"))
                os._exit(128 + stopping)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(written)
        watcher.join()
        os.close(heard)


def end_with_parent(pipe: int, tidy: Callable[[], None] = lambda: None) -> None:
    """End this process when a pipe closes whose other end only its parent holds: also a parent that was killed.

    `tidy` is called before that.
    """

    def wait_for_parent() -> None:
        wait([pipe])
        try:
            tidy()
        finally:
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
