"""Tables as data sets: every cell checked and turned into numbers by public columns alone.

Numbers are scaled by the range of their column, categories become one input each. What a row becomes depends on that
row and on the columns, never on other rows; which rows are held out follows from their positions and a public seed.

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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.noise_key import check_seed, public_stream
from sottovoce.errors import InputError
from sottovoce.learning.catalogue import HELD_OUT, Targets
from sottovoce.learning.columns import REFUSE, Column, Columns, parse_columns, read_columns
from sottovoce.learning.datasets import NAMES_A_TABLE, OF_ITS_OWN, Dataset
from sottovoce.learning.lazy_rows import Examples, Floats
from sottovoce.learning.partitioning import NodeData, Partition, Rows, Sizes
from sottovoce.learning.table_cells import GivenTable, category_text, given_cells, read_cells
from sottovoce.support.config import DataSettings, Document
from sottovoce.support.npz import Arrays

SCALED = "numbers are scaled by the public ranges of their columns, and clipped to them"

GivenColumns: TypeAlias = "Columns | Document | str | PathLike[str]"
"""What the columns are: as keys and values, or the path of a file of them."""


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


# --- as data sets --------------------------------------------------------------------------------------------------


def from_table(table: GivenTable, columns: GivenColumns, *, name: str = "table", seed: int = 0) -> Dataset:
    """A data set from one table, to be partitioned. A fifth of the rows, chosen by position and `seed`, is held out."""
    known = given_columns(columns)
    return table_dataset(_given_table(table, known, name), known, name, check_seed(seed))


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
    found = {name: _given_table(table, known, name) for name, table in tables.items()}
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


def _given_table(table: GivenTable, columns: Columns, name: str) -> Table:
    where = str(table) if isinstance(table, str | PathLike) else name
    return encode_table(given_cells(table, columns.drop, where), columns, where)


def is_folder_of_tables(data: DataSettings) -> bool:
    """Whether every node has a table of its own, in a folder that the settings name."""
    return data.name.startswith(NAMES_A_TABLE) and data.partition == OF_ITS_OWN


def table_dataset(table: Table, columns: Columns, name: str, seed: int) -> Dataset:
    """One table as a data set; a fifth of its rows, chosen by a public seed, is held out for testing."""
    order = public_stream(seed, "held out", [], 0).permutation(len(table))
    test = round(HELD_OUT * len(table))
    if not 0 < test < len(table):
        raise InputError(
            f"{name}: {len(table)} rows",
            "a fifth of the rows is held out, and the rest is used for training",
            "give five or more",
        )
    return _dataset(
        columns, name, (table.inputs[order[test:]], table.targets[order[test:]]),
        (table.inputs[order[:test]], table.targets[order[:test]]),
    )  # fmt: skip


def join_tables(columns: Columns, sizes: Mapping[str, int], tables: Mapping[str, Table], seed: int) -> NodeData:
    """The tables of nodes as one data set, with so many training rows of each; the others are held out for testing.

    The rows of nodes whose table is not here are zeros, of which there is one in memory. No privacy figure depends on
    rows, so figures are the same whichever tables are here.
    """
    inputs: list[Floats] = [np.zeros((1, columns.width), dtype=np.float32)]
    targets: list[Targets] = [_placeholder(columns)]
    held_out: list[tuple[Floats, Targets]] = []
    shards: list[Rows] = []
    begin = 1
    for name, size in sizes.items():
        table = tables.get(name)
        if table is None:
            shards.append(np.broadcast_to(np.int64(0), size))
            continue
        _check_rows(name, len(table), size)
        order = public_stream(seed, f"held out of {name}", [], 0).permutation(len(table))
        train, rest = order[:size], order[size:]
        inputs.append(table.inputs[train])
        targets.append(table.targets[train])
        held_out.append((table.inputs[rest], table.targets[rest]))
        shards.append(np.arange(begin, begin + size))
        begin += size
    test = held_out or [(inputs[0], targets[0])]
    found = _dataset(columns, OF_ITS_OWN, _joined(list(zip(inputs, targets, strict=True))), _joined(test))
    counts = list(sizes.values())
    spread = Sizes(min(counts), float(np.mean(counts)), max(counts), None)
    return NodeData(found, Partition(tuple(shards), OF_ITS_OWN, seed, spread))


def training_rows(name: str, rows: int) -> int:
    """How many rows of a node's table are trained on where nobody declared it: all but a fifth."""
    held_out = max(1, round(HELD_OUT * rows))
    if held_out >= rows:
        raise InputError(
            f"{name}: a table of {rows} rows",
            "some rows are used for training, and some are held out",
            "give five or more",
        )
    return rows - held_out


def _check_rows(name: str, rows: int, declared: int) -> None:
    if rows <= declared:
        raise InputError(
            f"{name}: a table of {rows} rows",
            f"{declared} are declared for training, and at least one more is held out",
            "give more rows, or agree on fewer",
        )  # fmt: skip


def _placeholder(columns: Columns) -> Targets:
    return np.zeros(1, dtype=np.int64 if columns.classes else np.float32)


def _joined(parts: Sequence[tuple[Floats, Targets]]) -> tuple[Floats, Targets]:
    return np.concatenate([inputs for inputs, _ in parts]), np.concatenate([targets for _, targets in parts])


def _dataset(columns: Columns, name: str, train: tuple[Floats, Targets], test: tuple[Floats, Targets]) -> Dataset:
    """Rows whose norm is bounded by their columns, which is declared."""
    return Dataset(
        name=name, kind="classes" if columns.classes else "value",
        examples=Examples(train[0]).clipped(columns.norm_bound), targets=train[1],
        test_inputs=test[0], test_targets=test[1], shape=(columns.width,), classes=columns.classes,
        groups=None, test_groups=None, entities=(), licence="your own", source="you", notes=(SCALED,),
        target_unit=columns.target_unit,
    )  # fmt: skip
