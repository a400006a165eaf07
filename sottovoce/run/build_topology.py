"""From settings to a topology, without loading what only training needs."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from sottovoce.core.graphs import Graph
from sottovoce.core.mixing import Requirement
from sottovoce.core.noise_key import public_seed
from sottovoce.core.topologies import Topology, dropout, fresh_erdos_renyi, random_edges, weigh, weights_for
from sottovoce.errors import InputError
from sottovoce.learning.datasets import folder_of
from sottovoce.run.build_algorithm import chosen_spec
from sottovoce.support.config import Experiment, TopologySettings


def topology_of(experiment: Experiment, folder: Path | None, recorded: Graph | None = None) -> Topology:
    """The topology of an experiment; graphs in files are looked for here, then among the data sets.

    `recorded` is the graph that a finished run has recorded, where it came from a file.
    """
    requirement = chosen_spec(experiment).requires
    named = experiment.topology.seed
    seed = public_seed(experiment.seed, "topology") if named is None else named
    place = folder_of(folder)
    source = recorded or _graph_file(experiment.topology.graph, None if place is None else str(place))
    return _topology(experiment.topology, source, requirement, seed)


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
    if not spec.startswith("file:") or os.path.exists(path) or folder is None:
        return spec
    in_folder = Path(folder) / path
    return spec.replace(path, str(in_folder)) if in_folder.exists() else spec
