"""Files that are written whole or not at all, and .npz files that are checked before they are used."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Arrays by name, as a file holds them. Who reads the file checks their kinds."""

PIECE = 1 << 24
"""About so many bytes are read at once where most of them are skipped."""


def check_writable(path: Path) -> Path:
    """Where a file will be written, links followed; refused before any work where it cannot be."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is not a file", "only a file is replaced", "name another")
    if not path.name or not target.parent.is_dir():
        raise InputError(f"{path}: no such folder", "a file is written into a folder that exists", "make it first")
    return target


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be there or cannot be written into, before any work."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"{there} is not a folder", "runs are written into one", "use another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{there}: not writable", "runs are written into it", "use another --out")


def write(path: Path, write_to: Callable[[BinaryIO], None], *, private: bool = False) -> None:
    """Write beside, then rename: a reader finds the old file or the new one, never half of it.

    A `private` file can be read by its owner only, from the first byte on.
    """
    target = check_writable(path)
    part = None
    try:
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=target.name + ".", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            write_to(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o600 if private else 0o666 & ~_umask())
        os.replace(part, target)
        part = None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "the file must be writable", "name another") from None
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write text whole or not at all."""

    def write_to(file: BinaryIO) -> None:
        file.write(text.encode())

    write(path, write_to, private=private)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_npz(path: Path, names: Iterable[str] | None = None) -> Arrays:
    """Arrays of an npz file (of `names`, those that are there); checksums first: numpy skips them if a header lies."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        if bad is None:
            with np.load(path, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files if names is None or name in names}
        reason = f"it is damaged: the checksum of {bad!r} is wrong"
    except Exception as error:  # zipfile and numpy raise whatever a damaged header provokes, TokenError among them
        reason = _reason(error)
    raise _unreadable(path, reason)


def read_rows(path: Path, name: str, wanted: NDArray[np.intp]) -> NDArray[Any]:
    """Some rows, ascending, of one array of an npz file; the others are skipped and never all in memory."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
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
    except Exception as error:  # as above: a damaged header provokes whatever it may
        reason = _reason(error)
    raise _unreadable(path, reason)


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: {reason}", "an .npz file of arrays is needed here", "check the path, or write it again")


def _reason(error: Exception) -> str:
    if "Object arrays" in str(error):
        return "it holds Python objects, which are never unpickled"
    if isinstance(error, zipfile.BadZipFile):
        return "it is not an .npz file, or it is damaged"
    return getattr(error, "strerror", None) or f"it is damaged ({type(error).__name__})"
