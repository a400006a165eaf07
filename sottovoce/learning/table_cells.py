"""The cells of a table, column by column: from a .csv, .npz or .parquet file, or from what a user of Python gives.

A frame is whatever has `columns` and gives each of them by name: those of pandas and of polars do, and neither package
is imported here.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, require_extra
from sottovoce.support.files import open_file, read_text
from sottovoce.support.limits import Cost, check_cost, size_text
from sottovoce.support.npz import Arrays, read_npz

DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ][0-9:.]+)?|([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{4})")

SEPARATORS = ",;\t"

SUFFIXES = (".csv", ".npz", ".parquet")

MOST_COLUMNS = 100_000
"""Of a table: a heading that is longer is taken for something else."""

CELL_BYTES, NUMBER_BYTES = 60, 16
"""What a cell of text takes while a table is read, and a cell of a column of numbers."""

LONGEST_CELL = 1000
"""Characters of a number or of a category. All cells of a column take as much memory as its longest."""


class Frame(Protocol):
    """Columns by name, such as a pandas or polars DataFrame has."""

    @property
    def columns(self) -> Iterable[str]: ...

    def __getitem__(self, name: str, /) -> Any: ...


GivenTable: TypeAlias = "Frame | Mapping[str, Any] | str | PathLike[str]"
"""A data frame, columns by name, or the path of a .csv, .npz or .parquet file."""


def category_text(value: object) -> str:
    """A cell as the name of a category; whole numbers without a point, a missing number as nothing.

    >>> [category_text(value) for value in ("west", 2, 2.0, True, float("nan"))]
    ['west', '2', '2', 'true', '']
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "" if np.isnan(value) else str(int(value)) if value.is_integer() else repr(value)
    return str(value).strip()


def missing_cells(cells: NDArray[Any], missing_words: Sequence[str]) -> NDArray[np.bool_]:
    """Which cells of a column are empty, or hold a word that stands for nothing."""
    if cells.dtype.kind == "U":
        return np.isin(np.strings.strip(cells), ["", *missing_words])
    return np.asarray(cells != cells)


def numbers_of(cells: NDArray[Any], missing: NDArray[np.bool_], decimal: str) -> NDArray[np.float64]:
    """Cells as numbers with that decimal mark; nan where one is missing or is none. Truth values are none."""
    if cells.dtype.kind == "b":
        return np.full(len(cells), np.nan)
    if cells.dtype.kind != "U":
        with np.errstate(over="ignore"):
            return cells.astype(np.float64)
    words = np.where(missing, "nan", cells)
    if decimal == ",":  # and a point is then no part of a number
        words = np.strings.replace(np.strings.replace(words, ".", "x"), ",", ".")
    try:
        return words.astype(np.float64)
    except ValueError:
        return np.array([_number(word) for word in words.tolist()])


def days_of(cells: NDArray[Any]) -> NDArray[np.float64]:
    """Dates, 2026-01-31 or 31.1.2026, as days since the first of January 1970; nan where a cell is none.

    >>> days_of(np.array(["1970-01-31", "31.1.1970", "soon"])).tolist()
    [30.0, 30.0, nan]
    """
    return np.array([_day(cell) for cell in cells.tolist()])


def _day(cell: object) -> float:
    found = DATE.fullmatch(str(cell).strip())
    if found is None:
        return np.nan
    year, month, day = (int(part) for part in (found.groups()[:3] if found[1] else found.groups()[:2:-1]))
    try:
        return float(date(year, month, day).toordinal() - date(1970, 1, 1).toordinal())
    except ValueError:
        return np.nan


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return np.nan


# --- from files ----------------------------------------------------------------------------------------------------


def read_cells(path: Path, dropped: Iterable[str] = ()) -> Arrays:
    """The columns of a table by name, without those to drop: text, truth values or numbers, all of one length."""
    if not path.exists():
        raise InputError(f"{path}: No such file", "a table is read from it", "check the path")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is not a table", f"tables are {', '.join(SUFFIXES)} files", "save it as one of them")
    readers = {".csv": _csv_cells, ".npz": _npz_cells, ".parquet": _parquet_cells}
    return _of_one_length(readers[path.suffix](path, frozenset(dropped)), path)


def find_table(folder: Path, name: str) -> Path:
    """The file in a folder that holds the table of a name."""
    there = [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()]
    if not there:
        raise InputError(
            f"{folder}: no table called {name}", f"each node needs one there, such as {name}.csv", "check --data"
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
    """Text in every cell: UTF-8, else as Windows writes Western text; commas, semicolons or tabs between cells."""
    rule, remedy = "a .csv file is needed here", "save it as one"
    text = read_text(path, rule, remedy, else_as="cp1252")
    first = text.partition("\n")[0]
    mark = max(SEPARATORS, key=first.count)
    _check_size(path, CELL_BYTES * (text.count(mark) + text.count("\n")) + 4 * len(text))
    rows: list[list[str]] = []
    try:
        with _cells_of_any_length():
            reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=mark)
            heading = [name.strip() for name in next(reader, [])]
            check_names(path, heading)
            rows.extend(_csv_rows(path, reader, len(heading)))
    except csv.Error as error:
        raise InputError(f"{path}, row {len(rows) + 1}: {error}", rule, remedy) from None
    return {
        name: _words([row[number].strip() for row in rows], f"{path}: column {name!r}")
        for number, name in enumerate(heading)
        if name not in dropped
    }


@contextmanager
def _cells_of_any_length() -> Iterator[None]:
    """Long cells are read, so that they can be refused with their column, or dropped with it."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _words(cells: list[str], where: str) -> NDArray[np.str_]:
    """The cells of a column of text; refuses one that is too long."""
    long = next((number for number, cell in enumerate(cells, 1) if len(cell) > LONGEST_CELL), None)
    if long is not None:
        raise InputError(
            f"{where}, row {long}: {len(cells[long - 1]):,} characters, {cells[long - 1][:20]!r} first",
            f"a cell has at most {LONGEST_CELL:,}", "correct it, or list the column under drop",
        )  # fmt: skip
    return np.array(cells)


def _csv_rows(path: Path, reader: Iterable[list[str]], width: int) -> Iterator[list[str]]:
    for number, row in enumerate((row for row in reader if row), 1):
        if len(row) != width:
            raise InputError(
                f"{path}, row {number}: {len(row)} of {width} cells",
                "every row must have as many cells as the heading",
                "correct that row; a cell that contains the mark between cells is put in quotes",
            )  # fmt: skip
        yield row


def _npz_cells(path: Path, dropped: frozenset[str]) -> Arrays:
    """One array for each column."""
    return {
        name: _given_column(array, f"{path}: column {name!r}")
        for name, array in read_npz(path).items()
        if name not in dropped
    }


def _parquet_cells(path: Path, dropped: frozenset[str]) -> Arrays:
    require_extra("parquet", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        with open_file(path, follow_links=True) as file:
            stored = pyarrow.parquet.ParquetFile(file)
            about = stored.metadata
            packed = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
            check_names(path, stored.schema_arrow.names)
            _check_size(path, 2 * packed + NUMBER_BYTES * about.num_rows * about.num_columns)
            table = stored.read()
    except (OSError, pyarrow.ArrowException) as error:
        reason = getattr(error, "strerror", None) or f"it is damaged ({type(error).__name__})"
        raise InputError(f"{path}: {reason}", "a .parquet file is needed here", "write it again") from None
    found = {}
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if name not in dropped:
            is_number = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
            cells = table.column(name).to_numpy() if is_number else table.column(name).to_pylist()
            found[name] = _given_column(cells, f"{path}: column {name!r}")
    return found


def _check_size(path: Path, memory: float) -> None:
    """Refuse a table of which not all cells fit into memory, before they are read."""
    check_cost(f"{path}, {size_text(memory)} when it is read,", Cost(memory=memory), "take fewer rows")


def check_names(where: object, names: Sequence[str]) -> None:
    """Refuse a heading in which a column has no name, or the name of another, and one that is too long."""
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{where}: {len(names):,} columns", f"a table has at most {MOST_COLUMNS:,}", "check the file")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None or "" in names:
        what = "a column without a name" if twice in (None, "") else f"two columns called {twice!r:.60}"
        raise InputError(f"{where}: {what}", "every column has a name of its own", "correct the heading")


# --- from Python ---------------------------------------------------------------------------------------------------


def given_cells(table: GivenTable, dropped: Iterable[str] = (), where: str = "table") -> Arrays:
    """The cells of a table that a user of Python gives, without columns to drop; `where` names it in errors."""
    if isinstance(table, str | PathLike):
        return read_cells(Path(table), dropped)
    names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
    if not names or not hasattr(table, "__getitem__"):
        raise InputError(
            f"{where}: a {type(table).__name__}", "a table is a data frame, columns by name, or a path",
            "give a pandas DataFrame, for example",
        )  # fmt: skip
    odd = next((name for name in names if not isinstance(name, str)), None)
    if odd is not None:
        raise InputError(f"{where}: a column called {odd!r:.60}", "names of columns must be strings", "rename it")
    check_names(where, names)
    left_out = frozenset(dropped)
    found = {name: _given_column(table[name], f"{where}: column {name!r}") for name in names if name not in left_out}
    return _of_one_length(found, where)


def _of_one_length(found: Arrays, where: object) -> Arrays:
    """Refuse columns that are no table."""
    rows = max((len(cells) for cells in found.values()), default=0)
    if not rows:
        raise InputError(f"{where}: no rows", "a table has a heading and rows", "check it")
    short = next((name for name, cells in found.items() if len(cells) < rows), None)
    if short is not None:
        what = f"{where}: column {short!r} has {len(found[short]):,} of {rows:,} cells"
        raise InputError(what, "each column has a cell in every row", "correct it, or drop it")
    return found


def _given_column(values: Any, where: str) -> NDArray[Any]:
    """Cells as numbers, truth values or text; what is missing is nan among numbers, and empty in text."""
    found = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)  # else nan becomes a word
    if found.ndim != 1:
        raise InputError(f"{where} of shape {found.shape}", "a column has one value for each row", "give one dimension")
    if found.dtype.kind in "biufU":
        return found
    cells = [None if _is_missing(cell) else cell for cell in found.tolist()]
    there = [cell for cell in cells if cell is not None]
    odd = next((cell for cell in there if not isinstance(cell, str | Real)), None)
    if found.dtype.kind not in "OT" or odd is not None:
        what = found.dtype if odd is None else type(odd).__name__
        raise InputError(f"{where} holds {what}", "columns hold numbers, words or truth values", "convert or drop it")
    if there and all(isinstance(cell, Real) and not isinstance(cell, bool) for cell in there):
        return np.array([np.nan if cell is None else float(cell) for cell in cells])
    return _words(["" if cell is None else category_text(cell) for cell in cells], where)


def _is_missing(cell: object) -> bool:
    """None, nan, and what pandas has in their place."""
    return cell is None or (isinstance(cell, float) and np.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType")
