"""Regular files, read without trusting whoever put them there.

Reading waits for no pipe and no device, and follows links only where the user names the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from sottovoce.errors import InputError

LONGEST = 1 << 30
"""Bytes; a longer file that is read whole is taken for something else."""


def open_file(path: Path, *, follow_links: bool = False) -> BinaryIO:
    """Open a regular file for reading; anything else is refused without waiting for it.

    `follow_links` is for files that the user names.
    """
    found = os.stat(path, follow_symlinks=follow_links)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    if not stat.S_ISREG(found.st_mode):
        raise irregular(path, found.st_mode)
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # it was changed in between
        os.close(handle)
        raise irregular(path, found.st_mode)
    return os.fdopen(handle, "rb")


def irregular(path: Path, mode: int) -> InputError:
    """What to raise about a path that is no regular file."""
    what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    return InputError(f"{path} is {what}", "a regular file is needed here", "put the file itself in its place")


def read_bytes(path: Path, *, follow_links: bool = False) -> bytes:
    """The content of a regular file."""
    with open_file(path, follow_links=follow_links) as file:
        is_short = os.fstat(file.fileno()).st_size <= LONGEST
        content = file.read(LONGEST + 1) if is_short else b""
    if not is_short or len(content) > LONGEST:  # some files have no size, and some grow
        raise InputError(
            f"{path}: longer than {LONGEST:,} bytes", "a file of that size is not what is expected here", "check it"
        )
    return content
