"""Values of a figure at one x of one line, gathered over pairs of nodes, seeds and graphs; kept as small CSV files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from hashlib import blake2b
from io import StringIO
from pathlib import Path

from sottovoce._version import __version__
from sottovoce.report.figures import Line
from sottovoce.support.config import Document
from sottovoce.support.files import is_signed, read_text, sign, write_text
from sottovoce.support.text import csv_text

SIGNATURE = "signature,"
"""Begins the last line of a file of cells."""


@dataclass(frozen=True)
class Cell:
    """So many values at one x of a line: their sum, the least and the most."""

    line: str
    x: float
    count: int
    total: float
    least: float
    most: float

    def __add__(self, other: Cell) -> Cell:
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Cell(self.line, self.x, self.count + other.count, self.total + other.total, least, most)


def cell(line: str, x: float, values: Iterable[float]) -> Cell:
    """A cell of some values."""
    every = [float(value) for value in values]
    return Cell(line, float(x), len(every), sum(every), min(every), max(every))


def lines_of(cells: Iterable[Cell]) -> list[Line]:
    """A line for each name, the mean at each x, with the least and the most as its band."""
    found: dict[str, dict[float, Cell]] = {}
    for one in cells:
        at = found.setdefault(one.line, {})
        at[one.x] = at[one.x] + one if one.x in at else one
    lines = []
    for name, at in found.items():
        own = [at[x] for x in sorted(at)]
        ends = [(one.least, one.most) for one in own]
        varies = any(least < most for least, most in ends)
        lines.append(
            Line(name, [one.x for one in own], [one.total / one.count for one in own], ends=ends if varies else None)
        )
    return lines


def kept(folder: Path, name: str, settings: Document, compute: Callable[[], list[Cell]], by: str = "") -> list[Cell]:
    """The cells that an earlier command of the same version and settings left in a folder, or else computed anew.

    `by` tells readers what made them. A file that this user has not signed is computed anew: somebody else made it, or
    it was edited.
    """
    told = blake2b(json.dumps([__version__, settings], sort_keys=True).encode(), digest_size=8).hexdigest()
    file = folder / f"{name.replace('/', ',')},{told}.csv"
    body = _signed(file)
    if body is None:
        folder.mkdir(parents=True, exist_ok=True)
        body = csv_text([asdict(one) for one in compute()])
        write_text(file, f"{body}{SIGNATURE}{sign(_content(file, body))},{by}\n")
    return [_read(row) for row in csv.DictReader(StringIO(body))]


def _signed(file: Path) -> str | None:
    """The cells in a file, without the signature; None where it is not there, or not this user's."""
    if not file.exists():
        return None
    text = read_text(file, "cells are stored as CSV", "remove it: it is computed anew")
    body, _, signature = text.rpartition(SIGNATURE)
    return body if is_signed(_content(file, body), signature.partition(",")[0].strip()) else None


def _content(file: Path, body: str) -> bytes:
    return f"cells {file.name}\n{body}".encode()


def _read(row: dict[str, str]) -> Cell:
    total, least, most = (float(row[key]) for key in ("total", "least", "most"))
    return Cell(row["line"], float(row["x"]), int(row["count"]), total, least, most)
