"""From settings to a training run: data, model, algorithm and noise. A sweep loads each data set once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from sottovoce.core.graphs import Graph
from sottovoce.core.noise import PerNode
from sottovoce.core.noise_key import public_seed
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.datasets import Dataset, folder_of
from sottovoce.learning.own_code import find_dataset, find_model
from sottovoce.learning.partitioning import NodeData, partition
from sottovoce.learning.table_data import NAMES_A_TABLE, OF_ITS_OWN
from sottovoce.learning.tables import Table
from sottovoce.learning.tasks import Gradients, task
from sottovoce.privacy.calibration import with_sigma
from sottovoce.run.build_algorithm import build_algorithm, check_algorithm, local_step_size
from sottovoce.run.build_tables import (
    check_no_columns,
    is_folder_of_tables,
    named_after_tables,
    read_table_dataset,
    tables_of_nodes,
    with_table_facts,
)
from sottovoce.run.build_topology import topology_of
from sottovoce.run.calibrate_run import calibrate_run
from sottovoce.run.noise_key_file import named_source
from sottovoce.run.run_accountant import RunAccountant
from sottovoce.run.training_run import TrainingRun, prepare_run
from sottovoce.support.config import DataSettings, Experiment
from sottovoce.support.own_code import is_code
from sottovoce.support.progress import report_stage


def build_run(experiment: Experiment, folder: Path | None = None, recorded: Graph | None = None) -> TrainingRun:
    """Everything that a run needs, from its settings. `folder` holds the data sets that do not come with the package.

    With `privacy.epsilon`, sigma is the smallest that meets it.
    """
    return build_accountant(experiment, folder, recorded).training_run


def build_accountant(
    experiment: Experiment,
    folder: Path | None = None,
    recorded: Graph | None = None,
    *,
    tables: Mapping[str, Table] | None = None,
) -> RunAccountant:
    """The same run with its accountant, which knows what was traced and accounted for to choose the noise.

    `recorded` is the graph of a finished run, where it came from a file. Where every node has a table of its own,
    `tables` are those that are here, in place of files in the folder.
    """
    started, privacy = _uncalibrated(experiment, folder, recorded, tables), experiment.privacy
    if privacy.epsilon is None:
        return RunAccountant(started)
    return calibrate_run(
        started, epsilon=privacy.epsilon, delta=privacy.delta, view=privacy.view, final_models=privacy.and_final_models
    )


def build_run_at(experiment: Experiment, sigma: PerNode, tables: Mapping[str, Table]) -> TrainingRun:
    """The run at a sigma that was found before, where one was to be found: nothing is traced or accounted for."""
    started = _uncalibrated(experiment, None, None, tables)
    if experiment.privacy.epsilon is None:
        return started
    return replace(started, algorithm=with_sigma(started.algorithm, sigma))


def _uncalibrated(
    experiment: Experiment, folder: Path | None, recorded: Graph | None, tables: Mapping[str, Table] | None
) -> TrainingRun:
    """The run, with noise of size 1 where a target decides it."""
    check_algorithm(experiment)
    report_stage("reading data")
    experiment = experiment if tables is not None else with_table_facts(experiment, folder)
    net = named_after_tables(experiment, topology_of(experiment, folder, recorded), folder)
    gradients = gradients_of(experiment, node_data(experiment, net, folder_of(folder), tables))
    built = build_algorithm(experiment, gradients.participation(experiment.privacy.adjacency))
    return prepare_run(
        built, net, gradients, rounds=experiment.training.rounds, seed=experiment.seed,
        noise_key=named_source(experiment), adjacency=experiment.privacy.adjacency,
        same_start=experiment.training.same_start, exact_noise=experiment.privacy.exact_noise,
    )  # fmt: skip


def gradients_of(experiment: Experiment, data: NodeData) -> Gradients:
    """The task with its batches and clipping."""
    dataset, training = data.dataset, experiment.training
    precision = getattr(torch, experiment.machine.precision)
    job = task(
        dataset, data.shards, find_model(experiment.model.name, dataset, **experiment.model.settings),
        engine=experiment.machine.engine, dtype=precision, device=experiment.machine.device,
    )  # fmt: skip
    return job.gradients(
        training.batch, training.clip, training.bound, local_steps=training.local_steps,
        step_size=local_step_size(experiment) if training.local_steps > 1 else None,
        weigh_nodes=training.weigh_nodes,
    )  # fmt: skip


def node_data(
    experiment: Experiment, net: Topology, folder: Path | None, tables: Mapping[str, Table] | None = None
) -> NodeData:
    """The data of a run, and which node holds which rows."""
    data = experiment.data
    _check_norms(data)
    seed = public_seed(experiment.seed, "partition") if data.seed is None else data.seed
    if data.name == OF_ITS_OWN or is_folder_of_tables(data):
        found = tables_of_nodes(data, net.names, folder, tables, seed)
        return found._replace(dataset=_normed(found.dataset, data.unit_norm, data.max_norm))
    dataset = _dataset(data, folder)
    labels = None if net.graph is None else net.graph.labels
    return NodeData(dataset, partition(dataset, net.n, data.partition, seed, rows=data.rows, node_names=labels))


def _check_norms(data: DataSettings) -> None:
    if data.unit_norm and data.max_norm is not None:
        raise InputError("data.unit_norm with data.max_norm", "each of them fixes the norm of rows", "leave one out")


def _dataset(data: DataSettings, folder: Path | None) -> Dataset:
    """Files and code of the user's own may change between runs of one process, and are read each time."""
    if data.name.startswith(NAMES_A_TABLE):
        return _normed(read_table_dataset(data, folder), data.unit_norm, data.max_norm)
    read = _read_dataset if data.name.startswith("file:") or is_code(data.name) else _cached_dataset
    found = read(data.name, folder, data.unit_norm, data.max_norm)
    check_no_columns(data)
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
