"""Ranks on this machine: as many processes of `sotto` as asked for, which find each other by a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError

MEETING = "SOTTOVOCE_MEETING"
"""The file by which they find each other."""

PARENT = "SOTTOVOCE_PARENT"
"""Who started them; it may be gone before they look."""

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""Where they speak, unless GLOO_SOCKET_IFNAME says otherwise."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM)
"""Signals to whoever started them that are meant for them."""

LOOK = 0.05
"""Seconds between two looks at who has ended."""

PATIENCE = 5.0
"""Seconds that the others have to end by themselves when one has failed."""


def launch(arguments: list[str], size: int) -> int:
    """Start `sotto` with these arguments as `size` ranks, wait for all, and return the code to exit with.

    Interrupts are passed on.
    """
    with tempfile.TemporaryDirectory(prefix="sotto-") as folder:
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            with _passing_on(ranks):
                with _held_back():
                    ranks += [_started(arguments, rank, size, Path(folder) / "meeting") for rank in range(size)]
                _wait(ranks)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
    return _code([rank.returncode for rank in ranks])


def _started(arguments: list[str], rank: int, size: int, meeting: Path) -> subprocess.Popen[bytes]:
    told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), MEETING: str(meeting)}
    told[PARENT] = str(os.getpid())
    chosen = {"GLOO_SOCKET_IFNAME": LOOPBACK, "OMP_NUM_THREADS": "1"} | dict(os.environ)
    command = [sys.executable, "-m", "sottovoce", *arguments]
    return subprocess.Popen(command, env={**chosen, **told}, start_new_session=True, stdin=subprocess.DEVNULL)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Until all have ended, or one has failed and the others had their time."""
    failed: float | None = None
    while None in (codes := [rank.poll() for rank in ranks]):  # of all: rank 0 may be the one that hangs
        now = time.monotonic()
        if failed is None and any(codes):
            failed = now
        if failed is not None and now - failed > PATIENCE:
            return
        time.sleep(LOOK)


def _code(codes: list[int]) -> int:
    """What the ranks agree on; that of one that was not killed where they do not. A rank that was not has said why.

    Rank 0 ends well only after all is written, whatever befell the others after that.
    """
    if codes[0] == 0:
        return 0
    said = [code for code in codes if code > 0]
    if not said and any(codes):
        raise SottovoceError("a process of the run was ended from outside; go on with --resume")
    return said[0] if said else 0


@contextmanager
def _held_back() -> Iterator[None]:
    """Interrupts wait until all ranks are started; in a rank, which inherits that, until it listens."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listen() -> None:
    """In a rank: from here on interrupts are heard, with one that came before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


@contextmanager
def _passing_on(ranks: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Interrupts go to the ranks, which save and end; a second one ends them at once."""
    heard = []

    def pass_on(kind: int, _: Any) -> None:
        heard.append(kind)
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGINT if len(heard) == 1 else signal.SIGKILL)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, pass_on) for kind in PASSED_ON}
    try:
        yield
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)


def orphaned() -> bool:
    """In a rank: whether whoever started it is gone, and with it all who would listen."""
    return PARENT in os.environ and os.getppid() != int(os.environ[PARENT])


def leave_with_parent() -> None:
    """In a rank: end when whoever started it is gone."""
    parent = int(os.environ.get(PARENT, os.getppid()))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
