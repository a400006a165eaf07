"""Data sets made of tables: one table that is to be partitioned, or a table of its own for every node.

Nothing of the rows is used but the rows themselves: which of them are held out follows from their positions and a
public seed, and every scale and category from the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sottovoce.core.noise_key import public_stream
from sottovoce.errors import InputError
from sottovoce.learning.catalogue import HELD_OUT, Targets
from sottovoce.learning.columns import Columns
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.lazy_rows import Examples, Floats
from sottovoce.learning.partitioning import NodeData, Partition, Rows, Sizes
from sottovoce.learning.tables import Table
from sottovoce.support.config import DataSettings

OF_ITS_OWN = "tables"
"""The partition in which every node holds the table of its name."""

NAMES_A_TABLE = "table:"
"""How settings name a table of the user's own, or a folder of them."""

SCALED = "numbers are scaled by the public ranges of their columns, and clipped to them"


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
