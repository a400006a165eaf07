"""A trial: all that decides the numbers of one training run, and its rounds one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.adjacency import Adjacency, parse_adjacency
from sottovoce.core.algorithm import Algorithm
from sottovoce.core.arrays import Rows
from sottovoce.core.compression import Identity
from sottovoce.core.loop import check_arguments, iterate_rounds, start_run
from sottovoce.core.messages import LoopState, PlayedRound, Traffic
from sottovoce.core.noise import NoNoise
from sottovoce.core.noise_feed import NoiseFeed
from sottovoce.core.topologies import Topology
from sottovoce.distributed.exchange_plan import NodeShard
from sottovoce.distributed.sharded_feed import ShardedFeed
from sottovoce.distributed.sharded_rows import Halo, ShardedRows
from sottovoce.errors import InputError
from sottovoce.learning.tasks import Gradients, Task

if TYPE_CHECKING:
    from sottovoce.core.participation import Participation


class RunState(NamedTuple):
    """Where a run stands after `rounds` rounds: what the loop carries on, and what was sent so far.

    `broken` gradients and `wire_bytes` are counted by each rank for itself.
    """

    rounds: int
    loop_state: LoopState
    sent: Traffic
    nonfinite: int
    wire_bytes: int = 0


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """An algorithm on a topology, learning a task for so many rounds from one seed.

    The algorithm's sensitivity is that of the clipped gradients: noise, which is in units of it, follows.
    """

    algorithm: Algorithm
    topology: Topology
    gradients: Gradients
    rounds: int
    seed: int
    adjacency: Adjacency
    same_start: bool = True
    shard: NodeShard | None = None

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.gradients.task

    @property
    def clipped(self) -> bool:
        """Whether anything bounds what a change of data does."""
        return self.gradients.clipping.kind != "none"

    @property
    def participation(self) -> Participation:
        """In which of its rounds a change can show."""
        return self.gradients.participation(self.adjacency).within(self.rounds)

    def start(self) -> Rows:
        """Where the nodes begin; of a rank of several, its own, and those whose compressed differences it hears."""
        if self.shard is None:
            return self._started(None)
        if isinstance(self.algorithm.compression, Identity):
            return ShardedRows(self.shard, self._started(self.shard.nodes))
        strangers = self.shard.plan(self.topology.at(0)).strangers
        return ShardedRows(self.shard, self._started(self.shard.nodes), Halo(strangers, self._started(strangers)))

    def _started(self, nodes: NDArray[np.intp] | None) -> Tensor:
        which = None if nodes is None else nodes.tolist()
        return self.task.start(torch.Generator().manual_seed(self.seed), same=self.same_start, nodes=which)

    def before(self) -> RunState:
        """The stage before the first round."""
        _, loop_state = start_run(self.algorithm, self.topology, self.start(), self.rounds)
        return RunState(0, loop_state, Traffic(0, 0), 0)

    def models(self, state: RunState) -> Rows:
        """Every node's model at a stage; of a rank of several, those of its nodes."""
        return self.algorithm.point(state.loop_state.state)

    def play(self, state: RunState) -> Iterator[tuple[PlayedRound, RunState]]:
        """The rounds after a stage, each with the stage that it leads to."""
        self.gradients.nonfinite = state.nonfinite
        make = NoiseFeed if self.shard is None else partial(ShardedFeed, first=self.topology.at(0))
        played = iterate_rounds(
            self.algorithm, self.topology, self.start(), self.gradients, rounds=self.rounds, seed=self.seed,
            after=(state.rounds, state.loop_state), make=make,
        )  # fmt: skip
        messages, bits = state.sent
        before = state.wire_bytes - self._wired
        for now in played:
            more = now.traffic
            messages, bits = messages + more.messages, bits + more.bits
            sent = Traffic(messages, bits)
            yield now, RunState(now.round + 1, now.loop_state, sent, self.gradients.nonfinite, before + self._wired)

    @property
    def _wired(self) -> int:
        """Bytes that this rank has handed to the backend since it began."""
        return 0 if self.shard is None else self.shard.communicator.sent


def prepare_run(
    algorithm: Algorithm,
    topology: Topology,
    task: Task | Gradients,
    *,
    rounds: int,
    seed: int = 0,
    adjacency: str = "record",
    same_start: bool = True,
) -> TrainingRun:
    """Put the parts together, and refuse what does not fit. A bare task is learned with full, unclipped gradients."""
    protected = parse_adjacency(adjacency)
    gradients = task.gradients("full", seed=seed) if isinstance(task, Task) else task
    if not isinstance(gradients, Gradients):
        raise InputError(f"a {type(task).__name__} instead of a task", "there is nothing to learn", "build task(...)")
    check_arguments(algorithm, topology, rounds)
    if algorithm.averaging:
        raise InputError(
            f"{algorithm.name} on a task", "it averages values and does not train", "use muffliato-sgd or zip-dl, say"
        )
    held = len(gradients.task.shards.indices)
    if held != topology.n:
        raise InputError(f"a task on {held} nodes", f"{topology.name} has {topology.n}", "partition for that many")
    gradients.check(rounds)
    most = gradients.sensitivity(protected)
    if math.isfinite(most) and not isinstance(algorithm.noise, NoNoise):
        algorithm = replace(algorithm, sensitivity=most)  # type: ignore[type-var]
    topology.require_connected()
    start_run(algorithm, topology, torch.zeros(topology.n, 1), rounds)  # refuses what does not fit; models come later
    return TrainingRun(algorithm.on(topology), topology, gradients, rounds, seed, protected, same_start)
