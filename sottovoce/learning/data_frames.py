"""Data frames and other columns of your own as data sets: by what columns say of them, as tables in files are.

    >>> wards = {"age": [61, 34, 40, 78, 55], "ward": ["east", "west", "east", "west", None], "again": list("nynyn")}
    >>> columns = {
    ...     "target": "again",
    ...     "columns": [
    ...         {"name": "age", "range": [0, 120]},
    ...         {"name": "ward", "categories": ["east", "west"], "missing": "east"},
    ...         {"name": "again", "categories": ["n", "y"]},
    ...     ],
    ... }
    >>> from_table(wards, columns, name="wards")
    Dataset('wards', classes, 4 + 1 rows of 3)

A frame is whatever has `columns` and gives each of them by name: those of pandas and of polars do, and neither package
is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.noise_key import check_seed
from sottovoce.errors import InputError
from sottovoce.learning.columns import Columns, parse_columns, read_columns
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.partitioning import NodeData
from sottovoce.learning.table_data import join_tables, table_dataset, training_rows
from sottovoce.learning.table_files import check_names, read_cells
from sottovoce.learning.tables import Table, category_text, encode_table
from sottovoce.support.config import Document
from sottovoce.support.files import Arrays


class Frame(Protocol):
    """Columns by name, such as a pandas or polars DataFrame has."""

    @property
    def columns(self) -> Iterable[str]: ...

    def __getitem__(self, name: str, /) -> Any: ...


GivenTable: TypeAlias = "Frame | Mapping[str, Any] | str | PathLike[str]"
"""A data frame, columns by name, or the path of a .csv, .npz or .parquet file."""

GivenColumns: TypeAlias = "Columns | Document | str | PathLike[str]"
"""What the columns are: as keys and values, or the path of a file of them."""


def from_table(table: GivenTable, columns: GivenColumns, *, name: str = "table", seed: int = 0) -> Dataset:
    """A data set from one table, to be partitioned. A fifth of the rows, chosen by position and `seed`, is held out."""
    known = given_columns(columns)
    return table_dataset(_encoded(table, known, name), known, name, check_seed(seed))


def from_tables(
    tables: Mapping[str, GivenTable],
    columns: GivenColumns,
    *,
    rows: Mapping[str, int] | None = None,
    seed: int = 0,
) -> NodeData:
    """A data set of one table for each node, and who holds which rows, in the order of `tables`.

    `rows` says how many rows of each are used for training; by default all but a fifth. The others are held out.
    """
    known = given_columns(columns)
    found = {name: _encoded(table, known, name) for name, table in tables.items()}
    sizes = {name: training_rows(name, len(table)) for name, table in found.items()} if rows is None else dict(rows)
    odd = next((name for name in (*found, *sizes) if (name in found) != (name in sizes)), None)
    if odd is not None or not found:
        raise InputError(
            f"tables of {len(found)} nodes, rows of {len(sizes)}", "both must be about the same nodes", "give both"
        )
    return join_tables(known, {name: sizes[name] for name in found}, found, check_seed(seed))


def given_columns(columns: GivenColumns) -> Columns:
    """Columns from what a user of Python gives."""
    if isinstance(columns, Columns):
        return columns
    if isinstance(columns, dict):
        return parse_columns(columns, "columns")
    return read_columns(fspath(columns), Path(), "columns")


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
    found = {name: _column(table[name], f"{where}: column {name!r}") for name in names if name not in left_out}
    if len({len(cells) for cells in found.values()}) != 1 or not len(next(iter(found.values()))):
        raise InputError(f"{where}: columns without rows, or of different lengths", "a table has rows", "check it")
    return found


def _encoded(table: GivenTable, columns: Columns, name: str) -> Table:
    where = str(table) if isinstance(table, str | PathLike) else name
    return encode_table(given_cells(table, columns.drop, where), columns, where)


def _column(values: Any, where: str) -> NDArray[Any]:
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
    return np.array(["" if cell is None else category_text(cell) for cell in cells])


def _is_missing(cell: object) -> bool:
    """None, nan, and what pandas has in their place."""
    return cell is None or (isinstance(cell, float) and np.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType")
