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

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.random_streams import check_seed, public_seed, public_stream
from sottovoce.errors import InputError
from sottovoce.learning.catalogue import HELD_OUT, Targets
from sottovoce.learning.columns import REFUSE, Column, Columns, parse_columns, read_columns
from sottovoce.learning.datasets import NAMES_A_TABLE, OF_ITS_OWN, Dataset, few
from sottovoce.learning.lazy_rows import Examples, Floats
from sottovoce.learning.partitioning import NodeData, Partition, Rows
from sottovoce.learning.survival import periods_of
from sottovoce.learning.table_cells import (
    GivenTable,
    category_text,
    days_of,
    given_cells,
    missing_cells,
    numbers_of,
    read_cells,
)
from sottovoce.support.config import DataSettings, Document
from sottovoce.support.npz import Arrays

SCALED = "numbers are scaled by the public ranges of their columns, and clipped to them"

DAYS_OF_A_YEAR = 365.25

InputsAndTargets: TypeAlias = tuple[Floats, Targets]

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

    def only(self, rows: NDArray[np.int64]) -> InputsAndTargets:
        """Some of the rows, in that order."""
        return self.inputs[rows], self.targets[rows]

    def __repr__(self) -> str:
        return f"Table({len(self)} rows of {self.inputs.shape[1]})"


def read_table(path: Path, columns: Columns) -> Table:
    """Read a table; refuses the first row that does not fit, with its number, its column and what was found."""
    return encode_table(read_cells(path, columns.unread), columns, str(path))


def encode_table(cells: Arrays, columns: Columns, where: str) -> Table:
    """Rows from the cells of a table; `where` names it in errors."""
    _check_heading(cells, columns, where, columns.outcome)
    inputs, clipped = _encoded_inputs(cells, columns, where)
    target = _Cells(columns.target_column, cells[columns.target], columns, where, cells)
    if columns.event is not None:
        (event,) = (column for column in columns.columns if column.name == columns.event)
        happened = _Cells(event, cells[columns.event], columns, where, cells).positions()
        return Table(inputs, periods_of(target.times(), happened == 1, columns.periods), clipped)
    if columns.classes:
        return Table(inputs, target.positions(), clipped)
    values, outside = target.scaled()
    return Table(inputs, values, clipped + outside)


def encode_inputs(cells: Arrays, columns: Columns, where: str) -> Floats:
    """The inputs of rows whose targets are not known, or not looked at."""
    _check_heading(cells, columns, where, ())
    return _encoded_inputs(cells, columns, where)[0]


def _check_heading(cells: Arrays, columns: Columns, where: str, also: tuple[str, ...]) -> None:
    """Refuse a table that lacks an input, or what is needed beside them, or that has a column nobody described."""
    needed = (*(column.name for column in columns.features), *also)
    lacking = [name for name in needed if name not in cells]
    unknown = [name for name in cells if name not in (*needed, *columns.outcome, *columns.drop)]
    if lacking or unknown:
        what = f"no column {lacking[0]!r}" if lacking else f"column {unknown[0]!r}"
        otherwise = "give the table that column" if lacking else "list the column under drop"
        raise InputError(
            f"{where}: {what}", "a table must have exactly the columns that are described",
            f"correct the heading, or {otherwise}",
        )  # fmt: skip


def _encoded_inputs(cells: Arrays, columns: Columns, where: str) -> tuple[Floats, int]:
    """The inputs of every row, and how many of their numbers were clipped."""
    parts, clipped = list[Floats](), 0
    for column in columns.features:
        own = _Cells(column, cells[column.name], columns, where, cells)
        if column.categories is not None:
            parts.append(np.eye(column.width, dtype=np.float32)[own.positions()])
            continue
        values, outside = own.scaled()
        parts.append(values[:, None])
        clipped += outside
    return np.concatenate(parts, axis=1), clipped


@dataclass(frozen=True, eq=False)
class _Cells:
    """The cells of one column of a table, and what is agreed about them."""

    column: Column
    cells: NDArray[Any]
    columns: Columns
    where: str
    others: Arrays

    def scaled(self) -> tuple[Floats, int]:
        """Numbers as inputs, substitutes in place of missing ones, and how many of them were clipped."""
        assert self.column.range is not None
        low, high = self.column.range
        missing = missing_cells(self.cells, self.columns.missing_words)
        values = numbers_of(self.cells, missing, self.columns.decimal) if self.column.until is None else self._times()
        needed, written = ("a finite number is", f"1234{self.columns.decimal}5")
        if self.column.until is not None:
            needed, written = (f"dates, here and in {self.column.until}, are", "2026-01-31 or 31.1.2026")
        self._refuse(
            ~np.isfinite(values) & ~missing, f"{needed} needed here",
            f"write it as {written} is written, or list it in missing_words if it stands for nothing",
        )  # fmt: skip
        self._refuse_missing(missing)
        values = np.where(missing, 0.0 if self.column.missing == REFUSE else self.column.missing, values)
        within = np.clip(values, low, high)
        start, stop = self.columns.scale_to
        scaled = start + (stop - start) * ((within - low) / (high - low))
        return scaled.astype(np.float32), int((within != values).sum())

    def _times(self) -> NDArray[np.float64]:
        """The years or days from each date on, until a date or the one in another column."""
        until = self.column.until or ""
        end = self.others[until] if until in self.others else np.array([until])
        days = days_of(end) - days_of(self.cells)
        return days if self.column.years_until is None else days / DAYS_OF_A_YEAR

    def times(self) -> NDArray[np.float64]:
        """Numbers that are not negative."""
        missing = missing_cells(self.cells, self.columns.missing_words)
        values = numbers_of(self.cells, missing, self.columns.decimal)
        self._refuse_missing(missing)
        self._refuse(~(np.isfinite(values) & (values >= 0)), "a time from 0 on is needed here", "correct it")
        return values

    def positions(self) -> NDArray[np.int64]:
        """The position of each row's category, with what stands for missing and for unknown ones."""
        column, categories = self.column, self.column.categories or []
        place = {name: position for position, name in enumerate(categories)}
        distinct, inverse = np.unique(self.cells, return_inverse=True)
        words = [category_text(value) for value in distinct.tolist()]
        missing = np.isin(words, ["", *self.columns.missing_words])
        substitutes = [column.missing if absent else column.unknown for absent in missing]
        found = np.array([place.get(w, place.get(str(s), -1)) for w, s in zip(words, substitutes, strict=True)])
        self._refuse_missing((missing & (found < 0))[inverse])
        remedy = self._or("agree on what unknown ones become")
        self._refuse((found < 0)[inverse], f"categories are {few(categories)}", f"correct it, or {remedy}")
        return found[inverse].astype(np.int64)

    def _refuse_missing(self, missing: NDArray[np.bool_]) -> None:
        if self.column.missing == REFUSE:
            remedy = self._or("agree on what missing ones become")
            self._refuse(missing, "no replacement for a missing cell is given", f"fill it, or {remedy}")

    def _or(self, remedy: str) -> str:
        """What can be done about a cell; a target has no substitute."""
        return "leave that row out" if self.column.name == self.columns.target else remedy

    def _refuse(self, wrong: NDArray[np.bool_], rule: str, remedy: str) -> None:
        """Refuse the first row that is wrong."""
        if wrong.any():
            row = int(wrong.argmax())
            found = f"{self.where}, row {row + 1}, column {self.column.name!r}: {self.cells[row].item()!r:.60}"
            raise InputError(found, rule, remedy)


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
    return encode_table(given_cells(table, columns.unread, where), columns, where)


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
    return _dataset(columns, name, table.only(order[test:]), table.only(order[:test]))


def join_tables(columns: Columns, sizes: Mapping[str, int], tables: Mapping[str, Table], seed: int) -> NodeData:
    """The tables of nodes as one data set, with so many training rows of each; the others are held out for testing.

    The rows of nodes whose table is not here are zeros, of which there is one in memory. No privacy figure depends on
    rows, so figures are the same whichever tables are here.
    """
    nothing: Targets = np.zeros(1, dtype=np.float32 if columns.target_column.range else np.int64)
    train: list[InputsAndTargets] = [(np.zeros((1, columns.width), dtype=np.float32), nothing)]
    held_out: list[InputsAndTargets] = []
    shards: list[Rows] = []
    begin = 1
    for name, size in sizes.items():
        table = tables.get(name)
        if table is None:
            shards.append(np.broadcast_to(np.int64(0), size))
            continue
        _check_rows(name, len(table), size)
        order = public_stream(seed, f"held out of {name}", [], 0).permutation(len(table))
        train.append(table.only(order[:size]))
        held_out.append(table.only(order[size:]))
        shards.append(np.arange(begin, begin + size))
        begin += size
    found = _dataset(columns, OF_ITS_OWN, _joined(train), _joined(held_out or train[:1]))
    return NodeData(found, Partition(tuple(shards), OF_ITS_OWN, seed))


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


def _joined(parts: Sequence[InputsAndTargets]) -> InputsAndTargets:
    return np.concatenate([inputs for inputs, _ in parts]), np.concatenate([targets for _, targets in parts])


def _dataset(columns: Columns, name: str, train: InputsAndTargets, test: InputsAndTargets) -> Dataset:
    """Rows whose norm is bounded by their columns, which is declared."""
    return Dataset(
        name=name, kind="classes" if columns.classes else "times" if columns.periods else "value",
        periods=columns.periods,
        examples=Examples(train[0]).clipped(columns.norm_bound), targets=train[1],
        test_inputs=test[0], test_targets=test[1], shape=(columns.width,), classes=columns.classes,
        groups=None, test_groups=None, entities=(), licence="your own", source="you", notes=(SCALED,),
        target_unit=columns.target_unit, target_zero=columns.target_zero,
    )  # fmt: skip


# --- tables to try a federation with ---------------------------------------------------------------------------------

SHIPPED = {"breast-cancer": ("load_breast_cancer", "diagnosis"), "digits": ("load_digits", "digit")}
"""Data sets that come with scikit-learn: what loads them, and what their target is called."""


class MemberTable(NamedTuple):
    """A member's table as CSV: `rows` to train on, as declared, and some more to hold out."""

    rows: int
    held_out: int
    text: str


def split_table(name: str, columns: Columns, rows: Mapping[str, int], seed: int) -> dict[str, MemberTable]:
    """Deal all rows of a data set out to members, in an order that follows from the seed.

    Each gets the rows that it trains on, and of those that are left a share in proportion, at least one.
    """
    if name not in SHIPPED:
        raise InputError(f"data set {name!r:.60}", f"tables can be made from {', '.join(SHIPPED)}", "name one of these")
    cells = _shipped(name)
    wanted = [column.name for column in columns.columns]
    strange = next((one for one in wanted if one not in cells), None)
    if strange is not None:
        raise InputError(f"column {strange!r:.60}", f"{name} has {', '.join(cells)}", "correct the columns")
    total, declared = len(cells[wanted[0]]), sum(rows.values())
    if declared + len(rows) > total:
        raise InputError(
            f"{declared:,} rows for {len(rows)} members", f"{name} has {total:,}, and each holds out at least one",
            "declare fewer under [rows]",
        )  # fmt: skip
    order = np.random.default_rng(public_seed(seed, "split")).permutation(total).tolist()
    found, start, spare = {}, 0, total - declared - len(rows)
    for member, count in rows.items():
        held_out = 1 + spare * count // declared
        stop = start + count + held_out
        found[member] = MemberTable(count, held_out, _csv(cells, wanted, order[start:stop]))
        start = stop
    return found


def _shipped(name: str) -> dict[str, list[Any]]:
    """The columns of a data set by name."""
    from sklearn import datasets

    load, target = SHIPPED[name]
    found = getattr(datasets, load)()
    features = {str(name): found.data[:, at].tolist() for at, name in enumerate(found.feature_names)}
    return {**features, target: [str(found.target_names[label]) for label in found.target]}


def _csv(cells: dict[str, list[Any]], names: list[str], rows: list[int]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(names)
    table.writerows([cells[name][row] for name in names] for row in rows)
    return out.getvalue()
