"""A table as rows to learn from: every cell checked and turned into numbers by public columns alone.

Numbers are scaled by the range of their column, categories become one input each. What a row becomes depends on that
row and on the columns, never on other rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.learning.catalogue import Targets
from sottovoce.learning.columns import REFUSE, Column, Columns
from sottovoce.learning.lazy_rows import Floats
from sottovoce.learning.table_files import read_cells
from sottovoce.support.files import Arrays


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Inputs and targets, row by row; `clipped` counts numbers outside the range of their column, and is private."""

    inputs: Floats
    targets: Targets
    clipped: int

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows of {self.inputs.shape[1]})"


def read_table(path: Path, columns: Columns) -> Table:
    """Read a table; refuses the first row that does not fit, with its number, its column and what was found."""
    return encode_table(read_cells(path, columns.drop), columns, str(path))


def encode_table(cells: Arrays, columns: Columns, where: str) -> Table:
    """Rows from the cells of a table; `where` names it in errors."""
    _check_heading(cells, columns, where, (columns.target,))
    inputs, clipped = _encoded_inputs(cells, columns, where)
    target = columns.target_column
    if target.categories is not None:
        return Table(inputs, _positions(target, cells[target.name], columns, where), clipped)
    values, outside = _encoded(target, cells[target.name], columns, where)
    return Table(inputs, values[:, 0], clipped + outside)


def encode_inputs(cells: Arrays, columns: Columns, where: str) -> Floats:
    """The inputs of rows whose targets are not known, or not looked at."""
    _check_heading(cells, columns, where, ())
    return _encoded_inputs(cells, columns, where)[0]


def _check_heading(cells: Arrays, columns: Columns, where: str, also: tuple[str, ...]) -> None:
    """Refuse a table that lacks an input, or what is needed beside them, or that has a column nobody described."""
    needed = (*(column.name for column in columns.features), *also)
    lacking = [name for name in needed if name not in cells]
    unknown = [name for name in cells if name not in (*needed, columns.target)]
    if lacking or unknown:
        what = f"no column {lacking[0]!r}" if lacking else f"column {unknown[0]!r}"
        otherwise = "give the table that column" if lacking else "list the column under drop"
        raise InputError(
            f"{where}: {what}", "a table must have exactly the columns that are described",
            f"correct the heading, or {otherwise}",
        )  # fmt: skip


def _encoded_inputs(cells: Arrays, columns: Columns, where: str) -> tuple[Floats, int]:
    found = [_encoded(column, cells[column.name], columns, where) for column in columns.features]
    return np.concatenate([values for values, _ in found], axis=1), sum(outside for _, outside in found)


def _encoded(column: Column, cells: NDArray[Any], columns: Columns, where: str) -> tuple[Floats, int]:
    """The inputs that a column becomes, and how many of its numbers were clipped."""
    if column.categories is not None:
        positions = _positions(column, cells, columns, where)
        return np.eye(len(column.categories), dtype=np.float32)[positions], 0
    assert column.range is not None
    low, high = column.range
    values = _numbers(column, cells, columns, where)
    within = np.clip(values, low, high)
    start, stop = columns.scale_to
    scaled = start + (stop - start) * ((within - low) / (high - low))
    return scaled.astype(np.float32)[:, None], int((within != values).sum())


def _numbers(column: Column, cells: NDArray[Any], columns: Columns, where: str) -> NDArray[np.float64]:
    """The numbers of a column, substitutes in place of missing ones."""
    if cells.dtype.kind == "U":
        missing = np.isin(cells, ["", *columns.missing_words])
        values = _parsed(np.where(missing, "0", cells))
    elif cells.dtype.kind == "b":
        values, missing = np.full(len(cells), np.nan), np.zeros(len(cells), dtype=bool)
    else:
        with np.errstate(over="ignore"):
            values = cells.astype(np.float64)
        missing = np.isnan(values)
    wrong = np.flatnonzero(~np.isfinite(values) & ~missing)
    if wrong.size:
        raise _misfit(
            where,
            column,
            int(wrong[0]),
            cells,
            "a finite number is needed here",
            "write it as 1234.5 is written, or list it in missing_words if it stands for nothing",
        )
    _check_missing(column, missing, cells, columns, where)
    return np.where(missing, 0.0 if column.missing == REFUSE else column.missing, values)


def _parsed(words: NDArray[np.str_]) -> NDArray[np.float64]:
    """Numbers from text; nan where there is none."""
    try:
        return words.astype(np.float64)
    except ValueError:
        return np.array([_number(word) for word in words.tolist()])


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return np.nan


def _positions(column: Column, cells: NDArray[Any], columns: Columns, where: str) -> NDArray[np.int64]:
    """The position of each row's category, with what stands for missing and for unknown ones."""
    assert column.categories is not None
    place = {name: position for position, name in enumerate(column.categories)}
    distinct, inverse = np.unique(cells, return_inverse=True)
    words = [category_text(value) for value in distinct.tolist()]
    missing = np.array([word in ("", *columns.missing_words) for word in words])
    substitutes = [column.missing if absent else column.unknown for absent in missing]
    found = np.array([place.get(w, place.get(str(s), -1)) for w, s in zip(words, substitutes, strict=True)])
    _check_missing(column, missing[inverse] & (found[inverse] < 0), cells, columns, where)
    wrong = np.flatnonzero(found[inverse] < 0)
    if wrong.size:
        remedy = "leave that row out" if column.name == columns.target else "agree on what unknown ones become"
        rule = f"categories are {_few(column.categories)}"
        raise _misfit(where, column, int(wrong[0]), cells, rule, f"correct it, or {remedy}")
    return found[inverse].astype(np.int64)


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


def _check_missing(
    column: Column, missing: NDArray[np.bool_], cells: NDArray[Any], columns: Columns, where: str
) -> None:
    absent = np.flatnonzero(missing)
    if absent.size and column.missing == REFUSE:
        remedy = "leave that row out" if column.name == columns.target else "agree on what missing ones become"
        raise _misfit(
            where, column, int(absent[0]), cells, "no replacement for a missing cell is given", f"fill it, or {remedy}"
        )


def _misfit(where: str, column: Column, row: int, cells: NDArray[Any], rule: str, remedy: str) -> InputError:
    return InputError(f"{where}, row {row + 1}, column {column.name!r}: {cells[row].item()!r:.60}", rule, remedy)


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if names[5:] else "")
