"""What a run file asks a plan: its graph, the records of each node, batches, model and target, without training."""

from __future__ import annotations

from pathlib import Path

from sottovoce.errors import InputError
from sottovoce.learning.datasets import folder_of
from sottovoce.learning.own_code import find_model
from sottovoce.planning.question import Question
from sottovoce.run.build import node_data
from sottovoce.run.build_tables import named_after_tables, with_table_facts
from sottovoce.run.build_topology import topology_of
from sottovoce.support.config import Experiment


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
    experiment = with_table_facts(experiment, data)
    net = named_after_tables(experiment, topology_of(experiment, data), data)
    assert net.graph is not None
    found, training, privacy = node_data(experiment, net, folder_of(data)), experiment.training, experiment.privacy
    built = find_model(experiment.model.name, found.dataset, **experiment.model.settings)
    return Question(
        graph=net.graph, rounds=training.rounds, epsilon=target, delta=privacy.delta, dimension=built.layout.size,
        records=tuple(len(rows) for rows in found.shards.indices), view=privacy.view,
        final_models=privacy.and_final_models, adjacency=privacy.adjacency,
        participation=_participation(training.batch), weights=experiment.topology.weights,
        colluders=privacy.colluders or 1, weigh_nodes=training.weigh_nodes,
    )  # fmt: skip


def _participation(batch: str) -> str:
    """How records take part where they come in such batches, as plans call it."""
    return "every" if batch == "full" else batch.removeprefix("cycle:")
