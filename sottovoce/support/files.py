"""Files that are read without trusting whoever put them there, and written whole or not at all.

Reading waits for no pipe and no device, and follows links only where the user names the file. Writing replaces a link
instead of following it. Private files and folders are their owner's alone from the first byte on.

The auditor's key signs what this user computed, such as the reruns of an attack, so that nobody else's are believed:
whoever sends a folder could put reruns into it that hide a leak. The key lies outside of all folders of runs, in the
user's own state folder, and only what it has signed is used again.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import hmac
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, TextIO

from sottovoce.errors import InputError, file_error, shortened
from sottovoce.support.text import decode_text

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of what only its owner may read."""


PART = ".part"
"""How names of files end that are being written."""

ABANDONED_SECONDS = 3600
"""A part that nobody has written to for so long was left behind by a process that was killed."""

LONGEST = 1 << 30
"""Bytes; a longer file that is read whole is taken for something else."""


# --- reading ---------------------------------------------------------------------------------------------------------


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


def read_text(path: Path, rule: str, remedy: str, *, else_as: str | None = None) -> str:
    """The text of a file that the user names; `rule` and `remedy` are what a message says about a file that is none.

    What is no UTF-8 may be read in another encoding.
    """
    check_name(path)
    try:
        content = read_bytes(path, follow_links=True)
        try:
            return decode_text(content)
        except UnicodeDecodeError:
            if else_as is None or b"\0" in content:
                raise
            return content.decode(else_as)
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text", rule, remedy) from None
    except OSError as error:
        raise file_error(path, error, rule, remedy) from None


def check_name(path: str | Path) -> None:
    """Refuse a path that no file can have: with a zero byte, or half a character."""
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise InputError(f"{shortened(str(path))!r}", "no file can have this name", "name another")


# --- places ----------------------------------------------------------------------------------------------------------


def check_writable(path: Path) -> Path:
    """Where a file that the user names will be written, links followed; refused before any work where it cannot be."""
    check_name(path)
    target = Path(os.path.realpath(path))
    with explaining(path, "a file is written here", "name another"):
        _check_replaceable(target, path)
    if not path.name or not target.parent.is_dir():
        raise InputError(
            f"{path}: no such folder", "a file is written into an existing folder", "make the folder first"
        )
    return target


def _check_replaceable(target: Path, shown: Path) -> None:
    """Refuse to replace anything but a file or a link."""
    if target.exists() and not target.is_symlink() and not target.is_file():
        raise InputError(f"{shown} is not a file", "only a regular file is replaced", "name another")


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be there or cannot be written into, before any work."""
    check_name(path)
    with explaining(path, "runs are written into it", "use another --out"):
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        if there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if not there.is_dir():
        raise InputError(f"{there} is not a folder", "runs are written into a folder", "use another --out")


@contextmanager
def explaining(path: Path, rule: str, remedy: str) -> Iterator[None]:
    """Raise what the system refuses about a file as an error of the package (`errors.file_error`)."""
    try:
        yield
    except OSError as error:
        raise file_error(path, error, rule, remedy) from None


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it, that only its owner can look into; also where it is there already."""
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) != PRIVATE_FOLDER:
        folder.chmod(PRIVATE_FOLDER)


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make a folder for what the block writes; if that fails, on a full disk say, no half of it stands in the way."""
    folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def check_no_link(folder: Path) -> Path:
    """A folder inside another, which is refused where it is a link that may lead anywhere, or a file."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} is not a folder", "a link or a file in its place is not used", "remove it")
    return folder


def inside(folder: Path, path: str, *, is_folder: bool = False) -> Path | None:
    """Where a file, or a folder, of that path, or else of its name alone, lies below another; None if nowhere."""
    below = os.path.normpath(path)
    leads_out = os.path.isabs(below) or below.split(os.sep)[0] == os.pardir
    candidates = (folder / Path(path).name, *(() if leads_out else (folder / below,)))
    is_there = Path.is_dir if is_folder else Path.is_file
    return next((candidate for candidate in reversed(candidates) if is_there(candidate)), None)


# --- writing ---------------------------------------------------------------------------------------------------------


def write(path: Path, write_to: Callable[[BinaryIO], None], *, private: bool = False) -> None:
    """Write beside, then rename: a reader finds the old file or the new one, never half of it.

    A link in its place is replaced, not followed. A `private` file can be read by its owner only, from the first byte
    on.
    """
    _check_replaceable(path, path)
    part = None
    with explaining(path, "a file is written here", "name another"):
        try:
            handle, part = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.{os.getpid()}.", suffix=PART)
            with os.fdopen(handle, "wb") as file:
                write_to(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(part, PRIVATE_FILE if private else 0o666 & ~_umask())
            os.replace(part, path)
            part = None
        finally:
            if part is not None:
                Path(part).unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write bytes whole or not at all; what processes that are gone left of this file is removed."""
    _sweep_abandoned(path)

    def write_to(file: BinaryIO) -> None:
        file.write(content)

    write(path, write_to, private=private)


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write text whole or not at all."""
    write_bytes(path, text.encode(errors="backslashreplace"), private=private)


def open_to_append(path: Path) -> TextIO:
    """Open a private file that grows; a link, a pipe or a device in its place is refused."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise irregular(path, os.lstat(path).st_mode)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, PRIVATE_FILE), "a")


def sweep_parts(folder: Path) -> None:
    """Remove what processes that were killed left half-written; for whoever has the folder for itself."""
    for part in folder.glob(f"*{PART}"):
        if part.is_symlink() or part.is_file():
            part.unlink()


def _sweep_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        for part in path.parent.glob(f"{glob.escape(path.name)}.*{PART}"):
            writer = re.fullmatch(r"(\d+)\.\w+", part.name.removeprefix(f"{path.name}.").removesuffix(PART))
            old = time.time() - part.lstat().st_mtime > ABANDONED_SECONDS
            if writer is not None and (old or is_gone(int(writer[1]))):
                part.unlink()


def is_gone(process: int) -> bool:
    """Whether a process of this machine has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


@contextmanager
def owner_only() -> Iterator[None]:
    """While this process writes for its user alone: nobody else can read files and folders that it makes."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- the auditor's key -----------------------------------------------------------------------------------------------

KEY_BYTES = 32


def cache_folder(kind: str) -> Path | None:
    """Where what takes long is kept: in $XDG_CACHE_HOME, or else in ~/.cache; None without a home."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "sottovoce" / kind
    except RuntimeError:
        return None


def state_folder() -> Path | None:
    """Where a user's programs keep what is theirs: $XDG_STATE_HOME, or what the platform uses; None without a home."""
    if os.environ.get("XDG_STATE_HOME"):
        return Path(os.environ["XDG_STATE_HOME"]) / "sottovoce"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/state") / "sottovoce"


def sign(content: bytes) -> str:
    """The signature of this user's key; the key is made when it is first needed."""
    return hmac.new(_key(state_folder()), content, hashlib.sha256).hexdigest()


def is_signed(content: bytes, signature: str) -> bool:
    """Whether this user's key made the signature."""
    return hmac.compare_digest(sign(content).encode(), signature.encode(errors="replace"))


@cache
def _key(folder: Path | None) -> bytes:
    """The key of a state folder. Without a folder that can be written it is of this process alone."""
    if folder is not None:
        path = folder / "auditor.key"
        with contextlib.suppress(OSError, InputError):
            return _read_or_make(path)
    return secrets.token_bytes(KEY_BYTES)


def _read_or_make(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        found = read_bytes(path)
        if len(found) == KEY_BYTES:
            return found
    make_private_folder(path.parent)
    key = secrets.token_bytes(KEY_BYTES)
    write_bytes(path, key, private=True)
    return read_bytes(path)
