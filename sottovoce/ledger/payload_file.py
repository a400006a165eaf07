"""Long payloads of a ledger, in a file beside it: SQLite would write each byte twice, and add it up once more.

A payload has an extent, a piece of the file; where it lies, and its hash, stand in the ledger. Bytes are flushed to the
disk before the transaction that names them is committed, and an extent is used again only after the transaction that
dropped it. So at every moment all extents that the ledger names are whole.

Bytes that are to be erased are overwritten by what is written next, or with zeros once the record after the one that
dropped them is over: a disk takes as long for zeros as for what has to be written anyway. Whatever else the ledger does
not name, the rest of a write that was cut off say, becomes zeros when the file is opened to write.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from sottovoce.support.files import irregular

LONG = 1 << 18
"""Payloads from so many bytes on are kept here: below, SQLite takes less than one more flush does."""

BLOCK = 1 << 12
"""Extents begin at multiples of it."""

ZEROS = bytes(1 << 20)


class Extent(NamedTuple):
    """Where a payload lies."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """The first block after it."""
        return self.start + -(-self.length // BLOCK) * BLOCK


class PayloadFile:
    """The file at `path`, of which the extents in `used` are taken."""

    def __init__(self, path: Path, used: Iterable[Extent], *, read_only: bool) -> None:
        self._path, self._read_only = path, read_only
        self._used = sorted(used)
        self._unerased: list[Extent] = []
        self._handle: int | None = None
        if not read_only and (self._used or path.exists()):
            self._check_used()
            self._erase_gaps()

    def write(self, parts: Sequence[bytes]) -> Extent:
        """Write the bytes of a payload to a free place. They are on the disk after `flush`."""
        length = sum(map(len, parts))
        extent = self._over_unerased(length) or self._free(length)
        self._write_at(extent.start, (*parts, ZEROS[: extent.end - sum(extent)]))
        self._used.insert(bisect_left(self._used, extent), extent)
        return extent

    def flush(self) -> None:
        """What was written is on the disk when this returns."""
        os.fdatasync(self._open())

    def read(self, extent: Extent) -> bytes:
        """The bytes of a payload; fewer where the file was cut off, none where it is gone."""
        if not self._path.exists():
            return b""
        length = min(extent.length, max(0, os.fstat(self._open()).st_size - extent.start))
        return os.pread(self._open(), length, extent.start)

    def release(self, extent: Extent, *, erase: bool) -> None:
        """Use its place again. If what is there is to be erased, write the next payloads upon it."""
        self._used.remove(extent)
        if erase:
            self._unerased.append(Extent(extent.start, extent.end - extent.start))

    def erase_released(self) -> None:
        """Write zeros over what is to be erased and was not overwritten."""
        for extent in self._unerased:
            self._erase(extent.start, extent.end)
        self._unerased.clear()

    def close(self) -> None:
        """Leave no more on the disk than the ledger names."""
        if self._handle is not None:
            if not self._read_only:
                self.erase_released()
                os.ftruncate(self._handle, self._end)
            os.close(self._handle)
            self._handle = None

    @property
    def _end(self) -> int:
        return self._used[-1].end if self._used else 0

    def _over_unerased(self, length: int) -> Extent | None:
        """The first place with bytes to be erased that is long enough. What is left of it is to be erased, too."""
        for number, old in enumerate(self._unerased):
            extent = Extent(old.start, length)
            if extent.end <= old.end:
                rest = Extent(extent.end, old.end - extent.end)
                self._unerased[number : number + 1] = [rest] if rest.length else []
                return extent
        return None

    def _free(self, length: int) -> Extent:
        """The first gap that is long enough, or the end."""
        start = 0
        for extent in sorted((*self._used, *self._unerased)):
            if Extent(start, length).end <= extent.start:
                break
            start = extent.end
        return Extent(start, length)

    def _check_used(self) -> None:
        """Refuse extents that lie upon each other, or that the file is too short for."""
        end = 0
        for extent in self._used:
            if extent.start < end or extent.start % BLOCK or extent.length < 1:
                raise ValueError(f"long payloads at {extent.start}")
            end = extent.end
        size = os.fstat(self._open()).st_size
        if self._used and size < sum(self._used[-1]):
            raise ValueError(f"{self._path.name} has {size} bytes")

    def _erase_gaps(self) -> None:
        start = 0
        for extent in self._used:
            self._erase(start, extent.start)
            start = extent.end
        os.ftruncate(self._open(), self._end)

    def _erase(self, start: int, end: int) -> None:
        while start < end:
            start += os.pwrite(self._open(), ZEROS[: end - start], start)

    def _write_at(self, start: int, parts: Sequence[bytes]) -> None:
        left = [memoryview(part) for part in parts if part]
        while left:
            written = os.pwritev(self._open(), left, start)
            start += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    def _open(self) -> int:
        """Of the file, which is made for its owner alone; a pipe in its place is refused, not waited for."""
        if self._handle is None:
            is_new = not self._path.exists()
            flags = os.O_RDONLY if self._read_only else os.O_RDWR | os.O_CREAT
            handle = os.open(self._path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            if not stat.S_ISREG((found := os.fstat(handle)).st_mode):
                os.close(handle)
                raise irregular(self._path, found.st_mode)
            self._handle = handle
            if is_new:
                flush_folder(self._path.absolute().parent)
        return self._handle


def flush_folder(folder: Path) -> None:
    """That a file was made in it is on the disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
