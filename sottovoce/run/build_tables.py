"""From settings to the data of tables: one that is partitioned, or one for each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.columns import Columns, read_columns
from sottovoce.learning.datasets import FOLDER, Dataset, folder_of, user_file
from sottovoce.learning.partitioning import NodeData
from sottovoce.learning.table_data import NAMES_A_TABLE, OF_ITS_OWN, join_tables, table_dataset, training_rows
from sottovoce.learning.table_files import find_table, read_cells, tables_in
from sottovoce.learning.tables import Table, read_table
from sottovoce.run.build_topology import topology_of
from sottovoce.support.config import DataSettings, Experiment


def is_folder_of_tables(data: DataSettings) -> bool:
    """Whether every node has a table of its own, in a folder that the settings name."""
    return data.name.startswith(NAMES_A_TABLE) and data.partition == OF_ITS_OWN


def with_table_facts(experiment: Experiment, folder: Path | None) -> Experiment:
    """Settings that say in themselves what tables hold: the columns, and how many rows of each node are trained on.

    So whoever has them can account for the run, and use its model, without a file. Numbers of rows are public.
    """
    data = experiment.data
    if not data.name.startswith(NAMES_A_TABLE):
        return experiment
    place, facts = _place(data, folder_of(folder)), {}
    if not isinstance(data.columns, dict):
        found = read_columns(data.columns, place.parent, "data")
        facts["columns"] = found.model_dump(mode="json", exclude_defaults=True)
    if is_folder_of_tables(data) and data.shards is None:
        facts["shards"] = {
            name: training_rows(str(path), _count_rows(path)) for name, path in tables_in(_folder(place)).items()
        }
    return experiment.model_copy(update={"data": data.model_copy(update=facts)}) if facts else experiment


def named_after_tables(experiment: Experiment, net: Topology, folder: Path | None) -> Topology:
    """The topology with nodes that are called like their tables, where its graph has no names of its own."""
    shards = experiment.data.shards
    if not is_folder_of_tables(experiment.data) or shards is None or net.names is not None or net.graph is None:
        return net
    if len(shards) != net.n:
        raise InputError(
            f"{len(shards)} tables for the {net.n} nodes of {experiment.topology.graph}", "every node has one table",
            "change topology.graph",
        )  # fmt: skip
    return topology_of(experiment, folder, replace(net.graph, labels=tuple(sorted(shards))))


def _place(data: DataSettings, folder: Path | None) -> Path:
    return user_file(data.name.removeprefix(NAMES_A_TABLE), folder)


def _folder(place: Path) -> Path:
    if not place.is_dir():
        raise InputError(
            f"{place} is not a folder", 'with partition = "tables" every node has a table there', "check data.name"
        )
    return place


def _count_rows(path: Path) -> int:
    return len(next(iter(read_cells(path).values())))


def read_table_dataset(data: DataSettings, folder: Path | None) -> Dataset:
    """The data set of `table:FILE`, to be partitioned; the file of its columns is looked for beside it."""
    if data.shards is not None:
        raise InputError(f"data.shards with {data.name}", "it is for nodes that have a table each", "leave it out")
    path = _place(data, folder)
    if path.is_dir():
        raise InputError(
            f"{path} is a folder",
            "if data.name is a folder, every node has the table of its name",
            'write partition = "tables"',
        )
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
    shards = _checked_shards(data, names)
    where = _place(data, folder) if is_folder_of_tables(data) else folder
    columns = read_columns(data.columns, where or Path(), "data")
    if tables is None:
        tables = _read_tables(where, shards, columns)
    return join_tables(columns, shards, tables, seed)


def _checked_shards(data: DataSettings, names: tuple[str, ...] | None) -> dict[str, int]:
    """The declared rows of each node, in the order of nodes."""
    if names is None or data.shards is None:
        raise InputError(
            f"data.name = {data.name} without the rows of each node",
            "every node has a table of its own, and declared rows",
            "name the nodes (topology.graph = edges:Hill--Mercy), and give data.shards for each name",
        )
    odd = next((name for name in (*names, *data.shards) if (name in names) != (name in data.shards)), None)
    if odd is not None:
        known = f"nodes are {', '.join(names[:8])}{', ...' if names[8:] else ''}"
        what = f"no table or rows for node {odd!r:.60}" if odd in names else f"{odd!r:.60} is no node of the graph"
        raise InputError(f"{data.name}: {what}", known, "give every node the table of its name")
    few = next((name for name, rows in data.shards.items() if rows < 1), None)
    if few is not None:
        raise InputError(f"data.shards.{few} = {data.shards[few]}", "every node has at least one row", "correct it")
    return {name: data.shards[name] for name in names}


def _read_tables(folder: Path | None, names: Mapping[str, int], columns: Columns) -> dict[str, Table]:
    if folder is None:
        raise InputError(
            "data.name = tables and no folder", f"it holds a table for each node, such as {next(iter(names))}.csv",
            f"give --data DIR or set {FOLDER}",
        )  # fmt: skip
    return {name: read_table(find_table(folder, name), columns) for name in names}


def check_no_columns(data: DataSettings) -> None:
    """Refuse settings that are about tables, where the data is something else."""
    for key in ("columns", "shards"):
        if getattr(data, key) is not None:
            raise InputError(f"data.{key} with {data.name}", "it is only for tables", "leave it out")
