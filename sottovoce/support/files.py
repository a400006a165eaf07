"""Files that are written whole or not at all, and arrays that are read without trusting whoever put them there.

Writing replaces a link instead of following it. Private files and folders are their owner's alone from the first byte
on. How files are opened for reading is in `sottovoce.support.regular_files`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, file_error
from sottovoce.support.limits import Cost, check_cost, size_text
from sottovoce.support.regular_files import irregular, open_file
from sottovoce.support.text import check_name

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Arrays by name, as a file holds them. Who reads the file checks their kinds."""

NPZ, NPZ_REMEDY = "an .npz file of arrays is needed here", "check the path, or write it again"

DAMAGED = "it is not an .npz file, or it is damaged"
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of what only its owner may read."""

PIECE = 1 << 24
"""About so many bytes are read at once where most of them are skipped."""

PART = ".part"
"""How names of files end that are being written."""

ABANDONED_SECONDS = 3600
"""A part that nobody has written to for so long was left behind by a process that was killed."""

CHECKSUM = "checksum"
"""The array of an npz file that `write_npz` adds: a digest of all others."""


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


# --- arrays ----------------------------------------------------------------------------------------------------------


def read_npz(path: Path, names: Iterable[str] | None = None) -> Arrays:
    """Arrays of an npz file that the user names (of `names`, those that are there).

    Checksums come first: numpy skips them if a header lies.
    """
    return _read(path, names, _damaged_member, follow_links=True)


def read_checked_npz(path: Path, names: Iterable[str] | None = None) -> Arrays:
    """Arrays of an npz file that `write_npz` wrote: no link, nothing compressed, and as its own checksum says."""
    return _read(path, names, _unlike_checksum, follow_links=False)


def _read(
    path: Path, names: Iterable[str] | None, problem: Callable[[zipfile.ZipFile], str | None], *, follow_links: bool
) -> Arrays:
    with _reading_arrays(path), open_file(path, follow_links=follow_links) as file:
        with zipfile.ZipFile(file) as archive:
            _check_size(path, archive, names)
            reason = problem(archive)
        if reason is not None:
            raise _unreadable(path, reason)
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            wanted = [name for name in stored.files if name != CHECKSUM and (names is None or name in names)]
            return {name: stored[name] for name in wanted}


def _check_size(path: Path, archive: zipfile.ZipFile, names: Iterable[str] | None) -> None:
    """Refuse arrays that do not fit into memory: a small file may unfold to any size."""
    wanted = None if names is None else {f"{name}.npy" for name in names}
    size = sum(one.file_size for one in archive.infolist() if wanted is None or one.filename in wanted)
    check_cost(f"{path}, {size_text(size)} unpacked,", Cost(memory=2.0 * size), "take a smaller file")


def _damaged_member(archive: zipfile.ZipFile) -> str | None:
    bad = archive.testzip() or next((part for part in archive.namelist() if not _is_whole(archive, part)), None)
    return None if bad is None else f"it is damaged: {bad!r} does not hold what its header says"


def _unlike_checksum(archive: zipfile.ZipFile) -> str | None:
    """Why an archive is not as it was written; one that would unfold to more than it holds is not read."""
    members = archive.infolist()
    assert archive.fp is not None
    size = archive.fp.seek(0, os.SEEK_END)
    if sum(member.file_size for member in members) > size:
        return "it is compressed, and files of a run are not"
    if len({member.filename for member in members}) < len(members):
        return "two of its arrays have the same name"
    bad = archive.testzip()
    if bad is not None:
        return f"it is damaged: {bad!r} does not hold what its header says"
    try:
        with archive.open(f"{CHECKSUM}.npy") as stored:
            carried = np.lib.format.read_array(stored, allow_pickle=False)
    except KeyError:
        return "it carries no checksum"
    return None if carried.tobytes() == _digest(members) else "it is not what its checksum says"


def _digest(members: Iterable[zipfile.ZipInfo]) -> bytes:
    """Of names, sizes and CRC-32s of all arrays, which the archive has computed already: a digest of the content itself
    would double what a checkpoint takes. Neither tells a forger from the owner, who both can compute it.
    """
    found = [[one.filename, one.file_size, one.CRC] for one in members if one.filename != f"{CHECKSUM}.npy"]
    return hashlib.blake2b(json.dumps(found).encode()).digest()


def write_npz(file: BinaryIO, arrays: Arrays) -> None:
    """Arrays as an npz file, followed by a checksum of them all."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        carried = np.frombuffer(_digest(archive.infolist()), np.uint8)
        with archive.open(f"{CHECKSUM}.npy", "w") as member:
            np.lib.format.write_array(member, carried, allow_pickle=False)


def read_rows(path: Path, name: str, wanted: NDArray[np.intp]) -> NDArray[Any]:
    """Some rows, ascending, of one array of an npz file; the others are skipped and never all in memory."""
    with (
        _reading_arrays(path),
        open_file(path) as raw,
        zipfile.ZipFile(raw) as archive,
        archive.open(f"{name}.npy") as file,
    ):
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
