"""The lock of a run folder: one process, or one group of ranks, at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sottovoce.core.files import make_private_folder, open_to_append, read_bytes
from sottovoce.errors import InputError
from sottovoce.run.layout import RunFiles


def write_token(files: RunFiles) -> str:
    """Leave a random token in the lock: a folder of the same name that another machine has for itself lacks it."""
    token = secrets.token_hex(8)
    try:
        with open_to_append(files.lock) as file:
            file.truncate(0)
            file.write(token)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(files.lock, error) from None
    return token


def check_token(files: RunFiles, token: str) -> None:
    """Refuse a folder that is not the one that rank 0 has made."""
    if not files.lock.exists() or read_bytes(files.lock) != token.encode():
        raise InputError(f"{files.folder}: not there for all ranks", "they write into one folder", "share it as --out")


def make_folder(folder: Path) -> None:
    """Make the folder of a run, for its owner alone, and those above it."""
    try:
        make_private_folder(folder)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", "a run needs a folder", "use another --out") from None


def unwritable(path: Path, error: OSError) -> InputError:
    """What to raise where a file of a run cannot be written."""
    return InputError(f"{path}: {error.strerror}", "a run writes into its folder", "make room, or use another --out")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock dies with its process."""
    try:
        file = open_to_append(path)  # what is written there stays, for the run that another process is at
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a run writes into its folder", "use another --out") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{path.parent}: another process is at it", "one run at a time", "wait for it") from None
        yield
