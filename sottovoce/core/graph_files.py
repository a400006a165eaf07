"""Edge lists, from files that may come from anybody: what would take more memory than there is, is refused."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, file_error
from sottovoce.support.files import check_name, open_file
from sottovoce.support.limits import Cost, check_cost, size_text
from sottovoce.support.text import decode_text, visible

CHUNK = 2**24
"""Bytes that are read at once."""

MEMORY_OF_TEXT = 20.0
"""Bytes of memory that a byte of text takes until it is a graph."""


def read_edge_list(path: Path) -> NDArray[np.int64 | np.str_]:
    """Two labels a line, separated by blanks or, in names with blanks, a comma; what follows # or % is left out.

    A weight may follow, which is left out. Anything else is more likely a mistake, such as a table of all pairs. So is
    a heading; see `_check_heading`.
    """
    lines = read_graph_text(path).splitlines()
    ends: list[str] = []
    first_line = 0
    for number, line in enumerate(lines, start=1):
        fields = _fields(re.split(r"[#%]", line, maxsplit=1)[0])
        _check_fields(fields, line, f"edge list {path}, line {number}")
        first_line = first_line or (number if fields else 0)
        ends += fields[:2]
    if not ends:
        raise InputError(f"edge list {path}: no edges", "there must be at least one", "check the file")
    _check_heading(ends, f"edge list {path}, line {first_line}")
    return _pairs(ends)


def _check_fields(fields: Sequence[str], line: str, where: str) -> None:
    check_labels(fields, where)
    weighs = all(_is_number(field) and float(field) != 0 for field in fields[2:])
    if len(fields) not in (0, 2, 3) or not weighs or "" in fields[:2]:
        raise InputError(
            f"{where}: {line.strip()[:40]!r}",
            "an edge has two ends, followed by a weight other than 0 at most",
            "write two labels on each line, with a comma between names of several words",
        )


def parse_edges(text: str) -> tuple[NDArray[np.int64 | np.str_], bool]:
    """Pairs of labels, and whether they are directed: `A--B,B--C` are edges both ways, `A->B,B->C` lead one way.

    >>> parse_edges("Hill--Mercy,Mercy--Charite")[0].tolist()
    [['Hill', 'Mercy'], ['Mercy', 'Charite']]
    """
    between = "->" if "->" in text else "--"
    edges = [[end.strip() for end in edge.split(between)] for edge in text.split(",")]
    wrong = next((edge for edge in edges if len(edge) != 2 or "" in edge), None)
    if wrong is not None:
        raise InputError(
            f"edge {between.join(wrong)!r:.60} in a graph", "an edge is written A--B, or A->B if it is directed",
            "write edges:Hill--Mercy,Mercy--Charite, for example",
        )  # fmt: skip
    return _pairs([end for edge in edges for end in edge]), between == "->"


def _pairs(ends: list[str]) -> NDArray[np.int64 | np.str_]:
    """Labels two by two: numbers where all of them are."""
    try:
        flat = np.array(ends, dtype=np.int64)
    except (ValueError, OverflowError):
        flat = np.array(ends)
    return flat.reshape(-1, 2)


def read_graph_text(path: Path) -> str:
    """The text of a file, unpacked; not more of it than there is memory for."""
    rule, remedy = "an edge list is a text file, or gzip", "check the path"
    check_name(path)
    try:
        return decode_text(_unpacked(path))
    except UnicodeDecodeError:
        raise InputError(f"edge list {path}: not readable as text", rule, remedy) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(
            f"edge list {path}: damaged or cut off", "a gzip file is unpacked to its end", "get the file again"
        ) from None
    except OSError as error:
        raise file_error(f"edge list {path}", error, rule, remedy) from None


def _unpacked(path: Path) -> bytes:
    content = bytearray()
    with open_file(path, follow_links=True) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if packed else raw
        while part := file.read(CHUNK):
            content += part
            check_cost(
                f"edge list {path}, {size_text(len(content))} and more unpacked,",
                Cost(memory=MEMORY_OF_TEXT * len(content)),
                "take a smaller graph",
            )
    return bytes(content)


def check_labels(labels: Sequence[str], where: str) -> None:
    """Refuse characters that nobody sees: with a byte-order mark inside a file, one node would become two."""
    hidden = next((label for label in labels if visible(label) != label), None)
    if hidden is not None:
        raise InputError(
            f"{where}: {visible(hidden)!r:.60} has characters that cannot be seen",
            "labels that look the same must be the same node",
            "remove them; in a file that was assembled from others it may be a byte-order mark",
        )


def _check_heading(ends: list[str], where: str) -> None:
    """Refuse a first line that looks like the heading of a table: two words that stand on no other line.

    An edge between two nodes without other neighbours looks the same, so nothing is left out: the line is refused, and
    an edge that stands on two lines is taken.
    """
    heading, others = set(ends[:2]), set(ends[2:])
    if others and not heading & others and not any(map(_is_number, heading)):
        raise InputError(
            f"{where}: {ends[0]!r} and {ends[1]!r} are on no other line",
            "a heading is not an edge",
            "remove it, or begin it with #; if it is an edge, write it twice",
        )


def _fields(line: str) -> list[str]:
    if "," not in line:
        return line.split()
    out: list[str] = []
    for part in line.split(","):
        words = part.split()
        out += words if words and all(map(_is_number, words)) else [part.strip()]
    return out


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
