"""Files that are written whole or not at all, and .npz files that are checked before they are used."""

from __future__ import annotations

import errno
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, file_error
from sottovoce.text import check_name

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Arrays by name, as a file holds them. Who reads the file checks their kinds."""

NPZ, NPZ_REMEDY = "an .npz file of arrays is needed here", "check the path, or write it again"

DAMAGED = "it is not an .npz file, or it is damaged"

PIECE = 1 << 24
"""About so many bytes are read at once where most of them are skipped."""


def check_writable(path: Path) -> Path:
    """Where a file will be written, links followed; refused before any work where it cannot be."""
    check_name(path)
    target = Path(os.path.realpath(path))
    with explaining(path, "a file is written here", "name another"):
        occupied = target.exists() and not target.is_file()
    if occupied:
        raise InputError(f"{path} is not a file", "only a file is replaced", "name another")
    if not path.name or not target.parent.is_dir():
        raise InputError(f"{path}: no such folder", "a file is written into a folder that exists", "make it first")
    return target


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be there or cannot be written into, before any work."""
    check_name(path)
    with explaining(path, "runs are written into it", "use another --out"):
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        if there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if not there.is_dir():
        raise InputError(f"{there} is not a folder", "runs are written into one", "use another --out")


@contextmanager
def explaining(path: Path, rule: str, remedy: str) -> Iterator[None]:
    """Raise what the system refuses about a file as an error of the package (`errors.file_error`)."""
    try:
        yield
    except OSError as error:
        raise file_error(path, error, rule, remedy) from None


def write(path: Path, write_to: Callable[[BinaryIO], None], *, private: bool = False) -> None:
    """Write beside, then rename: a reader finds the old file or the new one, never half of it.

    A `private` file can be read by its owner only, from the first byte on.
    """
    target = check_writable(path)
    part = None
    with explaining(path, "a file is written here", "name another"):
        try:
            handle, part = tempfile.mkstemp(dir=target.parent, prefix=target.name + ".", suffix=".part")
            with os.fdopen(handle, "wb") as file:
                write_to(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(part, 0o600 if private else 0o666 & ~_umask())
            os.replace(part, target)
            part = None
        finally:
            if part is not None:
                Path(part).unlink(missing_ok=True)


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write text whole or not at all."""

    def write_to(file: BinaryIO) -> None:
        file.write(text.encode(errors="backslashreplace"))

    write(path, write_to, private=private)


def append_private(path: Path) -> TextIO:
    """A file of lines to append to; if it is new, only its owner can read it."""
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


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


def read_npz(path: Path, names: Iterable[str] | None = None) -> Arrays:
    """Arrays of an npz file (of `names`, those that are there); checksums first: numpy skips them if a header lies."""
    with _reading_arrays(path):
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip() or next((part for part in archive.namelist() if not _is_whole(archive, part)), None)
        if bad is not None:
            raise _unreadable(path, f"it is damaged: {bad!r} does not hold what its header says")
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files if names is None or name in names}


def read_rows(path: Path, name: str, wanted: NDArray[np.intp]) -> NDArray[Any]:
    """Some rows, ascending, of one array of an npz file; the others are skipped and never all in memory."""
    with _reading_arrays(path), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        np.lib.format.read_magic(file)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        width, found = dtype.itemsize * int(np.prod(shape[1:])), np.empty((len(wanted), *shape[1:]), dtype=dtype)
        if fortran or (len(wanted) and wanted[-1] >= shape[0]):
            raise ValueError("other rows")
        at_once = max(1, PIECE // max(1, width))
        for start in range(0, shape[0], at_once):
            stop = min(start + at_once, shape[0])
            rows = np.frombuffer(file.read((stop - start) * width), dtype).reshape(stop - start, *shape[1:])
            first, last = np.searchsorted(wanted, (start, stop))
            found[first:last] = rows[wanted[first:last] - start]
        return found


@contextmanager
def _reading_arrays(path: Path) -> Iterator[None]:
    """Whatever is wrong with an npz file becomes one line."""
    check_name(path)
    try:
        if path.exists() and not path.is_file():
            raise _unreadable(path, "not a file")
        yield
    except (InputError, MemoryError):
        raise
    except OSError as error:
        raise (file_error(path, error, NPZ, NPZ_REMEDY) if error.errno else _unreadable(path, DAMAGED)) from None
    except Exception as error:  # zipfile and numpy raise whatever a damaged header provokes, TokenError among them
        raise _unreadable(path, _reason(error)) from None


def _is_whole(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether an array has as many bytes as its header says: otherwise numpy asks for the memory of what it says."""
    with archive.open(name) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            return True
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return dtype.hasobject or file.tell() + dtype.itemsize * math.prod(shape) == archive.getinfo(name).file_size


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: {reason}", NPZ, NPZ_REMEDY)


def _reason(error: Exception) -> str:
    if "Object arrays" in str(error):
        return "it holds Python objects, which are never unpickled"
    return DAMAGED if isinstance(error, zipfile.BadZipFile) else f"it is damaged ({type(error).__name__})"
