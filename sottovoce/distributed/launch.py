"""Ranks: which one this process is, and how as many processes of `sotto` as asked for are started on this machine.

torchrun, srun or `sotto` itself names the rank in the environment; ranks that `sotto` has started find each other by a
file.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sottovoce.errors import InputError, SottovoceError, shortened
from sottovoce.support.processes import end_with_parent, signals_blocked, signals_heard

LARGEST = 2**31 - 1

FIRST_PORT = 20_000
"""Jobs of SLURM meet at ports from here on, and below twice that."""


class Place(NamedTuple):
    """A rank, counted from 0, and how many there are."""

    rank: int
    size: int


def place_among_ranks() -> Place | None:
    """This process's place among the ranks of a run; None where it is alone."""
    _named_by_srun()
    size = whole_number("WORLD_SIZE", least=1) if "WORLD_SIZE" in os.environ else 1
    if size == 1 or "RANK" not in os.environ:
        return None
    return Place(whole_number("RANK", most=size - 1), size)


SRUN = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}


def _named_by_srun() -> None:
    """Name the rank as torchrun would, where srun has started it: the script of a job is none of its tasks."""
    if "RANK" in os.environ or not {*SRUN.values(), "SLURM_STEP_NODELIST"} <= set(os.environ):
        return
    for name, theirs in SRUN.items():
        os.environ[name] = os.environ[theirs]
    os.environ.setdefault("MASTER_ADDR", first_host(os.environ["SLURM_STEP_NODELIST"]))
    number = 31 * whole_number("SLURM_JOB_ID") + whole_number("SLURM_STEP_ID")
    os.environ.setdefault("MASTER_PORT", str(FIRST_PORT + number % FIRST_PORT))


def first_host(listed: str) -> str:
    """The first of the hosts that SLURM lists.

    >>> first_host("gpu-[003-007,12],login1"), first_host("a1,a2"), first_host("rack[2,4]n1")
    ('gpu-003', 'a1', 'rack2n1')
    """
    found = re.match(r"([^,\[\]]+)(?:\[(\w+)[-,\w]*\]([^,\[\]]*))?(?:,|$)", listed)
    if found is None:
        raise InputError(
            f"SLURM_STEP_NODELIST={shortened(listed)!r}", "ranks meet at the first host, which is not clear from this",
            "set MASTER_ADDR and MASTER_PORT",
        )  # fmt: skip
    return "".join(part or "" for part in found.groups())


def whole_number(name: str, *, least: int = 0, most: int = LARGEST) -> int:
    """The number that a variable of the environment holds."""
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise InputError(
            f"{name}={shortened(text)!r} in the environment",
            f"it is a whole number from {least} to {most}",
            f"unset {name}, or start the ranks with torchrun",
        )
    return int(text)


MEETING = "SOTTOVOCE_MEETING"
"""Environment variable: the file by which ranks find each other."""

PARENT = "SOTTOVOCE_PARENT"
"""Environment variable: the process that started them, which may be gone before they look."""

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""The network interface between them, unless GLOO_SOCKET_IFNAME names another."""

POLL_SECONDS = 0.05
"""Seconds between two looks at which ranks have ended."""

GRACE_SECONDS = 5.0
"""Seconds that the others have to end by themselves when one has failed."""


def launch(arguments: list[str], size: int) -> int:
    """Start `sotto` with these arguments as `size` ranks, wait for all, and return the code to exit with.

    Signals that stop are forwarded.
    """
    with tempfile.TemporaryDirectory(prefix="sotto-") as folder:
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            with _forwarding_signals(ranks):
                with signals_blocked():
                    ranks += [_start_rank(arguments, rank, size, Path(folder) / "meeting") for rank in range(size)]
                _wait(ranks)
        finally:
            for rank in ranks:
                with rank:  # which waits for it
                    if rank.poll() is None:
                        rank.kill()
    return _exit_code([rank.returncode for rank in ranks])


def _start_rank(arguments: list[str], rank: int, size: int, meeting: Path) -> subprocess.Popen[bytes]:
    """One rank. Nothing is written to its stdin, by which it notices that this process has ended."""
    assigned = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), MEETING: str(meeting)}
    assigned[PARENT] = str(os.getpid())
    defaults = {"GLOO_SOCKET_IFNAME": LOOPBACK, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sottovoce", *arguments]
    environment = {**defaults, **os.environ, **assigned}
    return subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.PIPE)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Until all have ended, or one has failed and the others had their time."""
    failed: float | None = None
    while None in (codes := [rank.poll() for rank in ranks]):  # of all: rank 0 may be the one that hangs
        now = time.monotonic()
        if failed is None and any(codes):
            failed = now
        if failed is not None and now - failed > GRACE_SECONDS:
            return
        time.sleep(POLL_SECONDS)


def _exit_code(codes: list[int]) -> int:
    """The code of the first rank that failed and was not killed: it has reported why.

    Rank 0 ends with 0 only after all is written, whatever befell the others after that.
    """
    if codes[0] == 0:
        return 0
    failures = [code for code in codes if code > 0]
    if not failures and any(codes):
        raise SottovoceError("a process of the run was ended from outside; go on with --resume")
    return failures[0] if failures else 0


@contextmanager
def _forwarding_signals(ranks: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Signals that stop go to the ranks, which save and end; a second one ends them at once."""
    received = []

    def forward(kind: int, _: object) -> None:
        received.append(kind)
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(kind if len(received) == 1 else signal.SIGKILL)

    with signals_heard(forward):
        yield


def is_orphaned() -> bool:
    """In a rank: whether the process that started it is gone, and with it all who would read its output."""
    return PARENT in os.environ and os.getppid() != whole_number(PARENT)


def leave_with_launcher() -> None:
    """In a rank: end when the process that started it is gone."""
    if PARENT in os.environ:
        end_with_parent(sys.stdin.fileno())
