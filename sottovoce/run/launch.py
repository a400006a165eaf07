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

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""Where they speak, unless GLOO_SOCKET_IFNAME says otherwise."""

LOOK = 0.05
"""Seconds between two looks at who has ended."""

PATIENCE = 5.0
"""Seconds that the others have to end by themselves when one has failed."""


def launch(arguments: list[str], size: int) -> int:
    """Start `sotto` with these arguments as `size` ranks, wait for all, and return the code to exit with.

    Interrupts are passed on.
    """
    with tempfile.TemporaryDirectory(prefix="sotto-") as folder:
        ranks = [_started(arguments, rank, size, Path(folder) / "meeting") for rank in range(size)]
        try:
            with _passing_on(ranks):
                _wait(ranks)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
    return _code([rank.returncode for rank in ranks])


def _started(arguments: list[str], rank: int, size: int, meeting: Path) -> subprocess.Popen[bytes]:
    told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), MEETING: str(meeting)}
    chosen = {"GLOO_SOCKET_IFNAME": LOOPBACK, "OMP_NUM_THREADS": "1"} | dict(os.environ)
    command = [sys.executable, "-m", "sottovoce", *arguments]
    return subprocess.Popen(command, env={**chosen, **told}, start_new_session=True, stdin=subprocess.DEVNULL)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Until all have ended, or one has failed and the others had their time."""
    failed: float | None = None
    while any(rank.poll() is None for rank in ranks):
        now = time.monotonic()
        if failed is None and any(rank.returncode for rank in ranks):
            failed = now
        if failed is not None and now - failed > PATIENCE:
            return
        time.sleep(LOOK)


def _code(codes: list[int]) -> int:
    """What the ranks agree on; that of one that was not killed where they do not. A rank that was not has said why."""
    said = [code for code in codes if code > 0]
    if not said and any(codes):
        raise SottovoceError("a process of the run was ended from outside; go on with --resume")
    return said[0] if said else 0


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
    before = {kind: signal.signal(kind, pass_on) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)


def leave_with_parent() -> None:
    """In a rank: end when whoever started it is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
