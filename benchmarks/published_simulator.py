"""A published simulator of gossip learning on the same work: `python -m benchmarks.published_simulator`.

gossipy-dfl (Apache-2.0) is no dependency. Install it beside the project, with torchvision, which it imports:

    pip install gossipy-dfl==0.0.1 torchvision

A round of its push protocol has the minibatches of a round of D-PSGD, and fewer averages: each of 32 nodes sends its
model to one random neighbour; whoever receives one averages it with its own and trains for an epoch, of 7 minibatches,
or for several (`epochs=3`).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module

import numpy as np
import torch

from benchmarks.learning import STEP_SIZE, by_hand, compare, job_of, node_by_node, processor, rounds
from benchmarks.loop import settings
from sottovoce import metropolis
from sottovoce.learning.tasks import Task
from sottovoce.support.threads import threads

ROUNDS = 5
"""Played at once: the simulator starts a progress bar each time."""


def push_gossip(job: Task, batch: int = 32, epochs: int = 1) -> Callable[[], None]:
    """Rounds of its push protocol on a 4-regular graph, without evaluation."""
    parts = ("core", "data", "data.handler", "model.handler", "model.nn", "node", "simul")
    core, data, data_handler, handler, nn, node, simul = (import_module(f"gossipy.{part}") for part in parts)
    N = len(job.shards.indices)
    edges = metropolis(f"regular:{N},d=4,seed=0").at(0).weights.toarray() > 0
    edges[np.diag_indices(N)] = False
    dispatcher = data.DataDispatcher(
        data_handler.ClassificationDataHandler(job.inputs, job.targets, test_size=0.0), n=N, eval_on_user=False,
        auto_assign=False,
    )  # fmt: skip
    dispatcher.set_assignments([rows.tolist() for rows in job.shards.indices], None)
    prototype = handler.TorchModelHandler(
        net=nn.TorchMLP(job.inputs.shape[1], 10, (job.model.layout.shapes[1][0],)), optimizer=torch.optim.SGD,
        optimizer_params={"lr": STEP_SIZE}, criterion=torch.nn.CrossEntropyLoss(), local_epochs=epochs,
        batch_size=batch, create_model_mode=core.CreateModelMode.MERGE_UPDATE,
    )  # fmt: skip
    network = core.StaticP2PNetwork(N, edges.astype(int))
    nodes = node.GossipNode.generate(dispatcher, network, prototype, round_len=100, sync=True)
    simulator = simul.GossipSimulator(nodes, dispatcher, delta=100, protocol=core.AntiEntropyProtocol.PUSH)
    simulator.init_nodes()

    def some_rounds() -> None:
        with redirect_stdout(io.StringIO()):
            simulator.start(n_rounds=ROUNDS)

    return some_rounds


def repeated(action: Callable[[], object]) -> Callable[[], None]:
    """As many rounds as the simulator plays at once."""

    def act() -> None:
        for _ in range(ROUNDS):
            action()

    return act


def compare_all(count: int = 1, epochs: int = 1) -> None:
    """32 nodes, 4-regular, 784-32-10, 224 rows a node, 7 minibatches of 32 an epoch, no noise."""
    job, steps = job_of(32, 224, (784,), "mlp", hidden=(32,)), 7 * epochs
    batches = {"shuffle:7": "shuffle:7", "fixed:32": "fixed:32", "cycle of 7": "cycle:1000000x7"}
    with threads(count):
        actions = {"by hand": repeated(by_hand(job, steps))}
        for name, spec in batches.items():
            played = rounds(job, "d-psgd", spec, local_steps=steps, step_size=STEP_SIZE)
            actions[f"d-psgd, {name}"] = repeated(played)
        actions["node by node: modules, loaders, optimisers"] = repeated(node_by_node(job, epochs=epochs))
        actions["gossipy-dfl, push"] = push_gossip(job, epochs=epochs)
        title = f"{ROUNDS} rounds of {epochs} epoch(s), 32 nodes, 4-regular, 784-32-10, {count} thread(s)"
        middle = compare(title, actions, repeat=2)
        processor(actions, repeat=10)
    theirs = middle.pop("gossipy-dfl, push")
    for name, took in middle.items():
        print(f"  {name:46} {theirs / took:8.1f} times as fast as gossipy-dfl")


if __name__ == "__main__":
    try:
        import_module("gossipy.data")
    except ImportError as missing:
        sys.exit(f"{missing}: this benchmark needs pip install gossipy-dfl==0.0.1 torchvision")
    compare_all(**settings(sys.argv[1:]))
