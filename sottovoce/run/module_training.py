"""A torch module, trained privately by the nodes of a graph, each with a torch data set of its own: one call.

For users of Opacus: arguments have its names where they mean the same. A training loop of one's own cannot be taken
over as it is: what is accounted for is what the round loop sends, so the loop is ours, and module, data sets and
settings are yours. docs/from-opacus.md says more.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from sottovoce.algorithms.registry import algorithm
from sottovoce.core.graphs import Graph
from sottovoce.core.topologies import metropolis
from sottovoce.errors import InputError
from sottovoce.learning.datasets import Dataset, from_arrays
from sottovoce.learning.models import Model, wrap_module
from sottovoce.learning.partitioning import Partition, Sizes
from sottovoce.learning.tasks import task
from sottovoce.run.simulation import Run, simulate


@dataclass(frozen=True, eq=False, repr=False)
class PrivateModules:
    """The models of all nodes after training; `run` has metrics and guarantees."""

    run: Run
    model: Model

    def __repr__(self) -> str:
        return f"PrivateModules({self.run!r})"

    def of(self, node: int) -> nn.Module:
        """The module of one node, as it ended."""
        if not 0 <= node < len(self.run.models):
            raise InputError(f"node {node}", f"there are {len(self.run.models)}, from 0", "choose one of them")
        return self._with(self.run.models[node])

    @property
    def average(self) -> nn.Module:
        """The module whose parameters are the means over all nodes."""
        return self._with(self.run.models.mean(0))

    def _with(self, row: Tensor) -> nn.Module:
        trained = copy.deepcopy(self.model.module)
        trained.load_state_dict(self.model.layout.views(row), strict=False)
        return trained


def train_module(
    module: nn.Module,
    datasets: Sequence[TorchDataset[Any]],
    *,
    graph: str | Graph,
    loss: str,
    test: TorchDataset[Any],
    rounds: int,
    learning_rate: float,
    max_grad_norm: float,
    sample_rate: float,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    target_delta: float = 1e-5,
    seed: int = 0,
) -> PrivateModules:
    """Train a module by DP-D-SGD: Poisson batches, gradients clipped per example, Gaussian noise, gossip.

    There is a data set for each node, with pairs of an input and a target; it is read once. `loss` is cross-entropy,
    logistic or squared. Give exactly one of `noise_multiplier` (noise over `max_grad_norm`, as in Opacus) and
    `target_epsilon`; both are about a record that is added or removed, and an adversary that sees every message. `test`
    is public.
    """
    if (noise_multiplier is None) == (target_epsilon is None):
        raise InputError(
            "both or neither of noise_multiplier and target_epsilon",
            "exactly one of them decides the noise",
            "give one",
        )
    data, shards = _joined(datasets, test)
    net = metropolis(graph)
    if net.n != len(datasets):
        raise InputError(f"{len(datasets)} data sets", f"the graph has {net.n} nodes", "give one for each node")
    wrapped = wrap_module(module, loss, shape=data.shape if len(data.shape) > 1 else None)
    clipped = task(data, shards, wrapped).gradients(f"poisson:{sample_rate!r}", "per-example", max_grad_norm)
    sigma = 1.0 if noise_multiplier is None else noise_multiplier / 2  # ours is over the change of a replaced record
    private = algorithm("dp-d-sgd", sigma=sigma, step_size=learning_rate)
    run = simulate(
        private, net, clipped, rounds=rounds, seed=seed, epsilon=target_epsilon, delta=target_delta,
    )  # fmt: skip
    return PrivateModules(run, wrapped)


def _joined(datasets: Sequence[TorchDataset[Any]], test: TorchDataset[Any]) -> tuple[Dataset, Partition]:
    """All rows one after the other, and which node holds which."""
    parts = [_arrays(one, f"data set {node}") for node, one in enumerate(datasets)]
    if not parts:
        raise InputError("no data sets", "every node has one", "give a list of torch data sets")
    inputs, targets = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    found = from_arrays(inputs, targets, test=_arrays(test, "test"))
    stops = np.cumsum([len(part[1]) for part in parts])
    held = tuple(np.arange(stop - len(part[1]), stop) for part, stop in zip(parts, stops, strict=True))
    counts = [len(rows) for rows in held]
    return found, Partition(held, "own data sets", 0, Sizes(min(counts), float(np.mean(counts)), max(counts), None))


def _arrays(rows: TorchDataset[Any], what: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    if not isinstance(rows, Sized) or not len(rows):
        raise InputError(
            f"{what} has no length, or no rows",
            "the number of records of a node must be known",
            "give a map-style data set",
        )
    pairs = [rows[number] for number in range(len(rows))]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise InputError(f"{what} does not return pairs", "a record is an input and a target", "return (input, target)")
    inputs = np.stack([torch.as_tensor(one).numpy() for one, _ in pairs])
    return inputs, np.array([torch.as_tensor(target).item() for _, target in pairs])
