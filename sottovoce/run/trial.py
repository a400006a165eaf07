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

from sottovoce.algorithms import Algorithm
from sottovoce.arrays import Rows
from sottovoce.compression import Identity
from sottovoce.draws import Draws
from sottovoce.errors import InputError
from sottovoce.learning.tasks import Gradients, Task
from sottovoce.loop import Carry, Round, Traffic, begin, check_kinds, rounds_of
from sottovoce.noise import Silent
from sottovoce.privacy.account import ADJACENCIES
from sottovoce.run.hosted import Hosted
from sottovoce.run.hosting import Halo, Host, HostedRows
from sottovoce.topology import Topology

if TYPE_CHECKING:
    from sottovoce.privacy.sensitivity import Participation


class Stage(NamedTuple):
    """Where a run stands after `rounds` rounds: what the loop carries on, and what was sent so far.

    `broken` gradients and `wire` bytes are counted by each rank for itself.
    """

    rounds: int
    carry: Carry
    sent: Traffic
    broken: int
    wire: int = 0


@dataclass(frozen=True, eq=False)
class Trial:
    """An algorithm on a topology, learning a task for so many rounds from one seed.

    The algorithm's sensitivity is that of the clipped gradients: noise, which is in units of it, follows.
    """

    algorithm: Algorithm
    topology: Topology
    gradients: Gradients
    rounds: int
    seed: int
    adjacency: str
    same_start: bool = True
    host: Host | None = None

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
        if self.host is None:
            return self._started(None)
        if isinstance(self.algorithm.compression, Identity):
            return HostedRows(self.host, self._started(self.host.nodes))
        strangers = self.host.plan(self.topology.at(0)).strangers
        return HostedRows(self.host, self._started(self.host.nodes), Halo(strangers, self._started(strangers)))

    def _started(self, nodes: NDArray[np.intp] | None) -> Tensor:
        which = None if nodes is None else nodes.tolist()
        return self.task.start(torch.Generator().manual_seed(self.seed), same=self.same_start, nodes=which)

    def before(self) -> Stage:
        """The stage before the first round."""
        _, carry = begin(self.algorithm, self.topology, self.start(), self.rounds)
        return Stage(0, carry, Traffic(0, 0), 0)

    def models(self, stage: Stage) -> Rows:
        """Every node's model at a stage; of a rank of several, those of its nodes."""
        return self.algorithm.point(stage.carry.state)

    def play(self, stage: Stage) -> Iterator[tuple[Round, Stage]]:
        """The rounds after a stage, each with the stage that it leads to."""
        self.gradients.broken = stage.broken
        make = Draws if self.host is None else partial(Hosted, first=self.topology.at(0))
        played = rounds_of(
            self.algorithm, self.topology, self.start(), self.gradients, rounds=self.rounds, seed=self.seed,
            after=(stage.rounds, stage.carry), make=make,
        )  # fmt: skip
        messages, bits = stage.sent
        before = stage.wire - self._wired
        for now in played:
            more = now.traffic
            messages, bits = messages + more.messages, bits + more.bits
            sent = Traffic(messages, bits)
            yield now, Stage(now.round + 1, now.carry, sent, self.gradients.broken, before + self._wired)

    @property
    def _wired(self) -> int:
        """Bytes that this rank has handed to the backend since it began."""
        return 0 if self.host is None else self.host.wire.sent


def trial(
    algorithm: Algorithm,
    topology: Topology,
    task: Task | Gradients,
    *,
    rounds: int,
    seed: int = 0,
    adjacency: str = "record",
    same_start: bool = True,
) -> Trial:
    """Put the parts together, and refuse what does not fit. A bare task is learned with full, unclipped gradients."""
    if adjacency not in ADJACENCIES:
        raise InputError(f"adjacency {adjacency!r}", f"known: {', '.join(ADJACENCIES)}", "choose one of them")
    gradients = task.gradients("full", seed=seed) if isinstance(task, Task) else task
    if not isinstance(gradients, Gradients):
        raise InputError(f"a {type(task).__name__} instead of a task", "there is nothing to learn", "build task(...)")
    check_kinds(algorithm, topology, rounds)
    if algorithm.once:
        raise InputError(
            f"{algorithm.name} on a task", "it averages values and does not train", "use muffliato-sgd or zip-dl, say"
        )
    held = len(gradients.task.shards.indices)
    if held != topology.n:
        raise InputError(f"a task on {held} nodes", f"{topology.name} has {topology.n}", "partition for that many")
    gradients.check(rounds)
    most = gradients.sensitivity(adjacency)
    if math.isfinite(most) and not isinstance(algorithm.noise, Silent):
        algorithm = replace(algorithm, sensitivity=most)  # type: ignore[type-var]
    topology.require_connected()
    begin(algorithm, topology, torch.zeros(topology.n, 1), rounds)  # refuses what does not fit; models come later
    return Trial(algorithm.on(topology), topology, gradients, rounds, seed, adjacency, same_start)
