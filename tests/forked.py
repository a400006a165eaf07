"""Processes for tests, forked from one process that has imported everything: a fresh interpreter with torch takes
seconds, a fork none.

What a fork cannot show, that a new interpreter finds its way, is shown by the tests that start one: the ranks of
`--processes`, the workers of an interrupted sweep, and what commands import.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.context import BaseContext
from pathlib import Path

from sottovoce.support.processes import unblock_signals

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Of the process that is forked, whatever a test has changed in its own; conftest.py adds what the session has."""


@cache
def forking() -> BaseContext:
    """The context whose processes are forks of the one that has imported everything."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


class Command:
    """`sotto` in a process of its own, which leads its own session and writes to files instead of pipes."""

    def __init__(self, folder: Path, place: Path, *arguments: str, before: Callable[[], None] | None = None):
        """`before` is called in the process, when all is imported and nothing has happened."""
        self._out, self._err = folder / "out", folder / "err"
        self._out.touch()
        self._err.touch()
        self._process = forking().Process(target=_sotto, args=(place, arguments, self._out, self._err, before))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        """Its code if it has ended, as of a `subprocess.Popen`."""
        return self._process.exitcode

    def communicate(self) -> tuple[str, str]:
        """What it has printed, on stdout and stderr, when it has ended."""
        self._process.join()
        return self._out.read_text(), self._err.read_text()

    def printed(self) -> str:
        """What it has printed so far on stdout."""
        return self._out.read_text()

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended, no longer than this; whether it has."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def send_signal(self, kind: signal.Signals) -> None:
        os.kill(self.pid, kind)

    def end(self) -> None:
        """Kill it, and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _sotto(place: Path, arguments: tuple[str, ...], out: Path, err: Path, before: Callable[[], None] | None) -> None:
    os.setsid()
    for path, stream in ((out, 1), (err, 2)):
        with path.open("w") as file:
            os.dup2(file.fileno(), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unblock_signals()  # blocked where the process that is forked was itself first started while processes start
    os.chdir(place)
    sys.argv = ["sotto", *arguments]
    from sottovoce.cli import main, progress

    progress.INTERVAL = 1e6  # on a busy machine lines would come between those that tests are about
    if before is not None:
        before()
    try:
        main()
    except SystemExit as stop:
        _exit_as_interpreters_do(stop.code)


def _exit_as_interpreters_do(code: int) -> None:
    """Threads end before processes are joined; multiprocessing has it the other way round, and pools wait forever."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
