"""Files of data sets: one that is missing, cut off or of another shape is refused with one line.

Idx files, tables and ARFF may be plain or gzip. They are read no further than they should be long, and nothing is ever
unpickled.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, file_error
from sottovoce.support.files import open_file
from sottovoce.support.npz import Arrays, read_npz
from sottovoce.support.text import decode_text

LONGEST_TEXT = 1 << 26
"""Bytes after which a text file is taken for something else; the longest one here has 2.5 million."""

_UNREADABLE = (OSError, EOFError, zlib.error)


@dataclass(frozen=True)
class File:
    """One file of a data set: its place in the user's folder, what it holds, and who publishes it."""

    names: tuple[str, ...]
    expected: str
    origin: str

    def find(self, folder: Path) -> Path | None:
        """Where it lies, under any of its names, plain or with `.gz` (an npz, packed already, only plain)."""
        ends = ("",) if self.packed else ("", ".gz")
        candidates = (folder / (name + end) for name in self.names for end in ends)
        return next((path for path in candidates if path.is_file()), None)

    @property
    def packed(self) -> bool:
        """Whether the form is a compressed one."""
        return self.names[0].endswith(".npz")

    def path(self, folder: Path) -> Path:
        """Where it lies; refuses a file that is not there."""
        path = self.find(folder)
        if path is None:
            raise self.wrong(folder / self.names[0], f"no such file{'' if self.packed else ', nor with .gz'}")
        return path

    def wrong(self, path: Path, found: str) -> InputError:
        """The error about this file: what was found, what it should hold, where to get it."""
        return InputError(f"{path}: {found}", f"expected {self.expected}", f"get it from {self.origin}")

    def contents(self, folder: Path, most: int) -> tuple[Path, bytes]:
        """Its bytes, unpacked; more than `most` are refused."""
        path = self.path(folder)
        try:
            with open_file(path, follow_links=True) as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                content = (gzip.GzipFile(fileobj=raw) if packed else raw).read(most + 1)
        except _UNREADABLE as error:
            if isinstance(error, OSError) and error.errno:
                raise file_error(path, error, f"expected {self.expected}", f"get it from {self.origin}") from None
            raise self.wrong(path, f"cut off or damaged gzip ({type(error).__name__})") from None
        if len(content) > most:
            raise self.wrong(path, f"more than {most:,} bytes")
        return path, content

    def idx(self, folder: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Unsigned bytes of the given shape: a magic number, one length per axis, then the bytes."""
        head = 4 + 4 * len(shape)
        path, content = self.contents(folder, head + prod(shape))
        if len(content) < head:
            raise self.wrong(path, f"cut off after {len(content)} bytes")
        magic, *lengths = np.frombuffer(content[:head], dtype=">u4").tolist()
        if magic != 0x0800 + len(shape):
            raise self.wrong(path, f"magic number {magic} instead of {0x0800 + len(shape)}")
        if tuple(lengths) != shape:
            raise self.wrong(path, f"its header says {' x '.join(map(str, lengths))}")
        if len(content) != head + prod(shape):
            raise self.wrong(path, f"cut off after {len(content):,} of {head + prod(shape):,} bytes")
        return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)

    def text(self, folder: Path) -> tuple[Path, str]:
        """Its path and its text."""
        path, content = self.contents(folder, LONGEST_TEXT)
        try:
            return path, decode_text(content)
        except UnicodeDecodeError:
            raise self.wrong(path, "not text") from None

    def csv(self, folder: Path, columns: tuple[str, ...], rows: int) -> NDArray[np.float64]:
        """A table of finite numbers; a first line with the names of the columns may be there or not."""
        path, text = self.text(folder)
        first, _, rest = text.partition("\n")
        named = first.strip() == ",".join(columns)
        return self._table(path, rest if named else text, len(columns), rows, above=int(named))

    def arff(
        self, folder: Path, attributes: tuple[str, ...], labels: tuple[str, ...], rows: int
    ) -> NDArray[np.float64]:
        """A table of numbers whose last attribute is a label, given as its position in `labels`."""
        path, text = self.text(folder)
        head, *body = re.split(r"^@data\s*$", text, maxsplit=1, flags=re.IGNORECASE | re.MULTILINE)
        found = re.findall(r"^@attribute\s+['\"]?(\w+)", head, flags=re.IGNORECASE | re.MULTILINE)
        if not body or tuple(found) != attributes:
            raise self.wrong(path, f"{'attributes ' + ', '.join(found) if body and found else 'no ARFF header'}")
        data = body[0].lstrip("\r\n")
        for number, label in enumerate(labels):
            data = re.sub(rf",{label}\s*$", f",{number}", data, flags=re.MULTILINE)
        above = text[: len(text) - len(data)].count("\n") if data else 0
        return self._table(path, data, len(attributes), rows, above=above)

    def _table(self, path: Path, text: str, columns: int, rows: int, *, above: int) -> NDArray[np.float64]:
        if not text.strip():
            raise self.wrong(path, "no rows")
        try:
            table = np.loadtxt(io.StringIO(text), delimiter=",", comments=None, ndmin=2)
        except ValueError:
            table = np.full((1, columns), np.nan)
        if table.shape[1] != columns or not np.isfinite(table).all():
            raise self.wrong(path, _bad_line(text, columns, above))
        if len(table) != rows:
            raise self.wrong(path, f"{len(table):,} rows")
        return table

    def npz(self, folder: Path, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> Arrays:
        """The wanted arrays, each of a kind (`pixels` or `integers`) and a shape, where -1 stands for any length."""
        path = self.path(folder)
        try:
            arrays = read_npz(path, wanted)
        except InputError as error:
            raise self.wrong(path, error.found.removeprefix(f"{path}: ")) from None
        lacking = [name for name in wanted if name not in arrays]
        if lacking:
            raise self.wrong(path, f"no array {lacking[0]!r}")
        for name, (kind, shape) in wanted.items():
            array = arrays[name]
            fits = array.ndim == len(shape) and all(b in (-1, a) for a, b in zip(array.shape, shape, strict=True))
            typed = array.dtype == np.uint8 if kind == "pixels" else array.dtype.kind in "iu"
            if not (fits and typed and array.size):
                raise self.wrong(path, f"array {name!r} is {array.dtype} of shape {array.shape}")
        return arrays

    def npz_rows(self, folder: Path, name: str) -> int | None:
        """The length of one array; None where it cannot be read: loading says what is wrong."""
        try:
            return len(read_npz(self.path(folder), [name])[name])
        except (InputError, KeyError, TypeError):
            return None


def _bad_line(text: str, columns: int, above: int) -> str:
    """Which line is no row of the table; `above` counts the lines before the text."""
    for number, line in enumerate(text.splitlines(), start=above + 1):
        fields = line.split(",")
        try:
            good = len(fields) == columns and np.isfinite([float(field) for field in fields]).all()
        except ValueError:
            good = False
        if line.strip() and not good:
            return f"line {number} is {line.strip()[:60]!r}"
    return "not a table of numbers"
