"""The lock of a run folder: one process, or one group of ranks, at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from sottovoce.errors import InputError
from sottovoce.run.layout import RunFiles
from sottovoce.support.files import explaining, make_private_folder, open_to_append
from sottovoce.support.regular_files import open_file, read_bytes

ASKING = 0.05
"""Seconds in which whoever only asks about a lock has let go of it."""


def write_token(files: RunFiles) -> str:
    """Leave a random token in the lock: a folder of the same name that another machine has for itself lacks it."""
    token = secrets.token_hex(8)
    with writing_into_run(files.lock), open_to_append(files.lock) as file:
        file.truncate(0)
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
    return token


def check_token(files: RunFiles, token: str) -> None:
    """Refuse a folder that is not the one that rank 0 has made."""
    with writing_into_run(files.lock):
        same = files.lock.exists() and read_bytes(files.lock) == token.encode()
    if not same:
        raise InputError(
            f"{files.folder}: not visible to all ranks", "all ranks write into one folder", "share it as --out"
        )


def make_folder(folder: Path) -> None:
    """Make the folder of a run, for its owner alone, and those above it."""
    with writing_into_run(folder):
        make_private_folder(folder)


def writing_into_run(path: Path) -> AbstractContextManager[None]:
    """While a file of a run is written: what the system refuses becomes one line."""
    return explaining(path, "a run writes into its folder", "use another --out")


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock now. To ask takes it for an instant, together with others who ask."""
    if not path.exists():
        return False
    with open_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock dies with its process."""
    with writing_into_run(path):
        file = open_to_append(path)  # what is written there stays, for the run that another process is at
    with file:
        if not _take_lock(file):
            raise InputError(
                f"{path.parent}: another process uses it",
                "only one run at a time can use a folder",
                "wait until the other process has ended",
            )
        yield


def _take_lock(file: IO[str]) -> bool:
    """Take the lock, if nobody has it for longer than `is_locked` does."""
    for pause in (ASKING, 0.0):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(pause)
        else:
            return True
    return False
