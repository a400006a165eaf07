"""What a finished run was made from, without opening a file only because its settings name it.

Whoever sends a folder writes its settings, and could name any file of the reader's. So a graph that came from a file is
recorded in `graph.json` when the run begins, and read back from there. Data and other files of the user's own are
looked for in the folder that the user names, and nowhere else.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from sottovoce.core.graphs import MOST_NODES, Graph
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.datasets import NAMES_A_TABLE, folder_of
from sottovoce.learning.tables import is_folder_of_tables
from sottovoce.run.layout import RunFiles
from sottovoce.support.config import DataSettings, Experiment
from sottovoce.support.files import inside, write_text

FILE = "file:"
"""How settings name a file of the user's own."""


def record_graph(files: RunFiles, experiment: Experiment, topology: Topology) -> None:
    """Write `graph.json` of a run whose graph comes from a file, or whose nodes are called like their tables."""
    graph = topology.graph
    if not _is_recorded(experiment) or graph is None or files.graph.exists():
        return
    senders, receivers = graph.adjacency.nonzero()
    pairs = zip(senders.tolist(), receivers.tolist(), strict=True)
    document = {
        "name": graph.name, "nodes": graph.n, "directed": graph.directed,
        "labels": None if graph.labels is None else list(graph.labels),
        "edges": [list(pair) for pair in pairs if graph.directed or pair[0] < pair[1]],
    }  # fmt: skip
    write_text(files.graph, json.dumps(document) + "\n", private=True)


def _is_recorded(experiment: Experiment) -> bool:
    return experiment.topology.graph.startswith(FILE) or is_folder_of_tables(experiment.data)


def recorded_graph(files: RunFiles, experiment: Experiment) -> Graph | None:
    """The graph that a run recorded; None where its settings describe one that needs no file."""
    if not _is_recorded(experiment):
        return None
    stored = files.document(files.graph)
    if stored is None and not experiment.topology.graph.startswith(FILE):
        return None
    if stored is None:
        raise InputError(f"{files.graph}: not there", "it holds the graph, which came from a file", "run it again")
    nodes, labels = stored["nodes"], stored["labels"]
    if nodes > MOST_NODES or (labels is not None and not len(set(labels)) == len(labels) == nodes):
        raise InputError(f"{files.graph}: damaged: {nodes} nodes", "each has one name", "restore it, or run it again")
    edges = np.array(stored["edges"], dtype=np.int64).reshape(-1, 2)
    built = Graph.from_edges(edges, name=stored["name"], directed=stored["directed"], nodes=nodes)
    return replace(built, labels=None if labels is None else tuple(labels))


def with_named_files(experiment: Experiment, data: Path | None, *, with_rows: bool = True) -> Experiment:
    """Settings whose files are those of their names in the folder that the user gives, or SOTTOVOCE_DATA.

    Refuses settings with files where no folder has them. Without rows, no table is looked for.
    """
    name, correlation = experiment.data.name, experiment.algorithm.settings.get("correlation")
    changes: dict[str, object] = {}
    if name.startswith(FILE):
        found = FILE + str(_named_file(name.removeprefix(FILE), "data.name", data))
        changes["data"] = experiment.data.model_copy(update={"name": found})
    if name.startswith(NAMES_A_TABLE):
        changes["data"] = _with_named_tables(experiment.data, data, with_rows)
    if isinstance(correlation, str):
        path = str(_named_file(correlation, "algorithm.correlation", data))
        changes["algorithm"] = type(experiment.algorithm)(
            name=experiment.algorithm.name, **(experiment.algorithm.settings | {"correlation": path})
        )
    return experiment.model_copy(update=changes) if changes else experiment


def _with_named_tables(settings: DataSettings, data: Path | None, with_rows: bool) -> DataSettings:
    found = {}
    if with_rows:
        is_folder = is_folder_of_tables(settings)
        place = _named_file(settings.name.removeprefix(NAMES_A_TABLE), "data.name", data, is_folder=is_folder)
        found["name"] = NAMES_A_TABLE + str(place)
    if isinstance(settings.columns, str):
        found["columns"] = str(_named_file(settings.columns, "data.columns", data).absolute())
    return settings.model_copy(update=found)


def _named_file(path: str, setting: str, data: Path | None, *, is_folder: bool = False) -> Path:
    place = folder_of(data)
    found = None if place is None else inside(place, path, is_folder=is_folder)
    if found is None:
        where = "no folder was named" if place is None else f"there is no such file in {place}"
        raise InputError(
            f"{setting} of the run is the file {path!r}, and {where}",
            "the settings of a finished run never open files on their own",
            "name the folder that holds it with --data",
        )
    return found
