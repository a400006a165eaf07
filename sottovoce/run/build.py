"""From settings to a training run: data, model, algorithm and noise; and to the question that a plan answers.

A sweep loads each data set once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from sottovoce.core.graphs import Graph
from sottovoce.core.noise import PerNode
from sottovoce.core.random_streams import public_seed
from sottovoce.core.topologies import Topology
from sottovoce.core.transport import WithLiars
from sottovoce.errors import InputError
from sottovoce.learning.columns import read_columns
from sottovoce.learning.datasets import FOLDER, NAMES_A_TABLE, OF_ITS_OWN, Dataset, find_dataset, folder_of, user_file
from sottovoce.learning.models import find_model
from sottovoce.learning.partitioning import NodeData, partition
from sottovoce.learning.table_cells import find_table, read_cells, tables_in
from sottovoce.learning.tables import Table, is_folder_of_tables, join_tables, read_table, table_dataset, training_rows
from sottovoce.learning.tasks import task
from sottovoce.planning.question import Question
from sottovoce.privacy.calibration import with_sigma
from sottovoce.privacy.views import node_numbers
from sottovoce.run.layout import named_source
from sottovoce.run.protocol import build_algorithm, check_algorithm, chosen_spec, local_step_size, topology_of
from sottovoce.run.run_accountant import RunAccountant, calibrate_run
from sottovoce.run.training_run import TrainingRun, prepare_run
from sottovoce.support.config import AdversarySettings, DataSettings, Experiment
from sottovoce.support.own_code import is_code
from sottovoce.support.progress import report_stage


def build_run(experiment: Experiment, folder: Path | None = None, recorded: Graph | None = None) -> TrainingRun:
    """Everything that a run needs, from its settings. `folder` holds the data sets that do not come with the package.

    With `privacy.epsilon`, sigma is the smallest that meets it.
    """
    return build_accountant(experiment, folder, recorded).training_run


def liars(settings: AdversarySettings, net: Topology) -> WithLiars:
    """The transport of a simulation in which some nodes lie."""
    numbers, (kind, _, value) = node_numbers(settings.nodes, net.names), settings.poison.partition(":")
    if max(numbers) >= net.n:
        raise InputError(f"adversaries.nodes: {max(numbers)}", f"nodes are 0 to {net.n - 1}", "name others")
    factor = float(value) if kind == "scale" else None
    return WithLiars(net.n, tuple(numbers), factor, 0.0 if factor is not None else float(value))


def build_accountant(
    experiment: Experiment,
    folder: Path | None = None,
    recorded: Graph | None = None,
    *,
    tables: Mapping[str, Table] | None = None,
    sigma: PerNode | None = None,
) -> RunAccountant:
    """The same run with its accountant, which knows what was traced and accounted for to choose the noise.

    `recorded` is the graph of a finished run, where it came from a file. Where every node has a table of its own,
    `tables` are those that are here, in place of files in the folder. With a `sigma` that was found before, nothing is
    traced or accounted for where a target asks for one.
    """
    check_algorithm(experiment)
    report_stage("reading data")
    experiment = experiment if tables is not None else with_table_facts(experiment, folder)
    net = topology_of(experiment, folder, recorded)
    data, training, privacy = (
        node_data(experiment, net, folder_of(folder), tables),
        experiment.training,
        experiment.privacy,
    )
    gradients = task(
        data.dataset, data.shards, find_model(experiment.model.name, data.dataset, **experiment.model.settings),
        engine=experiment.machine.engine, dtype=getattr(torch, experiment.machine.precision),
        device=experiment.machine.device, threshold=training.threshold, class_weights=training.class_weights,
    ).gradients(
        training.batch, training.clip, training.bound, local_steps=training.local_steps,
        step_size=local_step_size(experiment) if training.local_steps > 1 else None,
        weigh_nodes=training.weigh_nodes, augment=training.augment, views=training.views,
    )  # fmt: skip
    run = prepare_run(
        build_algorithm(experiment, gradients.participation(privacy.adjacency)), net, gradients,
        rounds=training.rounds, seed=experiment.seed, noise_key=named_source(experiment), adjacency=privacy.adjacency,
        same_start=training.same_start, exact_noise=privacy.exact_noise,
    )  # fmt: skip
    if experiment.adversaries.nodes:
        run = run.hosted_by(liars(experiment.adversaries, net))
    if privacy.epsilon is None:
        return RunAccountant(run)
    if sigma is not None:
        return RunAccountant(replace(run, algorithm=with_sigma(run.algorithm, sigma)))
    return calibrate_run(
        run, epsilon=privacy.epsilon, delta=privacy.delta, view=privacy.view, final_models=privacy.and_final_models
    )


# --- the data of nodes ------------------------------------------------------------------------------------------------


def node_data(
    experiment: Experiment, net: Topology, folder: Path | None, tables: Mapping[str, Table] | None = None
) -> NodeData:
    """The data of a run, and which node holds which rows."""
    data = experiment.data
    if data.unit_norm and data.max_norm is not None:
        raise InputError("data.unit_norm with data.max_norm", "each of them fixes the norm of rows", "leave one out")
    seed = public_seed(experiment.seed, "partition") if data.seed is None else data.seed
    if data.name == OF_ITS_OWN or is_folder_of_tables(data):
        found = tables_of_nodes(data, net.names, folder, tables, seed)
        return found._replace(dataset=_normed(found.dataset, data.unit_norm, data.max_norm))
    dataset = _dataset(data, folder)
    labels = None if net.graph is None else net.graph.labels
    return NodeData(dataset, partition(dataset, net.n, data.partition, seed, rows=data.rows, node_names=labels))


def _dataset(data: DataSettings, folder: Path | None) -> Dataset:
    """Files and code of the user's own may change between runs of one process, and are read each time."""
    if data.name.startswith(NAMES_A_TABLE):
        return _normed(read_table_dataset(data, folder), data.unit_norm, data.max_norm)
    read = _read_dataset if data.name.startswith("file:") or is_code(data.name) else _cached_dataset
    found = read(data.name, folder, data.unit_norm, data.max_norm)
    for key in ("columns", "shards"):
        if getattr(data, key) is not None:
            raise InputError(f"data.{key} with {data.name}", "it is only for tables", "leave it out")
    return found


def _read_dataset(name: str, folder: Path | None, unit_norm: bool, max_norm: float | None) -> Dataset:
    return _normed(find_dataset(name, folder), unit_norm, max_norm)


def _normed(found: Dataset, unit_norm: bool, max_norm: float | None) -> Dataset:
    """Rows of the declared norm, where one is declared."""
    if max_norm is not None:
        return found.max_norm(max_norm)
    return found.unit_norm() if unit_norm else found


_cached_dataset = lru_cache(maxsize=2)(_read_dataset)


def forget_data() -> None:
    """Empty the cache of data sets: ranks keep the rows of their own nodes."""
    _cached_dataset.cache_clear()


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
        if not place.is_dir():
            raise InputError(
                f"{place} is not a folder", 'with partition = "tables" every node has a table there', "check data.name"
            )
        facts["shards"] = {
            name: training_rows(str(path), len(next(iter(read_cells(path).values()))))
            for name, path in tables_in(place).items()
        }
    return experiment.model_copy(update={"data": data.model_copy(update=facts)})


def _place(data: DataSettings, folder: Path | None) -> Path:
    return user_file(data.name.removeprefix(NAMES_A_TABLE), folder)


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
        if where is None:
            raise InputError(
                "data.name = tables and no folder", f"it holds a table for each node, such as {next(iter(shards))}.csv",
                f"give --data DIR or set {FOLDER}",
            )  # fmt: skip
        tables = {name: read_table(find_table(where, name), columns) for name in shards}
    return join_tables(columns, shards, tables, seed)


def _checked_shards(data: DataSettings, names: tuple[str, ...] | None) -> dict[str, int]:
    """The declared rows of each node, in the order of nodes."""
    shards = data.shards
    if names is None or shards is None:
        raise InputError(
            f"data.name = {data.name} without the rows of each node",
            "every node has a table of its own, and declared rows",
            "name the nodes (topology.graph = edges:Hill--Mercy), and give data.shards for each name",
        )
    for odd in (name for name in (*names, *shards) if (name in names) != (name in shards)):
        known = f"nodes are {', '.join(names[:8])}{', ...' if names[8:] else ''}"
        what = f"no table or rows for node {odd!r:.60}" if odd in names else f"{odd!r:.60} is no node of the graph"
        raise InputError(f"{data.name}: {what}", known, "give every node the table of its name")
    for few in (name for name, rows in shards.items() if rows < 1):
        raise InputError(f"data.shards.{few} = {shards[few]}", "every node has at least one row", "correct it")
    return {name: shards[name] for name in names}


# --- planning ---------------------------------------------------------------------------------------------------------


def planned_question(experiment: Experiment, data: Path | None = None, epsilon: float | None = None) -> Question:
    """The question whose answer says which algorithm suits a run; `epsilon` where its settings have no target.

    Of the rows only their numbers are used, which are public. Gradients are clipped per example to norm one, as in
    every plan.
    """
    target = experiment.privacy.epsilon if epsilon is None else epsilon
    if target is None:
        raise InputError(f"{experiment.name} without a target", "a plan needs a target", "add --epsilon 4, for example")
    changing = next((key for key in ("fresh", "random_edges", "dropout") if getattr(experiment.topology, key)), None)
    if changing is not None:
        raise InputError(f"topology.{changing} in a plan", "a plan needs a graph that does not change", "leave it out")
    if experiment.training.clip == "whole-gradient" or experiment.training.local_steps > 1:
        raise InputError(
            f"clip {experiment.training.clip!r} with {experiment.training.local_steps} local steps in a plan",
            "plans are for gradients of one step that are clipped per example",
            "add --set training.clip=per-example --set training.local_steps=1 to a copy, or calibrate the run itself",
        )
    experiment = with_table_facts(experiment, data)
    net = topology_of(experiment, data)
    assert net.graph is not None
    spec, given = chosen_spec(experiment), experiment.algorithm.settings
    rule = {one.name: given[one.name] for one in spec.settings if one.decides_rule and one.name in given}
    found, training, privacy = node_data(experiment, net, folder_of(data)), experiment.training, experiment.privacy
    built = find_model(experiment.model.name, found.dataset, **experiment.model.settings)
    return Question(
        graph=net.graph, rounds=training.rounds, epsilon=target, delta=privacy.delta, dimension=built.layout.size,
        records=tuple(len(rows) for rows in found.shards.indices), view=privacy.view,
        final_models=privacy.and_final_models, adjacency=privacy.adjacency,
        participation="every" if training.batch == "full" else training.batch.removeprefix("cycle:"),
        weights=experiment.topology.weights, colluders=privacy.colluders or 1, weigh_nodes=training.weigh_nodes,
        local_rule=rule,
    )  # fmt: skip
