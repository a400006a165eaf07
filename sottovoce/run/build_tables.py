"""From settings to the data of tables: one for all nodes, or one for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sottovoce.config import DataSettings
from sottovoce.errors import InputError
from sottovoce.learning.columns import read_columns
from sottovoce.learning.datasets import FOLDER, Dataset, user_file
from sottovoce.learning.partitioning import NodeData
from sottovoce.learning.table_data import OF_ITS_OWN, join_tables, table_dataset
from sottovoce.learning.table_files import find_table
from sottovoce.learning.tables import Table, read_table


def read_table_dataset(data: DataSettings, folder: Path | None) -> Dataset:
    """The data set of `table:FILE`, to be partitioned; the file of its columns is looked for beside it."""
    if data.shards is not None:
        raise InputError(f"data.shards with {data.name}", "one table is partitioned", "leave it out")
    path = user_file(data.name.removeprefix("table:"), folder)
    columns = read_columns(data.columns, path.parent, "data")
    return table_dataset(read_table(path, columns), columns, path.stem, data.seed or 0)


def tables_of_nodes(
    data: DataSettings,
    names: tuple[str, ...] | None,
    folder: Path | None,
    tables: Mapping[str, Table] | None,
    seed: int,
) -> NodeData:
    """A table of its own for every node: those given, or those in the folder, one file a node."""
    if data.partition != OF_ITS_OWN or data.rows is not None:
        raise InputError(
            "data.name = tables with another partition, or with rows", "every node has a table of its own",
            "write partition = \"tables\", and data.shards for the rows of each node",
        )  # fmt: skip
    if names is None or data.shards is None or set(names) != set(data.shards):
        raise InputError(
            "data.name = tables without the rows of each node", "every node has a table of its own, and declared rows",
            "name the nodes (topology.graph = edges:Hill--Mercy), and give data.shards for each name",
        )  # fmt: skip
    few = next((name for name, rows in data.shards.items() if rows < 1), None)
    if few is not None:
        raise InputError(f"data.shards.{few} = {data.shards[few]}", "every node has at least one row", "correct it")
    columns = read_columns(data.columns, folder or Path(), "data")
    if tables is None:
        if folder is None:
            raise InputError(
                "data.name = tables and no folder", f"it holds a table for each node, such as {names[0]}.csv",
                f"give --data DIR or set {FOLDER}",
            )  # fmt: skip
        tables = {name: read_table(find_table(folder, name), columns) for name in names}
    return join_tables(columns, {name: data.shards[name] for name in names}, tables, seed)


def check_no_columns(data: DataSettings) -> None:
    """Refuse settings that are about tables, where the data is something else."""
    for key in ("columns", "shards"):
        if getattr(data, key) is not None:
            raise InputError(f"data.{key} with {data.name}", "it is about tables", "leave it out")
