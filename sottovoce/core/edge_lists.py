"""Edge lists: text files, or gzip, with the two ends of an edge on each line, as numbers or names."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.files import read_bytes
from sottovoce.errors import InputError


def read_edge_list(path: Path) -> NDArray[np.int64 | np.str_]:
    """Two labels a line, separated by blanks or, in names with blanks, a comma; what follows # or % is left out.

    Further columns may hold numbers only, which are left out: words there are more likely a mistake. So is a heading;
    see `_check_heading`.
    """
    try:
        raw = read_bytes(path, follow_links=True)
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"not readable as text or gzip ({type(error).__name__})"
        raise InputError(f"edge list {path}: {reason}", "it must be a text file, or gzip", "check the path") from None
    ends: list[str] = []
    first_line = 0
    for number, line in enumerate(text.splitlines(), start=1):
        fields = _fields(re.split(r"[#%]", line, maxsplit=1)[0])
        if len(fields) == 1 or any(not _is_number(field) for field in fields[2:]) or "" in fields[:2]:
            raise InputError(
                f"edge list {path}, line {number}: {line.strip()[:40]!r}",
                "an edge has two ends, and numbers at most beside them",
                "write two labels a line, with a comma between names of several words",
            )
        first_line = first_line or (number if fields else 0)
        ends += fields[:2]
    if not ends:
        raise InputError(f"edge list {path}: no edges", "at least one is needed", "check the file")
    _check_heading(ends, f"edge list {path}, line {first_line}")
    try:
        flat = np.array(ends, dtype=np.int64)
    except (ValueError, OverflowError):
        flat = np.array(ends)
    return flat.reshape(-1, 2)


def _check_heading(ends: list[str], where: str) -> None:
    """Refuse a first line that looks like the heading of a table: two words that stand on no other line.

    An edge between two nodes without other neighbours looks the same, so nothing is left out: the line is refused, and
    an edge that stands on two lines is taken.
    """
    heading, others = set(ends[:2]), set(ends[2:])
    if others and not heading & others and not any(map(_is_number, heading)):
        raise InputError(
            f"{where}: {ends[0]!r} and {ends[1]!r} are on no other line",
            "a heading is no edge",
            "remove it, or begin it with #; if it is an edge, write it twice",
        )


def _fields(line: str) -> list[str]:
    if "," not in line:
        return line.split()
    out: list[str] = []
    for field in line.split(","):
        words = field.split()
        out += words if words and all(map(_is_number, words)) else [field.strip()]
    return out


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
