"""From settings to an algorithm and the topology that it runs on, without loading what only training needs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sottovoce.algorithms.registry import algorithm_spec, settings_from_run, spec_with_sums
from sottovoce.algorithms.spec import AlgorithmSettings, AlgorithmSpec
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.graphs import Graph
from sottovoce.core.mixing import Requirement
from sottovoce.core.participation import Participation
from sottovoce.core.random_streams import public_seed
from sottovoce.core.topologies import Topology, dropout, fresh_erdos_renyi, random_edges, weigh, weights_for
from sottovoce.errors import InputError
from sottovoce.learning.datasets import folder_of
from sottovoce.learning.tables import is_folder_of_tables
from sottovoce.support.config import (
    AlgorithmChoice,
    Document,
    Experiment,
    TopologySettings,
    apply_overrides,
    merge,
    parse_experiment,
)

NO_TARGET = "none"
"""What settings give as `privacy.epsilon` to take back a target, and with it all noise that it was to decide."""


def parse_run(document: Document, where: str = "") -> Experiment:
    """The settings of one run. Without a target, noise that nothing else decides has size 0.

    >>> settings = {"name": "try", "topology": {"graph": "ring:8"}, "training": {"rounds": 20}}
    >>> parse_run({**settings, "privacy": {"epsilon": "none"}}).algorithm.settings
    {'sigma': 0.0}
    """
    if _given(document, "privacy", "epsilon") != NO_TARGET:
        return parse_experiment(document, where)
    found = parse_experiment(merge(document, {"privacy": {"epsilon": None}}), where)
    spec, given = chosen_spec(found), found.algorithm.settings
    noise = spec.noise_setting(given)
    if noise is None or noise in given:
        return found
    silent = AlgorithmChoice(name=found.algorithm.name, **{**spec.shared_noise(0.0), noise: 0.0} | given)
    return found.model_copy(update={"algorithm": silent})


def with_overrides(document: Document, overrides: list[str]) -> Document:
    """Settings of a file with those of `--set`, where an algorithm without noise takes the place of a file's target.

    >>> with_overrides({"privacy": {"epsilon": 4.0}}, ["algorithm.name=d-psgd"])["privacy"]
    {'epsilon': 'none'}
    """
    changed, own = apply_overrides(document, overrides), apply_overrides({}, overrides)
    name, target = _given(own, "algorithm", "name"), _given(changed, "privacy", "epsilon")
    of_file = target is not None and _given(own, "privacy", "epsilon") is None
    if not isinstance(name, str) or not of_file or algorithm_spec(name).noise_setting() is not None:
        return changed
    return merge(changed, {"privacy": {"epsilon": NO_TARGET}})


def _given(document: Document, section: str, key: str) -> object:
    """What settings that nobody has checked yet have under a key; None where they have nothing there."""
    found = document.get(section)
    return found.get(key) if isinstance(found, dict) else None


def check_algorithm(experiment: Experiment) -> None:
    """Refuse settings with which the algorithm cannot be built, before anything is loaded.

    Noise may still be missing: a target may decide it.
    """
    chosen_spec(experiment).build(**_settings(experiment, Participation()))
    for name, source in settings_from_run().items():
        if name in experiment.algorithm.settings:
            raise InputError(f"algorithm.{name}", source, "leave it out")


def build_algorithm(experiment: Experiment, participation: Participation) -> Algorithm:
    """The algorithm of a run in which data shows as `participation` says; its noise has size 1 where it is calibrated.

    `check_algorithm` comes first; the sensitivity is set once gradients are known.
    """
    _check_noise(experiment)
    return chosen_spec(experiment).build(**_settings(experiment, participation))


def local_step_size(experiment: Experiment) -> float:
    """The step size of local steps: as given, or the algorithm's default; 1 for averaging, which takes no steps."""
    declared = chosen_spec(experiment).setting("step_size")
    default: Any = 1.0 if declared is None else declared.default
    return experiment.algorithm.settings.get("step_size", default)


def chosen_spec(experiment: Experiment) -> AlgorithmSpec[AlgorithmSettings]:
    """The algorithm that a run names, in the form with secure sums if it asks for them."""
    name = experiment.algorithm.name
    found = spec_with_sums(name) if experiment.secure_sum else algorithm_spec(name)
    if experiment.secure_sum is False and found.sums_of is not None:
        raise InputError(f"secure_sum = false with {name}", "it has secure sums", f"use {found.sums_of}")
    return found


def _settings(experiment: Experiment, participation: Participation) -> dict[str, object]:
    """The settings given, with those that a run fills in, and noise of size 1 where it is not given."""
    spec, from_run = chosen_spec(experiment), settings_from_run()
    given = {name: value for name, value in experiment.algorithm.settings.items() if name not in from_run}
    noise, rounds = spec.noise_setting(given), experiment.training.rounds
    standard = {} if noise is None else {noise: 1.0}
    shows, colluders = str(participation.within(rounds)), experiment.privacy.colluders
    return standard | given | spec.from_run(given, rounds=rounds, participation=shows, colluders=colluders)


def _check_noise(experiment: Experiment) -> None:
    """Exactly one of the algorithm's noise and a target decides how large the noise is."""
    spec, given, epsilon = chosen_spec(experiment), experiment.algorithm.settings, experiment.privacy.epsilon
    noise = spec.noise_setting(given)
    if noise is None:
        if epsilon is not None:
            raise InputError(
                f"privacy.epsilon with {spec.name}",
                "it has no noise to choose",
                f'write privacy.epsilon = "{NO_TARGET}", or use dp-d-sgd, for example',
            )
    elif (epsilon is None) == (noise not in given):
        found = f"neither algorithm.{noise} nor" if noise not in given else f"both algorithm.{noise} and"
        raise InputError(
            f"{found} privacy.epsilon",
            "exactly one of them decides the noise",
            f'give one, or privacy.epsilon = "{NO_TARGET}" for none',
        )


def topology_of(experiment: Experiment, folder: Path | None, recorded: Graph | None = None) -> Topology:
    """The topology of an experiment; graphs in files are looked for here, then among the data sets.

    `recorded` is the graph that a finished run has recorded, where it came from a file. Nodes that have a table each
    are called like their tables, unless the graph has names of its own.
    """
    requirement = chosen_spec(experiment).requires
    named = experiment.topology.seed
    seed = public_seed(experiment.seed, "topology") if named is None else named
    place = folder_of(folder)
    source = recorded or _graph_file(experiment.topology.graph, None if place is None else str(place))
    net, shards = _topology(experiment.topology, source, requirement, seed), experiment.data.shards
    if not is_folder_of_tables(experiment.data) or shards is None or net.names is not None or net.graph is None:
        return net
    if len(shards) != net.n:
        raise InputError(
            f"{len(shards)} tables for the {net.n} nodes of {experiment.topology.graph}", "every node has one table",
            "change topology.graph",
        )  # fmt: skip
    like_tables = replace(net.graph, labels=tuple(sorted(shards)))
    return _topology(experiment.topology, like_tables, requirement, seed)


@lru_cache(maxsize=8)
def _topology(settings: TopologySettings, source: str | Graph, requirement: Requirement, seed: int) -> Topology:
    weights = weights_for(requirement, settings.weights)
    changes = [name for name in ("fresh", "random_edges", "dropout") if getattr(settings, name)]
    unused = [name for name in ("dropout_correlation", "announced") if getattr(settings, name) and not settings.dropout]
    if unused:
        raise InputError(
            f"topology.{unused[0]} without dropout", "it applies only to nodes that drop out", "give dropout, too"
        )
    if len(changes) > 1:
        raise InputError(
            f"topology.{changes[0]} and topology.{changes[1]}",
            "a topology can change in only one of these ways",
            "choose one",
        )
    if settings.fresh:
        found = re.fullmatch(r"erdos-renyi:(\d+),p=([\d.e-]+)", settings.graph)
        if found is None:
            raise InputError(
                f"topology.fresh with {settings.graph}", "fresh graphs are Erdos-Renyi, seeded by the run",
                "write graph = \"erdos-renyi:100,p=0.1\"",
            )  # fmt: skip
        return fresh_erdos_renyi(int(found[1]), float(found[2]), seed=seed, weights=weights)
    if settings.random_edges:
        return random_edges(weigh(source, weights), seed=seed)
    if settings.dropout:
        return dropout(
            source, rate=settings.dropout, correlation=settings.dropout_correlation, seed=seed, weights=weights,
            announced=settings.announced,
        )  # fmt: skip
    return weigh(source, weights)


def _graph_file(spec: str, folder: str | None) -> str:
    """A spec whose file is found: where it says, or under the folder of data sets."""
    path = re.sub(r"^file:|(,(component|directed)=[^,]*)+$", "", spec)
    if not spec.startswith("file:") or os.path.exists(path):
        return spec
    in_folder = None if folder is None else Path(folder) / path
    if in_folder is None or not in_folder.exists():
        raise InputError(
            f"no file {path}", "the file of a graph is here or in the folder of data sets",
            "check the path, and the folder with sotto data",
        )  # fmt: skip
    return spec.replace(path, str(in_folder))
