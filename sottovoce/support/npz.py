"""Arrays in npz files, read without trusting whoever put them there."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, file_error
from sottovoce.support.files import check_name, open_file
from sottovoce.support.limits import Cost, check_cost, size_text

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Arrays by name, as a file holds them. Who reads the file checks their kinds."""

NPZ, NPZ_REMEDY = "an .npz file of arrays is needed here", "check the path, or write it again"

DAMAGED = "it is not an .npz file, or it is damaged"

CHECKSUM = "checksum"
"""The array of an npz file that `write_npz` adds: a digest of all others."""


def read_npz(path: Path, names: Iterable[str] | None = None) -> Arrays:
    """Arrays of an npz file that the user names (of `names`, those that are there).

    Checksums come first: numpy skips them if a header lies.
    """
    return _read(path, names, ours=False)


def read_checked_npz(path: Path, names: Iterable[str] | None = None) -> Arrays:
    """Arrays of an npz file that `write_npz` wrote: no link, nothing compressed, and as its own checksum says."""
    return _read(path, names, ours=True)


def _read(path: Path, names: Iterable[str] | None, *, ours: bool) -> Arrays:
    with _reading_arrays(path), open_file(path, follow_links=not ours) as file:
        with zipfile.ZipFile(file) as archive:
            _check_size(path, archive, names)
            reason = _problem(archive, ours=ours)
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


def _problem(archive: zipfile.ZipFile, *, ours: bool) -> str | None:
    """Why an archive is not read. Of `ours`, one that would unfold to more than it holds is not looked into."""
    members = archive.infolist()
    assert archive.fp is not None
    if ours and sum(member.file_size for member in members) > archive.fp.seek(0, os.SEEK_END):
        return "it is compressed, and files of a run are not"
    if ours and len({member.filename for member in members}) < len(members):
        return "two of its arrays have the same name"
    bad = archive.testzip() or next((part for part in archive.namelist() if not _is_whole(archive, part)), None)
    if bad is not None:
        return f"it is damaged: {bad!r} does not hold what its header says"
    return _unlike_checksum(archive) if ours else None


def _unlike_checksum(archive: zipfile.ZipFile) -> str | None:
    try:
        with archive.open(f"{CHECKSUM}.npy") as stored:
            carried = np.lib.format.read_array(stored, allow_pickle=False)
    except KeyError:
        return "it carries no checksum"
    return None if carried.tobytes() == _digest(archive.infolist()) else "it is not what its checksum says"


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
