"""The cells of a table, column by column, from a .csv, .npz or .parquet file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.extras import require_extra
from sottovoce.core.files import Arrays, read_npz
from sottovoce.errors import InputError
from sottovoce.regular_files import open_file
from sottovoce.text import read_text

SUFFIXES = (".csv", ".npz", ".parquet")


def read_cells(path: Path, dropped: Iterable[str] = ()) -> Arrays:
    """The columns of a table by name, without those to drop: text, truth values or numbers, all of one length."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is not a table", f"tables are {', '.join(SUFFIXES)} files", "save it as one of them")
    readers = {".csv": _csv_cells, ".npz": _npz_cells, ".parquet": _parquet_cells}
    found = readers[path.suffix](path, frozenset(dropped))
    if not found or not len(next(iter(found.values()))):
        raise InputError(f"{path}: no rows", "a table has a heading and rows", "check the file")
    return found


def find_table(folder: Path, name: str) -> Path:
    """The file in a folder that holds the table of a name."""
    there = [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()]
    if not there:
        raise InputError(
            f"{folder}: no table called {name}", f"each node has one there, such as {name}.csv", "check --data"
        )
    if len(there) > 1:
        raise InputError(f"{there[0]} and {there[1]}", "each node has one table", "remove one")
    return there[0]


def tables_in(folder: Path) -> dict[str, Path]:
    """The tables in a folder by name, in the order of names: one for each node."""
    names = sorted({path.stem for path in folder.iterdir() if path.suffix in SUFFIXES})
    if not names:
        raise InputError(f"{folder}: no table in it", f"tables are {', '.join(SUFFIXES)} files", "check the folder")
    return {name: find_table(folder, name) for name in names}


def _csv_cells(path: Path, dropped: frozenset[str]) -> Arrays:
    """Text in every cell. A file may begin with the mark that spreadsheets write."""
    rule, remedy = "a .csv file in UTF-8 is needed here", "save it as one"
    text = read_text(path, rule, remedy)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        heading = [name.strip() for name in next(reader, [])]
        check_names(path, heading)
        rows = list(_csv_rows(path, reader, len(heading)))
    except csv.Error as error:
        raise InputError(f"{path}: {error}", rule, remedy) from None
    kept = [number for number, name in enumerate(heading) if name not in dropped]
    return {heading[number]: np.array([row[number].strip() for row in rows]) for number in kept}


def _csv_rows(path: Path, reader: Iterable[list[str]], width: int) -> Iterator[list[str]]:
    for number, row in enumerate((row for row in reader if row), 1):
        if len(row) != width:
            raise InputError(
                f"{path}, row {number}: {len(row)} cells", f"the heading has {width}",
                "correct that row; cells are separated by commas, and put in quotes if they hold one",
            )  # fmt: skip
        yield row


def _npz_cells(path: Path, dropped: frozenset[str]) -> Arrays:
    """One array for each column."""
    found = {name: array for name, array in read_npz(path).items() if name not in dropped}
    rows = {array.shape for array in found.values()}
    wrong = next((name for name, array in found.items() if array.ndim != 1 or array.dtype.kind not in "biufU"), None)
    if wrong is not None or len(rows) > 1:
        raise InputError(
            f"{path}: arrays of shapes {', '.join(sorted(map(str, rows)))}", "each column is an array of one dimension",
            "give numbers or words, as many in each",
        )  # fmt: skip
    return found


def _parquet_cells(path: Path, dropped: frozenset[str]) -> Arrays:
    require_extra("parquet", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        with open_file(path, follow_links=True) as file:
            table = pyarrow.parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        reason = getattr(error, "strerror", None) or f"it is damaged ({type(error).__name__})"
        raise InputError(f"{path}: {reason}", "a .parquet file is needed here", "write it again") from None
    check_names(path, table.column_names)
    kept = [name for name in table.column_names if name not in dropped]
    is_number = {
        name: pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) for name, kind in _kinds(table)
    }
    return {
        name: table.column(name).to_numpy() if is_number[name] else _words(path, name, table.column(name).to_pylist())
        for name in kept
    }


def _kinds(table: Any) -> Iterator[tuple[str, Any]]:
    return zip(table.column_names, table.schema.types, strict=True)


def _words(path: Path, name: str, cells: Sequence[object]) -> NDArray[np.str_]:
    """Words and truth values as text; a missing one is empty."""
    wrong = next((cell for cell in cells if not isinstance(cell, str | bool | None)), None)
    if wrong is not None:
        raise InputError(
            f"{path}: column {name!r} holds {type(wrong).__name__}", "columns hold numbers, words or truth values",
            "convert or drop it",
        )  # fmt: skip
    return np.array(
        ["" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell).strip() for cell in cells]
    )


def check_names(where: object, names: Sequence[str]) -> None:
    """Refuse a heading in which a column has no name, or the name of another."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or "" in names:
        what = "a column without a name" if twice in (None, "") else f"two columns called {twice!r}"
        raise InputError(f"{where}: {what}", "every column has a name of its own", "correct the heading")
