"""From settings to a trial: data, model, topology, algorithm and noise, each built once for all runs of a sweep."""

from __future__ import annotations

import inspect
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from sottovoce.algorithms import Algorithm, algorithm, builder
from sottovoce.config import AlgorithmChoice, Experiment, Net
from sottovoce.errors import InputError
from sottovoce.learning.data import Dataset, folder_of, load
from sottovoce.learning.models import model
from sottovoce.learning.partition import partition
from sottovoce.learning.tasks import Gradients, task
from sottovoce.run.guarantees import calibrated_trial
from sottovoce.run.trial import Trial, trial
from sottovoce.topology import Topology, dropout, fresh_erdos_renyi, random_edges, suited, weigh

DERIVED = {
    "sensitivity": "it follows from clipping and batches",
    "rounds": "it is training.rounds",
    "participation": "it follows from training.batch",
}
"""Settings of algorithms that a run takes from elsewhere."""


def build(experiment: Experiment, folder: Path | None = None) -> Trial:
    """Everything that a run needs, from its settings. `folder` holds the data sets that do not come with the package.

    With `privacy.epsilon` sigma is the least that meets it.
    """
    net = topology_of(experiment, folder)
    gradients = gradients_of(experiment, net, folder)
    wanted = experiment.privacy.epsilon
    built = _algorithm(experiment.algorithm, gradients, experiment)
    started = trial(
        built, net, gradients, rounds=experiment.training.rounds, seed=experiment.seed,
        adjacency=experiment.privacy.adjacency, same_start=experiment.training.same_start,
    )  # fmt: skip
    if wanted is None:
        return started
    return calibrated_trial(started, epsilon=wanted, delta=experiment.privacy.delta, view=experiment.privacy.view)


def gradients_of(experiment: Experiment, net: Topology, folder: Path | None) -> Gradients:
    """The task with its batches and clipping."""
    data, training = experiment.data, experiment.training
    dataset = _loaded(data.name, folder_of(folder), data.unit_norm)
    seed = experiment.seed if data.seed is None else data.seed
    shards = partition(dataset, net.n, data.partition, seed, rows=data.rows)
    precision = getattr(torch, experiment.machine.precision)
    job = task(
        dataset, shards, model(experiment.model.name, dataset, **experiment.model.settings),
        engine=experiment.machine.engine, dtype=precision,
    )  # fmt: skip
    several = {}
    if training.local_steps > 1:
        several = {"local_steps": training.local_steps, "step_size": _step_size(experiment.algorithm)}
    return job.gradients(training.batch, training.clip, training.bound, seed=experiment.seed, **several)


def _loaded(name: str, folder: Path | None, unit_norm: bool) -> Dataset:
    """Files of the user's own may change between runs of one process, and are read each time."""
    return (_fresh if name.startswith("file:") else _kept)(name, folder, unit_norm)


def _fresh(name: str, folder: Path | None, unit_norm: bool) -> Dataset:
    found = load(name, folder)
    return found.unit_norm() if unit_norm else found


_kept = lru_cache(maxsize=2)(_fresh)


def _step_size(choice: AlgorithmChoice) -> Any:
    """As given, or the algorithm's default; averaging has none, and is refused by `trial`."""
    accepted = inspect.signature(builder(choice.name)).parameters
    return choice.settings.get("step_size", accepted["step_size"].default if "step_size" in accepted else 1.0)


def _size(choice: AlgorithmChoice) -> str:
    """The setting that says how large the noise is."""
    return "message_sigma" if "message_sigma" in choice.settings else "sigma"


def _algorithm(choice: AlgorithmChoice, gradients: Gradients, experiment: Experiment) -> Algorithm:
    accepted, given = inspect.signature(builder(choice.name)).parameters, choice.settings
    for key, why in DERIVED.items():
        if key in given:
            raise InputError(f"algorithm.{key}", why, "leave it out")
    if "sigma" in accepted:
        size = _size(choice)
        if (experiment.privacy.epsilon is None) == (size not in given):
            found = f"neither algorithm.{size} nor" if size not in given else f"both algorithm.{size} and"
            raise InputError(f"{found} privacy.epsilon", "one decides the noise", "give exactly one")
        given = {size: 1.0, **given}
    elif experiment.privacy.epsilon is not None:
        raise InputError(
            f"privacy.epsilon with {choice.name}", "it has no noise to choose", "leave it out, or use dp-d-sgd, say"
        )
    if "rounds" in accepted and "correlation" not in given:
        rounds = experiment.training.rounds
        scheme = gradients.participation(experiment.privacy.adjacency).within(rounds)
        given = {**given, "rounds": rounds, "participation": str(scheme)}
    return algorithm(choice.name, **given)


# --- topologies ----------------------------------------------------------------------------------------------------


def topology_of(experiment: Experiment, folder: Path | None) -> Topology:
    """The topology of an experiment; graphs in files are looked for here, then among the data sets."""
    needs = _requirement(experiment.algorithm)
    seed = experiment.seed if experiment.topology.seed is None else experiment.topology.seed
    place = folder_of(folder)
    return _topology(experiment.topology, needs, seed, None if place is None else str(place))


def _requirement(choice: AlgorithmChoice) -> Any:
    accepted = inspect.signature(builder(choice.name)).parameters
    given = {key: value for key, value in choice.settings.items() if key not in DERIVED}
    stand_in = {key: value for key, value in ((_size(choice), 1.0), ("rounds", 1)) if key in accepted}
    return algorithm(choice.name, **{**stand_in, **given}).requires


@lru_cache(maxsize=8)
def _topology(net: Net, needs: Any, seed: int, folder: str | None) -> Topology:
    spec, weights = _graph_file(net.graph, folder), suited(needs, net.weights)
    ways = [name for name in ("fresh", "random_edges", "dropout") if getattr(net, name)]
    if len(ways) > 1:
        raise InputError(f"topology.{ways[0]} and topology.{ways[1]}", "a topology changes in one way", "choose one")
    if net.fresh:
        found = re.fullmatch(r"erdos-renyi:(\d+),p=([\d.e-]+)", spec)
        if found is None:
            raise InputError(
                f"topology.fresh with {spec}", "fresh graphs are Erdos-Renyi, seeded by the run",
                "write graph = \"erdos-renyi:100,p=0.1\"",
            )  # fmt: skip
        return fresh_erdos_renyi(int(found[1]), float(found[2]), seed=seed, weights=weights)
    if net.random_edges:
        return random_edges(weigh(spec, weights), seed=seed)
    if net.dropout:
        return dropout(
            spec, rate=net.dropout, correlation=net.dropout_correlation, seed=seed, weights=weights,
            announced=net.announced,
        )  # fmt: skip
    return weigh(spec, weights)


def _graph_file(spec: str, folder: str | None) -> str:
    """A spec whose file is found: where it says, or under the folder of data sets."""
    path = re.sub(r"^file:|(,(component|directed)=[^,]*)+$", "", spec)
    if not spec.startswith("file:") or os.path.exists(path) or folder is None:
        return spec
    there = Path(folder) / path
    return spec.replace(path, str(there)) if there.exists() else spec
